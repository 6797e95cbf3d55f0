"""Reads the weights of a checkpoint in one process, in fp32: those saved, or frozen weights with adapters merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from ...cost_models.specs.model import ModelSpec
from ...errors import InputError
from ..model.adapters import Adapters, of_input, of_output
from ..model.block import ParamShard
from ..model.initial_weights import InitParam, init_param
from ..model.vision_tower import freezes
from ..trainer import DTYPES
from .manifest import Manifest
from .pretrained import Pretrained, is_choice_bias, whole_weights
from .slices import Piece, load_alone

Boxes = Mapping[tuple[str, tuple[int, ...]], Tensor]  # by our weight and the offsets of the box in it
Fill = Callable[[Boxes], None]  # fills fp32 boxes


def fill_from(checkpoint: Path, manifest: Manifest, model: ModelSpec) -> Fill:
    """Fills boxes with the checkpoint's master weights, and those of a frozen tower with what the run started from."""
    weights = whole_weights(model)
    if not manifest.run.get("freezes_tower"):
        return lambda boxes: _load(checkpoint, weights, boxes)
    start = _start(manifest, model, weights)

    def fill(boxes: Boxes) -> None:
        _load(checkpoint, weights, {at: box for at, box in boxes.items() if not freezes(at[0])})
        for (name, offsets), box in boxes.items():
            if freezes(name):
                start(name, offsets, box)

    return fill


def adapters_of(manifest: Manifest) -> Adapters | None:
    """The adapters that a checkpoint holds; None where all weights were trained."""
    lora = manifest.run.get("lora")
    return None if lora is None else Adapters(lora["rank"], lora["scale"], frozenset(lora["targets"]))


def saved_factors(checkpoint: Path, model: ModelSpec, adapters: Adapters, names: Iterable[str]) -> dict[str, Tensor]:
    """A and B of the adapters of weights, by their own names, in fp32."""
    weights = whole_weights(model, adapters)
    both = [factor for name in names for factor in (of_input(name), of_output(name))]
    factors = {name: torch.empty(weights[name].shape) for name in both}
    _load(checkpoint, weights, {(name, (0, 0)): factor for name, factor in factors.items()})
    return factors


def fill_merged(checkpoint: Path, manifest: Manifest, model: ModelSpec, adapters: Adapters) -> Fill:
    """Fills boxes with W + (alpha / r) B A. W is in the dtype of the run, as it was beside the adapters.

    Raises InputError where the folder of the frozen weights has other weights than the run had.
    """
    weights = whole_weights(model, adapters)
    start = _start(manifest, model, weights)

    def fill(boxes: Boxes) -> None:
        adapted = {name for name, _ in boxes if of_input(name) in weights}
        factors = saved_factors(checkpoint, model, adapters, sorted(adapted)) if adapted else {}
        for (name, offsets), box in boxes.items():
            start(name, offsets, box)
            if name in adapted:  # never in parts: only experts have several tensors
                box.addmm_(factors[of_output(name)], factors[of_input(name)], alpha=adapters.scale)

    return fill


def _start(
    manifest: Manifest, model: ModelSpec, weights: Mapping[str, ParamShard]
) -> Callable[[str, tuple[int, ...], Tensor], None]:
    """Fills a box of a weight with what the run started from, in its dtype."""
    init = _frozen(manifest, model)

    def start(name: str, offsets: tuple[int, ...], box: Tensor) -> None:
        dtype = torch.float32 if is_choice_bias(name) else DTYPES[manifest.run["dtype"]]
        frozen = torch.empty(box.shape, dtype=dtype)
        split = replace(weights[name], firsts=tuple(enumerate(offsets)))
        init(frozen, name, split, manifest.run["seed"], tied=model.tied_embeddings)
        box.copy_(frozen)

    return start


def _frozen(manifest: Manifest, model: ModelSpec) -> InitParam:
    """The weights that a run started from."""
    if manifest.init_from is None:
        return init_param
    pretrained = Pretrained(Path(manifest.init_from), model)
    if pretrained.digest != manifest.run["init_digest"]:
        raise InputError(f"{manifest.init_from}: not the weights that the run froze",
                         hint="restore the folder that the run had as `--init-from`")  # fmt: skip
    return pretrained.init_param


def _load(checkpoint: Path, weights: Mapping[str, ParamShard], boxes: Boxes) -> None:
    """Raises InputError for a checkpoint without one of the weights."""
    pieces = [Piece(f"weights.{name}", weights[name].shape, offsets, box, optional=is_choice_bias(name))
              for (name, offsets), box in boxes.items()]  # fmt: skip
    try:
        load_alone(checkpoint, pieces)
    except CheckpointException as error:
        raise InputError(f"{checkpoint}: {next(iter(error.failures.values()))[0]}",
                         hint="export with the config.json of the model that was trained") from None  # fmt: skip
