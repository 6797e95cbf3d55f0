"""FlexSP: micro-batches of consecutive lengths, each with Ulysses groups of unlike degrees (consecutive.py)."""

from __future__ import annotations

from collections.abc import Sequence

from ....cost_models.arrays import Array
from ....errors import NoFeasibleLayoutError
from ..batch_plan import BatchPlan
from ..consecutive import BUCKETS, consecutive_plan
from ..family_choice import Candidate
from ..policy import Step
from .base import Scheme, Subject, words_of

_LEAST = 2  # ranks of a group: its solver tries powers of two from there


def _steps(candidate: Candidate, batches: Sequence[Array]) -> list[BatchPlan]:
    return [consecutive_plan(lengths, candidate[1], BUCKETS) for lengths in batches]


def _run(subject: Subject) -> tuple[str, Sequence[Step]]:
    able = [(family, costs.from_degree(_LEAST)) for family, costs in subject.candidates("ulysses", zero=3)
            if costs.degrees[-1] >= _LEAST]  # fmt: skip
    if not able:
        raise NoFeasibleLayoutError("needs an even number of ranks")
    (family, _), steps = subject.fastest(able, _steps)
    return words_of(family), steps


SCHEME = Scheme(name="flexsp", source="arXiv:2412.01523", basis="code", rule="one per document", run=_run)
