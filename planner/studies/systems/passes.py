"""Checks of techniques of models that fill in all tokens over several passes, out of plans as `plan --workload serve`
makes."""

from __future__ import annotations

from typing import Any

from ...api import plan_serving
from .base import Check, chosen
from .serving import served

# LLaDA-8B, one request at a time, as the papers measure it.
_LLADA: dict[str, Any] = {"model": "llada-8b", "cluster": "1xa100-sxm-80gb", "input": 100, "concurrency": 1}


def _fewer_passes(name: str, neutral: bool, tokens: int, passes: int) -> float:
    """Seconds per token of one token in each pass over those of so many passes for all tokens."""
    asked = {**_LLADA, "output": tokens}
    return served(**asked).tpot_s / served(chosen(name, neutral, tokens=tokens / passes), **asked).tpot_s


def _caches(neutral: bool) -> float:
    """The same passes without caches over those with caches of all but a block of 32 tokens."""
    asked, tokens = {**_LLADA, "output": 1024}, 1024 / 45
    cached = {"learn2pd": {"tokens": tokens, "block": 0.0 if neutral else 32.0}}
    return served(chosen("learn2pd", False, tokens=tokens), **asked).tpot_s / served(cached, **asked).tpot_s


def _warnings(neutral: bool) -> float:
    """Warnings of a plan on the quality of tokens that a pass fills in together."""
    plan = plan_serving(technique=chosen("parallelbench", neutral), output=256, top=1, **_LLADA)
    return float(sum("tokens of a pass: tokens that depend on one another" in text for text in plan.warnings))


CHECKS = (
    Check(
        technique="learn2pd",
        of="seconds per token of LLaDA-8B over those of 45 passes for 1,024 tokens",
        published="22.58 (arXiv 2509.25188, abstract)",
        low=0.95 * 22.58,
        high=1.05 * 22.58,
        value=lambda neutral: _fewer_passes("learn2pd", neutral, 1024, 45),
    ),
    Check(
        technique="learn2pd",
        of="the same passes over those with caches",
        published="57.51 over 22.58 (arXiv 2509.25188, abstract): 2.5 by arithmetic",
        low=0.9 * 2.5,
        high=1.1 * 2.5,
        value=_caches,
        missed="45 passes over 32 blocks of 32 tokens cache all tokens anew in 32 of them, which gains 1.3; a gain of "
        "2.5 needs 12 such passes, of a text that ends after 400 of its 1,024 tokens, and the paper has no such number",
    ),
    Check(
        technique="dparallel",
        of="seconds per token of LLaDA-8B over those of 30 passes for 256 tokens",
        published="8.5 on GSM8K (arXiv 2509.26488, abstract); 8.53 by arithmetic",
        low=0.97 * 8.53,
        high=1.03 * 8.53,
        value=lambda neutral: _fewer_passes("dparallel", neutral, 256, 30),
    ),
    Check(
        technique="dparallel",
        of="the same of 24 passes",
        published="10.5 on MBPP (arXiv 2509.26488, abstract); 10.67 by arithmetic",
        low=0.97 * 10.67,
        high=1.03 * 10.67,
        value=lambda neutral: _fewer_passes("dparallel", neutral, 256, 24),
    ),
    Check(
        technique="parallelbench",
        of="warnings on quality of a plan with two tokens of a pass",
        published="1, the caveat of the plan and no figure of the paper: parallel decoding loses quality (arXiv "
        "2510.04767)",
        low=1,
        high=1,
        value=_warnings,
    ),
)
