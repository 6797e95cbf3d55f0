"""The layout of a published run, in the words of `cost_models.layouts`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...cost_models.layouts import CP_ALGORITHMS, RECOMPUTE_MODES, SCHEDULES, Layout, default_schedule, module_mask
from ...cost_models.specs.cluster import ClusterSpec
from .order import ORDERS, PRICED_AS
from .remat import is_remat, with_policy
from .row import RowReader
from .tuning import option

_SCHEDULES = {
    **{name: name for name in SCHEDULES},
    "none": "1f1b", "interleaved-1f1b": "interleaved", "zbv": "zb-v", "dualpipev": "dualpipe-v",
    **dict.fromkeys(ORDERS, PRICED_AS),
}  # fmt: skip
_MODULES = {
    "core_attn": ("attn",), "attn": ("attn",), "layernorm": ("norm",), "norm": ("norm",), "moe_act": ("act",),
    "act": ("act",), "mlp": ("mlp",), "moe": ("moe",), "mla_up_proj": ("mla",), "mla": ("mla",),
    "shared_experts": ("shared",), "shared": ("shared",),
}  # fmt: skip


def read_layout(
    row: RowReader, family: str, features: Mapping[str, Any], num_gpus: int, cluster: ClusterSpec | None
) -> tuple[Layout, tuple[int, ...] | None, str]:
    """The layout, the layers of each chunk where they are uneven, and the recompute mode as stated."""
    tp, pp = row.whole("layout", "tp"), row.whole("layout", "pp")
    cp, ep = row.whole("layout", "cp", default=1), row.whole("layout", "ep", default=1)
    dp, model_layers = row.whole("layout", "dp"), row.whole("model", "layers", default=1)
    if not row.problems and tp * cp * pp * dp != num_gpus:
        product = tp * cp * pp * dp
        message = f"tp {tp} x cp {cp} x pp {pp} x dp {dp} = {product}, but cluster.num_gpus is {num_gpus}"
        row.fail(("layout", "dp"), message)
    etp = row.whole("layout", "etp", default=1)
    if not row.problems and (tp * cp * dp) % (ep * etp):
        row.fail(("layout", "ep"), f"ep {ep} x etp {etp} does not divide tp {tp} x cp {cp} x dp {dp}")
    if not row.problems and pp > model_layers:
        row.fail(("layout", "pp"), f"{pp} stages for {model_layers} layers")
    schedule, vpp = _schedule(row, pp, model_layers)
    zero = row.whole("layout", "zero_stage", default=0, label="zero_stage 0 (not stated)", least=0)
    if zero > 3:
        row.fail(("layout", "zero_stage"), f"must be 0 to 3, is {zero}")
    sp = row.flag("layout", "sp")
    micro_batch = _micro_batch(row, dp, tp * cp)
    batch = row.whole("layout", "global_batch", default=1)
    if not row.problems and batch % (dp * micro_batch):
        row.assume("global batch is no multiple of dp x micro_batch: a fraction of a micro-batch is priced")
    layout = Layout(
        tp=tp, sequence_parallel=int(bool(sp) and tp > 1), cp=cp, cp_algorithm=_cp_algorithm(row, family, cp, features),
        pp=pp, schedule=schedule, vpp=vpp, dp=dp, shard=_shard(row, dp, zero, features, cluster), ep=ep, etp=etp,
        micro_batch=micro_batch, zero=zero,
    )  # fmt: skip
    layout, mode = (with_policy(row, layout), "stated") if is_remat(row) else _recompute(row, layout, model_layers)
    return layout, read_chunks(row, layout, model_layers), mode


def _micro_batch(row: RowReader, dp: int, sharing: int) -> int:
    """Sequences of a micro-batch. MaxText counts them per device, of which `sharing` work on the same ones, and adds no
    gradients up: those of all devices are the batch."""
    stated = row.get("layout", "micro_batch")
    counted = isinstance(stated, int | float) and "maxtext" in row.text("stack", default="")
    if counted and sharing > 1 and stated * sharing * dp == row.get("layout", "global_batch"):
        row.assume("micro_batch per device: times tp x cp")
        return int(stated * sharing)
    return row.whole("layout", "micro_batch", default=1, label="micro_batch 1 (not stated)")


def order_of(row: RowReader) -> str:
    """The order of the row's pipeline where no layout names it, else empty."""
    stated = _stated_schedule(row)
    return stated if stated in ORDERS and row.whole("layout", "pp", default=1) > 1 else ""


def _stated_schedule(row: RowReader) -> str:
    stated = str(row.get("layout", "schedule") or "none").lower().replace("_", "-")
    return {"vhalf": "v-half", "vmin": "v-min"}.get(stated, stated)


