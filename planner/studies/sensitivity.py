"""The numbers of hardware and software that a step depends on: those that bind, and those that would help next.

Elasticity: d ln(step) / d ln(number), by the central difference over +-1 %; -0.6 says that 1 % more of it makes a step
0.6 % shorter. The layout is held. `saturates` is where twice the number buys less than WORTH of a step.
"""

from __future__ import annotations

import math

from ..request.resolve import Resolved
from .base import Part, Question, Result
from .knobs import HARDWARE, KNOBS, Knob
from .pricing import HeldLayout, Priced, better, price_held, replanned

WORTH = 0.02  # share of a step
_STEP = 1.01  # factor of the differences that give an elasticity
_PER_OCTAVE = 4  # values that are tried
_OCTAVES = (-6, 8)  # the range in which a break-even is looked for
_SOFTWARE = (*(f"stack.{axis}_overlap" for axis in ("tp", "dp", "fsdp", "cp", "ep")), "stack.host_s_per_kernel")


class Row(Part):
    """One number. gain: share of the step that twice the number (half, where less is better) saves with the layout
    held; gain_replanned: with the best layout there, if searched. saturates: the value from which twice as much buys
    under WORTH, None where even the most that was tried buys more."""

    path: str
    label: str
    dimension: str
    better: str
    now: float
    elasticity: float
    gain: float
    gain_replanned: float | None
    saturates: float | None


class Sensitivity(Result):
    """Rows in the order of what twice the number would save."""

    step_s: float
    worth: float
    rows: tuple[Row, ...]

    @property
    def table(self) -> tuple[Row, ...]:
        return self.rows


def run(question: Question) -> Sensitivity:
    """Raises NoFeasibleLayoutError if the layout held does not run on the request."""
    base, layout = question.base, question.layout
    now = price_held(layout, [base])[0]
    knobs = [knob for knob in (*HARDWARE, *(KNOBS[path] for path in _SOFTWARE)) if knob.better and knob.read(base)]
    rows = []
    for done, knob in enumerate(knobs):
        if question.progress is not None:
            question.progress(done, len(knobs), "")
        rows.append(_row(question, base, knob, now))
    rows.sort(key=lambda row: (-max(row.gain, row.gain_replanned or 0.0), -abs(row.elasticity), row.path))
    return Sensitivity(**question.common_fields("sensitivity"), step_s=now.step_s, worth=WORTH, rows=tuple(rows))


def _row(question: Question, base: Resolved, knob: Knob, now: Priced) -> Row:
    layout, value = question.layout, knob.read(base) or math.nan
    doubled = _limited(base, knob, 2.0)
    more, less, twice = price_held(layout, [_limited(base, knob, _STEP), knob.scaled(base, 1 / _STEP), doubled])
    if knob.better == "less":
        more, less = price_held(layout, [knob.scaled(base, _STEP), knob.scaled(base, 1 / _STEP)])
    best = better(replanned(doubled, [layout.layout], question.should_stop), twice) if question.replan else None
    return Row(
        path=knob.path, label=knob.label, dimension=knob.dimension, better=knob.better, now=value,
        elasticity=math.log(more.step_s / less.step_s) / (2 * math.log(_STEP)), gain=1 - twice.step_s / now.step_s,
        gain_replanned=None if best is None else 1 - best.step_s / now.step_s, saturates=saturates(base, layout, knob),
    )  # fmt: skip


def _limited(base: Resolved, knob: Knob, better: float) -> Resolved:
    """The request with the number `better` times as good. A share (an overlap) is 1 at most."""
    factor = better if knob.better == "more" else 1 / better
    value = knob.read(base) or math.nan
    is_share = knob.path.endswith("_overlap")
    return knob.set(base, min(value * factor, 1.0) if is_share else value * factor)


def saturates(base: Resolved, layout: HeldLayout, knob: Knob) -> float | None:
    """The value from which on twice as good buys less than WORTH of a step; None if even the best tried buys more."""
    if knob.path.endswith("_overlap"):
        return None
    low, high = (octave * _PER_OCTAVE for octave in _OCTAVES)
    variants = [_limited(base, knob, 2 ** (i / _PER_OCTAVE)) for i in range(low, high + 1)]
    seconds = [price.step_s for price in price_held(layout, variants)]
    gains = [1 - fast / slow for slow, fast in zip(seconds, seconds[_PER_OCTAVE:], strict=False)]
    worth = [i for i, gain in enumerate(gains) if gain >= WORTH]
    first = worth[-1] + 1 if worth else 0
    return None if first >= len(gains) else knob.read(variants[first])
