"""The technique of a job: one class each."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import UnsupportedError
from ..job import Job
from .base import Exchange, Trained
from .co2 import CO2
from .diloco import DiLoCo
from .gradient_coding import GradientCoding
from .noloco import NoLoCo
from .one_bit_adam import OneBitAdam

EXCHANGES: Mapping[str, type[Exchange]] = {
    "1-bit-adam": OneBitAdam, "diloco": DiLoCo, "co2": CO2, "noloco": NoLoCo,
    "gradient-coding": GradientCoding,
}  # fmt: skip


def check_device(job: Job, device: str) -> None:
    """Raises UnsupportedError where the technique of a job does not run on such devices."""
    if job.technique is not None and device == "cuda" and not EXCHANGES[job.technique[0]].on_gpu:
        raise UnsupportedError(f"{job.technique[0]}: replicas that drop out of a sum were tried over gloo only",
                               hint="`--device cpu`, or plan without it")  # fmt: skip


def exchange_of(trainer: Trained) -> Exchange:
    """How the replicas of a job exchange. All ranks must call it at the same time."""
    if trainer.job.technique is None:
        return Exchange(trainer, {})
    name, knobs = trainer.job.technique
    return EXCHANGES[name](trainer, knobs)
