"""Megatron-LM / Megatron Core: pretrain_gpt.py."""

import numpy as np

from ...cost_models.layouts import MODULES
from ...cost_models.tables import Problem
from ..constraints import Columns, Mask, Rule
from .base import Target, only

_N = "megatron"


def _sharding(columns: Columns, problem: Problem) -> Mask:
    # --use-distributed-optimizer is ZeRO-1; stages 2 and 3 are Megatron-FSDP, which has no pipeline.
    return np.asarray((columns["zero"] <= 1) | (columns["pp"] == 1))


def _modules(columns: Columns, problem: Problem) -> Mask:
    # --recompute-modules moe_act replaces act only in expert layers; mla_up_proj, layernorm, core_attn, moe exist.
    act = 1 << MODULES.index("act")
    return np.asarray((columns["recompute_modules"] & act == 0) | problem.model.is_moe)


TARGET = Target(
    _N,
    "Megatron-LM (pretrain_gpt.py)",
    "megatron-core",
    "Megatron-LM d98e8a64 (2026-08-22), training/arguments.py and core/transformer/transformer_config.py",
    rules=(
        only(_N, "schedule", ("1f1b", "interleaved"), "Megatron has no {schedule_name} schedule"),
        Rule(f"{_N}: zero", ("pp", "zero"), _sharding, "z{zero} is Megatron-FSDP, which has no pipeline (pp {pp})"),
        Rule(f"{_N}: recompute_modules", ("recompute_modules",), _modules,
             "Megatron recomputes activation functions only in expert layers (moe_act)"),
        only(_N, "precision", ("bf16", "fp16", "fp8", "fp32"), ""),
    ),
)  # fmt: skip
