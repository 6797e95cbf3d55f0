"""Options of LLaMA-Factory: those of accelerate's file, and the dataclasses that share its recipe."""

from __future__ import annotations

from pathlib import Path

from . import accelerate
from .lines import of_dataclass

MADE_FROM = "ClusterConfig and the launch parser of accelerate, the arguments of training of LLaMA-Factory"


def record(source: Path | None) -> list[str]:
    """The lines for the installed package."""
    from llamafactory.hparams import parser

    ranks = [line for line in accelerate.record(source) if not line.startswith("training_arguments.")]
    recipe = {line for kind in parser._TRAIN_ARGS for line in of_dataclass(kind, "training_arguments.")}
    return [*ranks, *recipe]
