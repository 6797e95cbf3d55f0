"""Reads initial weights from a Hugging Face folder, for any layout.

Every rank reads the tensors of its parameters one at a time and keeps its part. Shapes are compared first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.workload import Images
from ...errors import FieldProblem, InputError, UnsupportedError
from ...planner.document.candidate import Chunk
from ..model.adapters import Adapters
from ..model.block import Context, Numerics, ParamShard, named_splits
from ..model.dispatch import ExpertGroup
from ..model.experts import CHOICE_BIAS
from ..model.images import SequenceImages
from ..model.initial_weights import init_param, same_weight
from ..model.two_stacks import chunk_type
from ..parallel.comm import Group
from ..status import Status
from .huggingface import FAMILIES, prediction_prefix, repeated, sources, stored_predictions
from .safetensors_folder import TensorFolder
from .sources import Source
from .t5_sources import T5_UNUSED

# Buffers that older releases of transformers wrote.
_BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
            ".attention.rotary_emb.inv_freq")  # fmt: skip
# The biases of expert choice. transformers writes them for models whose config has none, too.
_CHOICE_BIASES = (".e_score_correction_bias", ".expert_bias")
_OTHER_TARGET = "train this model with another target: `show targets`"
_SHOWN = 12  # problems
# Dtype of a run -> dtypes of files that it represents exactly.
_EXACT_IN = {"bf16": {"BF16"}, "fp32": {"BF16", "F16", "F32"}, "fp64": {"BF16", "F16", "F32", "F64"}}
_DIGESTED = 256  # numbers of a tensor
CONFIG = "config.json"


class Pretrained:
    """The weights of a folder, for one model."""

    def __init__(self, folder: Path, model: ModelSpec) -> None:
        """Raises InputError with all problems of the folder, UnsupportedError for a family without a table."""
        config = _config_of(folder)
        self.model = named_as(config, model)
        self.tensors = TensorFolder(folder)
        self._prefix = self._left_out_prefix()
        # DeepSeek-V3 keeps its prediction modules as further layers. Folders that transformers wrote lack them.
        stored = range(int(config.get("num_nextn_predict_layers") or 0))
        self._predictions = tuple(self._in_file(prediction_prefix(self.model, number)) for number in stored)
        if not any(name.startswith(self._predictions) for name in self.tensors.entries):
            self.model = replace(self.model, mtp_layers=0)
        self._sources = sources(self.model)
        problems = [*self.tensors.problems, *self._problems()]
        if problems:
            shown = problems[:_SHOWN]
            more = len(problems) - len(shown)
            error = InputError.of(shown)
            lines = [f"{folder}: these weights cannot be taken", error.message, *[f"... and {more} more"] * (more > 0)]
            raise InputError("\n".join(lines), hint=error.hint or "plan for the model of this folder: `--model FOLDER`")

    @property
    def digest(self) -> str:
        """SHA-256 of the names, shapes and first elements of all tensors, 16 digits."""
        digest = hashlib.sha256()
        for name, entry in sorted(self.tensors.entries.items()):
            digest.update(f"{name} {entry.dtype} {entry.shape}".encode())
            digest.update(self.tensors.tensor(name).flatten()[:_DIGESTED].contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def summary(self, dtype: str) -> dict[str, Any]:
        """Number and dtypes of the tensors, and whether a run in `dtype` rounds them."""
        dtypes = {entry.dtype for entry in self.tensors.entries.values()}
        return {"num_tensors": len(self.tensors.entries), "dtypes": sorted(dtypes),
                "rounded": not dtypes <= _EXACT_IN[dtype]}  # fmt: skip

    def init_param(self, parameter: Tensor, name: str, split: ParamShard, seed: int, *, tied: bool) -> None:
        """Fills a parameter with this rank's part. Adapters, and predictions that the folder lacks, are drawn."""
        source = self._sources.get(same_weight(name, tied=tied))
        if source is None:
            init_param(parameter, name, split, seed, tied=tied)
            return
        firsts = dict(split.firsts)
        if not source.per_expert:
            self._copy(parameter, source.take(self._tensor(source.name)), firsts)
            return
        first = firsts.pop(0, 0)
        inner = {dim - 1: start for dim, start in firsts.items()}
        for index, expert in enumerate(parameter):
            self._copy(expert, source.take(self._tensor(source.of_expert(first + index))), inner)

    @staticmethod
    @torch.no_grad()
    def _copy(parameter: Tensor, whole: Tensor, firsts: dict[int, int]) -> None:
        for dim, first in firsts.items():
            whole = whole.narrow(dim, first, parameter.shape[dim])
        parameter.copy_(whole)

    def _tensor(self, name: str) -> Tensor:
        return self.tensors.tensor(self._in_file(name))

    def _in_file(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    def _left_out_prefix(self) -> str:
        """The first word of the names if the files lack it, as those of a base model do (GPT-2)."""
        prefix = FAMILIES[self.model.family].layers.partition(".")[0] + "."
        return "" if any(name.startswith(prefix) for name in self.tensors.entries) else prefix

    # ---- what is wrong

    def _problems(self) -> Iterator[FieldProblem]:
        expected, read = self._expected(), not self.tensors.problems
        for name, shape in expected.items():
            entry = self.tensors.entries.get(name)
            if entry is not None and entry.shape != shape:
                yield FieldProblem(f"has the shape {_by(entry.shape)}, the plan's model has {_by(shape)}",
                                   file=entry.file.name, field=name)  # fmt: skip
            elif entry is None and read:  # it may be in an unreadable file otherwise
                yield self._missing(name)
        yield from self._beside(expected)

    def _missing(self, name: str) -> FieldProblem:
        if name == self._in_file(self._head):
            return FieldProblem("is missing: the folder's model is tied, the plan's has a head of its own", field=name,
                                hint="plan for a tied model: `tie_word_embeddings: true` in config.json")  # fmt: skip
        return FieldProblem("is missing, the plan's model has it", field=name)

    @property
    def _head(self) -> str:
        return f"{FAMILIES[self.model.family].head}.weight"

    def _beside(self, expected: dict[str, tuple[int, ...]]) -> Iterator[FieldProblem]:
        """Problems of tensors that the model does not have."""
        repeats = {self._in_file(theirs): ours for theirs, ours in repeated(self.model).items()}
        left_out = self._predictions[stored_predictions(self.model) :]
        for name, entry in self.tensors.entries.items():
            if name in expected or name.endswith(_BUFFERS) or name.startswith(left_out) or name == T5_UNUSED:
                continue
            if name in repeats:
                yield from self._second(name, repeats[name], "the runtime has one for all parts that look tokens up")
            elif name.endswith(_CHOICE_BIASES):
                if self.tensors.tensor(name).any():
                    yield FieldProblem("is not zero: the plan's model chooses experts without it", file=entry.file.name,
                                       field=name, hint="plan for the model of this folder: `--model FOLDER`")
            elif name == self._in_file(self._head):
                yield from self._second(name, "embedding.tokens", "the folder's model is untied, the plan's is tied",
                                        "plan for an untied model: `tie_word_embeddings: false` in config.json")
            else:
                yield FieldProblem(f"{_by(entry.shape)}: the plan's model has no such weight", file=entry.file.name,
                                   field=name)  # fmt: skip

    def _second(self, name: str, weight: str, why: str, hint: str = "") -> Iterator[FieldProblem]:
        """The problem of a tensor that repeats a weight of the model with other numbers."""
        first = self._in_file(self._sources[weight].name)
        if first not in self.tensors.entries or not torch.equal(self.tensors.tensor(name), self.tensors.tensor(first)):
            yield FieldProblem(f"differs from {first}: {why}", file=self.tensors.entries[name].file.name, field=name,
                               hint=hint)  # fmt: skip

    def _expected(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of each tensor that the files need."""
        weights = whole_weights(self.model)
        stored = ((name, source.whole(shape)) for ours, source in self._sources.items()
                 for name, shape in tensors_of(source, weights[ours].shape))  # fmt: skip
        return {self._in_file(name): shape for name, shape in stored}


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def tensors_of(source: Source, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name of each tensor that holds a part of our weight of `shape`, and the shape of that part."""
    if not source.per_expert:
        yield source.name, shape
        return
    for index in range(shape[0]):
        yield source.of_expert(index), shape[1:]


def whole_weights(model: ModelSpec, adapters: Adapters | None = None) -> dict[str, ParamShard]:
    """Name -> whole shape and initial value of all of our weights, without memory for them."""
    alone = Group("world", [0], 0, None, Status())
    context = Context(alone, ExpertGroup(alone, alone), torch.bfloat16, torch.device("meta"), Numerics.of(model),
                      adapters=adapters)  # fmt: skip
    chunk = Chunk(stage=0, chunk=0, layers=(0, model.num_layers - 1), embedding=True, head=True, gpu="",
                  recompute_layers=0)  # fmt: skip
    of_no_size = Images(per_sequence=1, height=0, width=0)  # no weight depends on it
    seen = None if model.tower is None else SequenceImages(model.tower, of_no_size, 1)
    whole = chunk_type(model)(context, model, chunk, 1, seen=seen)
    buffers = {name: ParamShard(tuple(buffer.shape), start=0.0) for name, buffer in whole.named_buffers()}
    return {name: split for name, _, split in named_splits(whole)} | buffers


def is_choice_bias(weight: str) -> bool:
    """Whether one of our weights is a bias of expert choice."""
    return weight.endswith(f".{CHOICE_BIAS}")


def named_as(config: Mapping[str, Any], model: ModelSpec) -> ModelSpec:
    """The model with the family that names its tensors: its own, or that of config.json for the explicit form.

    Raises UnsupportedError for a family without a table.
    """
    family = model.family if model.family in FAMILIES else str(config["model_type"])
    if family not in FAMILIES:
        raise UnsupportedError(f"{CONFIG}: the runtime has no names of the weights of {family}", hint=_OTHER_TARGET)
    return replace(model, family=family)


def _config_of(folder: Path) -> Mapping[str, Any]:
    """Raises InputError for a folder without a config.json that names its model."""
    path = folder / CONFIG
    try:
        config: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(config["model_type"], str):
            return config
        reason = "`model_type` is no name"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    raise InputError(f"{path}: {reason}", hint="give a folder with config.json and its `model_type`")
