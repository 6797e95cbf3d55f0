"""Plans of given layouts, whether they fit or not."""

from __future__ import annotations

from collections.abc import Sequence

from ...cost_models import units
from ...cost_models.layouts import Layout, parse
from ...cost_models.quantities.stages import Partition
from ...errors import InputError
from ..document.candidate import Candidate
from ..document.certificate import Certificate
from ..document.plan import Plan
from ..evaluation.candidates import candidates
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..space.rules import violations
from ..space.tree import Count
from .assembly import build_plan
from .node_order import placed_alone
from .simulated_order import Fidelity


def evaluate_resolved(resolved: Resolved, layout_id: str, fidelity: Fidelity = "simulated") -> Plan:
    """As `evaluate`, of a request that is resolved, and perhaps changed since. fidelity: of the step."""
    layout = parse(layout_id)
    if problems := violations(layout, resolved.problem):
        derive = "leave one degree out and it is derived: `plan --fix tp=4 --fix pp=4`"
        choose = "leave the field out and it is chosen: `plan --fix` with the others"
        raise InputError("\n".join(problems), hint=derive if layout.num_gpus != resolved.problem.num_gpus else choose)
    if resolved.cluster.links is None:
        listed = candidates(resolved, [Staged.of(resolved, layout, simulate=fidelity == "simulated")])
    else:
        listed = (placed_alone(resolved, layout),)
    return _unsearched(resolved, listed).with_warnings(overflows(resolved, listed[0]))


def compare_layouts(resolved: Resolved, layouts: Sequence[tuple[Layout, Partition | None]]) -> Plan:
    """The plan of several legal layouts, each priced as `evaluate` does on equal links. Those that fit come first, then
    the fastest. Links between nodes count as the slowest of them."""
    staged = [Staged.of(resolved, layout, partition, simulate=True) for layout, partition in layouts]
    priced = candidates(resolved, staged)
    ordered = sorted(priced, key=lambda candidate: (bool(overflows(resolved, candidate)), candidate.step_s))
    listed = tuple(candidate.model_copy(update={"choice": n}) for n, candidate in enumerate(ordered, 1))
    return _unsearched(resolved, listed)


def _unsearched(resolved: Resolved, listed: tuple[Candidate, ...]) -> Plan:
    count = Count(total=len(listed), priced=len(listed))
    certificate = Certificate(space=count.to_space_count(), lower_bound_s=None, gap=None, proven=False)
    return build_plan(resolved, listed, certificate, count)


def overflows(resolved: Resolved, candidate: Candidate) -> list[str]:
    """Why a layout does not fit: more than a GPU may use, or than there is of host memory. Empty if it fits."""
    texts = []
    if candidate.device_bytes > resolved.memory_bytes:
        need, has = units.gib(candidate.device_bytes), units.gib(resolved.memory_bytes)
        texts.append(f"{candidate.layout_id} does not fit: it needs {need} GiB of {has}")
    host_bytes = max(stage.host_bytes for stage in candidate.memory)
    if host_bytes > resolved.host_bytes:
        need, has = units.gib(host_bytes), units.gib(resolved.host_bytes)
        texts.append(f"{candidate.layout_id} does not fit in host memory: it needs {need} GiB per GPU of {has}")
    return texts
