"""The screens of `meshwright launch`: checks and memory of a complete run, and the plan after a lost node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from ...cost_models.quantities.memory import engine_bytes
from ...runtime.rehearsal import parity
from ...runtime.reinforcement.job import SYNC
from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.document.plan import Plan
    from ...planner.evaluation.conversion import Moved
    from ...planner.studies.fewer_nodes import FewerNodes
    from ...runtime.job import Job
    from ...runtime.reinforcement.job import RlJob
    from ...runtime.report import Event


def balancing_line(job: Job) -> str:
    """The coefficient of the experts' balancing loss."""
    coefficient = job.model.moe_aux_loss_coeff
    if not coefficient:
        return "no balancing loss of experts: plan with `--set workload.moe_aux_loss_coeff=0.001` for one"
    return f"balancing loss of experts: {coefficient:g} in each layer, beside the loss that is shown"


def images_line(job: Job) -> str:
    """The pixels that the run sees."""
    number, state = job.images.per_sequence if job.images else 0, "frozen" if job.freezes_tower else "trained"
    return (f"images per sequence: {number}, synthetic: the tokens of the data in their places become pixels; "
            f"{state if job.lora is None else 'frozen'} vision tower")  # fmt: skip


def exchanged_line(job: Job, exchanged: Mapping[str, Sequence[float]]) -> str:
    """The bytes that all ranks sent other replicas, beside those of the ledger."""
    name = job.technique[0] if job.technique else ""
    sent, scales, ledger = (round(sum(exchanged[key])) for key in ("sent_bytes", "scale_bytes", "ledger_bytes"))
    verdict = f"as in the ledger ({ledger:,.0f})" if sent == ledger else f"{ledger:,.0f} in the ledger"
    beside = f", and {scales:,.0f} of {'losses' if name == 'gradient-coding' else 'scales'}" if scales else ""
    return f"{name}: the ranks sent other replicas {sent:,.0f} bytes, {verdict}{beside}"


def technique_line(job: Job) -> str:
    """The technique of a run, with its knobs."""
    name, knobs = job.technique or ("", {})
    return f"replicas exchange by {name}: {', '.join(f'{knob} {value:g}' for knob, value in knobs.items())}"


def parity_table(verdict: parity.Parity) -> RenderableType:
    """Losses and gradient norms of each step beside those of one process."""
    rows = [
        (str(s.step), f"{s.loss:.12f}", f"{s.reference_loss:.12f}", f"{s.loss_difference:.1e}",
         f"{s.gradient_norm:.9f}", f"{s.reference_norm:.9f}", f"{s.norm_difference:.1e}",
         *([f"{s.state.relative:.1e}"] if s.state else []), "" if s.agrees else "differs")
        for s in verdict.steps
    ]  # fmt: skip
    names = ["step", "loss", "one process", "rel. diff.", "gradient norm", "one process ", "rel. diff. ", ""]
    if verdict.tolerances.state is not None:
        names.insert(-1, "states")
    return table(*names, rows=rows, right=names[:-1])


def verdict_line(verdict: parity.Parity) -> str:
    """Whether the run trained the same model."""
    first = verdict.first_difference
    if first is None:
        limits, numbers = verdict.tolerances, "losses and gradient norms agree"
        if limits.state is not None:
            numbers = f"from equal states at each step, states (relative {limits.state:g}), losses and norms agree"
        return (f"{numbers} with the single-process run (relative {limits.loss:g} and {limits.norm:g}); "
                f"the loss moves by at least {verdict.least_change:.1%} a step")  # fmt: skip
    return (f"NOT the same training: step {first.step} differs from the single-process run, loss by a relative "
            f"{first.loss_difference:.1e}, gradient norm by {first.norm_difference:.1e}"
            + (f", {first.state.name} by {first.state.relative:.1e}" if first.state else ""))  # fmt: skip


CALLS_PLANNED = "planned: seconds of the plan's model on its GPUs, with the share of a step in brackets"


def calls_table(job: RlJob, steps: Sequence[Event]) -> RenderableType:
    """Mean seconds of each call of post-training, and its share, over the steps that run it, beside those of the
    plan."""
    planned = {call.name: call.seconds for call in job.planned}
    planned |= {} if job.engine is None else {SYNC: job.planned_sync_s}
    ranks = {place.name: f"{place.ranks.start}-{place.ranks[-1]}" for place in job.places}
    rows = []
    for name, planned_s in planned.items():
        ran = [(step["calls"][name], step["step_s"]) for step in steps if name in step["calls"]]
        means = [fmean(column) for column in zip(*ran, strict=True)]
        rows.append((name, ranks.get(name, ""), _share(*means), _share(planned_s, job.planned_step_s)))
    measured = fmean(step["step_s"] for step in steps)
    rows.append(("step", "", _share(measured, measured), _share(job.planned_step_s, job.planned_step_s)))
    return table("call", "ranks", "s", "planned s", rows=rows, right=("s", "planned s"))


