"""Flags that do not go with the technique of a plan. No torch here."""

from __future__ import annotations

from ..errors import InputError
from .job import Job


def check_technique(job: Job, *, check_parity: bool) -> None:
    """Raises InputError where the technique of a job cannot run with the flags."""
    if job.technique is None:
        return
    name, knobs = job.technique
    if check_parity:
        raise InputError(f"--check-parity: replicas that exchange by {name} do not train as one process does",
                         hint="leave it out; or plan without the technique, and check that plan")  # fmt: skip
    if "warmup" in knobs and not job.warmup_steps:
        raise InputError(
            f"{name}: a warm-up of {knobs['warmup']:g} of {job.steps} steps is none, and leaves no variance to freeze",
            hint=f"`--steps {_fewest(knobs['warmup'])}` or more" if knobs["warmup"] else f"`{name}:warmup=0.15`",
        )


def _fewest(share: float) -> int:
    """The fewest steps whose share rounds to one."""
    return int(0.5 / share) + 1  # a half rounds to none
