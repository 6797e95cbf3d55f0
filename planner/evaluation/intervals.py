"""How far a measured step time may lie from a predicted one, by kind of run, on runs that the fit did not see.

Two tables: `known` for software that the shipped runs know by version (or that the user calibrated), from fits without
the run's model and cluster; `new` for other software, from fits without the run's whole source.
`python -m meshwright.planner.accuracy.calibrate` writes both.
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
CLAIMED = 0.9
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


def factors(regime: str, *, known: bool) -> Factors:
    """(low, high): the 90 % interval of a step time is the prediction times these."""
    interval = _tables()["known" if known else "new"][kind_of(regime)]
    return interval["low"], interval["high"]


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
