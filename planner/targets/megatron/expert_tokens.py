"""Tokens of DeepSpeed's experts under tensor parallelism: the technique duplicate-token-dropping.

deepspeed 0.19.8, moe/sharded_moe.py: where tokens are whole on all ranks of tp, each sends a part of their copies
(drop_tokens) and gathers what comes back (gather_tokens). Megatron Core has no such layouts.
"""

from __future__ import annotations

from ....cost_models.techniques.duplicate_token_dropping import TECHNIQUE
from ..argv import Arguments
from ..options import Facts, Settings

# Of no release: set where a script runs DeepSpeed's experts with tensor parallelism and whole sequences.
DROPS = "--drop-duplicate-tokens"


def modernise(arguments: Arguments) -> None:
    """For scripts with experts of DeepSpeed."""
    given = arguments.settings
    if given.get("--tensor-model-parallel-size", 1) > 1 and not given.get("--sequence-parallel"):
        given[DROPS] = True
        arguments.lines.setdefault(DROPS, arguments.lines["--num-experts"])
        arguments.files.setdefault(DROPS, arguments.files.get("--num-experts", ""))


def techniques(settings: Settings) -> Facts:
    """The technique of the settings, with its knobs."""
    return {TECHNIQUE.name: {}} if settings.get(DROPS) else {}


def drops(facts: Facts) -> bool:
    """Whether ranks of tp share out the tokens for experts."""
    return TECHNIQUE.name in facts.get("workload.techniques", {})
