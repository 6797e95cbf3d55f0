"""Headroom: GPU memory that a chosen layout leaves free, for what runs need beyond their prediction.

Its default comes from the published runs whose peak memory was measured: `memory` of intervals.yaml has measured over
predicted bytes, and `python -m meshwright.planner.accuracy.ship` writes it. The same ratios give the chance of
running out, so a layout that leaves the default has a chance of at most CHANCE.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.units import gib, parse
from ...errors import InputError
from ...profiles.io.folders import PUBLISHED
from ...profiles.rates.calibration import load_yaml

CHANCE = 0.05  # the upper end of the 90 % interval, as for step times
NONE = "0%"
# A GPU sold with 48 GB has 45.0 GiB by its driver (l40s): `48 GiB` of it means all.
_NOMINAL = 1.07
_HINT = "write a share (`5%`), a size (`4 GiB`), or `0` for none"


@cache
def _ratios() -> Sequence[float]:
    """Measured over predicted peak memory of published runs, from the least to the greatest, at equal shares of them.
    """
    ratios: Sequence[float] = load_yaml(PUBLISHED / "intervals.yaml")["memory"]["ratio"]
    return ratios


def overflow_chance(predicted_bytes: float, limit_bytes: float) -> float:
    """The share of published runs that needed more over their prediction than `limit_bytes` over `predicted_bytes`."""
    ratios = _ratios()
    return float(1 - np.interp(limit_bytes / predicted_bytes, ratios, np.linspace(0, 1, len(ratios))))


def default_share() -> float:
    """The share of a GPU's memory that must stay free for a chance of running out of CHANCE."""
    ratios = _ratios()
    return float(1 - 1 / np.interp(1 - CHANCE, np.linspace(0, 1, len(ratios)), ratios))


def parse_headroom(value: Any) -> str:
    """`5%`, `4 GiB` or `0` in one spelling: `5%`, `4294967296 B`, `0%`."""
    text = str(value).strip()
    if isinstance(value, bool) or text.startswith("-"):
        raise InputError(f"`{value}` is no headroom", hint=_HINT)
    if re.fullmatch(r"0+(\.0*)?", text):
        return NONE
    if share := re.fullmatch(r"(\d+\.?\d*)\s*%", text):
        if float(share[1]) >= 100:
            raise InputError(f"{text} leaves none of the memory for the layout", hint=_HINT)
        return f"{float(share[1]):g}%"
    try:
        return f"{round(parse(text, 'B'))} B"
    except InputError as error:
        raise InputError(error.message, hint=_HINT) from None


def headroom_bytes(text: str, memory_bytes: float) -> float:
    """Bytes of a headroom, as `parse_headroom` spells it, on a GPU with `memory_bytes`."""
    share = text.endswith("%")
    return memory_bytes * float(text[:-1]) / 100 if share else min(parse(text, "B"), memory_bytes)


def left_bytes(given: str | None, memory_bytes: float, *, limited: bool, share: float | None) -> float:
    """Bytes that a chosen layout leaves of `memory_bytes`. given: the headroom of the request; limited: whether the
    user set the limit, and so the room; share: in place of the default, where no layout leaves that."""
    if given is not None:
        return headroom_bytes(given, memory_bytes)
    if limited:
        return 0.0
    return memory_bytes * (default_share() if share is None else share)


def check_headroom(text: str | None, memory_bytes: float) -> None:
    """Raises InputError for a headroom that leaves no memory for the layout."""
    if text is not None and headroom_bytes(text, memory_bytes) >= memory_bytes:
        given = text if text.endswith("%") else f"{gib(parse(text, 'B'))} GiB"
        raise InputError(f"headroom {given} leaves nothing of the {gib(memory_bytes)} GiB per GPU", hint=_HINT)


def check_limit(limit_bytes: float | None, cluster: ClusterSpec) -> None:
    """Raises InputError for a limit of memory that no GPU of the cluster has."""
    largest = max((group.gpu for group in cluster.groups), key=lambda gpu: gpu.memory_bytes)
    if limit_bytes is not None and limit_bytes > _NOMINAL * largest.memory_bytes:
        raise InputError(
            f"workload.max_memory: {gib(limit_bytes)} GiB are more than the {gib(largest.memory_bytes)} GiB of "
            f"{largest.name}",
            hint="leave it out to use all of it; `what-if --set gpu.memory.capacity=...` prices a larger one",
        )
