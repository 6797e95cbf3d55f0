"""How far a measured step time may lie from a predicted one, by kind of run, on runs that the fit did not see.

Each run was predicted by a fit without its source and without its family of models on its generation of GPUs. Further
tables widen the interval where a prediction rests on less: products in fp8 or fp4 (`narrow`), a version of the software
that no shipped run had (`new`), a generation of GPUs that no table measures (`assumed`).
`python -m meshwright.planner.accuracy.ship` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.specs.model import ModelSpec
from ...profiles.io.folders import PUBLISHED
from ...profiles.rates.calibration import load_yaml

FILE = PUBLISHED / "intervals.yaml"
CLAIMED = 0.9  # share of published runs that an interval holds
KINDS = ("moe", "fsdp", "pp", "dense")  # the first that the regime names
Factors = tuple[float, float]


def kind_of(regime: str) -> str:
    """`moe`, `fsdp`, `pp` or `dense`."""
    return next((kind for kind in KINDS if kind in regime), "dense")


def is_known(stack_name: str) -> bool:
    """Whether the shipped runs know the software by version, not only by family."""
    return stack_name in _tables()["versions"]


@cache
def _tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = load_yaml(FILE)
    return tables


def factors(regime: str, *, known: bool, narrow: bool, measured: bool) -> Factors:
    """(low, high): the 90 % interval of a step time is the prediction times these: the widest of the tables that apply.

    known: the software, by version or by calibration; narrow: products in fp8 or fp4; measured: kernels of the GPU's
    generation.
    """
    applies = {"known": True, "narrow": narrow, "new": not known, "assumed": not measured}
    tables = [_tables().get(name, {}) for name, use in applies.items() if use]
    entries = [entry for table in tables if (entry := table.get(kind_of(regime)))]
    return min(entry["low"] for entry in entries), max(entry["high"] for entry in entries)


def is_narrow(precision: str) -> bool:
    """Whether products have operands of 8 bits or fewer."""
    return precision in ("fp8", "fp4")


def ranking_lead() -> float:
    """The predicted lead from which on the faster of two layouts is measured to be the faster one in nine of ten pairs.
    """
    return float(_tables()["ranking"]["lead"])


def indifference() -> float:
    """The predicted lead up to which the faster of two layouts is measured to be the faster one in at most six of ten
    pairs: the model does not tell them apart."""
    return float(_tables()["ranking"]["indifference"])


def regime_of(model: ModelSpec, layout: Layout) -> str:
    """`moe-pp`, `dense-fsdp`: what kind of run a layout is, as published runs are grouped."""
    parts = ["moe" if model.is_moe else "dense"]
    parts += [name for name in ("pp", "cp") if getattr(layout, name) > 1]
    return "-".join([*parts, "fsdp"] if layout.zero == 3 else parts)