def moved_line(job: RlJob, received: Mapping[str, Sequence[int]]) -> str:
    """Bytes of new weights that ranks of the engine receive, beside those that plans price."""
    if job.engine is None:
        return ""
    of_ranks = [received[job.engine.name][rank] for rank in job.engine.ranks]
    low, high = (f"{each / 2**20:,.2f}" for each in (min(of_ranks), max(of_ranks)))
    return (f"new weights: a rank of the engine receives {low if low == high else f'{low} to {high}'} MiB of other "
            f"ranks; plans price all weights in bf16, {engine_bytes(job.model) / 2**20:,.2f} MiB for this model")


def _share(seconds: float, step_s: float) -> str:
    return f"{text.significant(seconds)} ({seconds / step_s:.0%})"


def left_text(number: int, recent: Sequence[float]) -> str:
    """The time that `number` more steps take by the median of recent ones, which are not all of the first two."""
    return f"  {text.duration(number * median(recent))} left" if number and len(recent) > 2 else ""


def summary_line(steps: Sequence[Event], job: Job) -> str:
    """Steps, tokens and time of a run, and its usual step beside the planned one."""
    first, last, total_s = steps[0], steps[-1], sum(step["step_s"] for step in steps)
    tokens = job.tokens_until(last["step"]) - job.tokens_until(first["step"] - 1)
    usual = {name: median(step[name] for step in steps if name in step)
             for name in ("step_s", "tokens_per_s", "mfu") if name in last}  # fmt: skip
    planned = f" (predicted {job.predicted_step_s:.3g} s)" if job.predicted_step_s else ""
    if "mfu" in usual:
        planned += f", MFU {usual['mfu']:.1%} (predicted {job.predicted_mfu or 0:.1%})"
    return (f"trained steps {first['step']} to {last['step']}: {tokens:,} tokens in {text.duration(total_s)}, loss "
            f"{first['loss']:.4f} to {last['loss']:.4f}; median step {usual['step_s']:.3g} s{planned}, "
            f"{usual['tokens_per_s']:,.0f} tokens/s")  # fmt: skip


def memory_table(memory: Sequence[parity.StageMemory]) -> RenderableType:
    """Peak bytes of each stage beside the planner's."""
    rows = [
        (str(row.stage), f"{row.measured_bytes / 2**20:,.2f}", f"{row.predicted_bytes / 2**20:,.2f}",
         f"{row.difference:+.1%}")
        for row in memory
    ]  # fmt: skip
    names = ("stage", "peak MiB", "predicted MiB", "")
    return table(*names, rows=rows, right=names)


def preview_line(plan: Plan, choice: int, fewer: FewerNodes, states: Moved | None) -> str:
    """The layout that a run would go on with after the loss of one node."""
    best, before = fewer.plan.best, plan.candidates[choice - 1]
    moved = "" if states is None else f"; its states move to it in {text.duration(states.by_kernels.total_s)}"
    return (f"without one node: {best.layout_id} on {_nodes(len(fewer.nodes))}, "
            f"{_step(best.step_s, before.step_s)}{moved}")  # fmt: skip


def resharding_line(saved: str, now: str, states: Moved) -> str:
    """Seconds of a checkpoint's states to the layout that resumes from it."""
    way = states.by_kernels
    runs = f"gathering {states.runs:,.0f} runs" if states.runs else "gathering"
    return (f"predicted from {saved} to {now}: {text.duration(way.total_s)} in memory, {runs} "
            f"{text.duration(way.gather_s)} of it; reading the checkpoint is not counted")  # fmt: skip


def lost_lines(number: int, present: Sequence[int], fewer: FewerNodes) -> list[str]:
    """The nodes that are lost, and those that remain without a part in the new plan."""
    lost = [node for node in range(number) if node not in present]
    lines = [f"lost: node{'s' * (len(lost) > 1)} {text.ranges(lost)} of {number}"]
    if fewer.idle:
        reason = f": {fewer.why_idle.splitlines()[0]}" if fewer.why_idle else ", which is faster than on more nodes"
        lines.append(f"left out: node{'s' * (len(fewer.idle) > 1)} {text.ranges(fewer.idle)}; "
                     f"the plan is for {len(fewer.nodes)}{reason}")  # fmt: skip
    return lines


def fewer_nodes_table(
    plan: Plan, choice: int, fewer: FewerNodes, states: Moved | None, file: Path
) -> RenderableType:  # fmt: skip
    """The layout before and after the loss of nodes, and the file of the new plan."""
    before, now = plan.candidates[choice - 1], fewer.plan.best
    number = sum(int(group["num_nodes"]) for group in plan.resolved["cluster"]["groups"])
    rows = [
        ("nodes, GPUs", f"{number}, {before.to_layout().num_gpus}", f"{len(fewer.nodes)}, {now.to_layout().num_gpus}"),
        ("layout", before.layout_id, now.layout_id),
        ("predicted step", f"{text.significant(before.step_s)} s", _step(now.step_s, before.step_s)),
        *([] if states is None else [("states move in", "", text.duration(states.by_kernels.total_s))]),
        ("plan", "", str(file)),
    ]
    return table("", "before", "now", rows=rows)


def _step(now: float, before: float) -> str:
    return f"{text.significant(now)} s ({text.more(now / before - 1)})"


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number > 1)}"
