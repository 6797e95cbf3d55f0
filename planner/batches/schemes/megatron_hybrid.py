"""Megatron's hybrid context parallelism: the rule of its scheduler (hybrid_rule.py), and each document trains alone."""

from __future__ import annotations

from functools import partial

from ..degree_rules import RULES
from .base import Scheme
from .by_rule import run_rule

SCHEME = Scheme(name="megatron-hybrid", source="Megatron-LM d98e8a64", basis="code", rule="one per document",
                run=partial(run_rule, RULES["hybrid"]))  # fmt: skip
