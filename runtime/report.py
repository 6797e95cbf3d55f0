"""The report of a run: one JSON document, made from the events that rank 0 sends. No torch here.

Events: `start` (environment), `initialised` (from a folder), `step`, `evaluation`, `end` (peak memory), `resumed`,
`checkpoint`, `not_saved`, `not_logged` (metrics), `copies` (memory that they take), `copy`, `not_copied`, `terminated`
(on SIGTERM), `replanned` (for fewer nodes), `transfers` (bytes of weights of post-training). A stopped run reports its
steps until then. A run that went back to a checkpoint reports the steps that count.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Any

from .._version import __version__
from .job import Job

FORMAT_VERSION = "1.5"
EVENT_PREFIX = "@meshwright "  # of a line of rank 0 with an event, for the launcher
# Per rank: bytes of tensors, bytes reserved by the GPU's allocator, and bytes in use on the GPU. On a CPU: bytes that
# the process held for tensors and in all, if the system reports them.
PEAKS = ("peak_memory_bytes", "reserved_memory_bytes", "device_memory_bytes")
Event = dict[str, Any]


@dataclass
class Recorder:
    """Collects the events of one run."""

    job: Job  # the run, or its last plan
    notes: list[str]  # one line per shrunk part of a rehearsal, or per difference to the plan at its size
    is_scaled: bool = True  # whether it is a rehearsal
    events: list[Event] = field(default_factory=list)  # in order, without repeated steps
    stopped: str | None = None  # why the run ended early; None: it did not

    def add(self, event: Event) -> None:
        if event["event"] == "resumed":  # the following steps are repeated
            self.events = [earlier for earlier in self.events if earlier.get("step", 0) <= event["step"]]
        self.events.append(event)

    def follow(self, job: Job) -> None:
        """Goes on with the job of another plan. The following steps are its steps."""
        self.add({"event": "replanned", "plan": job.plan_id, "layout_id": job.layout_id, "before": self.job.layout_id,
                  "num_gpus": job.world_size, "predicted_step_s": job.predicted_step_s})  # fmt: skip
        self.job = job

    def of(self, kind: str) -> list[Event]:
        """Events of one kind, without their name."""
        return [{k: v for k, v in event.items() if k != "event"} for event in self.events if event["event"] == kind]

    @property
    def steps(self) -> list[Event]:
        return self.of("step")

    @property
    def on_gpu(self) -> bool:
        """Whether the ranks ran on GPUs."""
        return any(start["device"] != "cpu" for start in self.of("start"))

    def peaks(self, name: str = PEAKS[0]) -> list[int]:
        """Bytes per rank of one of PEAKS; empty if the run did not end or its device reports none."""
        ends = self.of("end")
        return [int(value) for value in ends[-1].get(name, ())] if ends else []

    @property
    def exchanged(self) -> dict[str, list[float]] | None:
        """Bytes per rank that replicas exchanged by a technique: sent, scales beside them, and those of the ledger.
        None without a technique, or if the run did not end."""
        ends = self.of("end")
        return ends[-1].get("exchanged") if ends else None

    @property
    def transfers(self) -> dict[str, list[int]] | None:
        """Bytes of weights that each rank receives for a call of post-training; None for other runs."""
        moved = self.of("transfers")
        return moved[-1]["received_bytes"] if moved else None

    def document(self, **more: Any) -> dict[str, Any]:
        """The report."""
        starts = self.of("start")
        job = self.job
        return {
            "format_version": FORMAT_VERSION, "kind": "run", "plan": job.plan_id, "choice": job.choice,
            "layout_id": job.layout_id, "model": job.model.name, "dtype": job.dtype,
            "scaled_down": self.notes if self.is_scaled else [],
            "not_as_planned": [] if self.is_scaled else self.notes,
            "optimizer": job.optimizer, "learning_rate": job.learning_rate, "seed": job.seed, "data": job.data,
            "init_from": job.init_from,
            "seq_len": job.seq_len, "global_batch": job.global_batch, "predicted_step_s": job.predicted_step_s,
            "resumed": self.of("resumed"), "replanned": self.of("replanned"),
            "checkpoints": self.of("checkpoint"), "not_saved": self.of("not_saved"), "copies": self.of("copy"),
            "not_copied": self.of("not_copied"), "steps": self.steps, "evaluations": self.of("evaluation"),
            "technique": None if job.technique is None else {job.technique[0]: job.technique[1]},
            "exchanged": self.exchanged, "transfers": self.transfers,
            **{name: self.peaks(name) for name in PEAKS}, "stopped": self.stopped,
            "environment": {"meshwright": __version__, "python": platform.python_version(),
                            "platform": platform.platform(), **(starts[0] if starts else {})},
            **more,
        }  # fmt: skip


def event_line(event: Event, job: Job) -> str:
    """The line for an event; empty for an event without a message."""
    if event["event"] == "step":
        return _step_line(event, job)
    if event["event"] == "evaluation":
        return f"evaluation after step {event['step']}: loss {event['loss']:.4f} on {event['batches']} batches"
    if event["event"] == "initialised":
        return _initialised_line(event, job)
    if event["event"] == "checkpoint":
        line = f"checkpoint {event['folder']}: {event['num_bytes'] / 2**20:,.1f} MiB in {event['seconds']:.2g} s"
        return line + (f", training waited {event['waited_s']:.2g} s" if "waited_s" in event else "")
    if event["event"] in ("copies", "copy", "not_copied"):
        return _copy_line(event)
    if event["event"] == "not_saved":
        return not_saved_line(event)
    if event["event"] == "not_logged":
        which = "" if event["step"] is None else f" of step {event['step']}"
        return f"the metrics{which} were not written: {event['reason']}; training goes on"
    if event["event"] == "terminated":
        return f"SIGTERM: stopped after step {event['step']} of {job.steps}"
    return _resumed_line(event) if event["event"] == "resumed" else ""


def _initialised_line(event: Event, job: Job) -> str:
    """The line for weights read from a folder."""
    line = f"weights from {event['folder']}: {event['num_tensors']} tensors, {' and '.join(event['dtypes'])}"
    if event["rounded"]:
        line += f", rounded to {job.dtype}"
    return line + ("; predictions of more than one token are drawn by the seed" if job.model.mtp_layers else "")


def _copy_line(event: Event) -> str:
    """The line for copies in memory: their size at the start, and each of them."""
    if event["event"] == "copies":
        needed, free = (f"{event[name] / 2**20:,.1f} MiB" for name in ("needed_bytes", "free_bytes"))
        return (f"copies in memory every {event['every']} steps: {needed} on node {event['node']}, two generations of "
                f"its states and of those of the node before it; {free} are free")  # fmt: skip
    if event["event"] == "not_copied":
        return f"step {event['step']} was not copied in memory: {event['reason']}"
    return f"copy of step {event['step']} in memory: {event['num_bytes'] / 2**20:,.1f} MiB in {event['seconds']:.2g} s"


def not_saved_line(event: Event) -> str:
    """The line for a failed save."""
    return f"the checkpoint of step {event['step']} was not saved: {event['reason']}"


def _resumed_line(event: Event) -> str:
    lines = [f"restart {event['restarts']}: a rank had failed"] if event["restarts"] else []
    lines += [f"{reason}; the one before is taken" for reason in event["skipped"]]
    if event["folder"]:
        lines.append(f"resumed after step {event['step']} from {event['folder']}, saved under {event['layout_id']}")
    else:
        lines.append("no checkpoint yet: starting with step 1")
    return "\n".join(lines)


def _step_line(event: Event, job: Job) -> str:
    """Loss, gradient norm, speed, and the predicted time beside the measured one; of post-training the reward and the
    time of each call."""
    if "calls" in event:
        calls = "  ".join(f"{name} {seconds:.2g} s" for name, seconds in event["calls"].items())
        numbers = [name for name in ("reward", "margin", "critic_loss", "gradient_norm") if name in event]
        shown = "  ".join(f"{name.replace('_', ' ')} {event[name]:.3f}" for name in numbers)
        return f"step {event['step']}/{job.steps}  {shown}  {calls}  step {event['step_s']:.2g} s"
    predicted = f" (predicted {job.predicted_step_s:.3g} s)" if job.predicted_step_s else ""
    if "mfu" in event:
        predicted += f"  MFU {event['mfu']:.1%} (predicted {job.predicted_mfu or 0:.1%})"
    return (f"step {event['step']}/{job.steps}  loss {event['loss']:.4f}  gradient norm {event['gradient_norm']:.3f}  "
            f"{event['tokens_per_s']:,.0f} tokens/s  {event['step_s']:.3g} s{predicted}")  # fmt: skip
