"""The axes of a torus of chips: the usual ones of so many chips, or those that a file gives."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from ...cost_models.specs.cluster import NetworkLevel
from ...errors import InputError

# Names that Google Cloud gives to slices -> (GPU, what the number in them counts of a chip): v4 and v5p count cores, of
# which a chip has two that train as one device; v5e and v6e count chips.
_SLICES = {"v4": ("tpu-v4", 2), "v5p": ("tpu-v5p", 2), "v5litepod": ("tpu-v5e", 1), "v5e": ("tpu-v5e", 1),
           "v6e": ("tpu-v6e", 1)}  # fmt: skip


def named_slice(text: str) -> tuple[str, int] | None:
    """(GPU, devices) of a slice by its name: `v5p-128` is 64 chips; None for another name. Raises InputError for half a
    chip."""
    match = re.fullmatch(r"(?:tpu[-_ ]?)?(v4|v5p|v5litepod|v5e|v6e)[-_](\d+)", text.strip().lower())
    if match is None:
        return None
    (gpu, counted), number = _SLICES[match[1]], int(match[2])
    if number < counted or number % counted:
        hint = f"`{match[1]}-{max(number // counted, 1) * counted}` is {max(number // counted, 1)} chips"
        raise InputError(f"`{text}`: {number} cores are {number} / {counted} = {number / counted:g} chips", hint=hint)
    return gpu, number // counted


def usual_axes(chips: int, num_axes: int) -> tuple[int, ...]:
    """The most even axes of a slice, the shortest first: 512 chips are 8 x 8 x 8, 128 are 4 x 4 x 8 (Google Cloud,
    `TPU v5p`, `TPU v6e`: shapes of slices)."""
    best: tuple[int, ...] = ()
    for first in range(1, chips + 1):
        if first**num_axes > chips:
            break
        if chips % first == 0:
            rest = (chips,) if num_axes == 1 else (first, *usual_axes(chips // first, num_axes - 1))
            best = rest if len(rest) == num_axes and list(rest) == sorted(rest) else best
    return best or (1,) * (num_axes - 1) + (chips,)


def read_axes(value: Any) -> tuple[int, ...] | None:
    """`[4, 4, 8]` or `4x4x8`; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\d+(\s*x\s*\d+)+", value.strip()):
        value = [int(part) for part in value.split("x")]
    if isinstance(value, list) and value and all(type(part) is int and part > 0 for part in value):
        return tuple(value)
    return None


def mismatch(axes: tuple[int, ...], chips: int) -> str:
    """The complaint about axes whose product is not the number of chips; empty where it is."""
    product = math.prod(axes)
    shown = " x ".join(map(str, axes))
    return "" if product == chips else f"{shown} = {product:,} chips, but a slice has {chips:,}"


def with_axes(level: NetworkLevel, chips: int, num_axes: int | None) -> NetworkLevel:
    """The level with the usual axes of its chips, where the device has links along axes."""
    return replace(level, torus=usual_axes(chips, num_axes)) if num_axes and chips > 1 else level
