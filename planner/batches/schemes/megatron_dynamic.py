"""Dynamic context parallelism of Megatron's dev branch: the rule of its scheduler (dynamic_rule.py). Documents of a
group train packed, in one pass. Its pipelines are not priced."""

from __future__ import annotations

from functools import partial

from ..degree_rules import RULES
from .base import Scheme
from .by_rule import run_rule

SCHEME = Scheme(name="megatron-dynamic", source="Megatron-LM d48bd6be, branch dev", basis="code",
                rule="by document, packed", run=partial(run_rule, RULES["dynamic"]))  # fmt: skip
