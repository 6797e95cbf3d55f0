"""The trainer of a config of NeMo-RL: degrees, recomputation, what is on the host, and room for packed answers.

NeMo-RL 7ea279ab (0.6.0): nemo_rl/models/megatron/setup.py (recomputation), nemo_rl/models/policy/lm_policy.py
(packing), grpo_math_1B.yaml and grpo_math_1B_megatron.yaml of its examples (names and defaults).
"""

from __future__ import annotations

from ....cost_models.layouts import OFFLOADS
from ....cost_models.specs.model import ModelSpec
from ..post_training.on_host import on_host
from ..post_training.stated import StepConfig

RECOMPUTE = {"selective": 1, "full": 2}
_POLICY, _CORE, _DTENSOR = "policy.", "policy.megatron_cfg.", "policy.dtensor_cfg."


def most_packed(config: StepConfig, row_tokens: int) -> int | None:
    """Tokens of a sequence of packed answers, at most: those of a micro-batch where no option states them, as in the
    examples. None: answers are not packed. row_tokens: of the longest answer with its prompt."""
    if not config.get(f"{_POLICY}sequence_packing.enabled", True):
        return None
    name = f"{_POLICY}sequence_packing.train_mb_tokens"
    tokens = config.get(name, row_tokens * config.count(f"{_POLICY}train_micro_batch_size", 1))
    if type(tokens) is int and tokens > 0:
        return tokens
    config.fail(name, f"`{tokens}` is no number of tokens")
    return None


def core_layout(config: StepConfig, model: ModelSpec | None) -> dict[str, int]:
    """Degrees on Megatron-Core, and its recomputation: 1 selective, 2 full. model: None where it is unknown."""
    names = {"tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model"}
    out = {key: config.count(f"{_CORE}{name}_parallel_size", 1) for key, name in names.items()}
    if model is not None and model.is_moe:
        out["etp"] = config.count(f"{_CORE}expert_tensor_parallel_size", 1)
    out |= {"vpp": 1, **on_host(config, f"{_CORE}optimizer.", _CORE)}
    granularity, name = str(config.get(f"{_CORE}recompute_granularity", "full")), f"{_CORE}activation_checkpointing"
    if not config.get(name, False):
        return {**out, "recompute": 0}
    if granularity not in RECOMPUTE:
        config.fail(f"{_CORE}recompute_granularity", f"`{granularity}` is none of {', '.join(RECOMPUTE)}")
    modules = f"{_CORE}recompute_modules"
    if granularity == "selective" and config.get(modules, None) not in (None, ["core_attn"]):
        config.assumed.append(f"{modules}: priced as selective recomputation of attention")
    return {**out, "recompute": RECOMPUTE.get(granularity, 0)}


def dtensor_layout(config: StepConfig) -> dict[str, int]:
    """Degrees on DTensor, and its recomputation: 2 full."""
    if config.get(host := f"{_DTENSOR}cpu_offload", False):
        config.assumed.append(f"{host}: priced with weights and states of the optimizer on the GPU")
    return {"offload": OFFLOADS.index("none"),
            "tp": config.count(f"{_DTENSOR}tensor_parallel_size", 1),
            "cp": config.count(f"{_DTENSOR}context_parallel_size", 1),
            "recompute": 2 if config.get(f"{_DTENSOR}activation_checkpointing", False) else 0}  # fmt: skip
