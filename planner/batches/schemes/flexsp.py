"""FlexSP: micro-batches of consecutive lengths, each with Ulysses groups of unlike degrees (consecutive.py)."""

from __future__ import annotations

from collections.abc import Sequence

from ..batch_plan import BatchPlan
from ..consecutive import BUCKETS, consecutive_plan
from .base import Scheme, Subject, words_of

_LEAST = 2  # ranks of a group: its solver tries powers of two from there


def _run(subject: Subject) -> tuple[str, Sequence[BatchPlan]]:
    family, costs = subject.best("ulysses", zero=3)
    costs = costs.from_degree(_LEAST)
    return words_of(family), [consecutive_plan(lengths, costs, BUCKETS) for lengths in subject.batches]


SCHEME = Scheme(name="flexsp", source="arXiv:2412.01523", rule="one per document", run=_run)
