"""The layout to go on with after nodes have failed: the same request, planned for the nodes that remain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InputError, MeshwrightError, NoFeasibleLayoutError
from ...profiles.io.document import FieldPath
from .. import api
from ..document.plan import Plan
from ..request.load import Request, changed_request, request_from_dict
from ..request.resolve import resolve

_TARGET = "meshwright"  # the runtime, which trains every layout of such a plan


@dataclass(frozen=True)
class FewerNodes:
    """A plan for some of the nodes of another plan."""

    plan: Plan
    nodes: tuple[int, ...]  # numbers in the other plan, ascending; node i of this plan is nodes[i] there
    idle: tuple[int, ...] = ()  # nodes that remain but would make no step shorter
    why_idle: str = ""  # why no layout uses all that remain; empty: the layouts that do are slower


def num_nodes(plan: Plan) -> int:
    """Nodes of the plan's cluster."""
    return sum(int(group["num_nodes"]) for group in plan.resolved["cluster"]["groups"])


def plan_for_nodes(plan: Plan, remaining: Sequence[int]) -> FewerNodes:
    """The fastest plan of the same request for `remaining`: the numbers, from 0, of nodes of `plan`, ascending.

    Fewer nodes than remain are tried while they would be faster at the efficiency of `plan`: a batch or heads that do
    not divide by the number of GPUs can make all of them slower than some, or leave them without a layout. The first
    of `remaining` is always used. Raises NoFeasibleLayoutError with the least number of nodes that hold the model,
    InputError where the request cannot be planned without a node.
    """
    best: FewerNodes | None = None
    node_seconds = plan.best.step_s * num_nodes(plan)
    first: MeshwrightError | None = None
    for number in range(len(remaining), 0, -1):
        if best is not None and best.plan.best.step_s <= node_seconds / number:
            break
        nodes = tuple(remaining[:number])
        try:
            smaller = _planned(plan, nodes)
        except MeshwrightError as error:
            first = first or error
            continue
        if best is None or smaller.best.step_s < best.plan.best.step_s:
            best = FewerNodes(smaller, nodes, tuple(remaining[number:]), first.message if first else "")
    if best is None:
        raise _refused(plan, len(remaining), first)
    return best


def _planned(plan: Plan, nodes: Sequence[int]) -> Plan:
    """The plan of the same request on some nodes of the plan's cluster."""
    request = request_from_dict({**plan.request, "target": _TARGET})
    return api.plan(changed_request(request, _on_nodes(plan, request, nodes)))


def _on_nodes(plan: Plan, request: Request, nodes: Sequence[int]) -> dict[FieldPath, Any]:
    """The changes of a request that leave it only `nodes` of the plan's cluster."""
    if len(nodes) == num_nodes(plan):
        return {}
    groups = plan.resolved["cluster"]["groups"]
    if request.gpus is not None:  # so many GPUs of one kind of node, which have no names
        return {("gpus",): len(nodes) * int(groups[0]["gpus_per_node"])}
    whole = resolve(changed_request(request, {("exclude",): []})).cluster
    names = list(whole.hosts) or [str(node) for node in range(whole.num_nodes)]
    left_out = {*request.exclude, *(names[int(node)] for node in request.exclude if node.isdigit() and whole.hosts)}
    present = [name for name in names if name not in left_out]
    kept = {present[node] for node in nodes}
    return {("exclude",): [name for name in names if name not in kept]}


def _refused(plan: Plan, remaining: int, first: MeshwrightError | None) -> MeshwrightError:
    """The error where no number of the nodes that remain can train the model. first: that of all of them."""
    reason = first.message.splitlines()[0] if first else "no node remains"
    if not isinstance(first, NoFeasibleLayoutError):
        return InputError(f"no plan without the lost nodes: {reason}", hint=first.hint if first else "")
    least = next((n for n in range(remaining + 1, num_nodes(plan)) if _fits(plan, n)), num_nodes(plan))
    of = f"{remaining} node{'s' * (remaining > 1)} of {num_nodes(plan)} cannot train it: {reason}"
    return NoFeasibleLayoutError(
        of, hint=f"{least} nodes are the least; start again with `--resume` when they are there"
    )


def _fits(plan: Plan, number: int) -> bool:
    try:
        _planned(plan, range(number))
    except MeshwrightError:
        return False
    return True
