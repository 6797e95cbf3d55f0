"""A plan made by hand: what the screens are developed and tested against."""

from __future__ import annotations

import copy
from typing import Any

from meshwright.planner.document.plan import FORMAT_VERSION, Plan

GIB = 2**30


def _terms(*seconds: float) -> list[dict[str, Any]]:
    names = (
        ("matmul, attention", "measured"),
        ("tp comm", "fitted"),
        ("norms, elementwise", "measured"),
        ("pp comm", "fitted"),
        ("dp comm", "fitted"),
        ("pipeline bubble", "formula"),
        ("optimizer", "assumed"),
    )
    exposed = [
        {"name": name, "seconds": value, "exposed": True, "overlaps": [], "source": source}
        for (name, source), value in zip(names, seconds, strict=True)
    ]
    hidden = {"name": "dp comm, hidden", "seconds": 1.9, "exposed": False, "overlaps": ["matmul, attention"]}
    return [*exposed, {**hidden, "source": "fitted"}]


def _memory(stages: int, weights: float, activations: float) -> list[dict[str, Any]]:
    result = []
    for stage in range(stages):
        edge = 1.5 if stage in (0, stages - 1) else 0.0
        buffers = {
            "weights_bytes": round((weights + edge) * GIB),
            "gradients_bytes": round(2 * weights * GIB),
            "optimizer_bytes": round(weights * GIB * 1.25),
            "activations_bytes": round(activations * GIB),
            "logits_bytes": round(3.9 * GIB) if stage == stages - 1 else 0,
            "gathered_bytes": 0,
            "exchange_bytes": round(0.75 * GIB),
            "workspace_bytes": 0,
        }
        allocated = sum(buffers.values())
        totals = {"allocated_bytes": allocated, "reserved_bytes": round(allocated * 1.06)}
        totals["context_bytes"] = round(1.1 * GIB)
        device = totals["reserved_bytes"] + totals["context_bytes"]
        result.append({"stage": stage, **buffers, **totals, "device_bytes": device, "host_bytes": 0.0})
    return result


def _candidate(choice: int, layout_id: str, step_s: float, mfu: float, stages: int, **more: Any) -> dict[str, Any]:
    scale = step_s / 33.4
    return {
        "choice": choice,
        "layout_id": layout_id,
        "layout": {"tp": 8, "pp": stages},
        "stages": [
            {"stage": s, "chunk": 0, "layers": [s * 20, s * 20 + 19], "embedding": False, "head": False,
             "gpu": "h100-sxm-80gb", "recompute_layers": 0}
            for s in range(stages)
        ],
        "placement": {"hosts": [], "logical_of_rank": None},
        "step_s": step_s,
        "step_s_low": step_s * 0.985,
        "step_s_high": step_s * 1.015,
        "terms": _terms(*(value * scale for value in (22.1, 6.9, 3.6, 0.3, 0.2, 0.2, 0.1))),
        "memory": _memory(stages, more.get("weights", 8.25), more.get("activations", 11.0)),
        "mfu": mfu,
        "hfu": mfu * 1.04,
        "tokens_per_s_per_gpu": 1024 * 8192 / 256 / step_s,
        "cost_usd_per_mtoken": None,
        "targets": {
            "accelerate": "it has no tensor parallelism with sequence parallelism",
            "megatron": None,
            "torchtitan": "it cannot shard only the optimizer (z1)",
        },
    }


_PLAN: dict[str, Any] = {
    "format_version": "1.0",
    "kind": "plan",
    "tool": {"name": "meshwright", "version": "0.1.0"},
    "request_sha256": "0" * 64,
    "request": {
        "model": "llama-3-70b",
        "cluster": "dgx-h100:32",
        "workload": {"seq_len": 8192, "global_batch": 1024, "precision": "bf16"},
        "target": "megatron",
        "fix": {},
    },
    "profiles": [{"name": "h100-sxm-80gb", "sha256": "1" * 64}],
    "candidates": [
        _candidate(1, "tp8-pp4-vpp5-dp8-mbs1-z1-rsel", 33.4, 0.420, 4),
        _candidate(2, "tp4-pp4-vpp5-dp16-mbs1-z1-rsel", 33.9, 0.414, 4, weights=12.0),
        _candidate(3, "tp8-pp2-dp16-mbs1-z1-rsel", 34.8, 0.403, 2, weights=11.0),
        _candidate(4, "dp256-mbs1-z3-rfull", 37.2, 0.377, 1, weights=0.5, activations=30.0),
    ],
    "ranking_lead": 0.02,
    "certificate": {
        "space": {
            "total": 4212,
            "by_axis": {"tp": 4, "pp": 5},
            "ruled_out": {"divisibility": 3000, "kv heads": 95},
            "dominated": 10,
            "out_of_memory": 846,
            "bounded": 0,
            "priced": 261,
            "simulated": 4,
        },
        "lower_bound_s": 33.4,
        "gap": 0.0,
        "proven": True,
        "stopped": None,
    },
    "resolved": {
        "model": {"name": "llama-3-70b"},
        "cluster": {
            "name": "dgx-h100:32",
            "groups": [
                {
                    "node": "dgx-h100",
                    "gpu": {"name": "h100-sxm-80gb", "memory_bytes": 81559 * 2**20},
                    "num_nodes": 32,
                    "gpus_per_node": 8,
                }
            ],
        },
        "workload": {"seq_len": 8192, "global_batch": 1024, "precision": "bf16", "lora": None, "trains_layers": None},
        "stack": {
            "name": "megatron-core",
            "attention": "flash2",
            "tp_overlap": 0.35,
            "fused_norms": True,
            "fused_positions": True,
            "fused_activation": True,
            "sources": {"tp_overlap": "assumed: userbuffers are off, so that only part of the gather is hidden"},
        },
        "target": "megatron",
        "memory_bytes": 81559 * 2**20,
    },
    "outside": None,
    "rejected": {"memory": 846, "divisibility": 3000},
    "warnings": [],
}


def sample_document() -> dict[str, Any]:
    """A fresh copy of its JSON form, free to be changed."""
    return copy.deepcopy(_PLAN)


def sample_plan() -> Plan:
    """The plan."""
    return Plan.model_validate(sample_document())


def unsealed(document: dict[str, Any]) -> dict[str, Any]:
    """An edited document as one of format 1.5, which has no digest: so that the fields themselves are judged."""
    rest = {name: value for name, value in document.items() if name != "document_sha256"}
    return {**rest, "format_version": "1.5"} if rest["format_version"] == FORMAT_VERSION else rest
