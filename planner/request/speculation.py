"""Speculation as users give it: proposed tokens, how many are accepted, and the draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from ...errors import InputError
from .fields import checked, parse_factor, whole

MODULE = "mtp"  # the draft is a module of the model for further tokens
_EXAMPLE = "3:0.7:llama-3.2-1b"
_HINT = f"write `{_EXAMPLE}`: tokens, share that is accepted, draft; `mtp` is a module of the model"


def parse_speculation(value: Any) -> dict[str, Any]:
    """`3:0.7:llama-3.2-1b` -> {"tokens": 3, "accepted": 0.7, "draft": "llama-3.2-1b"}; a mapping stays one, checked.

    accepted: below 1 the probability that a proposed token is accepted, from 1 the mean tokens of an iteration.
    """
    given = dict(value) if isinstance(value, Mapping) else _parts(str(value))
    if unknown := sorted(set(map(str, given)) - {"tokens", "accepted", "draft"}):
        raise InputError(f"speculation has no `{unknown[0]}`", hint="it has tokens, accepted, draft")
    if not given.get("draft"):
        raise InputError("speculation without a draft: nothing proposes tokens", hint=_HINT)
    if missing := [name for name in ("tokens", "accepted") if given.get(name) in (None, "")]:
        raise InputError(f"speculation lacks {' and '.join(missing)}", hint=_HINT)
    tokens = whole(given["tokens"], _EXAMPLE, least=1)
    accepted = parse_factor(given["accepted"])
    if accepted > tokens + 1:
        raise InputError(f"an iteration that proposes {tokens} tokens gives {tokens + 1} at most, not {accepted:g}",
                         hint=_HINT)  # fmt: skip
    return {"tokens": tokens, "accepted": accepted, "draft": given["draft"]}


def _parts(text: str) -> dict[str, str]:
    return dict(zip(("tokens", "accepted", "draft"), (part.strip() for part in text.split(":", 2)), strict=False))


def step_tokens(tokens: int, accepted: float) -> float:
    """Mean tokens of an iteration: (1 - a^(k+1)) / (1 - a) of k proposed ones (Leviathan et al., arXiv 2211.17192)."""
    return accepted if accepted >= 1 else (1.0 - accepted ** (tokens + 1)) / (1.0 - accepted)


Speculate = Annotated[
    dict[str, Any], BeforeValidator(checked(parse_speculation)),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}], "examples": [_EXAMPLE, "1:0.8:mtp"]}),
]  # fmt: skip
