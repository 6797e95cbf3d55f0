"""A measured step of post-training, read from a row of a file of published measurements.

NeMo-RL (NVIDIA-NeMo/RL@5fb58893, v0.6.0: recipes of its performance tests and grpo_math_1B.yaml of its examples): they
train once on all answers or in batches of `train_global_batch`, one pack of `train_max_seq` tokens in a micro-batch,
which also is the limit of an answer with its prompt. All answers are scored by the policy and by the reference on the
GPUs that train (grpo_train and async_grpo_train). Experts of an engine are split by tensor parallelism, and no groups
attend apart (expert_parallel_size 1). verl (verl-project/verl@1dda039b): the trainer scores answers first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...cost_models.serving.pool import MEMORY_SHARE
from ...errors import UnknownNameError
from ...profiles.io import registry
from ...profiles.model.load import load_model
from ..accuracy.row import RowReader
from ..accuracy.unpriced_forms import STEPS, form_of, read_unpriced
from ..request.reinforcement import RlRequest
from ..serving.row import LeftOut
from ..switches.base import Settings
from ..targets.nemo_rl.target import NEMO_RL
from ..targets.verl.target import VERL
from .gains import GainCase, read_gain_row
from .problem import Fixed

_SHORT = {"DeepSeek V3": "deepseek-v3", "Qwen3-235B": "qwen3-235b-a22b", "Qwen3-30B3A": "qwen3-30b-a3b"}
# Options that recipes of NeMo-RL set and its tables do not show. The recipes of a model share those of the recipe that
# they extend, or of grpo_math_1B.yaml: train_micro_batch_size, use_distributed_optimizer; activation_checkpointing;
# moe_permute_fusion.
_ALL = {"micro_batch": 1, "zero": 1, "etp": 1, "offload": 0, "offload_layers": 0, "offload_modules": 0}
_RECOMPUTE = {"deepseek-v3": 2, "qwen3-235b-a22b": 2, "qwen3-30b-a3b": 0}
_PERMUTES = ("deepseek-v3", "qwen3-235b-a22b")
# Single recipes, by their names, have others: gpu_memory_utilization, where it is neither that of grpo_math_1B.yaml nor
# that of all disaggregated ones; GPUs beside colocated.resources.num_nodes, where those are not half of the nodes.
_SHARES = {"deepseek-v3-32n4g": 0.3, "deepseek-v3-64n4g": 0.3, "qwen3-235b-a22b-16n4g": 0.4}
_USUAL_SHARE, _DISAGGREGATED_SHARE = 0.6, 0.8
_TRAINERS = {"qwen3-30b-a3b-24n8g-async-8off": 128}
_NODES = {"gb200": 4}  # GPUs of a node in their names; others have 8
_PROMPT = 128  # tokens of a question in the data of NeMo-RL's tables (OpenMathInstruct-2), assumed
# verl leaves it off unless it is given (ddp_config_dict of its megatron_utils).
_VERL: Settings = {**VERL.core, "overlap_grad_reduce": "off"}
_LAGS = {"on policy": 0, "colocate sync": 0, "colocate_async": 1, "fully async": 1}


@dataclass(frozen=True, kw_only=True)
class RlCase:
    """A measured step: what ran, the degrees that were published, and the seconds."""

    id: str
    source: str
    family: str  # of the model
    request: RlRequest
    fixed: Fixed
    gpus: int
    trainer_gpus: int | None  # None: not published
    row_tokens: int | None  # of a pack, at most; None: not stated
    memory_share: float  # of a GPU, for the engine
    switches: Settings  # of Megatron-Core
    ray_engine: bool  # as `RlTarget.ray_engine`
    step_s: float
    pair: str  # runs that differ in lag or GPUs alone have the same


def read_rl_row(row: RowReader) -> RlCase | GainCase | LeftOut | None:
    """The run of a row. None for a faulty row, whose problems `row` holds."""
    if form_of(row) is not STEPS:
        row.fail((), "no row of a step of reinforcement learning", "judge files of other rows by themselves")
        return None
    read_unpriced(row, STEPS)
    if row.problems:
        return None
    if gain := read_gain_row(row):
        return gain
    name, model = row.text("id"), row.text("model").partition(" (")[0]
    if reason := _unpredictable(row):
        return LeftOut(name, reason)
    try:
        load_model(_SHORT.get(model, model))
    except UnknownNameError as error:
        return LeftOut(name, error.message)
    return _case(row, _SHORT.get(model, model))


def _unpredictable(row: RowReader) -> str:
    """Why a right row has no prediction; empty: it has one."""
    if row.number("measured", "step_s") is None:
        return "its step was not measured in seconds, and no placement of its system is known"
    if row.get("generated_avg_len") is None and row.get("measured", "mean_response") is None:
        return "the mean length of its answers is not published"
    if row.number("max_response") is None and row.number("train_max_seq") is None:
        return "the length at which its engine ends answers is not published"
    if not row.part("training"):
        return "its layouts are not published"
    return ""


def _case(row: RowReader, model: str) -> RlCase:
    lag, training, gpus = _lag(row), row.part("training"), row.whole("num_gpus")
    answers, nemo = _answers(row), row.get("policy_lag") is not None
    batch = int(row.number("train_global_batch") or answers)
    mean = row.number("generated_avg_len") or row.number("measured", "mean_response") or 0.0
    longest = int(row.number("max_response") or (row.number("train_max_seq") or 0) - _PROMPT)
    gpu, recipe = registry.gpu_entry(row.text("gpu").partition(" (")[0]).spec.name, _recipe(row, model, gpus, lag)
    request = RlRequest.model_validate({"model": model, "gpu": gpu, "gpus": gpus, "workload": {
        "kind": "rl", "algorithm": row.text("workflow"), "prompts": answers, "samples": 1, "input": _PROMPT,
        "output": round(mean), "output_max": longest, "updates": max(answers // batch, 1), "lag": lag, "kl": nemo,
        "old_logprobs": True, "precision": row.text("precision", default="BF16").lower(),
    }})  # fmt: skip
    fixed: Fixed = {
        "train": {"vpp": 1, **(_trained(model) if nemo else {}),
                  **{name: value for name, value in training.items() if value is not None}},
        "generate": {**row.part("generation"), "ep": 1, "attention_dp": 1},
    }  # fmt: skip
    return RlCase(id=row.text("id"), source=row.text("source"), family=model, request=request, fixed=fixed,
                  gpus=gpus, trainer_gpus=_trainer(row, recipe), pair=_pair(row),
                  switches=_switches(model) if nemo else _VERL, ray_engine=nemo and NEMO_RL.ray_engine,
                  row_tokens=row.whole("train_max_seq") if nemo else None,
                  memory_share=_share(recipe, lag) if nemo else MEMORY_SHARE,
                  step_s=row.number("measured", "step_s") or 0.0)  # fmt: skip


def _answers(row: RowReader) -> int:
    if row.get("rollouts_per_step") is not None:
        return row.whole("rollouts_per_step")
    return row.whole("train_batch_size") * row.whole("rollout_n", default=16)


def _lag(row: RowReader) -> int:
    text = row.text("policy_lag", default=row.text("mode", default="on policy")).lower()
    return _LAGS.get(text, int(text.partition("-")[0]) if text[:1].isdigit() else 1)


def _recipe(row: RowReader, model: str, gpus: int, lag: int) -> str:
    """The name of NeMo-RL's recipe, without its algorithm and its precision."""
    node = _NODES.get(row.text("gpu"), 8)
    return f"{model}-{gpus // node}n{node}g" + (f"-async-{lag}off" if lag else "")


def _trainer(row: RowReader, recipe: str) -> int | None:
    split = str(row.get("split_train_rollout") or "")
    return int(split.partition(":")[0]) if ":" in split else _TRAINERS.get(recipe)


def _trained(model: str) -> dict[str, int]:
    return {**_ALL, **({"recompute": _RECOMPUTE[model]} if model in _RECOMPUTE else {})}


def _switches(model: str) -> Settings:
    return {**NEMO_RL.core, "moe_permute_fusion": "on" if model in _PERMUTES else "off"}


def _share(recipe: str, lag: int) -> float:
    return _DISAGGREGATED_SHARE if lag else _SHARES.get(recipe, _USUAL_SHARE)


def _pair(row: RowReader) -> str:
    """All but lag, GPUs and what follows from them."""
    source: Mapping[str, Any] = row.document.data
    return str([source.get(name) for name in ("workflow", "model", "gpu", "precision", "train_max_seq")])
