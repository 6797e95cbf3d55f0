"""Quantisation-aware training by the block `compression_training`, which is read and not written.

Source: DeepSpeed edaa7221, LinearLayer_Compress, its engine's _take_model_step (weights that are not rounded in the
forward pass are once a step), the constants of its compression (defaults).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import FieldProblem
from ..argv import Arguments
from ..import_format import ROUNDING
from ..options import Entry, Facts, NoCounterpartError, Settings

BLOCK = "compression_training"
_SHARED, _GROUPS = "shared_parameters", "different_groups"
_WEIGHTS, _INPUTS = "weight_quantization", "activation_quantization"


def _read(settings: Settings, facts: Facts) -> Facts:
    block = settings.get(BLOCK)
    if not isinstance(block, Mapping):
        return {}
    on = [name for name, part in block.items() if isinstance(part, Mapping) and _is_on(part)]
    if other := [name for name in on if name not in (_WEIGHTS, _INPUTS)]:
        raise NoCounterpartError(f"{BLOCK}: {other[0]} compresses layers while they learn")
    if bare := [name for name in on if _SHARED not in block[name]]:
        raise NoCounterpartError(f"{BLOCK}: {bare[0]} is enabled without `{_SHARED}`")
    rounding: dict[str, Any] = {}
    if _WEIGHTS in on:
        rounding |= _of_weights(block[_WEIGHTS])
    if _INPUTS in on:
        shared = block[_INPUTS][_SHARED]
        rounding |= {"inputs": shared.get("range_calibration", "dynamic"), "symmetric_inputs": _is_symmetric(shared)}
    if not rounding:
        return {}
    told = (f"{BLOCK} is priced in all products of the layers, with one product for the projections of one input, and "
            "as after its offsets")
    return {ROUNDING: rounding, "notes": [*facts.get("notes", []), told]}


def _of_weights(part: Mapping[str, Any]) -> dict[str, Any]:
    shared, groups = part[_SHARED], part.get(_GROUPS, {})
    mixed = shared.get("fp16_mixed_quantize", {})
    if not isinstance(groups, Mapping) or not all(isinstance(group, Mapping) for group in groups.values()):
        raise NoCounterpartError(f"{BLOCK}: {_GROUPS} is no mapping of names to groups")
    if not isinstance(mixed, Mapping):
        raise NoCounterpartError(f"{BLOCK}: fp16_mixed_quantize is no mapping")
    if shared.get("quantizer_kernel"):
        raise NoCounterpartError(f"{BLOCK}: quantizer_kernel is a kernel of its own")
    if mixed.get("enabled"):
        raise NoCounterpartError(f"{BLOCK}: fp16_mixed_quantize mixes both weights")
    if shared.get("rounding", "nearest") != "nearest":
        raise NoCounterpartError(f"{BLOCK}: rounding by chance takes other kernels")
    bits = [_bits(group) for group in groups.values()]
    if min(bits, default=8) < 3:
        raise NoCounterpartError(f"{BLOCK}: {min(bits)} bits are rounded by other kernels")
    when = "forward" if shared.get("quantize_weight_in_forward") else "step"
    return {"weights": when, "symmetric_weights": _is_symmetric(shared)}


def _bits(group: Mapping[str, Any]) -> int:
    params = group.get("params", {})
    bits = params.get("target_bits", 8) if isinstance(params, Mapping) else None
    if type(bits) is not int:
        raise NoCounterpartError(f"{BLOCK}: params.target_bits of a group is not a whole number")
    return bits


def _is_on(part: Mapping[str, Any]) -> bool:
    shared = part.get(_SHARED, part)
    return isinstance(shared, Mapping) and shared.get("enabled") is True


def _is_symmetric(shared: Mapping[str, Any]) -> bool:
    kind = shared.get("quantization_type", "symmetric")
    if kind not in ("symmetric", "asymmetric"):
        raise NoCounterpartError(f"{BLOCK}: quantization_type `{kind}` is neither symmetric nor asymmetric")
    return bool(kind == "symmetric")


def without_rounding(facts: Facts, arguments: Arguments) -> Facts:
    """The facts of a JSON beside a file of another framework, whose layouts are compared without: a gap."""
    if ROUNDING in facts:
        arguments.gaps.append(FieldProblem("weights or inputs that are rounded while they learn", BLOCK,
                                           arguments.files.get(BLOCK, ""), arguments.lines.get(BLOCK, 0)))  # fmt: skip
    return {name: value for name, value in facts.items() if name != ROUNDING}


ENTRY = Entry((ROUNDING,), (BLOCK,), lambda setup: {}, _read)
