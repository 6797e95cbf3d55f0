"""Metrics of a run: one line of JSON per step and evaluation, and the same values for a tracker. No torch here."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import InputError
from .job import Job
from .report import Event
from .trackers.base import Tracker
from .trackers.registry import open_tracker

FORMAT_VERSION = "1.0"
_OF_STEP = ("loss", "gradient_norm", "learning_rate", "step_s", "tokens_per_s", "mfu")
_OF_POST_TRAINING = ("reward", "margin", "loss", "gradient_norm", "critic_loss", "critic_gradient_norm", "answer_len",
                     "learning_rate", "step_s")  # fmt: skip


class Metrics:
    """The files and trackers that get the metrics of a run. One rank has them."""

    def __init__(self, job: Job, done: int, path: Path | None, tracker: str | None) -> None:
        """Starts after `done` finished steps. path: file of lines; tracker: a text of `checked_tracker`; None: neither.

        Raises InputError for a file that cannot be written or has other lines. `not_started` has the event of a tracker
        that does not start: training is worth more than its metrics.
        """
        self.job, self.path = job, path
        self.has_failed = False
        self.not_started: Event | None = None
        self.tracker: Tracker | None = None
        if path is not None:
            _begin(path, done)
        if tracker is not None:
            try:
                self.tracker = open_tracker(tracker, job, done)
            except Exception as error:  # a tracker raises classes of its own
                reason = f"{error.message} ({error.hint})" if isinstance(error, InputError) else f"tracker: {error}"
                self.not_started = {"event": "not_logged", "step": None, "reason": reason}

    def write(self, event: Event) -> Event | None:
        """Adds a step or an evaluation; other events have no metrics.

        Returns the event of the first failure. Training goes on.
        """
        if event["event"] not in ("step", "evaluation"):
            return None
        step, values = int(event["step"]), self._values(event)
        problem = None
        if self.path is not None:
            line = {"format_version": FORMAT_VERSION, "step": step, **values, "time": time.time()}
            problem = _append(self.path, json.dumps(line, allow_nan=False) + "\n")
        if self.tracker is not None:
            known = {name: value for name, value in values.items() if value is not None}
            try:
                self.tracker.write(step, known)
            except Exception as error:  # a tracker raises classes of its own
                problem = f"tracker: {error}"
        if problem is None or self.has_failed:
            return None
        self.has_failed = True
        return {"event": "not_logged", "step": step, "reason": problem}

    def close(self) -> None:
        if self.tracker is not None:
            with suppress(Exception):  # of a tracker whose writes failed; the run has succeeded
                self.tracker.close()

    def _values(self, event: Event) -> Mapping[str, Any]:
        if "calls" in event:
            return _of_post_training(event)
        tokens = {"tokens": self.job.tokens_until(event["step"])}
        if event["event"] == "evaluation":
            return {"evaluation_loss": _finite(event["loss"]), **tokens}
        return {**{name: event.get(name) for name in _OF_STEP}, "predicted_step_s": self.job.predicted_step_s,
                "predicted_mfu": self.job.predicted_mfu, **tokens}  # fmt: skip


def _of_post_training(event: Event) -> Mapping[str, Any]:
    """The results of a step of post-training, and the seconds of each call: `generate_s`, `train_critic_s`."""
    seconds = {f"{name.replace('-', '_').replace(' ', '_')}_s": taken for name, taken in event["calls"].items()}
    return {**{name: _finite(event[name]) for name in _OF_POST_TRAINING if name in event}, **seconds}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _append(path: Path, line: str) -> str | None:
    """Adds a line, whole or not at all. Returns why it could not."""
    try:
        with path.open("ab", buffering=0) as file:
            end, data = file.tell(), line.encode()
            if file.write(data) < len(data):  # the disk is full
                os.truncate(path, end)
                return f"{path}: {os.strerror(errno.ENOSPC)}"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None


def _begin(path: Path, done: int) -> None:
    """Starts the file of a run, or cuts the steps after `done` off the file of a run that goes on, and a last line that
    a crash left without its end."""
    try:
        end = 0
        for line in path.read_bytes().splitlines(keepends=True) if done and path.exists() else ():
            if not line.endswith(b"\n") or int(json.loads(line)["step"]) > done:
                break
            end += len(line)
        if end:
            os.truncate(path, end)
        else:
            path.write_bytes(b"")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint="give `--metrics` another file") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} has no metrics of this run: {error}", hint="give `--metrics` another file") from None
