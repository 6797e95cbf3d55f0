"""`launch --elastic`: the plan for the nodes that remain, found on node 0 and shown there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InputError, MeshwrightError
from .console import Terminal

if TYPE_CHECKING:
    from ..planner.document.lengths_plan import LengthsPlan
    from ..planner.document.plan import Plan
    from ..planner.document.rl_plan import RlPlan
    from ..runtime.nodes import Nodes
    from ..runtime.restarts import Recovery
    from ..runtime.settings import Settings


def recovery_of(
    terminal: Terminal, plan: Plan | LengthsPlan | RlPlan, settings: Settings, nodes: Nodes, *, elastic: bool,
    rejoin_s: float | None,
) -> Recovery:  # fmt: skip
    """How a run goes on after a failure. With `elastic` node 0 shows at once what one node less would mean.

    Raises InputError where the run has one node, or other nodes than its plan.
    """
    from ..runtime.restarts import REJOIN_S, Recovery, plan_file
    from .screens import launch as screen

    rejoin_s = REJOIN_S if rejoin_s is None else rejoin_s
    if not rejoin_s > 0:
        raise InputError(f"--rejoin-timeout {rejoin_s:g}: must be above 0", hint="leave it out for 60 s")
    if not elastic:
        return Recovery(rejoin_s)
    if plan.kind != "plan":
        raise InputError("--elastic: not with a plan for documents of mixed lengths",
                         hint="`--max-restarts N` starts its ranks again")  # fmt: skip
    from ..planner.studies.fewer_nodes import num_nodes, plan_for_nodes

    _check_nodes(nodes.nnodes, num_nodes(plan))
    if nodes.node_rank == 0:
        _preview(terminal, plan, settings.choice)

    def replan(before: Plan, present: list[int]) -> tuple[Plan, tuple[int, ...]]:
        choice = settings.choice if before.request_sha256 == plan.request_sha256 else 1
        with terminal.progress("planning", bar=False):
            fewer = plan_for_nodes(before, present)
        for line in screen.lost_lines(num_nodes(before), present, fewer):
            terminal.show_line(line)
        terminal.show([screen.fewer_nodes_table(before, choice, fewer, plan_file(settings, len(fewer.nodes)))])
        return fewer.plan, fewer.nodes

    return Recovery(rejoin_s, replan)


def _check_nodes(number: int, planned: int) -> None:
    """Raises InputError where no node may be lost, or the plan is for other nodes."""
    if number == 1:
        raise InputError("--elastic: the run has one node, and none remains without it",
                         hint="`--max-restarts N` starts its ranks again")  # fmt: skip
    if planned != number:
        raise InputError(f"--elastic: the run has {number} nodes, the plan {planned}",
                         hint="plan for a cluster of these nodes, or leave out `--nnodes`")  # fmt: skip


def check_copies(every: int, nodes: Nodes) -> None:
    """Raises InputError where copies in memory, if any, would be lost with their node, or have no place."""
    from ..runtime.checkpoint.restore_copies import check_shared_memory

    if not every:
        return
    if nodes.nnodes == 1:
        raise InputError("--copy-every: the run has one node, and a copy in its memory does not survive it",
                         hint="`--checkpoint-every N --checkpoint-async` writes to disk beside training")  # fmt: skip
    check_shared_memory()


def _preview(terminal: Terminal, plan: Plan, choice: int) -> None:
    """Shows the layout of one node less, or warns that there is none."""
    from ..planner.studies.fewer_nodes import num_nodes, plan_for_nodes
    from .screens import launch as screen

    try:
        with terminal.progress("planning for a node less", bar=False):
            fewer = plan_for_nodes(plan, list(range(num_nodes(plan) - 1)))
    except InputError:  # the request cannot be planned again, with any number of nodes
        raise
    except MeshwrightError as error:
        terminal.warn(f"the run cannot go on without a node: {error.message}", error.hint)
        return
    terminal.show_line(screen.preview_line(plan, choice, fewer))


def check_elastic(
    *, elastic: bool, rejoin_s: float | None, scale_down: bool, order: str | None, restarts: int
) -> None:  # fmt: skip
    """Raises InputError where another flag rules `--elastic` out."""
    if rejoin_s is not None and not elastic and not restarts:
        raise InputError("--rejoin-timeout: nothing starts again after a failure",
                         hint="add `--elastic` or `--max-restarts N`")  # fmt: skip
    if not elastic:
        return
    if scale_down:
        raise InputError("--elastic: a rehearsal's small model depends on its layout, so no other layout continues it",
                         hint="plan a small model, and launch that plan")  # fmt: skip
    if order is not None:
        raise InputError(f"--elastic: `--order {order}` is for the layout of this plan only", hint="leave out one")
