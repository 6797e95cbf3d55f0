"""Conversion: weights and optimizer states in memory from one layout to another, and its seconds.

Matrices whose inputs tensor parallelism splits (the output projection of attention, the last of a feed-forward block)
lie in rows, of which a rank has a part. Between two degrees a and b of it, ranks exchange runs of 1/lcm(a, b) of a row.
Tensors that are split otherwise move in runs as long as they are. Copies of weights for products are made anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from ...cost_models.layouts import Layout
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.memory import MASTER_BYTES, MOMENTS
from ...cost_models.quantities.stages import Partition
from ...cost_models.quantities.weight_bytes import bytes_at_rest, shards_weights
from ...cost_models.quantities.whole_matrices import optimizer_bytes
from ...cost_models.rates.packing import copied_s, packed_s
from ...cost_models.rates.rates import Rates
from ...cost_models.specs.model import FeedForward, Layer, MixtureOfExperts
from ...errors import MeshwrightError, UnsupportedError
from ..document.candidate import Candidate
from ..document.plan import Plan
from ..request.load import request_from_dict
from ..request.resolve import Resolved, resolve
from .staged import Staged


@dataclass(frozen=True)
class Gathering:
    """A way to gather the states that are sent."""

    name: str
    gather_s: float  # before messages, and after them
    message_s: float

    @property
    def total_s(self) -> float:
        return self.gather_s + self.message_s


@dataclass(frozen=True)
class Moved:
    """States that the fullest GPU of the new layout receives."""

    received_bytes: float
    cut_bytes: float  # of them, those that lie in runs
    run_bytes: float  # the shortest run; 0: none is cut
    runs: float
    by_kernels: Gathering
    by_copies: Gathering


@dataclass(frozen=True)
class _Split:
    """Matrices of a layer whose inputs tensor parallelism splits, on a rank of the new layout."""

    inputs: int  # elements of a row
    outputs: int  # rows
    number: float
    degrees: tuple[int, int]  # before and after
    routed: bool = False  # of routed experts, whose states have groups of their own


@dataclass(frozen=True)
class _Cut:
    """A state of matrices of one shape on a device that are cut in their rows."""

    num_bytes: float
    run_bytes: float
    matrices: float


def moved(resolved: Resolved, old: Layout, new: Layout, partition: Partition | None = None) -> Moved:
    """States of `old` moved to `new`, a layout of the request's GPUs; `old` may be of others.

    partition: stages of `new`; None: as even as possible. States in host memory count as those on the GPU. Raises
    UnsupportedError for states in a store of a technique.
    """
    ledger = Staged.of(resolved, new, partition).ledger
    if ledger.store is not None:
        raise UnsupportedError("states that a technique keeps in a store have no price of a conversion",
                               hint="plan without the technique")  # fmt: skip
    sizes = [float((bytes_at_rest(ledger, j, shards_weights(ledger)) + optimizer_bytes(ledger, j))[0])
             for j in range(ledger.num_profiles)]  # fmt: skip
    received, j = max((size, j) for j, size in enumerate(sizes))
    cuts = list(_cuts(ledger, j, old, new))
    by_kernels, by_copies = _gatherings(resolved.rates, cuts, received)
    return Moved(
        received_bytes=received, cut_bytes=sum(cut.num_bytes for cut in cuts),
        run_bytes=min((cut.run_bytes for cut in cuts), default=0.0),
        runs=sum(cut.num_bytes / cut.run_bytes for cut in cuts), by_kernels=by_kernels, by_copies=by_copies,
    )  # fmt: skip


def moved_in(plan: Plan, candidate: Candidate, old: Layout) -> Moved | None:
    """States of `old` moved to a layout of a plan; None where its layers have strategies of their own, where a
    technique keeps states in a store, or where the request no longer resolves, as its files are gone."""
    if candidate.layerwise is not None:
        return None
    try:
        return moved(resolve(request_from_dict(plan.request)), old, candidate.to_layout(), candidate.partition)
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


def _cuts(ledger: Ledger, j: int, old: Layout, new: Layout) -> Iterator[_Cut]:
    """Cuts of each state on the device of profile j."""
    problem = ledger.problem
    weights = ledger.state_sharers(ledger.exchanges.weights_over, shards_weights(ledger))
    optimizer = [groups.shard for groups in (ledger.dense_groups, ledger.expert_groups)]
    tensors = list(_optimizer_tensors(ledger))
    for number, variant in enumerate(problem.variants):
        layers = 0.0 if variant.repeats else float(ledger.counts[j].get(number, [0.0])[0])
        trains = variant.trains == "all"
        weight = problem.state_bytes.weight if trains else problem.state_bytes.frozen_weight
        for each in _splits(problem.model.kinds[variant.kind], problem.model.hidden, old, new):
            before, after = each.degrees
            if layers and before != after:
                matrices = layers * each.number
                elements = matrices * each.outputs * each.inputs / after
                states = [(weight, weights), *[(size, optimizer) for size in tensors if trains]]
                for size, sharers in states:
                    yield _Cut(num_bytes=size * elements / float(sharers[each.routed][0]), matrices=matrices,
                               run_bytes=size * each.inputs / lcm(before, after))  # fmt: skip


def _optimizer_tensors(ledger: Ledger) -> Iterator[float]:
    """Bytes of an element of each tensor that the optimizer keeps of a matrix: master copy and moments."""
    workload, states = ledger.problem.workload, ledger.problem.state_bytes
    is_muon = workload.optimizer == "muon"
    kept, moments = (states.orthogonalised, 1) if is_muon else (states.optimizer, MOMENTS[workload.optimizer])
    has_master = workload.precision != "fp32" and ledger.problem.stack.master_weights
    if kept and has_master:
        yield MASTER_BYTES - (states.split_master if ledger.layouts["zero"][0] == 1 else 0.0)
    for _ in range(moments if kept else 0):  # a technique without gradients keeps none
        yield (kept - MASTER_BYTES * has_master) / moments


def _splits(kind: Layer, hidden: int, old: Layout, new: Layout) -> Iterator[_Split]:
    """The matrices of a layer that are split so."""
    degrees, block = (old.tp, new.tp), kind.feed_forward
    for attention in (kind.attention, kind.cross_attention):
        if attention is not None:
            yield _Split(attention.heads * attention.value_head_dim, hidden, 1.0, degrees)
    if isinstance(block, FeedForward):
        yield _Split(block.inner, hidden, 1.0, degrees)
    if isinstance(block, MixtureOfExperts):
        yield _Split(inputs=block.expert_inner, outputs=block.latent or hidden, number=block.experts / new.ep,
                     degrees=(old.etp, new.etp), routed=True)  # fmt: skip
        if block.shared_inner:
            yield _Split(block.shared_inner, hidden, 1.0, degrees)
