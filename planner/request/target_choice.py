"""The target that answers a request: the one that was asked for or, where none was, the first that can train it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...cost_models.specs.notice import Notice
from ...errors import UnsupportedError
from ..space.counting import num_legal
from ..targets.registry import able_to_train, who_trains
from .resolve import Resolved, resolve


def for_able_target(resolved: Resolved) -> Resolved:
    """The request for a target that can train it, with a warning where that is another than the default.

    A target that was asked for is kept; `any` and one without a legal layout are left to the search. Raises
    UnsupportedError where the target that was asked for cannot train what is requested, or no target can.
    """
    reasons = resolved.target.cannot_train(resolved.problem)
    if resolved.target.trainer is None or resolved.request.names_target:
        if reasons:
            raise _refusal(resolved, reasons)
        return resolved
    if not reasons and num_legal(resolved.space):
        return resolved
    why = "; ".join(reasons) or f"it runs no legal layout of the request{_excluding(resolved)}"
    for name in able_to_train(resolved.problem):
        other = resolve(resolved.request.for_target(name, f"{resolved.target.name} cannot train it"))
        if num_legal(other.space):
            text = f"planned for {name}, since {resolved.target.name}, the default target, cannot train it: {why}"
            return replace(other, warnings=(Notice("target", text), *other.warnings))
    if reasons:
        raise _refusal(resolved, reasons)
    return resolved


def _refusal(resolved: Resolved, reasons: Sequence[str]) -> UnsupportedError:
    subject = f"{resolved.target.name} cannot train {resolved.model.name}"
    text = f"{subject}: {reasons[0]}" if len(reasons) == 1 else "\n".join([subject, *reasons])
    return UnsupportedError(text, hint=who_trains(resolved.problem))


def _excluding(resolved: Resolved) -> str:
    """The rules of the target each of which leaves no layout, in brackets."""
    spaces = {rule.name: resolved.space_under((rule,), resolved.fixes) for rule in resolved.target_rules}
    alone = [name for name, space in spaces.items() if not num_legal(space)]
    return f" ({', '.join(alone)})" if alone else ""