def _schedule(row: RowReader, pp: int, num_layers: int) -> tuple[int, int]:
    stated = _stated_schedule(row)
    name = _SCHEDULES.get(stated)
    if name is None:
        row.assume(f"schedule {stated} priced as 1f1b (approximation)")
        name = "1f1b"
    deepest = max(num_layers // max(pp, 1), 1)
    if row.get("layout", "vpp") is None and name == "interleaved":
        row.assume("one layer per chunk (vpp not stated)")
    vpp = row.whole("layout", "vpp", default=deepest if name == "interleaved" else 1)
    if pp == 1:
        return 0, 1
    if name in ("1f1b", "interleaved"):
        return default_schedule(pp, vpp), vpp
    return SCHEDULES.index(name), vpp


def _cp_algorithm(row: RowReader, family: str, cp: int, features: Mapping[str, Any]) -> int:
    if cp == 1:
        return 0
    stated = str(features.get("cp_comm") or "").lower()
    if stated:
        words = {"a2a": "ulysses", "ulysses": "ulysses", "gather": "allgather", "ring": "ring", "p2p": "ring"}
        return CP_ALGORITHMS.index(next((name for word, name in words.items() if word in stated), "ring"))
    name = "allgather" if family in ("torchtitan", "torch-fsdp") else "ring"
    row.assume(f"context parallelism by {name}, the default of {family}")
    return CP_ALGORITHMS.index(name)


def _shard(row: RowReader, dp: int, zero: int, features: Mapping[str, Any], cluster: ClusterSpec | None) -> int:
    """Ranks that share the states: all, a stated group, or under HSDP those of a node."""
    size = features.get("zero1_group_size")
    if isinstance(size, int) and not isinstance(size, bool) and size > 0 and zero:
        return math.gcd(size, dp)
    if cluster is not None and cluster.levels[0].torus:
        return _shard_in_slices(row, dp, features, cluster)
    if str(features.get("fsdp")).upper() in ("HSDP", "HYBRID_SHARD") and cluster is not None:
        row.assume("HSDP shards within a node")
        return math.gcd(cluster.gpus_per_node, dp)
    return dp


def _shard_in_slices(row: RowReader, dp: int, features: Mapping[str, Any], cluster: ClusterSpec) -> int:
    """MaxText shards within a slice, and copies over slices (dcn_data_parallelism) unless told otherwise."""
    tuning = row.part("features", "tuning")
    slices = cluster.num_gpus // cluster.levels[0].size
    across = option(row, tuning, "dcn_fsdp_parallelism")
    copies = slices // math.gcd(slices, across) * option(row, tuning, "ici_data_parallelism")
    return max(dp // copies, 1) if dp % copies == 0 else dp


def _recompute(row: RowReader, layout: Layout, num_layers: int) -> tuple[Layout, str]:
    """Operator-level selective recompute keeps every other product and attention, of Llama 3 8B 55 of 132 KB per token
    and layer beyond its input: priced as full recompute of three layers in five."""
    mode = str(row.part("layout", "recompute").get("mode") or "unknown")
    modules = row.get("layout", "recompute", "modules") or []
    per_stage = max(-(-num_layers // layout.pp), 1)
    if mode not in (*RECOMPUTE_MODES, "unknown"):
        row.fail(("layout", "recompute", "mode"), f"`{mode}` is none of {', '.join(RECOMPUTE_MODES)}, unknown")
        return layout, "unknown"
    every = row.whole("layout", "recompute", "every_nth_layer", default=1)
    count = row.whole("layout", "recompute", "num_layers", default=0, least=0)
    if mode == "full" or (mode == "selective" and every > 1):
        layers = count or (-(-per_stage // every) if every > 1 else 0)
        return replace(layout, recompute=RECOMPUTE_MODES.index("full"), recompute_layers=layers), mode
    if mode == "selective" and any("matmul" in str(name) for name in modules):
        half = any("half" in str(name) for name in modules)
        row.assume("operator-level selective recompute priced by layers (approximation)")
        if half:
            full = RECOMPUTE_MODES.index("full")
            return replace(layout, recompute=full, recompute_layers=max(per_stage * 3 // 5, 1)), mode
        return selective(layout, ("attn", "norm", "act")), mode
    if mode == "selective":
        names = [name for module in modules for name in _MODULES.get(str(module), ())]
        if not names:
            row.assume("selective recompute of core attention (modules not stated)")
        return selective(layout, tuple(names) or ("attn",)), mode if names or not modules else "unknown"
    return layout, mode


def selective(layout: Layout, modules: tuple[str, ...]) -> Layout:
    return replace(layout, recompute=RECOMPUTE_MODES.index("selective"), recompute_modules=module_mask(modules))


def read_chunks(row: RowReader, layout: Layout, num_layers: int) -> tuple[int, ...] | None:
    """Layers per chunk where the row states them; per stage only, they are spread evenly over its chunks."""
    split = row.get("layout", "stage_split")
    if not isinstance(split, Mapping) or layout.pp == 1:
        return None
    number = layout.pp * layout.vpp
    for key in ("chunks", "layers"):
        sizes = split.get(key)
        if not isinstance(sizes, list) or not all(isinstance(n, int) and n >= 0 for n in sizes):
            continue
        if sum(sizes) == num_layers and len(sizes) == number:
            return tuple(sizes)
        if sum(sizes) == num_layers and len(sizes) == layout.pp and key == "layers":
            row.assume("layers of a stage spread evenly over its chunks (approximation)")
            return _spread(sizes, layout.vpp)
    row.assume("stated stages do not add up to the layers: an even split is priced (approximation)")
    return None


def _spread(stages: list[int], vpp: int) -> tuple[int, ...]:
    """Chunk c of stage s is chunk c x p + s of the model; the middle rounds take what does not divide."""
    rounds = []
    for size in stages:
        base, extra = divmod(size, vpp)
        order = sorted(range(vpp), key=lambda c: (abs(2 * c - (vpp - 1)), c))
        rounds.append([base + (c in order[:extra]) for c in range(vpp)])
    return tuple(sizes[c] for c in range(vpp) for sizes in rounds)
