"""Options of accelerate: the fields of ClusterConfig, its launch parser, and TrainingArguments of transformers."""

from __future__ import annotations

from pathlib import Path

from .lines import of_dataclass

MADE_FROM = "ClusterConfig, the launch parser and TrainingArguments"


def record(source: Path | None) -> list[str]:
    """The lines for the installed package."""
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from transformers import TrainingArguments

    lines = list(of_dataclass(ClusterConfig, ""))
    for action in launch_command_parser()._actions:
        for prefix in ("fsdp", "parallelism_config"):
            if action.dest.startswith(f"{prefix}_"):
                kind = {int: "int", float: "float"}.get(action.type, "any")
                values = f" {'|'.join(map(str, action.choices))}" if action.choices else ""
                if action.dest == "parallelism_config_cp_comm_strategy":
                    values = " allgather|alltoall # accelerate/utils/dataclasses.py TorchContextParallelConfig"
                block = "fsdp_config" if prefix == "fsdp" else prefix
                lines.append(f"{block}.{action.dest} {kind}{values}")
    return [*lines, *of_dataclass(TrainingArguments, "training_arguments.")]
