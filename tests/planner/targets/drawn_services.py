"""Plans of deployments with drawn pools, for tests of files."""

from __future__ import annotations

import random
from functools import cache

from meshwright.planner.api import plan_serving
from meshwright.planner.document.serving_plan import ServingPlan, ServingPool

_GPUS_PER_NODE = 8


@cache
def planned() -> ServingPlan:
    """A small plan whose pools are replaced."""
    return plan_serving(model="llama-3.1-8b", cluster="8xh100-sxm-80gb", input=2000, output=300, rate="1/s", top=1,
                        fix=["tp=1", "pp=1", "chunk_tokens=8192"])  # fmt: skip


def drawn(plan: ServingPlan, count: int, seed: int = 0) -> list[ServingPlan]:
    """Plans with one pool for both phases, or one for each, of drawn layouts and limits."""
    random_numbers = random.Random(seed)
    return [_with_pools(plan, random_numbers) for _ in range(count)]


def for_engine(plan: ServingPlan, engine: str) -> ServingPlan:
    """vLLM moves no caches of stages."""
    listed = [it.model_copy(update={"pools": tuple(_without_stages(pool) for pool in it.pools)})
              if engine == "vllm" and len(it.pools) > 1 else it for it in plan.candidates]  # fmt: skip
    return plan.model_copy(update={"resolved": {**plan.resolved, "engine": engine}, "candidates": tuple(listed)})


def _without_stages(pool: ServingPool) -> ServingPool:
    return pool.model_copy(update={"pp": 1, "gpus": pool.gpus // pool.pp})


def _with_pools(plan: ServingPlan, numbers: random.Random) -> ServingPlan:
    best = plan.best
    roles = numbers.choice((("both",), ("prefill", "decode")))
    weights = numbers.choice(("bf16", "fp8"))
    cache = numbers.choice(("bf16", "fp8"))
    stages = numbers.choice((1, 2))  # of both roles: SGLang moves caches to as many
    pools = tuple(_pool(best.pools[0], role, weights, cache, stages, numbers) for role in roles)
    return plan.model_copy(update={"candidates": (best.model_copy(update={"pools": pools}),)})


def _pool(
    pool: ServingPool, role: str, weights: str, cache: str, stages: int, numbers: random.Random
) -> ServingPool:  # fmt: skip
    tp = numbers.choice((1, 2, 4, 8))
    groups = numbers.choice((1, 1, _GPUS_PER_NODE // tp)) if stages == 1 else 1
    instances = numbers.randint(1, 4)
    return pool.model_copy(update={
        "role": role, "weights": weights, "kv_cache": cache, "tp": tp, "attention_dp": groups, "pp": stages,
        "ep": numbers.choice((1, tp * groups)), "instances": instances, "gpus": instances * tp * groups * stages,
        "chunk_tokens": numbers.choice((2048, 4096, 8192, 16384)), "max_sequences": numbers.randint(1, 1024),
        "cache_sequences": numbers.choice((8, 10000)),
    })  # fmt: skip
