"""The effect of each number in assumptions.yaml: the core error with the number changed by a fifth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...cost_models.arrays import Array
from ...profiles.rates import calibration, constants
from ...profiles.rates.calibration import Calibration, ConstantPath
from ...profiles.rates.reference_devices import generation, reference_device
from .batch_pricing import Batches
from .cross_validation import Progress
from .row import Case

MOVE = 0.2  # share of a number
_DONE = 20  # numbers between two reports of progress


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A number and the mean error of the runs with it moved, all other numbers held."""

    place: ConstantPath  # in assumptions.yaml
    value: float
    fitted: bool  # whether a calibration that ships has it
    below: float  # mean absolute error with the number MOVE lower
    above: float  # the same with it MOVE higher
    runs: int  # whose time moves by more than a thousandth

    @property
    def name(self) -> str:
        """`training_factor h100-sxm-80gb gemm`."""
        return " ".join(self.place)

    def size(self, error: float) -> float:
        """The greater of both changes of `error`, which the runs have as it is."""
        return max(abs(self.below - error), abs(self.above - error))


def numbers() -> dict[ConstantPath, float]:
    """Every number of assumptions.yaml, as the calibration that ships has it."""
    shipped = calibration.shipped()
    blocks = calibration.assumptions(shipped.part(*calibration.prior_assumptions()))
    return dict(_leaves((), blocks))


def _leaves(above: ConstantPath, block: Mapping[str, Any]) -> Iterator[tuple[ConstantPath, float]]:
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _leaves((*above, key), value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*above, key), float(value)


def effects(cases: Sequence[Case], progress: Progress | None = None) -> tuple[float, list[Effect]]:
    """The mean error of the runs, and the effect of every number, the largest first."""
    shipped, measured = calibration.shipped(), np.array([case.measured.step_s for case in cases], dtype=np.float64)
    batches = Batches(cases, shipped)
    here, known = batches.seconds(shipped), dict(constants.places(shipped))
    error, every, out = _error(here, measured), numbers(), []
    for count, (place, value) in enumerate(every.items()):
        touched = {i for i, batch in enumerate(batches.batches) if _touches(place, batch.cases[0])}
        below, above = (
            batches.seconds(_moved(known, place, value * factor), store=False, only=touched)
            for factor in (1 - MOVE, 1 + MOVE)
        )
        moved = np.maximum(np.abs(below / here - 1), np.abs(above / here - 1)) > 1e-3
        out.append(Effect(place=place, value=value, fitted=("assumptions", *place) in known, runs=int(moved.sum()),
                          below=_error(below, measured), above=_error(above, measured)))  # fmt: skip
        if progress is not None and count % _DONE == 0:
            progress(float(count), float(len(every)))
    return error, sorted(out, key=lambda effect: (-effect.size(error), effect.name))


def _touches(place: ConstantPath, case: Case) -> bool:
    """Whether a number may move a run: a number of a device, a generation or a kind of link moves its own only."""
    block, owner = place[0], place[1]
    gpu = case.cluster.gpu
    if block in ("links", "fabrics"):
        owner = place[-1] if owner == "copy_efficiency" else owner
        return owner == "default" or any(owner in (level.kind, *level.kind.split("-")) for level in case.cluster.levels)
    if block == "trees" or owner == "default":
        return True
    return owner in (gpu.name, reference_device(gpu)[0], generation(gpu.arch))


def _moved(known: Mapping[ConstantPath, float], place: ConstantPath, value: float) -> Calibration:
    return Calibration.of({**known, ("assumptions", *place): value}, "moved")


def _error(seconds: Array, measured: Array) -> float:
    return float(np.mean(np.abs(seconds / measured - 1)))
