"""The evaluation of a run on data that is not trained on. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError

EVERY, BATCHES = 100, 10  # where the flags are not given


@dataclass(frozen=True)
class Evaluation:
    """The mean loss on some data, every few steps and after the last one."""

    data: str  # an argument of `data.open_evaluated`
    every: int  # steps
    batches: int  # global batches, from the start of the data


def evaluation_of(data: str | None, every: int, batches: int) -> Evaluation | None:
    """The evaluation of the flags. Raises InputError for numbers below 1 and for numbers without data."""
    for flag, value, default in (("--eval-every", every, EVERY), ("--eval-batches", batches, BATCHES)):
        if value < 1:
            raise InputError(f"{flag} {value}: must be 1 or more", hint=f"`{flag} {default}`")
        if data is None and value != default:
            raise InputError(f"{flag} {value}: there is nothing to evaluate on", hint="add `--eval-data DIR`")
    return None if data is None else Evaluation(data, every, batches)
