"""Reads the runtime of sail-sg's fork of Megatron-LM, which runs zero-bubble schedules and the plain 1F1B.

Source: sail-sg/zero-bubble-pipeline-parallelism 39f2c186 (2025-05-07), megatron/core/zbpp_utils.py (options) and
megatron/core/pipeline_parallel/zerobubble/runtime.py (`get_zero_bubble_forward_backward_func`: the schedule of each).
"""

from __future__ import annotations

from ..argv import Arguments

_RUNTIME = "--enable-zb-runtime"
# Options that choose another schedule in the runtime than 1F1B.
_SCHEDULES = (
    "--enable-zero-bubble", "--zero-bubble-v-schedule", "--enable-1f1b-v", "--num-seq-splits",
    "--interleave-group-size", "--cpu-offload", "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
)  # fmt: skip


def modernise(arguments: Arguments) -> None:
    """Drops the runtime where it runs 1F1B. Any other schedule of it stays a gap."""
    if _RUNTIME in arguments.unknown and not any(
            name in arguments.unknown or name in arguments.settings for name in _SCHEDULES):  # fmt: skip
        del arguments.unknown[_RUNTIME]
        arguments.notes.append(f"{_RUNTIME} without another schedule runs 1F1B")
