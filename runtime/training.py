"""The steps of a run, and the evaluations and checkpoints between them."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

from .checkpoint.memory_copies import MemoryCopies
from .checkpoint.saver import Saver
from .compiling import compile_layers
from .data import WrongTokens
from .failures import RunFailed
from .job import Job
from .metrics import Metrics
from .rehearsal.memory import PeakMemory, cpu_peaks, forget_resident_peak, gpu_peaks
from .report import EVENT_PREFIX, PEAKS, Event, Recorder, event_line
from .settings import Settings
from .trainer import Trainer

TRACKED_STEPS = 2  # the second has the optimizer's states; tracking every operation costs time


class Training:
    """The steps of a run, and the checkpoints between them."""

    def __init__(
        self, trainer: Trainer, settings: Settings, recorder: Recorder, saver: Saver | None,
        copies: MemoryCopies | None, terminated: threading.Event, metrics: Metrics | None,
    ) -> None:  # fmt: skip
        """terminated: set when this rank is signalled to end; metrics: None on ranks that write none."""
        self.trainer, self.settings, self.recorder = trainer, settings, recorder
        self.saver, self.copies, self.terminated, self.metrics = saver, copies, terminated, metrics
        self.stopped = False  # whether a rank was signalled to end before the last step
        self._saved = 0  # the last step that a save was started for, or that the run began after

    def run(self, done: int, before: int) -> dict[str, list[int]]:
        """Runs all steps after the first `done`. Returns peak bytes of every rank, by the names of PEAKS.

        before: bytes of the process without tensors.
        """
        job, device = self.trainer.job, self.trainer.device
        tracked = PeakMemory(self.trainer.tensors()) if device.type == "cpu" else None
        forget_resident_peak()
        self._saved = done
        if tracked is None:
            torch.cuda.empty_cache()  # memory left from drawing the weights is not part of a step
            torch.cuda.reset_peak_memory_stats(device)
        for index in range(done, job.steps):
            following = tracked.following() if tracked is not None and index < done + TRACKED_STEPS else nullcontext()
            if self.settings.compile and index == done + (0 if tracked is None else TRACKED_STEPS):
                compile_layers(self.trainer.chunks)  # torch compiles nothing while memory is tracked
            stop = self._step(index, following)
            last = stop or index + 1 == job.steps
            if job.evaluation is not None and (last or (index + 1) % job.evaluation.every == 0):
                self._evaluate(index + 1)
            self._save(index + 1, due=last or (index + 1) % self.settings.checkpoint_every == 0)
            if self.copies is not None and not last and (index + 1) % self.settings.copy_every == 0:
                self._report(self.copies.copy(index + 1))
            if stop and index + 1 < job.steps:
                self.stopped = True
                break
        self._finish_saves()
        if self.stopped:
            self._report({"event": "terminated", "step": index + 1})
        return self._peaks(cpu_peaks(tracked.peak, before) if tracked is not None else gpu_peaks(device))

    def _step(self, index: int, following: AbstractContextManager[object]) -> bool:
        """Trains one step. Returns whether a rank was signalled to end."""
        started = time.perf_counter()
        try:
            with following:
                step = self.trainer.step(index, stop=self.terminated.is_set())
        except RunFailed:  # the checkpoint that is still being written is of a step before
            self._finish_saves()
            raise
        except WrongTokens as error:
            raise self._with_saved(index, error) from None
        step_s = time.perf_counter() - started
        job = self.trainer.job
        tokens = job.tokens_until(index + 1) - job.tokens_until(index)
        mfu = job.mfu(step_s) if self.trainer.device.type == "cuda" else None  # of the GPUs of the plan
        self._report({"event": "step", "step": index + 1, "loss": step.loss, "gradient_norm": step.gradient_norm,
                      "step_s": step_s, "tokens_per_s": tokens / step_s, "learning_rate": job.rate(index),
                      **({"mfu": mfu} if mfu is not None else {})})  # fmt: skip
        return step.stop

    def _evaluate(self, step: int) -> None:
        started = time.perf_counter()
        loss, batches = self.trainer.evaluate()
        self._report({"event": "evaluation", "step": step, "loss": loss, "batches": batches,
                      "seconds": time.perf_counter() - started})  # fmt: skip

    def _with_saved(self, done: int, error: WrongTokens) -> WrongTokens:
        """Saves the steps before the one with wrong tokens. Returns the error of it, with how to go on."""
        if self.settings.scale_down:
            return WrongTokens(error.message, hint="leave out `--data`: a rehearsal scales the vocabulary down")
        self._save(done, due=done > self._saved)
        self._finish_saves()
        if self.saver is None or not done:
            return error
        return WrongTokens(error.message, hint=f"{error.hint}, then `--resume` with a corrected copy as `--data`")

    def _save(self, step: int, *, due: bool) -> None:
        if self.saver is not None:
            self._saved = step if due else self._saved
            for event in self.saver.after(step, due=due):
                self._report(event)

    def _finish_saves(self) -> None:
        """Waits for the save in the background, if any."""
        for event in self.saver.finished(wait=True) if self.saver is not None else ():
            self._report(event)

    def _report(self, event: Event) -> None:
        report(event, self.metrics, self.settings, self.recorder)

    def _peaks(self, peak_bytes: Sequence[int]) -> dict[str, list[int]]:
        world, device = self.trainer.mesh["world"], self.trainer.device
        peaks = torch.zeros(len(peak_bytes), world.size, dtype=torch.int64, device=device)
        peaks[:, world.rank] = torch.tensor(peak_bytes, device=device)
        return dict(zip(PEAKS, world.all_reduce(peaks).tolist(), strict=False))


def open_metrics(settings: Settings, job: Job, recorder: Recorder, done: int) -> Metrics | None:
    """The metrics after `done` finished steps. Rank 0 writes those of all ranks; None on the others."""
    if dist.get_rank() != 0 or settings.metrics is settings.tracker is None:
        return None
    metrics = Metrics(job, done, None if settings.metrics is None else Path(settings.metrics), settings.tracker)
    if metrics.not_started is not None:
        tell(metrics.not_started, settings, recorder)
    return metrics


def report(event: Event, metrics: Metrics | None, settings: Settings, recorder: Recorder) -> None:
    """Writes the metrics of an event, and sends it."""
    problem = None if metrics is None else metrics.write(event)
    tell(event, settings, recorder)
    if problem is not None:
        tell(problem, settings, recorder)


def tell(event: Event, settings: Settings, recorder: Recorder) -> None:
    """Rank 0 sends events for all ranks."""
    if dist.get_rank() != 0:
        return
    recorder.add(event)
    if settings.events:
        sys.stdout.write(EVENT_PREFIX + json.dumps(event) + "\n")
    elif line := event_line(event, recorder.job):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
