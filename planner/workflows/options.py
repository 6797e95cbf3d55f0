"""A layout of one call on its GPUs: seconds, and bytes during the call and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...cost_models.layouts import Layout
from ...cost_models.quantities.device_memory import DeviceMemory
from ..evaluation.staged import Staged
from ..serving.instance import Instance


@dataclass(frozen=True, kw_only=True)
class AnswerDegrees:
    """Training in which each answer has a context-parallel degree of its own."""

    degrees: tuple[int, ...]  # ranks that share an answer, rising
    rank_tokens: int  # of the answers of a group, at most
    micro_batches: int  # of an update
    forward_share: float  # of a forward pass in the seconds of training


@dataclass(frozen=True, kw_only=True)
class Option:
    """The layout of a call on a mesh, and what it takes."""

    seconds: float
    peak_bytes: float  # of a GPU while the call runs, what stays of its model included
    kept_bytes: float  # of a GPU that its model keeps between calls
    host_bytes: float = 0.0  # of its part of host memory that the layout takes all the time
    layout: Layout | None = None  # of training and scoring
    sequences: int = 0  # of training: packed ones of an update
    seq_len: int = 0  # tokens of each
    by_answer: AnswerDegrees | None = None  # its layout then is that of the widest groups
    leaner: tuple[Option, ...] = ()  # slower ones that leave more memory to other models, the fastest first
    instance: Instance | None = None  # of generation
    instances: int = 0
    hosted_iterations: float = 0.0  # of generation, which the host prepares while the GPUs wait
    cache_sequences: int = 0  # that the caches of an instance hold


def longer(option: Option | None, factor: float) -> Option | None:
    """The same option where all takes so many times as long."""
    if option is None:
        return None
    leaner = tuple(replace(it, seconds=it.seconds * factor) for it in option.leaner)
    return replace(option, seconds=option.seconds * factor, leaner=leaner)


def with_leaner(found: Sequence[Option]) -> Option | None:
    """The first, with those of the others that need fewer bytes of a GPU than all before them, in the call or after."""
    kept = list[Option]()
    for option in found:
        if all(option.kept_bytes < it.kept_bytes or option.peak_bytes < it.peak_bytes for it in kept):
            kept.append(option)
    return replace(kept[0], leaner=tuple(kept[1:])) if kept else None


def of_training(staged: Staged, seconds: float) -> Option:
    """The option of a priced layout that trains."""
    memory = DeviceMemory(staged.ledger)
    kept = max(float(memory.states_bytes(j)[0]) for j in range(staged.ledger.num_profiles))
    work = staged.resolved.workload
    return Option(seconds=seconds, peak_bytes=staged.device_bytes, kept_bytes=kept, host_bytes=staged.host_bytes,
                  layout=staged.layout, sequences=work.global_batch, seq_len=work.seq_len)  # fmt: skip
