"""Metrics of a run as JSON lines: one object per step and evaluation, for tools that plot them. No torch here."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from .job import Job
from .report import Event

FORMAT_VERSION = "1.0"


def begin_metrics(path: Path, done: int) -> None:
    """Starts the file of a run, or removes the steps after `done` from the file of a run that goes on.

    Raises InputError for a file that cannot be written or that has other lines.
    """
    try:
        before = path.read_text(encoding="utf-8").splitlines() if done and path.exists() else []
        kept = [line for line in before if int(json.loads(line)["step"]) <= done]
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint="give `--metrics` another file") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} has no metrics of this run: {error}", hint="give `--metrics` another file") from None


def append_metrics(path: Path, event: Event, job: Job) -> None:
    """Appends a step (loss and norm, rate, seconds, tokens/s and MFU beside the prediction) or an evaluation."""
    if event["event"] == "evaluation":
        _append(path, {"step": event["step"], "evaluation_loss": event["loss"]}, job)
        return
    fields = ("step", "loss", "gradient_norm", "learning_rate", "step_s", "tokens_per_s", "mfu")
    _append(path, {**{name: event.get(name) for name in fields}, "predicted_step_s": job.predicted_step_s,
                   "predicted_mfu": job.predicted_mfu}, job)  # fmt: skip


def _append(path: Path, values: Mapping[str, Any], job: Job) -> None:
    line = {"format_version": FORMAT_VERSION, **values, "tokens": values["step"] * job.tokens_per_step,
            "time": time.time()}  # fmt: skip
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
