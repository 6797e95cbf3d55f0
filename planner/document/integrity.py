"""Whether the numbers of a plan agree with each other: a plan edited by hand is refused, not believed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from ...errors import FieldProblem
from .candidate import Candidate, StageMemory, candidate_id
from .plan import Plan, digest_of

HINT = "the file was edited: plan again"
_TOLERANCE = 1e-6  # relative; a plan keeps 9 digits
_BUFFERS = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "logits_bytes",
            "gathered_bytes", "exchange_bytes", "workspace_bytes", "graphs_bytes")  # fmt: skip


def unreadable_numbers(data: Any, path: str = "") -> Iterator[str]:
    """Paths of the numbers of a JSON document that are infinite or none (NaN)."""
    if isinstance(data, float) and not math.isfinite(data):
        yield path
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, dict):
        items = data.items()
    elif isinstance(data, list):
        items = enumerate(data)
    for key, value in items:
        yield from unreadable_numbers(value, f"{path}.{key}" if path else str(key))


def seal_problem(data: dict[str, Any], since: tuple[int, int]) -> FieldProblem | None:
    """Whether the digest of a document, which is taken out of it, is that of the rest. since: the format whose files
    have one; older ones have none."""
    seal = data.pop("document_sha256", None)
    if seal is None and _version(data) < since:
        return None
    if seal == digest_of(data):
        return None
    return FieldProblem("is not the digest of the other fields", field="document_sha256", hint=HINT)


def _version(data: Mapping[str, Any]) -> tuple[int, ...]:
    try:
        return tuple(map(int, str(data["format_version"]).split(".")))
    except ValueError:
        return (1 << 30,)


def problems(plan: Plan, name: str) -> list[FieldProblem]:
    """All fields that contradict others. name: the file, as messages name it."""
    problems = list(request_problem(plan.request, plan.request_sha256))
    try:
        tokens = _tokens_per_gpu(plan)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError):
        return [FieldProblem("cluster or workload is damaged", file=name, field="resolved", hint=HINT)]
    for index, candidate in enumerate(plan.candidates):
        where = f"candidates.{index}"
        problems += _of_times(candidate, plan, tokens, where)
        problems += _of_ids(candidate, where)
        for stage in candidate.memory:
            problems += _of_memory(stage, f"{where}.memory.{stage.stage}")
    return [FieldProblem(message, file=name, field=field, hint=HINT) for field, message in problems]


_Problem = tuple[str, str]  # field, message


def request_problem(request: Mapping[str, Any], expected: str) -> Iterator[_Problem]:
    """Whether the request of a plan is the one that the plan was made for."""
    if (digest := digest_of(request)) != expected:
        yield "request", f"its digest is {digest[:12]}, the plan was made for {expected[:12]}"


def _of_times(candidate: Candidate, plan: Plan, tokens_per_gpu: float, where: str) -> list[_Problem]:
    exposed = sum(term.seconds for term in candidate.terms if term.exposed)
    problems = []
    if differ(exposed, candidate.step_s):
        problems.append((f"{where}.step_s", f"{candidate.step_s:g} s, its exposed terms sum to {exposed:g} s"))
    if candidate.spread is not None:  # the layouts take other GPUs each, so their rates are not comparable
        return problems
    tokens = tokens_per_gpu / candidate.step_s
    if differ(candidate.tokens_per_s_per_gpu, tokens):
        message = f"{candidate.tokens_per_s_per_gpu:g}, the tokens of its step give {tokens:g}"
        problems.append((f"{where}.tokens_per_s_per_gpu", message))
    # One step takes the same FLOPs in every layout, so that all have the same product of MFU and time.
    mfu = median(other.mfu * other.step_s for other in plan.candidates if other.spread is None) / candidate.step_s
    if differ(candidate.mfu, mfu):
        problems.append((f"{where}.mfu", f"{candidate.mfu:g}, by the other layouts it is {mfu:g}"))
    if candidate.hfu < candidate.mfu * (1 - _TOLERANCE):
        problems.append((f"{where}.hfu", f"{candidate.hfu:g} is less than the mfu, {candidate.mfu:g}"))
    return problems


def _of_ids(candidate: Candidate, where: str) -> list[_Problem]:
    layout = candidate_id(candidate)
    if layout == candidate.layout_id:
        return []
    field = "stages" if candidate.layout_id.startswith(str(candidate.to_layout())) else "layout_id"
    return [(f"{where}.{field}", f"the id says `{candidate.layout_id}`, the rest `{layout}`")]


def _of_memory(stage: StageMemory, where: str) -> list[_Problem]:
    allocated = sum(getattr(stage, name) for name in _BUFFERS)
    device = stage.reserved_bytes + stage.context_bytes
    problems = []
    if differ(stage.allocated_bytes, allocated):
        problems.append((f"{where}.allocated_bytes", f"{stage.allocated_bytes:g}, its buffers sum to {allocated:g}"))
    if differ(stage.device_bytes, device):
        problems.append((f"{where}.device_bytes", f"{stage.device_bytes:g}, reserve and context sum to {device:g}"))
    if stage.reserved_bytes < stage.allocated_bytes * (1 - _TOLERANCE):
        message = f"{stage.reserved_bytes:g} is less than is allocated, {stage.allocated_bytes:g}"
        problems.append((f"{where}.reserved_bytes", message))
    return problems


def _tokens_per_gpu(plan: Plan) -> float:
    """Useful tokens of a step per GPU: padding does not count (`Workload.tokens_per_step`). Raises KeyError and others
    where `resolved` is damaged."""
    work, groups = plan.resolved["workload"], plan.resolved["cluster"]["groups"]
    padded = work.get("mean_len") is not None and not work["packed"]
    length = work["mean_len"] if padded else work["seq_len"]
    return float(length * work["global_batch"] / sum(group["num_nodes"] * group["gpus_per_node"] for group in groups))


def differ(value: float, expected: float) -> bool:
    return abs(value - expected) > _TOLERANCE * max(abs(value), abs(expected))
