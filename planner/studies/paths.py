"""The paths that a study can change, the dimensions of the numbers at them, and the values that stand there now."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ...cost_models import units
from ...cost_models.layouts import FIELD_NAMES
from ...cost_models.techniques.registry import TECHNIQUES
from ...profiles.io.yaml_syntax import line_of
from ..request.resolve import Resolved
from ..request.schema import LoraRequest, Train, WorkloadRequest
from .knobs import KNOBS, described

Value = str | float  # text as given, or a number in base units
Values = Mapping[str, Value]  # path -> value

# Fields of a request that are numbers. Whole ones (WHOLE) are written without a unit, the others (QUANTITIES) with one.
_TECHNIQUE_KNOBS = {
    f"workload.techniques.{name}.{knob.name}": knob
    for name, technique in TECHNIQUES.items()
    for knob in technique.knobs
}
WHOLE = (
    "gpus", "workload.seq_len", "workload.global_batch", "workload.train.last_layers", "workload.train.lora.rank",
    "workload.mtp_layers",
    *(path for path, knob in _TECHNIQUE_KNOBS.items() if knob.whole),
)  # fmt: skip
QUANTITIES: dict[str, units.Dimension] = {
    **{path: "count" for path, knob in _TECHNIQUE_KNOBS.items() if not knob.whole},
    "workload.max_memory": "B", "workload.total_tokens": "count",
    "workload.expert_capacity_factor": "count", "workload.moe_aux_loss_coeff": "count",
    "cluster.links.intra_node.bandwidth": "B/s", "cluster.links.intra_node.latency": "s",
    "cluster.links.inter_node.bandwidth": "B/s", "cluster.links.inter_node.latency": "s",
    "cluster.wan.bandwidth": "B/s", "cluster.wan.latency": "s",
}  # fmt: skip
_WORDS = (
    "model", "cluster", "gpu", "target", "stack", "cluster.links.intra_node.topology", "cluster.links.intra_node.kind",
    "cluster.links.inter_node.kind", "cluster.links.inter_node.per", "cluster.links.slow_nodes", "cluster.fabric",
    "cluster.fabric.type", "cluster.fabric.ratio", "cluster.fabric.pod_nodes", "cluster.groups", "cluster.sites",
    "cluster.wan.per",
)  # fmt: skip


@cache
def known_paths() -> tuple[str, ...]:
    """Every path that a study can change."""
    work = [f"workload.{name}" for name in WorkloadRequest.model_fields if name not in ("kind", "train")]
    work += [f"workload.train.{name}" for name in Train.model_fields if name != "lora"]
    work += [f"workload.train.lora.{name}" for name in LoraRequest.model_fields] + ["workload.train.lora"]
    fixes = [f"fix.{name}" for name in FIELD_NAMES]
    return tuple(dict.fromkeys([*work, *WHOLE, *QUANTITIES, *_WORDS, *KNOBS, *fixes]))


def dimension_of(path: str) -> units.Dimension | None:
    """The dimension of the number at `path`; "count" for whole numbers, None for words."""
    if path in KNOBS:
        return KNOBS[path].dimension
    return "count" if path in WHOLE else QUANTITIES.get(path)


def current(resolved: Resolved, path: str) -> Value | None:
    """The value at `path` now: in base units for a quantity, as text for the rest; None where there is none."""
    if path in KNOBS:
        return KNOBS[path].read(resolved)
    resolved_names = {
        "gpus": resolved.cluster.num_gpus, "gpu": resolved.cluster.gpu.name, "cluster": resolved.cluster.name,
        "model": resolved.model.name, "stack": resolved.stack.name, "target": resolved.target.name,
        "workload.seq_len": resolved.workload.seq_len, "workload.global_batch": resolved.workload.global_batch,
        "workload.techniques": ", ".join(name for name, _ in resolved.workload.techniques) or None,
    }  # fmt: skip
    request = resolved.request.model_dump(mode="json")
    if path.startswith("cluster."):
        request["cluster"] = described(resolved)
    value: Any = resolved_names.get(path, request)
    if path not in resolved_names:
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, Mapping):
        return None
    if path not in QUANTITIES:
        return line_of(value)
    return units.parse(value, QUANTITIES[path]) if isinstance(value, str) else float(value)
