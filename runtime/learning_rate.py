"""Learning rates of the steps of a run: warmup, then constant or decaying. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

from ..errors import InputError

# wsd: warmup, stable, decay (MiniCPM, arXiv 2404.06395, section 4); here with a linear decay (arXiv 2405.18392).
KINDS = ("constant", "cosine", "linear", "wsd")
_WSD_DECAY = 0.2  # share of the steps


@dataclass(frozen=True)
class RateSchedule:
    """The learning rate by step. Warmup rises linearly and reaches the peak in its last step."""

    peak: float
    steps: int  # of the whole run; the decay ends with it
    kind: str = "constant"  # one of KINDS
    warmup: int = 0  # steps
    last: float = 0.0  # rate at the end of the decay
    decay: int | None = None  # steps of wsd; None: a fifth of all

    def at(self, index: int) -> float:
        """The rate of step index, from 0."""
        if index < self.warmup:
            return self.peak * (index + 1) / self.warmup
        if self.kind == "constant":
            return self.peak
        length = self._decay_steps if self.kind == "wsd" else self.steps - self.warmup
        done = max(index - (self.steps - length), 0) / length  # share of the decay
        left = (1 + cos(pi * done)) / 2 if self.kind == "cosine" else 1 - done
        return self.last + (self.peak - self.last) * left

    @property
    def _decay_steps(self) -> int:
        return self.decay if self.decay is not None else max(round(_WSD_DECAY * self.steps), 1)

    def check(self) -> None:
        """Raises InputError for flags that do not fit each other."""
        if self.kind not in KINDS:
            raise InputError(f"--schedule `{self.kind}` is none of {', '.join(KINDS)}", hint="`--schedule cosine`")
        if self.kind == "constant" and self.last:
            raise InputError(f"--min-lr {self.last:g}: a constant rate does not decay", hint="add `--schedule cosine`")
        if not 0 <= self.last <= self.peak:
            raise InputError(f"--min-lr {self.last:g}: must be 0 to the learning rate, {self.peak:g}",
                             hint=f"`--min-lr {self.peak / 10:g}`")  # fmt: skip
        if self.decay is not None and self.kind != "wsd":
            raise InputError(f"--decay-steps {self.decay}: only the schedule wsd has them", hint="add `--schedule wsd`")
        if self.decay is not None and self.decay < 1:
            raise InputError(f"--decay-steps {self.decay}: must be 1 or more", hint="leave it out for a fifth of all")
        least = self._decay_steps if self.kind == "wsd" else int(self.kind != "constant")
        if self.warmup < 0 or self.warmup + least > self.steps:
            decay = f" and {least} of decay" * (self.kind == "wsd")
            raise InputError(f"--warmup {self.warmup}: {self.warmup} steps of warmup{decay} do not fit in {self.steps}",
                             hint="give fewer, or more `--steps`")  # fmt: skip
