"""One change: the layout held before and after it and, on request, the best layout after it."""

from __future__ import annotations

from .base import Point, Question, Result
from .pricing import Priced, better, price_held, replanned


class Comparison(Result):
    """`before`: the layout on the plan's own request; `after`: on the changed one, held and (replan) planned anew."""

    before: Priced
    after: Point


def run(question: Question) -> Comparison:
    """Raises NoFeasibleLayoutError where a new plan was asked for and there is none."""
    base = question.base
    after = question.point(base, question.sets, [], search=False)
    if question.replan:
        best = better(replanned(base, [question.layout.layout], question.should_stop), after.held)
        after = after.model_copy(update={"replanned": best})
    before = price_held(question.layout, [question.plain])[0]
    return Comparison(**question.common_fields("compare"), before=before, after=after)
