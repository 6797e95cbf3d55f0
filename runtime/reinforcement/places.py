"""Layouts of calls as this runtime executes them. No torch here."""

from __future__ import annotations

from ...cost_models.layouts import PRECISIONS, Layout
from ...errors import UnsupportedError
from ...planner.document.specs import workload_of
from ..job import unsupported
from .job import Place, RlJob


def whole(layout: Layout) -> Layout:
    """The same of weights that lie whole on the ranks that run them, and do not train."""
    return Layout(tp=layout.tp, sequence_parallel=layout.sequence_parallel, pp=layout.pp, dp=layout.dp,
                  shard=layout.dp, ep=layout.ep, etp=layout.etp, precision=layout.precision)  # fmt: skip


def check_place(job: RlJob, place: Place, runs: str, hint: str) -> None:
    """Raises UnsupportedError for a layout that this runtime cannot execute. runs: as messages name that."""
    of_call = job.training(place) if place in job.trains else job.replica(place)
    layout = of_call.layout
    requested = {"seq_len": job.seq_len, "global_batch": of_call.global_batch, "optimizer": job.optimizer,
                 "precision": PRECISIONS[layout.precision]}  # fmt: skip
    workload = workload_of({"workload": requested}, place.name)
    reason = unsupported(layout, of_call.model, workload, job.stack)
    if reason is not None:
        raise UnsupportedError(f"{place.name}, {layout}, cannot be {runs}: {reason}", hint=hint)
