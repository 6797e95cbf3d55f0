"""Forward passes over the answers of a step: log-probabilities, values and rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities import tables
from ...cost_models.quantities.element_bytes import activation_bytes
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.moments import SOFTMAX_BYTES
from ...cost_models.quantities.stages import HEAD
from ...cost_models.quantities.weight_bytes import weight_bytes
from ...cost_models.serving.pool import WORKING_BYTES
from ...cost_models.step.stage_seconds import compute_s
from ..request.resolve import Resolved
from ..space.rules import Rule


class Forward(NamedTuple):
    """A way to pass over the answers."""

    seconds: float
    peak_bytes: float  # of the fullest GPU
    weights_bytes: float  # of the weights of it, which stay after the call
    layout: Layout


def forward_of(resolved: Resolved, layout: Layout) -> float:
    """Seconds of a forward pass over the batch of `resolved` by the degrees of `layout`."""
    return float(_seconds(_ledger(resolved, [layout]), resolved)[0])


def fastest_forwards(
    resolved: Resolved, budgets: Sequence[float], given: Mapping[str, int], parts: int | None,
    rules: Sequence[Rule] = (),
) -> list[Forward]:  # fmt: skip
    """The fastest of all degrees that fit, for each budget of bytes of a GPU, the largest first; none for a budget in
    which none do. given: fields of the layout; parts: micro-batches of a stage, None: one per sequence; rules: of
    other software than the trainer."""
    degrees = [it for it in _degrees(resolved, parts) if all(getattr(it, name) == n for name, n in given.items())]
    if not degrees:
        return []
    legal = Layouts.of(degrees)
    for rule in (*resolved.space.rules, *rules):
        legal = legal.take(rule.allows(legal, resolved.problem))
    if not len(legal):
        return []
    priced = forwards_by(resolved, [legal.layout(row) for row in range(len(legal))])
    within = ([it for it in priced if it.peak_bytes <= budget] for budget in budgets)
    return [min(fits, key=lambda it: it.seconds) for fits in within if fits]


def forwards_by(resolved: Resolved, layouts: Sequence[Layout]) -> list[Forward]:
    """A forward pass over the batch of `resolved` by each of these layouts."""
    ledger = _ledger(resolved, layouts)
    stages = range(ledger.num_profiles)
    weights = np.max([weight_bytes(ledger, j) for j in stages], axis=0)
    peak = np.max([weight_bytes(ledger, j) + _logits_bytes(ledger, j) for j in stages], axis=0) + WORKING_BYTES
    columns = zip(_seconds(ledger, resolved), peak, weights, layouts, strict=True)
    return [Forward(float(seconds), float(most), float(stay), layout) for seconds, most, stay, layout in columns]


def _logits_bytes(ledger: Ledger, j: int) -> Array:
    """[n] of the logits, or values, of a micro-batch on a rank of stage j, with their softmax in fp32: frameworks take
    log-probabilities by it (verl-project/verl@1dda039b, vocab_parallel_log_probs_from_logits, which is Megatron's
    parallel cross entropy; NVIDIA-NeMo/RL@7ea279ab, DistributedLogprob, without `logprob_chunk_size`)."""
    heads = ledger.counts[j].get(ledger.splits.counts.shape[2] + HEAD, np.zeros(len(ledger.layouts)))
    num_bytes = activation_bytes(ledger.problem.workload) + SOFTMAX_BYTES
    return np.asarray((heads > 0) * num_bytes * ledger.tables.logits[ledger.key])


def _degrees(resolved: Resolved, parts: int | None) -> list[Layout]:
    """Every way to divide the GPUs into powers of two of tensor and expert parallelism and stages. Ranks of data
    parallelism take the rest."""
    gpus, model = resolved.cluster.num_gpus, resolved.model
    powers = [2**k for k in range(gpus.bit_length()) if gpus % 2**k == 0]
    experts = powers if model.is_moe else [1]
    sequences = resolved.workload.global_batch
    return [Layout(tp=tp, pp=pp, dp=gpus // (tp * pp), shard=gpus // (tp * pp), ep=ep, sequence_parallel=int(tp > 1),
                   micro_batch=1 if parts is None else max(sequences * tp // (gpus * parts), 1))
            for tp, pp, ep in product(powers, powers, experts)
            if tp <= resolved.cluster.gpus_per_node and tp * pp <= gpus and gpus // (tp * pp) * tp % ep == 0
            and pp <= model.num_layers]  # fmt: skip


def _ledger(resolved: Resolved, layouts: Sequence[Layout]) -> Ledger:
    columns = Layouts.of(layouts)
    keys, rows = tables.index_keys(columns)
    return build_ledger.build(resolved.problem, tables.build(resolved.problem, keys), columns, rows)


def _seconds(ledger: Ledger, resolved: Resolved) -> Array:
    """[n] the slowest stage once per micro-batch, and the others once before the first leaves the pipeline."""
    forward, _ = compute_s(ledger, resolved.rates)
    return np.asarray((ledger.m + ledger.layouts["pp"] - 1.0) * forward.max(axis=0))
