"""The order of a stage's passes: its row of the schedule that the cost models simulate. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from ...cost_models.schedules.csv import from_csv
from ...cost_models.schedules.orders import B, F, I, Schedule, W
from ...cost_models.schedules.simulator import ORDERS, Costs, make, simulate
from ...errors import FieldProblem, InputError

if TYPE_CHECKING:
    from ..job import Job

Kind = Literal["F", "B", "I", "W"]
_KINDS: dict[int, Kind] = {F: "F", B: "B", I: "I", W: "W"}


class Action(NamedTuple):
    """A pass of a chunk of this stage for one micro-batch.

    Kinds: forward (`F`), whole backward (`B`), gradients of the inputs (`I`), gradients of the weights (`W`).
    """

    kind: Kind  # kind of pass
    chunk: int  # in this stage, from 0, in the order of the model
    micro_batch: int  # in the step, from 0


def actions(schedule: Schedule, stage: int) -> list[Action]:
    """The passes of `stage` in order. The two passes of an overlapped pair are consecutive."""
    row = slice(int(schedule.first[stage]), int(schedule.first[stage + 1]))
    mine = [chunk for chunk, device in enumerate(schedule.device.tolist()) if device == stage]
    local = {chunk: index for index, chunk in enumerate(mine)}
    passes = zip(schedule.kind[row].tolist(), schedule.chunk[row].tolist(), schedule.micro_batch[row].tolist(),
                 strict=True)  # fmt: skip
    return [Action(_KINDS[kind], local[chunk], micro_batch) for kind, chunk, micro_batch in passes]


def custom_order(source: str, job: Job) -> Schedule:
    """A custom order for the stages of a job: a name known to the simulator, or a CSV file.

    Raises InputError if its chunks, stages or micro-batches differ from those of the job, or if it deadlocks.
    """
    layout, m, devices = job.layout, job.num_micro_batches, job.devices
    if source in ORDERS:
        order = make(source, layout.pp, m, len(devices) // layout.pp)
    else:
        order = from_csv(_read(Path(source)), Path(source).name)
    name, problems = Path(source).name, []
    if order.num_micro_batches != m:
        arithmetic = f"{job.global_batch} / (dp {layout.dp} x {layout.micro_batch}) = {m}"
        problems.append(f"has {order.num_micro_batches} micro-batches, the run has {arithmetic}")
    if order.upstream.tolist() != list(range(-1, order.num_chunks - 1)):
        problems.append("holds each part of the model on two stages, the layout on one")
    elif order.device.tolist() != devices:
        problems.append(f"has chunks on the stages {_listed(order.device.tolist())}, {layout} on {_listed(devices)}")
    if problems:
        hint = "chunks in the order of the model; the stages of a V go there and back: plan with that layout"
        raise InputError.of([FieldProblem(f"{name} {text}", hint=hint) for text in problems])
    simulate(order, Costs.even(order, 1.0, 1.0, 1.0))  # raises an error that names the deadlocked operation
    return order


def _listed(stages: list[int]) -> str:
    return ", ".join(map(str, stages))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"--order {path}: {why}", hint=f"a file in CSV, or one of {', '.join(ORDERS)}") from error
