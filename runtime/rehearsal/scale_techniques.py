"""The technique of a rehearsal, which exchanges often enough to be seen in a few steps. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

Named = tuple[str, dict[str, float]]
# Knob -> its most in a rehearsal.
MOST: Mapping[str, float] = {"period": 4, "fragments": 2, "delay": 1}
LEAST: Mapping[str, float] = {"warmup": 0.5}  # a variance of fewer of these few steps is not a stable one


def small_technique(technique: Named | None, num_replicas: int) -> Named | None:
    """The same with other knobs. num_replicas: of the rehearsal."""
    if technique is None:
        return None
    most = {**MOST, "tolerated": num_replicas - 1}
    return technique[0], {knob: max(min(value, most.get(knob, value)), LEAST.get(knob, 0.0))
                          for knob, value in technique[1].items()}  # fmt: skip


def shrunk_knobs(before: Named | None, after: Named | None) -> list[str]:
    """One line per knob that differs."""
    if before is None or after is None:
        return []
    return [f"{before[0]}: {knob} {value:g} -> {after[1][knob]:g}"
            for knob, value in before[1].items() if after[1][knob] != value]  # fmt: skip
