"""What the operations, messages and collectives of a schedule cost: the input of the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from ...errors import FieldProblem, InputError
from .orders import Schedule


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds and bytes of a schedule, per chunk [c] or per device [d]; an empty tuple is all zero.

    forward_s, input_s, weight_s [c]: F, I and W of one micro-batch (B takes input_s + weight_s). forward_hop_s,
    backward_hop_s [c]: message that brings the input of the chunk's F (from upstream) and of its B (from downstream);
    none between chunks of one device. forward_link_s, backward_link_s [c]: how long its sender's link is busy with it:
    less where a part is latency, more where others take turns on it; empty: as long as it takes. hop_blocks: share
    of a message during which the sender computes nothing.
    gather_s, reduce_s [c]: weights gathered before the first F, gradients reduced after the last W, of a chunk,
    in `buckets` pieces; gather_overlap, overlap: their speed while the device computes, 0 to 1. optimizer_s [d]
    follows; with global_norm after the slowest device's reduction. pair_overlap: share of the shorter of a fused pair
    that hides.
    activation_bytes [c] from F to B or I, then stash_bytes [c] from I to W; static_bytes [d] always.
    forward_nic, backward_nic [c], reduce_nic [d]: NIC that carries it, -1 for none; nic_mode: messages of one NIC
    one after another in the order they are ready (`serialise`), or all at once at equal shares (`share`).
    """

    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    forward_hop_s: tuple[float, ...] = ()
    backward_hop_s: tuple[float, ...] = ()
    forward_link_s: tuple[float, ...] = ()
    backward_link_s: tuple[float, ...] = ()
    hop_blocks: float = 0.0
    gather_s: tuple[float, ...] = ()
    reduce_s: tuple[float, ...] = ()
    buckets: int = 1
    gather_overlap: float = 1.0
    overlap: float = 1.0
    optimizer_s: tuple[float, ...] = ()
    global_norm: bool = True
    pair_overlap: float = 0.0
    activation_bytes: tuple[float, ...] = ()
    stash_bytes: tuple[float, ...] = ()
    static_bytes: tuple[float, ...] = ()
    forward_nic: tuple[int, ...] = ()
    backward_nic: tuple[int, ...] = ()
    reduce_nic: tuple[int, ...] = ()
    nic_mode: str = "share"

    @classmethod
    def even(
        cls, schedule: Schedule, forward_s: float, input_s: float, weight_s: float, hop_s: float = 0.0
    ) -> Costs:
        """Equal chunks: seconds of one micro-batch on a device, spread over its chunks; one unit of memory each."""
        n = schedule.num_chunks
        parts = len(set(schedule.part.tolist())) / schedule.num_devices  # chunks that a micro-batch passes per device
        f, i, w, bytes_ = ((x / parts,) * n for x in (forward_s, input_s, weight_s, 1.0))
        return cls(forward_s=f, input_s=i, weight_s=w, forward_hop_s=(hop_s,) * n, backward_hop_s=(hop_s,) * n,
                   activation_bytes=bytes_, stash_bytes=bytes_)  # fmt: skip

    @property
    def shares_links(self) -> bool:
        """Whether any message shares a NIC."""
        return any(nic >= 0 for nic in self.forward_nic + self.backward_nic + self.reduce_nic)

    def check(self, schedule: Schedule) -> None:
        """Raises InputError for a wrong number of values, or one that is negative or no number."""
        sizes = {"optimizer_s": schedule.num_devices, "static_bytes": schedule.num_devices,
                 "reduce_nic": schedule.num_devices}  # fmt: skip
        problems = []
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = sizes.get(field.name, schedule.num_chunks)
            if isinstance(value, tuple) and len(value) not in ((wanted,) if field.name in _NEEDED else (0, wanted)):
                problems.append(FieldProblem(f"{len(value)} values, {schedule.name} needs {wanted}", field=field.name))
            elif isinstance(value, tuple) and not field.name.endswith("nic") and not _times(value):
                problems.append(FieldProblem("not all are finite and 0 or more", field=field.name))
        names = ("gather_overlap", "overlap", "pair_overlap", "hop_blocks")
        shares = {name: float(getattr(self, name)) for name in names}
        problems += [FieldProblem(f"{x} is not in 0 to 1", field=name) for name, x in shares.items() if not 0 <= x <= 1]
        if self.buckets < 1 or self.nic_mode not in ("share", "serialise"):
            text = f"buckets {self.buckets}, nic_mode {self.nic_mode}"
            problems.append(FieldProblem(text, field="buckets, nic_mode"))
        if self.shares_links and 0 < self.overlap < 1:
            problems.append(FieldProblem("must be 0 or 1 where links are shared", field="overlap"))
        if problems:
            raise InputError.of(problems)


_NEEDED = ("forward_s", "input_s", "weight_s")


def _times(values: Sequence[float]) -> bool:
    return all(math.isfinite(x) and x >= 0 for x in values)
