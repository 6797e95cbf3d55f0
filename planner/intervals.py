"""How far a measured step time may lie from a predicted one, by kind of run.

`python -m meshwright.planner.intervals` computes the factors anew from the shipped runs, after the model has changed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

from ..profiles.reader import read_document
from .published import PUBLISHED
from .validate_summary import Outcome

FILE = PUBLISHED / "intervals.yaml"
CLAIMED = 0.9
KINDS = ("moe", "fsdp", "pp", "dense")  # the first that the regime names
_HEADER = """\
# Measured step time over predicted, 5th and 95th percentile of the shipped runs by kind, each source (repository or
# paper) weighing as the root of its runs. Written by `python -m meshwright.planner.intervals`; do not edit.
"""


def kind_of(regime: str) -> str:
    """`moe`, `fsdp`, `pp` or `dense`."""
    return next((kind for kind in KINDS if kind in regime), "dense")


@cache
def _table() -> dict[str, tuple[float, float]]:
    if not FILE.is_file():
        return {}
    return {kind: (float(one["low"]), float(one["high"])) for kind, one in read_document(FILE).data.items()}


def factors(regime: str) -> tuple[float, float]:
    """(low, high): the 90 % interval of a step time is the prediction times these."""
    return _table().get(kind_of(regime), (1 / 1.5, 1.5))


def measured_factors(outcomes: Sequence[Outcome]) -> dict[str, tuple[float, float, int]]:
    """(low, high, runs) of every kind: weighted quantiles of measured over predicted."""
    scored = [each for each in outcomes if each.step_error is not None and not each.refused]
    runs = Counter(each.source for each in scored)
    found = {}
    for kind in KINDS:
        ratios = sorted((math.log((each.measured_step_s or 1) / (each.step_s or 1)), runs[each.source] ** -0.5)
                        for each in scored if kind_of(each.regime) == kind)  # fmt: skip
        if ratios:
            low, high = (math.exp(_quantile(ratios, share)) for share in ((1 - CLAIMED) / 2, (1 + CLAIMED) / 2))
            found[kind] = (low, high, len(ratios))
    return found


def _quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which `share` of the weight lies, linear between the centres of the weights."""
    total = sum(weight for _, weight in weighted)
    below, last = 0.0, weighted[0][0]
    place = 0.0
    for value, weight in weighted:
        centre = (below + weight / 2) / total
        if centre >= share:
            step = centre - place
            return last + (value - last) * ((share - place) / step if step > 0 and place > 0 else 1.0)
        below, place, last = below + weight, centre, value
    return last


def main() -> None:
    from .published import Problems, read_cases, shipped_files
    from .validate import outcome

    outcomes = [outcome(case) for case in read_cases(shipped_files(), Problems([]))]
    lines = [f"{kind}: {{low: {low:.3f}, high: {high:.3f}, runs: {count}}}\n"
             for kind, (low, high, count) in measured_factors(outcomes).items()]  # fmt: skip
    FILE.write_text(_HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
