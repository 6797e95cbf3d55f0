"""Another layout than the one before: `launch --elastic` plans for the nodes that remain, `--resume` has another plan.

Node 0 finds it and shows it, with the seconds that states take to it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, MeshwrightError
from .console import Terminal

if TYPE_CHECKING:
    from ..planner.document.lengths_plan import LengthsPlan
    from ..planner.document.plan import Plan
    from ..planner.document.rl_plan import RlPlan
    from ..planner.evaluation.conversion import Moved
    from ..planner.studies.fewer_nodes import FewerNodes
    from ..runtime.nodes import Nodes
    from ..runtime.restarts import Recovery
    from ..runtime.settings import Settings


def recovery_of(
    terminal: Terminal, plan: Plan | LengthsPlan | RlPlan, settings: Settings, nodes: Nodes, *, elastic: bool,
    rejoin_s: float | None,
) -> Recovery:  # fmt: skip
    """How a run goes on after a failure. Node 0 shows at once what another layout means for states: that of a resumed
    run, and with `elastic` that of one node less. The plan is one that `check_nodes` accepts."""
    from ..runtime.restarts import REJOIN_S, Recovery, plan_file
    from .screens import launch as screen

    rejoin_s = REJOIN_S if rejoin_s is None else rejoin_s
    if nodes.node_rank == 0:
        show_resharding(terminal, plan, settings)
    if not elastic or plan.kind != "plan":
        return Recovery(rejoin_s)
    from ..planner.studies.fewer_nodes import num_nodes, plan_for_nodes

    if nodes.node_rank == 0:
        _preview(terminal, plan, settings.choice)

    def replan(before: Plan, present: list[int]) -> tuple[Plan, tuple[int, ...]]:
        choice = settings.choice if before.request_sha256 == plan.request_sha256 else 1
        with terminal.progress("planning", bar=False):
            fewer = plan_for_nodes(before, present)
            states = _states_moved(before, choice, fewer)
        for line in screen.lost_lines(num_nodes(before), present, fewer):
            terminal.show_line(line)
        terminal.show([screen.fewer_nodes_table(before, choice, fewer, states,
                                                 plan_file(settings, len(fewer.nodes)))])  # fmt: skip
        return fewer.plan, fewer.nodes

    return Recovery(rejoin_s, replan)


def check_nodes(
    plan: Plan | LengthsPlan | RlPlan, nodes: Nodes, *, elastic: bool, copy_every: int
) -> None:  # fmt: skip
    """Raises InputError where the nodes of a run, or their memory, do not serve to go on after a failure."""
    if copy_every:
        _check_copies(nodes)
    if elastic:
        _check_elastic(plan, nodes.nnodes)


def _check_elastic(plan: Plan | LengthsPlan | RlPlan, number: int) -> None:
    """Raises InputError where a run on `number` nodes may lose none, or its plan is for other nodes."""
    if plan.kind != "plan":
        raise InputError(f"--elastic: not with a {plan.kind}", hint="`--max-restarts N` starts its ranks again")
    from ..planner.studies.fewer_nodes import num_nodes

    planned = num_nodes(plan)
    if number == 1:
        raise InputError("--elastic: the run has one node, and none remains without it",
                         hint="`--max-restarts N` starts its ranks again")  # fmt: skip
    if planned != number:
        raise InputError(f"--elastic: the run has {number} nodes, the plan {planned}",
                         hint="plan for a cluster of these nodes, or leave out `--nnodes`")  # fmt: skip


def _check_copies(nodes: Nodes) -> None:
    """Raises InputError where copies in memory would be lost with their node, or have no place."""
    from ..runtime.checkpoint.restore_copies import check_shared_memory

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
            states = _states_moved(plan, choice, fewer)
    except InputError:  # the request cannot be planned again, with any number of nodes
        raise
    except MeshwrightError as error:
        terminal.warn(f"the run cannot go on without a node: {error.message}", error.hint)
        return
    terminal.show_line(screen.preview_line(plan, choice, fewer, states))


def _states_moved(plan: Plan, choice: int, fewer: FewerNodes) -> Moved | None:
    from ..planner.evaluation.conversion import moved_in

    before = plan.candidates[choice - 1]
    if before.layerwise is not None:  # no layout has the degrees of all its layers
        return None
    return moved_in(fewer.plan, fewer.plan.best, before.to_layout())


def show_resharding(terminal: Terminal, plan: Plan | LengthsPlan | RlPlan, settings: Settings) -> None:
    """Shows how long states take from the layout of the newest checkpoint, if it is another one, to that of the run.
    A rehearsal's states are those of a small model."""
    from ..cost_models.layouts import parse
    from ..planner.evaluation.conversion import moved_in
    from ..runtime.checkpoint.manifest import newest
    from .screens import launch as screen

    if not settings.resume or settings.checkpoint is None or settings.scale_down or plan.kind != "plan":
        return
    candidate = plan.candidates[settings.choice - 1]
    try:
        saved = newest(Path(settings.checkpoint))[1].layout_id
        states = moved_in(plan, candidate, parse(saved))
    except InputError:  # no checkpoint yet, a damaged one, or one whose layers have strategies of their own
        return
    if states is not None and saved != candidate.layout_id:
        terminal.show_line(screen.resharding_line(saved, candidate.layout_id, states))


def check_elastic(
    *, elastic: bool, rejoin_s: float | None, scale_down: bool, order: str | None, restarts: int
) -> None:  # fmt: skip
    """Raises InputError where another flag rules `--elastic` out, and for a wait that is no time."""
    if rejoin_s is not None and not 0 < rejoin_s < math.inf:
        raise InputError(f"--rejoin-timeout {rejoin_s:g}: must be above 0 and finite", hint="leave it out for 60 s")
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
