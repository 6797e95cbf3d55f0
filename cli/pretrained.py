"""Compares config.json and tokenizer of a Hugging Face folder with the model of a plan, and looks for its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FieldProblem, InputError

if TYPE_CHECKING:
    from ..cost_models.specs.model import ModelSpec

# Fields that a plan may change for a run, or that the runtime does not read.
_OF_THE_RUN = ("capacity_factor", "moe_aux_loss_coeff", "moe_aux_loss_per_sequence", "choice_bias", "unmodelled",
               "mtp_layers", "mtp_pattern", "mtp_shared")  # fmt: skip


def check_pretrained(folder: Path, model: ModelSpec) -> None:
    """Raises InputError with all differences if the folder's config describes another model than the plan's, if its
    tokenizer has more tokens than the model has rows, or if its files of weights are not whole."""
    from ..cost_models.specs.variants import text_of
    from ..profiles.model.load import load_model
    from ..runtime.checkpoint.manifest import model_fields

    in_folder = load_model(folder)[0]
    in_folder = in_folder if model.tower is not None else text_of(in_folder)
    config, tokenizer = folder / "config.json", folder / "tokenizer.json"
    problems = [FieldProblem(f"{theirs} in the folder, {ours} in the plan", file=str(config), field=name,
                             hint=f"plan for the model of this folder: `--model {folder}`")
                for name, theirs, ours in model_differences(in_folder, model_fields(model))]  # fmt: skip
    tokens = _tokens(tokenizer)
    if tokens > model.vocab:
        problems.append(FieldProblem(f"{tokens:,} tokens, the plan's model has {model.vocab:,} rows",
                                     file=str(tokenizer), hint="take the tokenizer that this model was trained with"))
    problems += _of_files(folder)
    if problems:
        raise InputError.of(problems)


def _of_files(folder: Path) -> list[FieldProblem]:
    """The headers alone; ranks compare shapes."""
    from ..runtime.checkpoint.safetensors_folder import TensorFolder

    try:
        return TensorFolder(folder).problems
    except InputError as error:
        return [FieldProblem(error.message, hint=error.hint)]


def model_differences(one: ModelSpec, other: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """Name and both values of every field in which a model differs from the `model_fields` of another one."""
    from ..runtime.checkpoint.manifest import differences, model_fields

    unequal = differences(model_fields(one), other)
    return [(name, str(a), str(b)) for name, (a, b) in unequal.items() if not _of_the_run(name)]


def _of_the_run(name: str) -> bool:
    return any(part in _OF_THE_RUN for part in name.split("."))


def _tokens(path: Path) -> int:
    """Rows that a tokenizer needs, one more than its largest token number; 0 if there is no such file."""
    if not path.is_file():
        return 0
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        vocab = document["model"]["vocab"]
        numbers = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab)))
        added = [int(token["id"]) for token in document.get("added_tokens") or ()]
        return 1 + max([*numbers, *added], default=-1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: no tokenizer: {type(error).__name__}: {error}",
                         hint="download it again, or leave it out") from None  # fmt: skip
