"""Options of TRL: those of accelerate's file, and the dataclasses of its script, which share one file."""

from __future__ import annotations

from pathlib import Path

from . import accelerate
from .lines import of_dataclass

MADE_FROM = "ClusterConfig and the launch parser of accelerate, SFTConfig, ModelConfig and ScriptArguments of TRL"


def record(source: Path | None) -> list[str]:
    """The lines for the installed package."""
    from trl import ModelConfig, ScriptArguments, SFTConfig
    from trl.scripts.utils import DatasetMixtureConfig

    ranks = [line for line in accelerate.record(source) if not line.startswith("training_arguments.")]
    recipe = {line for kind in (SFTConfig, ModelConfig, ScriptArguments, DatasetMixtureConfig)
              for line in of_dataclass(kind, "training_arguments.")}  # fmt: skip
    return [*ranks, *recipe]
