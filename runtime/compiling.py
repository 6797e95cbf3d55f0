"""Compiles the layers of a model by torch.compile, each as one graph. No torch here but where layers are compiled.

A layer that sends messages, counts tokens of experts on the host or hooks what it saves would fall into many graphs (44
under tp 2, torch 2.13), which takes a minute to compile. Such layouts are refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..cost_models.specs.model import MixtureOfExperts
from ..errors import InputError, UnsupportedError
from .job import Job, dropped_modules

if TYPE_CHECKING:
    from .model.decoder import DecoderChunk

_COMPILERS = ("g++", "clang++", "c++")  # torch looks for CXX, then for these


def check_compiled(job: Job) -> None:
    """Raises UnsupportedError with the first reason for which the layers of a job are not one graph each."""
    for reason in _reasons(job):
        raise UnsupportedError(f"--compile: {reason}", hint="leave out `--compile`, or plan with `--fix tp=1`, `cp=1`, "
                               "`recompute=none` or `full`, `offload=none`")  # fmt: skip


def _reasons(job: Job) -> Iterator[str]:
    if max(layout.tp * layout.cp for layout in job.layouts) > 1:
        yield f"layers of {job.layout_id} exchange messages with the other ranks of tp or cp"
    if any(dropped_modules(layout) for layout in job.layouts):
        yield f"layers of {job.layout_id} recompute some of their modules"
    if job.splits_backward:
        yield f"{job.order.name} splits the backward pass"
    if job.offloads_activations:
        yield "activations are offloaded to host memory"
    if any(kind.mixer is not None for kind in job.model.kinds):
        yield f"{job.model.name} has layers with a state"
    if any(isinstance(block, MixtureOfExperts) for block in job.model.feed_forwards):
        yield f"{job.model.name} has experts, whose tokens are counted on the host"


def check_compiler() -> None:
    """Raises InputError where a CPU has no C++ compiler, which inductor calls."""
    names = (os.environ["CXX"],) if "CXX" in os.environ else _COMPILERS
    if not any(map(shutil.which, names)):
        raise InputError(f"--compile: there is no C++ compiler ({', '.join(names)})",
                         hint="`apt-get install g++`, or leave out `--compile`")  # fmt: skip


def compile_layers(chunks: Iterable[DecoderChunk]) -> None:
    """Compiles the layers of this rank when they first run. Layers of equal shapes share their code."""
    from torch._inductor import config

    config.compile_threads = 1  # every rank would start a pool of processes, one per core
    for chunk in chunks:
        for layer in chunk.layers.values():
            layer.compile(fullgraph=True)
