"""Plans of post-training with drawn layouts, for tests of files."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from meshwright.cost_models.layouts import RECOMPUTE_MODES, Layout
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlCall, RlPlan
from meshwright.planner.targets.post_training.registry import rl_target
from meshwright.planner.targets.post_training.setup import RlSetup

_WHERE: dict[str, Any] = {"cluster": "4xh100-sxm-80gb", "output": 300, "prompts": 16}
_DENSE: tuple[dict[str, Any], ...] = (
    {"algorithm": "grpo", "model": "llama-3.2-1b", "kl": True, "lag": 1},
    {"algorithm": "ppo", "model": "llama-3.2-1b", "updates": 2, "cluster": "2xh100-sxm-80gb"},
    {"algorithm": "dapo", "model": "llama-3.2-1b", "lag": 2, "trainer": "accelerate", "engine": "sglang"},
)  # fmt: skip
_EXPERTS = {"algorithm": "grpo", "model": "qwen3-30b-a3b", "reward": "llama-3.2-1b", "cluster": "dgx-h100:2"}


@cache
def planned(*, experts: bool = False) -> list[RlPlan]:
    """Small plans whose layouts are replaced. experts: one more, of a model with experts."""
    requests = (*_DENSE, _EXPERTS) if experts else _DENSE
    return [plan_rl(**{**_WHERE, **request}) for request in requests]


def drawn(plans: list[RlPlan], to: str, count: int, seed: int = 0) -> list[RlPlan]:
    """Plans of one placement with drawn layouts, all of which the target takes."""
    numbers, out = random.Random(seed), list[RlPlan]()
    while len(out) < count:
        plan = _with_layouts(numbers.choice(plans), numbers)
        if not rl_target(to).refusals(RlSetup.of(plan, plan.best.choice, "plan")):
            out.append(plan)
    return out


def _with_layouts(plan: RlPlan, numbers: random.Random) -> RlPlan:
    candidate = numbers.choice(plan.candidates)
    train = next(call for call in candidate.calls if call.name == "train")
    layout = _layout(plan, train, numbers)
    calls = [_drawn(call, layout, numbers) for call in candidate.calls]
    return plan.model_copy(update={"candidates": (candidate.model_copy(update={"calls": tuple(calls)}),)})


def _drawn(call: RlCall, layout: Layout, numbers: random.Random) -> RlCall:
    if call.kind == "train":
        return call.model_copy(update={"layout": layout.as_dict(), "layout_id": str(layout)})
    if call.engine is None:
        return call
    stages = call.engine.pp
    tp = numbers.choice([n for n in (1, 2, 4) if call.gpus % (stages * n) == 0])
    groups = numbers.choice([n for n in (1, 2, 4) if call.gpus % (stages * tp * n) == 0])
    ranks = {"tp": tp, "attention_dp": groups, "instances": call.gpus // (stages * tp * groups)}
    engine = call.engine.model_copy(update={**ranks, "cache_sequences": numbers.randint(1, 4096)})
    return call.model_copy(update={"engine": engine})


def _layout(plan: RlPlan, train: RlCall, numbers: random.Random) -> Layout:
    """One for FSDP2 where the trainer has it, else one of Megatron-Core."""
    gpus, micro = train.gpus, numbers.randint(1, 8)
    moe = plan.resolved["models"]["policy"]["name"] == "qwen3-30b-a3b"
    if plan.resolved["trainer"] == "accelerate":
        full = RECOMPUTE_MODES.index(numbers.choice(("full", "none")))
        return Layout(dp=gpus, shard=gpus, micro_batch=micro, zero=numbers.choice((2, 3)), recompute=full)
    tp = numbers.choice([n for n in (1, 2, 4) if gpus % n == 0])
    pp = numbers.choice([n for n in (1, 2, 4) if gpus // tp % n == 0])
    cp = numbers.choice([n for n in (1, 2) if gpus // tp // pp % n == 0])
    dp, vpp = gpus // (tp * pp * cp), numbers.choice((1, 2)) if pp > 1 else 1
    mode = numbers.choice(("none", "full", "selective"))
    return Layout(
        tp=tp, sequence_parallel=int(tp > 1), pp=pp, vpp=vpp, schedule=int(vpp > 1), cp=cp,
        cp_algorithm=numbers.choice((0, 1, 2)) if cp > 1 else 0, dp=dp, shard=dp,
        ep=numbers.choice((1, dp)) if moe else 1, micro_batch=micro,
        zero=numbers.choice((0, 1) if pp > 1 else (0, 1, 2, 3)),
        recompute=RECOMPUTE_MODES.index(mode), recompute_modules=numbers.choice((1, 3)) if mode == "selective" else 0,
        recompute_layers=numbers.choice((0, 2)) if mode == "full" else 0, offload=numbers.choice((0, 1)),
        offload_modules=numbers.choice((0, 1, 3)),
    )  # fmt: skip
