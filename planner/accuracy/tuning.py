"""Settings that rows of MaxText and of adapters state in words of their own, in those of other rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...cost_models.specs.workload import Lora
from .row import RowReader

_OF_BLOCK = ("q", "k", "v", "o", "gate", "up", "down")


def of_tuning(row: RowReader) -> dict[str, Any]:
    """Features that `features.tuning` (options of MaxText) stands for: a capacity factor fills every expert up to it,
    where products of experts are dense (dense_matmul of its RoutedMoE)."""
    stated = row.part("features", "tuning").get("capacity_factor")
    try:
        capacity = float(stated) if stated is not None else 0.0
    except (TypeError, ValueError):
        row.fail(("features", "tuning", "capacity_factor"), f"must be a number, is {stated!r}")
        return {}
    return {"moe_capacity_factor": capacity, "moe_pad_to_capacity": True} if capacity > 0 else {}


def option(row: RowReader, tuning: Mapping[str, Any], name: str) -> int:
    """A degree among the options of MaxText, which rows give as text; 1 where it is absent or is what is left (-1)."""
    stated = str(tuning.get(name, 1))
    if not re.fullmatch(r"-1|[1-9]\d{0,6}", stated):
        row.fail(("features", "tuning", name), f"must be a degree or -1, is {tuning[name]!r}")
        return 1
    return max(int(stated), 1)


def lora_of(row: RowReader, features: Mapping[str, Any]) -> Lora | None:
    """The adapters of `features.peft`: `LoRA rank 16 on attention (qkv, proj)`, `QLoRA (4-bit base weights)`."""
    stated = features.get("peft")
    if stated is None:
        return None
    if not isinstance(stated, str) or "lora" not in stated.lower():
        row.fail(("features", "peft"), f"must be LoRA or QLoRA, is {stated!r}")
        return None
    rank = re.search(r"rank (\d+)", stated)
    attention = "attention" in stated.lower()
    if rank is None or not attention:
        row.assume("adapters of rank 64 in all projections of a layer (not stated)")
    return Lora(
        rank=int(rank[1]) if rank else 64, targets=_OF_BLOCK[:4] if attention else _OF_BLOCK,
        base_dtype="nf4" if "qlora" in stated.lower() else "bf16",
    )  # fmt: skip
