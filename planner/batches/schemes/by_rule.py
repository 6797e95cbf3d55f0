"""The scheme of a framework whose rule gives documents their degrees: the tokens of a rank, its only knob, are those
that make the batches fastest."""

from __future__ import annotations

from collections.abc import Sequence

from ....errors import InputError
from ..degree_rules import DegreeRule
from ..policy import Step
from ..rule_trials import ALGORITHM, ZERO, Trial, trials
from .base import Subject, words_of


def run_rule(rule: DegreeRule, subject: Subject) -> tuple[str, Sequence[Step]]:
    """Words for the layout, and a step per batch. Raises InputError where the ranks cannot form its groups."""
    choices = list(trials(rule, subject.candidates(ALGORITHM, ZERO), subject.longest))
    if not choices:
        raise InputError("needs a power of two of GPUs that together hold the longest document")
    chosen, plans = subject.fastest(choices, Trial.plans)
    return f"{words_of(chosen.family)}, {chosen.rank_tokens:,} tokens", plans
