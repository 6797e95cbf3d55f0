"""Raw samples beside a profile: a line per thing measured, written as soon as it is, so that a run can be resumed.

    # {"device": ..., "dtype": ...}        what they hold for, as JSON
    gemm forward m=8192 n=3072 k=2048,0.000123,0.000124,...
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import InputError


@dataclass(frozen=True)
class SampleRange:
    """Median and quartiles of the samples of one thing, in their unit."""

    median: float  # second quartile
    low: float  # first quartile
    high: float  # third quartile
    number: int  # of samples

    @classmethod
    def of(cls, samples: list[float]) -> SampleRange:
        low, median, high = (float(value) for value in np.quantile(samples, (0.25, 0.5, 0.75)))
        return cls(median, low, high, len(samples))


class Samples:
    """The samples of one profile, in memory and in `path`. about: what they hold for.

    resume: take over what the file has. Raises InputError if that was measured on something else or is damaged.
    """

    def __init__(self, path: Path | None, about: Mapping[str, str], *, resume: bool = False) -> None:
        self.path = path
        self.by_key = {}
        head = "# " + json.dumps(dict(about), sort_keys=True)
        if path is None:
            return
        if resume and path.is_file():
            self._read(path, head)
        else:
            path.write_text(head + "\n", encoding="utf-8")

    by_key: dict[str, list[float]]

    def add(self, key: str, samples: list[float]) -> None:
        """Keeps the samples of `key`, also if the run ends here."""
        self.by_key[key] = samples
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(",".join([key, *(f"{value:.6g}" for value in samples)]) + "\n")

    def _read(self, path: Path, head: str) -> None:
        first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
        if first != head:
            raise InputError(f"{path.name}, line 1: measured on something else\n{_changed(first, head)}",
                             hint="leave out `--resume` to measure anew")  # fmt: skip
        for number, line in enumerate(lines, 2):
            key, *values = line.split(",")
            try:
                self.by_key[key] = [float(value) for value in values]
            except ValueError:
                raise InputError(f"{path.name}, line {number}: `{line[:40]}` is not a row of samples",
                                 hint="remove the line, or leave out `--resume`") from None  # fmt: skip
        self.by_key = {key: values for key, values in self.by_key.items() if values}


def _changed(first: str, head: str) -> str:
    """The differences between two heads, a line each."""
    try:
        before, now = json.loads(first[2:]), json.loads(head[2:])
    except ValueError:
        return "its first line is empty"
    names = sorted({*before, *now})
    return "\n".join(f"{name}: {before.get(name, 'none')}, here {now.get(name, 'none')}"
                     for name in names if before.get(name) != now.get(name))  # fmt: skip
