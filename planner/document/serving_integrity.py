"""Whether the numbers of a serving plan agree with each other."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import FieldProblem
from .integrity import HINT, differ, request_problem
from .serving_plan import ServingCandidate, ServingPlan, ServingPool

_Problem = tuple[str, str]  # field, message


def problems(plan: ServingPlan, name: str) -> list[FieldProblem]:
    """All fields that contradict others. name: the file, as messages name it."""
    problems = list(request_problem(plan.request, plan.request_sha256))
    try:
        _ = (plan.request["workload"]["output"], plan.resolved["model"]["name"], plan.resolved["engine"],
             plan.resolved["cluster"]["groups"][0]["gpu"]["name"])  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError):
        return [FieldProblem("model, cluster, engine or workload is damaged", file=name, field="resolved", hint=HINT)]
    for index, candidate in enumerate(plan.candidates):
        problems += _of_candidate(candidate, index, plan.lengths.output.mean)
    return [FieldProblem(message, file=name, field=field, hint=HINT) for field, message in problems]


def _of_candidate(candidate: ServingCandidate, index: int, output: float) -> Iterator[_Problem]:
    where, gpus = f"candidates.{index}", candidate.gpus
    if candidate.choice != index + 1:
        yield f"{where}.choice", f"{candidate.choice}, its place is {index + 1}"
    for number, pool in enumerate(candidate.pools):
        yield from _of_pool(pool, f"{where}.pools.{number}")
    if gpus != (of_pools := sum(pool.gpus for pool in candidate.pools)):
        yield f"{where}.gpus", f"{gpus}, its pools have {of_pools}"
    tokens = candidate.output_tokens_per_s
    for field, value, expected, words in (
        ("output_tokens_per_s", tokens, candidate.rate * output, f"its rate and answers of {output:g} tokens give"),
        ("output_tokens_per_s_per_gpu", candidate.output_tokens_per_s_per_gpu, tokens / max(gpus, 1), "its GPUs give"),
        ("goodput_per_gpu", candidate.goodput_per_gpu, candidate.largest_load / max(gpus, 1), "its GPUs give"),
    ):
        if differ(value, expected):
            yield f"{where}.{field}", f"{value:g}, {words} {expected:g}"


def _of_pool(pool: ServingPool, where: str) -> Iterator[_Problem]:
    product = pool.instances * pool.tp * pool.pp * pool.attention_dp
    if pool.gpus != product:
        degrees = f"{pool.instances} x tp {pool.tp} x pp {pool.pp} x attention_dp {pool.attention_dp}"
        yield f"{where}.gpus", f"{pool.gpus}, {degrees} = {product}"
