"""The top of a plan: which layout to run, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import text
from .facts import Facts

if TYPE_CHECKING:
    from ...planner.document.candidate import Candidate
    from ...planner.document.plan import Plan
    from ...planner.explain.outlook import Outlook


def verdict(plan: Plan, candidate: Candidate) -> str:
    """`Run tp4-pp4-...: 46 % MFU, 21 days for 15 trillion tokens, fits with 9.0 GiB to spare; ...`, one sentence."""
    from ...planner.explain.outlook import outlook

    seen = outlook(plan, candidate)
    if seen.whole_run:
        pace = f"{text.significant(seen.days)} days for {text.count(seen.tokens)} tokens"
    else:
        pace = f"{text.count(seen.tokens_per_day)} tokens a day"
    room = _room_bytes(plan, candidate)
    spare = f"fits with {text.gib(room)} GiB to spare"
    if room < 0:
        spare = f"needs {text.gib(-room)} GiB more than there are"
    found = "Best so far: run" if plan.certificate.stopped else "Run"
    decided = f"{found} {candidate.layout_id}: {text.percent(candidate.mfu)} % MFU, {pace}, {spare}"
    return text.wrapped(f"{decided}{_safer(plan, candidate)}.")


_UNSEEN_BYTES = 0.05 * 2**30  # up to here a difference is printed as 0.0 GiB


def _safer(plan: Plan, candidate: Candidate) -> str:
    """The fastest layout of the list that needs less memory, if the model does not tell its time apart; and what it
    costs."""
    longest_s = candidate.step_s * (1 + (plan.ranking_lead or 0.0))
    room = {other.choice: _room_bytes(plan, other) - _room_bytes(plan, candidate) for other in plan.candidates}
    less = [other for other in plan.candidates
            if room[other.choice] > _UNSEEN_BYTES and other.step_s <= longest_s]  # fmt: skip
    if not less:
        return ""
    safer = min(less, key=lambda other: other.step_s)
    saved = text.gib(room[safer.choice])
    change = safer.step_s / candidate.step_s - 1
    shown = text.percent(abs(change))
    cost = "takes as long" if float(shown) == 0 else f"takes {shown} % {'longer' if change > 0 else 'less time'}"
    memory = f"needs {saved} GiB less" if candidate.spread is None else f"leaves {saved} GiB more"
    return f"; layout {safer.choice} {memory} and {cost}"


def _room_bytes(plan: Plan, candidate: Candidate) -> float:
    """Bytes that are left on the GPU with the least room, by its own limit."""
    used, limit = candidate.least_room(Facts.of(plan).memory_bytes)
    return limit - used


def outlook_lines(plan: Plan, candidate: Candidate) -> list[str]:
    """Tokens, GPU-hours, cost and energy: of the whole run where its tokens are given, else of a day."""
    from ...planner.explain.outlook import outlook

    seen = outlook(plan, candidate)
    span = "Whole run" if seen.whole_run else "Per day"
    time = f"{text.significant(seen.days)} days, " if seen.whole_run else ""
    pace = f"{text.count(seen.tokens_per_day)} tokens a day"
    rows = [(span, f"{time}{pace}, {text.count(seen.gpu_hours)} GPU-hours"), ("Cost", _cost(seen)),
            ("Energy", _energy(seen))]  # fmt: skip
    if seen.spot is not None:
        rows.append(("Spot", _spot(seen.spot)))
    return [text.wrapped(f"{name + ':':<11}{words}", " " * 11) for name, words in rows]


def _spot(spot: Mapping[str, float]) -> str:
    """The interruptions of a run on spot nodes, and the share of its time that makes progress."""
    between, checkpoint, interval = (text.duration(spot[name]) for name in ("mtbf_s", "checkpoint_s", "interval_s"))
    return (f"interrupted every {between}; with a checkpoint ({checkpoint}) every {interval}, "
            f"{text.percent(spot['goodput'])} % of the time makes progress: the numbers above include it")  # fmt: skip


def _cost(seen: Outlook) -> str:
    if seen.usd is None or seen.usd_per_gpu_hour is None:
        return "no price of these GPUs is known: give `price: 20 USD/h` of a node in a cluster file"
    return f"{text.count(seen.usd)} USD, at {seen.usd_per_gpu_hour:.2f} USD per GPU-hour ({seen.price_of})"


def _energy(seen: Outlook) -> str:
    if seen.mwh is None:
        return "the power of a GPU is not known"
    amount = f"{text.significant(seen.mwh)} MWh" if seen.mwh >= 1 else f"{text.significant(seen.mwh * 1e3)} kWh"
    return f"{amount} of the GPUs alone, at their board power"
