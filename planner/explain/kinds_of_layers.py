"""Seconds and bytes of a layer of each kind, and the share of its kind in the time of all layers."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from ...cost_models.problem import Variant
from ...cost_models.quantities.layer_operations import name_of
from ...cost_models.quantities.stages import EXTRA_KINDS
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.specs.model import Layer
from ..document.base import rounded
from ..document.candidate import Candidate
from ..heterogeneous.candidates import staged_as
from ..request.load import Request
from ..request.resolve import resolve


class KindLoad(BaseModel):
    """A kind of layer. Of one layer and micro-batch on a GPU, recomputation not counted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str  # of its blocks
    layers: int  # of this kind in the model and its prediction modules
    forward_s: float  # seconds
    backward_s: float  # seconds
    share: float  # of the seconds of all layers
    saved_bytes: float  # kept for the backward pass where nothing is recomputed


def kind_loads(request: Request, candidate: Candidate) -> tuple[KindLoad, ...]:
    """The load of each kind of layer. Kinds are in the order of their first layers in the model."""
    staged = staged_as(resolve(request), candidate)
    problem, tables, key = staged.resolved.problem, staged.ledger.tables, staged.key
    kernels, layers = kernel_seconds(tables, staged.resolved.rates), slice(-EXTRA_KINDS)
    forward_s, backward_s = kernels.forward_s[layers, key], kernels.backward_s[layers, key]
    counts = np.bincount((*problem.pattern, *problem.mtp), minlength=problem.num_kinds)
    seconds, saved = counts * (forward_s + backward_s), tables.saved(0, 0)[layers, key]
    names = [_name(problem.model.kinds[variant.kind], variant) for variant in problem.variants]
    return tuple(
        KindLoad(**rounded({
            "name": names[kind], "layers": int(counts[kind]), "forward_s": float(forward_s[kind]),
            "backward_s": float(backward_s[kind]), "share": float(seconds[kind] / seconds.sum()),
            "saved_bytes": float(saved[kind]),
        }))
        for kind in range(problem.num_kinds)
    )  # fmt: skip


def _name(kind: Layer, variant: Variant) -> str:
    window = kind.attention.window if kind.attention is not None else None
    notes = [f"window {window}"] * (window is not None) + [variant.trains] * (variant.trains in ("frozen", "passes"))
    notes += ["shared weights"] * variant.repeats
    return f"{name_of(kind)} ({', '.join(notes)})" if notes else name_of(kind)
