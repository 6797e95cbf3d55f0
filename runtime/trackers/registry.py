"""All trackers by name. The package of each is an extra of the same name. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...errors import MissingExtraError, UnknownNameError
from ..job import Job
from .base import Tracker
from .tensorboard import EventFiles
from .wandb import ProjectRun


@dataclass(frozen=True)
class Kind:
    """A tracker. `start` takes the place, the job and the number of finished steps."""

    start: Callable[[str, Job, int], Tracker]
    where: str  # the usual place: a folder or a project
    in_files: bool  # whether the place is a folder


TRACKERS = {
    "tensorboard": Kind(EventFiles, "runs", in_files=True),
    "wandb": Kind(ProjectRun, "meshwright", in_files=False),
}


def checked_tracker(text: str) -> str:
    """`NAME` or `NAME=PLACE` with the whole path of a folder. Raises UnknownNameError, MissingExtraError."""
    name, _, where = text.partition("=")
    if name not in TRACKERS:
        raise UnknownNameError("tracker", name, TRACKERS)
    if find_spec(name) is None:
        raise MissingExtraError(name, f"--tracker {name}")
    kind = TRACKERS[name]
    where = where or kind.where
    return f"{name}={Path(where).resolve() if kind.in_files else where}"


def open_tracker(text: str, job: Job, done: int) -> Tracker:
    """Starts the run of `checked_tracker`'s text after `done` finished steps. Raises InputError without an account, and
    what the package raises where it does not start."""
    name, _, where = text.partition("=")
    return TRACKERS[name].start(where, job, done)
