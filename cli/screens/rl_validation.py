"""The screen of `meshwright validate` for steps of post-training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.workflows.validate import RlValidation


def screen(validation: RlValidation) -> Iterator[RenderableType]:
    """Every step, the ratios of pairs, the errors, and the rows that are left out."""
    if validation.rows:
        rows = [(row.id, str(row.lag), _split(row.gpus, row.trainer_gpus, assumed=row.split_assumed),
                 text.significant(row.measured_step_s), text.significant(row.step_s),
                 _error(row.step_s / row.measured_step_s)) for row in validation.rows]  # fmt: skip
        names = ("lag", "GPUs", "step s", "predicted", "error %")
        yield table("run", *names, rows=rows, right=names)
        yield f"Steps: median error {text.percent(validation.median)} % of {len(validation.rows)} runs"
        yield ""
    if validation.pairs:
        pairs = [(pair.first, pair.second, text.significant(pair.measured_ratio), text.significant(pair.ratio),
                  _error(pair.ratio / pair.measured_ratio)) for pair in validation.pairs]  # fmt: skip
        numbers = ("ratio", "predicted", "error %")
        yield table("run", "over", *numbers, rows=pairs, right=numbers)
        yield f"Ratios: median error {text.percent(validation.pair_median)} % of {len(validation.pairs)} pairs"
        yield ""
    if validation.gains:
        gains = [(it.second, text.significant(it.measured_gain), text.significant(it.gain),
                  _error(it.gain / it.measured_gain)) for it in validation.gains]  # fmt: skip
        numbers = ("gain", "predicted", "error %")
        yield table("run over one symmetric layout", *numbers, rows=gains, right=numbers)
        yield f"Gains: median error {text.percent(validation.gain_median)} % of {len(validation.gains)} pairs"
        yield ""
    for reason, number in Counter(row.reason for row in validation.left_out).most_common():
        yield text.wrapped(f"{number} left out: {reason}")


def _split(gpus: int, trainer: int, *, assumed: bool) -> str:
    """`32:32` train and generate; `~` where the split is not published."""
    if trainer == gpus:
        return str(gpus)
    return f"{'~' * assumed}{trainer}:{gpus - trainer}"


def _error(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f}"
