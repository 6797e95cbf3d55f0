"""`what_if`: a question about a plan, from the plan's file alone and what its request names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import InputError, UnknownNameError
from ..document.candidate import Candidate
from ..document.plan import Plan
from ..document.reading import load_plan
from ..drivers.watch import interactive_progress
from ..evaluation.staged import Staged
from ..request.load import request_from_dict
from ..request.resolve import Resolved, resolve
from ..search.executors import opened
from .axes import parse_vary
from .base import Progress, Question, Result
from .pricing import HeldLayout, Stop
from .registry import STUDIES
from .values import parse_sets

_AGREES = 1e-6  # relative: a plan's numbers carry 9 digits
_SHOWS = 5e-4  # relative: a difference that four digits show
_OF_POINTS = ("sweep", "strong-scaling", "weak-scaling", "generations")  # studies that search points one by one


def what_if(
    plan: Plan | Path | str,
    *,
    set: Sequence[str] | Mapping[str, str] = (),
    vary: Sequence[str] | str = (),
    study: str | None = None,
    replan: bool = False,
    choice: int = 1,
    assume: Mapping[str, str] | None = None,
    jobs: int = 1,
    executor: str | None = None,
    resume: Path | str | None = None,
    progress: Progress | None = None,
    should_stop: Stop | None = None,
) -> Result:
    """Price a layout of `plan` (an object or a file) with changed numbers.

    set: `path=value`, any field of the request and any number of the hardware (`gpu.memory.bandwidth=4.8 TB/s`).
    vary: `path=a..b` or `path=a,b,c`, one or two. study: a name in registry.py; None: a comparison or a sweep.
    replan: also search the best layout. choice: number of the layout in the plan. assume: the study's assumptions.
    jobs, executor: processes, or a cluster (`dask://host:port`, `ray://host:port`), that search points of a sweep.
    resume: a file that keeps finished points. should_stop: ends the searches when it returns True.
    progress: called with (finished points, all points, a note). Without it notebooks and interactive shells get a
    line on stderr every 10 s. Raises InputError (exit 2) and NoFeasibleLayoutError (exit 1) as `plan` does.
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    sets = [f"{path}={value}" for path, value in set.items()] if isinstance(set, Mapping) else list(set)
    ranges = [vary] if isinstance(vary, str) else list(vary)
    name = _study_name(study, sets, ranges)
    opened(jobs, executor)  # refuses what is wrong before anything is searched
    if resume is not None and (name not in _OF_POINTS or (name == "sweep" and not replan)):
        raise InputError("--resume keeps searches, and this searches no points", hint="add `--replan` to a `--vary`")
    candidate, layout, base = _held_layout(plan, choice)
    with interactive_progress(progress, "studying") as reported:
        question = Question(
            base, layout, parse_sets(sets), tuple(map(parse_vary, ranges)), replan=replan, assume=dict(assume or {}),
            jobs=jobs, executor=executor, resume=None if resume is None else Path(resume), progress=reported,
            should_stop=should_stop,
        )  # fmt: skip
        return _noted(STUDIES[name](question), candidate, question)


def _study_name(study: str | None, sets: Sequence[str], ranges: Sequence[str]) -> str:
    """The study that is meant. Raises InputError for an unknown one, and where there is nothing to compare."""
    name = study or ("sweep" if ranges else "compare")
    if name not in STUDIES:
        raise UnknownNameError("study", name, STUDIES)
    if name == "compare" and not sets:
        hint = "`--set gpu.memory.bandwidth=4.8TB/s`, `--vary gpu.peak=x0.5..x4` or `--study sensitivity`"
        raise InputError("nothing to change", hint=hint)
    return name


def _held_layout(plan: Plan, choice: int) -> tuple[Candidate, HeldLayout, Resolved]:
    """Layout number `choice`, as studies hold it, and the request of the plan."""
    candidate, base = chosen(plan, choice), resolve(request_from_dict(plan.request))
    refuse_groups(candidate, "what-if")
    return candidate, HeldLayout(candidate.to_layout(), candidate.partition), base


def _noted(result: Result, candidate: Candidate, question: Question) -> Result:
    """`result` with notes where studies price otherwise than the plan did."""
    simulate = candidate.closed_form_s is not None
    now = Staged.of(question.plain, question.layout.layout, question.layout.partition, simulate=simulate)
    notes = (*_closed_form(now), *_not_placed(now, candidate), *_interrupted(question), *result.notes)
    return result.model_copy(update={"warnings": (*_stale(now, candidate), *result.warnings), "notes": notes})


def refuse_groups(candidate: Candidate, what: str) -> None:
    """Raises InputError for a layout that uses groups of nodes as what they are, where `what` cannot price that."""
    if candidate.spread is None:
        return
    names = [use.name for use in candidate.spread.islands]
    even = "made with `--stages even`" if len(names) > 1 else f"for {names[0]} alone"
    raise InputError(
        f"layout {candidate.choice} uses groups of nodes as what they are, and {what} prices all GPUs alike",
        hint=f"`meshwright explain` has its groups; or ask it of a plan {even}",
    )


def chosen(plan: Plan, choice: int) -> Candidate:
    """Layout number `choice` of the plan. Raises InputError if there is none."""
    candidate = next((candidate for candidate in plan.candidates if candidate.choice == choice), None)
    if candidate is None:
        raise InputError(f"the plan has no layout {choice}", hint=f"it has 1 to {len(plan.candidates)}")
    return candidate


def _stale(now: Staged, candidate: Candidate) -> tuple[str, ...]:
    """A warning where the plan's price is not today's: profiles or constants have changed since it was written."""
    if candidate.placement.order is not None or abs(now.step_s / candidate.step_s - 1) <= _AGREES:
        return ()
    priced = f"the plan was priced at {candidate.step_s:.4g} s, with the profiles of today it is {now.step_s:.4g} s"
    return (f"{priced}: plan again",)


def _not_placed(now: Staged, candidate: Candidate) -> tuple[str, ...]:
    """A note where the plan places its nodes by links that differ, which studies do not."""
    if candidate.placement.order is None:
        return ()
    by = "" if candidate.closed_form_s is None else " by the closed form"
    placed = f"the plan, whose nodes are placed, has {candidate.closed_s:.4g} s"
    return (f"Every link counts as the slowest, which gives {now.closed_s:.4g} s{by} where {placed}.",)


def _closed_form(now: Staged) -> tuple[str, ...]:
    """A note where the closed form, which studies price by, shows another number than the plan, which simulates."""
    if abs(now.closed_s / now.step_s - 1) < _SHOWS:
        return ()
    gives = f"which gives {now.closed_s:.4g} s where the plan's simulation gives {now.step_s:.4g} s"
    return (f"Priced by the closed form, {gives}.",)


def _interrupted(question: Question) -> tuple[str, ...]:
    """A note on spot nodes, whose interruptions change costs and not the speed of a step."""
    if question.base.request.spot is None:
        return ()
    return ("Dollars and energy include the interruptions of spot nodes; tokens/s are those of uninterrupted steps.",)
