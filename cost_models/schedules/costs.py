"""Costs of the operations, messages and collectives of a schedule: the input of the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from ...errors import FieldProblem, InputError
from .orders import Schedule


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds and bytes of a schedule, per chunk [c] or per device [d]; an empty tuple is all zero."""

    forward_s: tuple[float, ...]  # [c] F of one micro-batch
    input_s: tuple[float, ...]  # [c] I of one micro-batch; a B takes input_s + weight_s
    weight_s: tuple[float, ...]  # [c] W of one micro-batch
    forward_hop_s: tuple[float, ...] = ()  # [c] message with the chunk's input, none between chunks of one device
    backward_hop_s: tuple[float, ...] = ()  # [c] message with the gradient of its output
    # How long a message keeps its sender's link busy: less than the hop where a part of it is latency, more where
    # others take turns on the link; empty: as long as the hop.
    forward_link_s: tuple[float, ...] = ()  # [c]
    backward_link_s: tuple[float, ...] = ()  # [c]
    gather_s: tuple[float, ...] = ()  # [c] weights, gathered before the first F
    reduce_s: tuple[float, ...] = ()  # [c] gradients, reduced after the last W
    buckets: int = 1  # pieces of either: the first is on its way while the others are computed
    gather_overlap: float = 1.0  # speed of gathering while the device computes, 0 to 1
    overlap: float = 1.0  # speed of reducing while the device computes, 0 to 1
    unhidden_s: tuple[float, ...] = ()  # [d] collectives that hide behind nothing, after its last operation
    optimizer_s: tuple[float, ...] = ()  # [d] after the slowest device's reduction: clipping needs the norm of all
    activation_bytes: tuple[float, ...] = ()  # [c] of one micro-batch, from F to B or I
    stash_bytes: tuple[float, ...] = ()  # [c] of one micro-batch, from I to W
    static_bytes: tuple[float, ...] = ()  # [d] always

    @classmethod
    def even(cls, schedule: Schedule, forward_s: float, input_s: float, weight_s: float, hop_s: float = 0.0) -> Costs:
        """Equal chunks: seconds of one micro-batch on a device, spread over its chunks; one unit of memory each."""
        n = schedule.num_chunks
        parts = len(set(schedule.part.tolist())) / schedule.num_devices  # chunks that a micro-batch passes per device
        f, i, w, bytes_ = ((x / parts,) * n for x in (forward_s, input_s, weight_s, 1.0))
        return cls(forward_s=f, input_s=i, weight_s=w, forward_hop_s=(hop_s,) * n, backward_hop_s=(hop_s,) * n,
                   activation_bytes=bytes_, stash_bytes=bytes_)  # fmt: skip

    def check(self, schedule: Schedule) -> None:
        """Raises InputError for a wrong number of values, or one that is negative or no number."""
        sizes = dict.fromkeys(("unhidden_s", "optimizer_s", "static_bytes"), schedule.num_devices)
        problems = []
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = sizes.get(field.name, schedule.num_chunks)
            if isinstance(value, tuple) and len(value) not in ((wanted,) if field.name in _NEEDED else (0, wanted)):
                problems.append(FieldProblem(f"{len(value)} values, {schedule.name} needs {wanted}", field=field.name))
            elif isinstance(value, tuple) and not _times(value):
                problems.append(FieldProblem("not all are finite and 0 or more", field=field.name))
        names = ("gather_overlap", "overlap")
        shares = {name: float(getattr(self, name)) for name in names}
        problems += [FieldProblem(f"{x} is not in 0 to 1", field=name) for name, x in shares.items() if not 0 <= x <= 1]
        if self.buckets < 1:
            problems.append(FieldProblem(f"{self.buckets} is less than 1", field="buckets"))
        if problems:
            raise InputError.of(problems)


_NEEDED = ("forward_s", "input_s", "weight_s")


def _times(values: Sequence[float]) -> bool:
    return all(math.isfinite(x) and x >= 0 for x in values)
