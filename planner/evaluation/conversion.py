"""Conversion: weights and optimizer states in memory from one layout to another, and its seconds.

Matrices whose inputs tensor parallelism splits (the output projection of attention, the last of a feed-forward block)
lie in rows, of which a rank has a part. Between two degrees a and b of it, ranks exchange runs of 1/lcm(a, b) of a row.
Tensors that are split otherwise move in runs as long as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from ...cost_models.layouts import Layout
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.memory import MASTER_BYTES
from ...cost_models.rates.packing import copied_s, packed_s
from ...cost_models.rates.rates import Rates
from ...cost_models.specs.model import FeedForward, Layer, MixtureOfExperts
from ...errors import MeshwrightError
from ..document.candidate import Candidate
from ..document.plan import Plan
from ..request.load import request_from_dict
from ..request.resolve import Resolved, resolve
from .staged import Staged

_ONE_MOMENT = ("sgd", "muon")  # optimizers with one moment of a matrix; others have two


@dataclass(frozen=True)
class Gathering:
    """A way to gather what is sent."""

    name: str
    gather_s: float  # before messages, and after them
    message_s: float

    @property
    def total_s(self) -> float:
        return self.gather_s + self.message_s


@dataclass(frozen=True)
class Moved:
    """What the fullest GPU of the new layout gets."""

    received_bytes: float
    cut_bytes: float  # of them, what lies in runs
    run_bytes: float  # the shortest run; 0: none is cut
    runs: float
    by_kernels: Gathering
    by_copies: Gathering


@dataclass(frozen=True)
class _Cut:
    """A state of matrices of one shape on a device that are cut in their rows."""

    num_bytes: float
    run_bytes: float
    matrices: float


def moved(resolved: Resolved, old: Layout, new: Layout) -> Moved:
    """States of `old` moved to `new`, a layout of the request's GPUs; `old` may be of others."""
    ledger = Staged.of(resolved, new).ledger
    memory = DeviceMemory(ledger)
    sizes = [(float(states["weights"][0]), float(states["optimizer"][0]))
             for states in map(memory.states, range(ledger.num_profiles))]  # fmt: skip
    received, j = max((sum(size), j) for j, size in enumerate(sizes))
    cuts = list(_cuts(ledger, j, old, new, *sizes[j]))
    by_kernels, by_copies = _gatherings(resolved.rates, cuts, received)
    return Moved(
        received_bytes=received, cut_bytes=sum(cut.num_bytes for cut in cuts),
        run_bytes=min((cut.run_bytes for cut in cuts), default=0.0),
        runs=sum(cut.num_bytes / cut.run_bytes for cut in cuts), by_kernels=by_kernels, by_copies=by_copies,
    )  # fmt: skip


def moved_in(plan: Plan, candidate: Candidate, old: Layout) -> Moved | None:
    """States of `old` moved to a layout of a plan; None where its layers have strategies of their own, or where the
    plan's files are gone."""
    if candidate.layerwise is not None:
        return None
    try:
        return moved(resolve(request_from_dict(plan.request)), old, candidate.to_layout())
    except MeshwrightError:
        return None


def _gatherings(rates: Rates, cuts: Sequence[_Cut], received: float) -> tuple[Gathering, Gathering]:
    """Messages are gathered at one end and spread at the other, which takes as long."""
    bw, launch_s = rates.memory_bw_bytes_per_s, rates.stack.host_s_per_kernel
    whole_s = 2 * (received - sum(cut.num_bytes for cut in cuts)) / bw
    by_kernels = sum(packed_s(cut.num_bytes, cut.run_bytes, bw, launch_s, cut.matrices) for cut in cuts)
    by_copies = sum(copied_s(cut.num_bytes, cut.run_bytes, bw, launch_s) for cut in cuts)
    message_s = received / rates.levels[-1].bw_bytes_per_s
    return (Gathering("a kernel per tensor", 2 * (whole_s + by_kernels), message_s),
            Gathering("a copy per run", 2 * (whole_s + by_copies), message_s))  # fmt: skip


def _cuts(ledger: Ledger, j: int, old: Layout, new: Layout, weights: float, optimizer: float) -> Iterator[_Cut]:
    """Cuts of each state, out of the bytes of weights and of the optimizer on the device of profile j."""
    problem, tables = ledger.problem, ledger.tables.parameters
    every = ledger.per_kind(tables["dense"] + tables["experts"])
    elements_here = float(ledger.on_profile(j, every)[0])
    of_optimizer = _optimizer_bytes(ledger)
    states = [(problem.state_bytes.weight, weights / elements_here)]
    states += [(size, optimizer / elements_here * size / sum(of_optimizer)) for size in of_optimizer]
    for number, variant in enumerate(problem.variants):
        layers = float(ledger.counts[j].get(number, [0.0])[0])
        kind = problem.model.kinds[variant.kind]
        for width, matrices, (before, after) in _split_inputs(kind, old, new):
            if layers and before != after:
                elements = layers * matrices * problem.model.hidden * width / after
                for size, held in states:
                    yield _Cut(num_bytes=held * elements, matrices=layers * matrices,
                               run_bytes=size * width / lcm(before, after))  # fmt: skip


def _optimizer_bytes(ledger: Ledger) -> list[float]:
    """Bytes of an element of each tensor that the optimizer keeps of a matrix: master copy and moments."""
    workload, states = ledger.problem.workload, ledger.problem.state_bytes
    kept = states.orthogonalised if workload.optimizer == "muon" else states.optimizer
    has_master = workload.precision != "fp32" and ledger.problem.stack.master_weights
    masters, moments = [MASTER_BYTES] if has_master else [], 1 if workload.optimizer in _ONE_MOMENT else 2
    return [*masters, *[(kept - sum(masters)) / moments] * moments]


def _split_inputs(kind: Layer, old: Layout, new: Layout) -> Iterator[tuple[float, float, tuple[int, int]]]:
    """(inputs, matrices of a rank, degrees that split the inputs) of a layer's matrices that are split so."""
    if kind.attention is not None:
        yield kind.attention.heads * kind.attention.value_head_dim, 1.0, (old.tp, new.tp)
    if isinstance(kind.feed_forward, FeedForward):
        yield kind.feed_forward.inner, 1.0, (old.tp, new.tp)
    if isinstance(kind.feed_forward, MixtureOfExperts):
        yield kind.feed_forward.expert_inner, kind.feed_forward.experts / new.ep, (old.etp, new.etp)
