"""The screen of `meshwright launch` after a complete run: its checks and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...runtime.rehearsal import parity
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...runtime.job import Job


def balancing_line(job: Job) -> str:
    """The coefficient of the experts' balancing loss."""
    coefficient = job.model.moe_aux_loss_coeff
    if not coefficient:
        return "no balancing loss of experts: plan with `--set workload.moe_aux_loss_coeff=0.001` for one"
    return f"balancing loss of experts: {coefficient:g} in each layer, beside the loss that is shown"


def parity_table(verdict: parity.Parity) -> RenderableType:
    """Losses and gradient norms of each step beside those of one process."""
    rows = [
        (str(s.step), f"{s.loss:.12f}", f"{s.reference_loss:.12f}", f"{s.loss_difference:.1e}",
         f"{s.gradient_norm:.9f}", f"{s.reference_norm:.9f}", f"{s.norm_difference:.1e}", "" if s.agrees else "differs")
        for s in verdict.steps
    ]  # fmt: skip
    names = ("step", "loss", "one process", "rel. diff.", "gradient norm", "one process ", "rel. diff. ", "")
    return table(*names, rows=rows, right=names[:-1])


def verdict_line(verdict: parity.Parity) -> str:
    """Whether the run trained the same model."""
    first = verdict.first_difference
    if first is None:
        limits = f"relative {verdict.tolerances.loss:g} and {verdict.tolerances.norm:g}"
        return (f"losses and gradient norms agree with the single-process run ({limits}); "
                f"the loss moves by at least {verdict.least_change:.1%} a step")  # fmt: skip
    return (f"NOT the same training: step {first.step} differs from the single-process run, loss by a relative "
            f"{first.loss_difference:.1e}, gradient norm by {first.norm_difference:.1e}")  # fmt: skip


def memory_table(memory: Sequence[parity.StageMemory]) -> RenderableType:
    """Peak bytes of each stage beside the planner's."""
    rows = [
        (str(row.stage), f"{row.measured_bytes / 2**20:,.2f}", f"{row.predicted_bytes / 2**20:,.2f}",
         f"{row.difference:+.1%}")
        for row in memory
    ]  # fmt: skip
    names = ("stage", "peak MiB", "predicted MiB", "")
    return table(*names, rows=rows, right=names)
