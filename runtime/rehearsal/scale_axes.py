"""The ranks per axis of a rehearsal: two, or the number that the user keeps (one leaves the axis out)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ...cost_models.layouts import Layout, default_schedule
from ...errors import InputError

AXES = ("tp", "cp", "pp", "dp", "ep", "etp")  # axes with more than 2 ranks on request
MOST_MICRO_BATCH = 2
_FOLDED = ("shard", "cp", "tp")  # axes over which experts are folded


def shrunk_layout(layout: Layout, keep: Mapping[str, int]) -> Layout:
    """The layout with at most 2 ranks per axis, or with the ranks in `keep` (axis of AXES -> ranks).

    Raises InputError if the layout has fewer ranks than `keep`.
    """
    _check_kept(layout, keep)
    axes = ("tp", "cp", "pp", "ep", "etp")
    small = {name: min(getattr(layout, name), keep.get(name, 2)) for name in axes}
    whole = layout.shard == layout.dp  # all dp ranks share one copy of the sharded states
    small["shard"] = min(layout.shard, keep.get("dp", 2) if whole else 2)
    # Experts need ep x etp ranks that share one copy of them. The first axis with enough ranks is enlarged.
    if math.prod(small[name] for name in _FOLDED) % (small["ep"] * small["etp"]):
        fixed = {*keep, "shard"} if whole and "dp" in keep else keep
        roomy = next((name for name in _FOLDED if name not in fixed and getattr(layout, name) > 2), None)
        small |= {} if roomy is None else {roomy: 4}
    if math.prod(small[name] for name in _FOLDED) % (small["ep"] * small["etp"]):
        shared = " x ".join(f"{name} {small[name]}" for name in _FOLDED)
        raise InputError(f"--keep: ep {small['ep']} x etp {small['etp']} does not divide the ranks of {shared}",
                         hint="keep more of dp, cp or tp")  # fmt: skip
    small |= _without_single_ranks(small)
    replicas = _replicas(layout, small["shard"], keep.get("dp"))
    micro_batch = min(layout.micro_batch, MOST_MICRO_BATCH)
    layers = min(layout.recompute_layers, 1)
    return replace(layout, **small, dp=small["shard"] * replicas, micro_batch=micro_batch, recompute_layers=layers)


def _without_single_ranks(small: Mapping[str, int]) -> dict[str, int]:
    """Defaults for fields without meaning on an axis of one rank."""
    fields: dict[str, int] = {}
    if small["tp"] == 1:
        fields["sequence_parallel"] = 0
    if small["cp"] == 1:
        fields["cp_algorithm"] = 0
    if small["pp"] == 1:
        fields |= {"vpp": 1, "schedule": default_schedule(1, 1)}
    return fields


def _check_kept(layout: Layout, keep: Mapping[str, int]) -> None:
    """Raises InputError for ranks that the layout does not have."""
    for axis, ranks in keep.items():
        if axis not in AXES:
            raise InputError(f"--keep {axis}={ranks}: `{axis}` is no axis", hint=f"axes: {', '.join(AXES)}")
        planned = getattr(layout, axis)
        if not 1 <= ranks <= planned or planned == 1:
            hint = f"`--keep {axis}={planned}`" if planned > 1 else f"leave out `--keep {axis}={ranks}`"
            raise InputError(f"--keep {axis}={ranks}: the layout has {axis} {planned}", hint=hint)


def _replicas(layout: Layout, shard: int, kept_dp: int | None) -> int:
    """Copies of the sharded states, each on `shard` ranks. Raises InputError if none matches kept_dp."""
    most = layout.dp // layout.shard
    if kept_dp is None:
        return min(most, 2)
    if kept_dp % shard or kept_dp // shard > most:
        raise InputError(f"--keep dp={kept_dp}: the rehearsal shards over {shard} ranks, in at most {most} copies",
                         hint=f"a multiple of {shard} up to {shard * most}")  # fmt: skip
    return kept_dp // shard
