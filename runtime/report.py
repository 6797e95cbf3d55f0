"""The report of a run: one JSON document, made from the events that rank 0 sends. No torch here.

Events: `start` (environment), `step`, `end` (peak memory). A run that was stopped reports its steps until then.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Any

from .._version import __version__
from .job import Job

FORMAT_VERSION = "1.1"
# Per rank: tensors, what the GPU's allocator reserved for them, and what is in use on the GPU. CPUs have the first.
PEAKS = ("peak_memory_bytes", "reserved_memory_bytes", "device_memory_bytes")
Event = dict[str, Any]


@dataclass
class Recorder:
    """Collects the events of one run."""

    job: Job
    notes: list[str]
    events: list[Event] = field(default_factory=list)
    stopped: str | None = None

    def add(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: str) -> list[Event]:
        """Events of one kind, without their name."""
        return [{k: v for k, v in each.items() if k != "event"} for each in self.events if each["event"] == kind]

    @property
    def steps(self) -> list[Event]:
        return self.of("step")

    def peaks(self, name: str = PEAKS[0]) -> list[int]:
        """Bytes per rank of one of PEAKS; empty if the run did not end or its device cannot say."""
        ends = self.of("end")
        return [int(value) for value in ends[-1].get(name, ())] if ends else []

    def document(self, **more: Any) -> dict[str, Any]:
        """The report."""
        starts = self.of("start")
        job = self.job
        return {
            "format_version": FORMAT_VERSION, "kind": "run", "plan": job.plan_id, "choice": job.choice,
            "layout_id": str(job.layout), "model": job.model.name, "scaled_down": self.notes, "dtype": job.dtype,
            "optimizer": job.optimizer, "learning_rate": job.learning_rate, "seed": job.seed, "data": job.data,
            "seq_len": job.seq_len, "global_batch": job.global_batch, "predicted_step_s": job.predicted_step_s,
            "steps": self.steps, **{name: self.peaks(name) for name in PEAKS}, "stopped": self.stopped,
            "environment": {"meshwright": __version__, "python": platform.python_version(),
                            "platform": platform.platform(), **(starts[0] if starts else {})},
            **more,
        }  # fmt: skip


def step_line(event: Event, job: Job) -> str:
    """One line per step: loss, gradient norm, speed, and the predicted time beside the measured one."""
    predicted = f" (predicted {job.predicted_step_s:.3g} s)" if job.predicted_step_s else ""
    return (f"step {event['step']}/{job.steps}  loss {event['loss']:.4f}  gradient norm {event['gradient_norm']:.3f}  "
            f"{event['tokens_per_s']:,.0f} tokens/s  {event['step_s']:.3g} s{predicted}")  # fmt: skip
