"""Lower bounds over all distributions of a step on heterogeneous devices.

Device class g has a share f_g of the devices. For any weights w_g with sum_g f_g w_g = 1, the fullest device takes at
least the w-weighted mean of what all do, and every piece of work i costs that mean at least min_g w_g t_g(i) wherever
it runs: so load >= sum_i min_g w_g t_g(i) / devices. The weights that make the classes equally good at the whole model,
w_g ~ 1 / sum_i t_g(i), give the harmonic mean of their speeds where all pieces compare alike. (The dual of the
fractional assignment of work to unrelated machines.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import Array
from ..quantities.ledger import Ledger
from ..rates.kernel_seconds import kernel_seconds
from ..rates.rates import Rates
from ..schedule_kinds import CODE, FOLDED, INTERLEAVED
from . import optimizer_seconds, stage_messages, stage_seconds
from .pipeline_bounds import Pipelines, least_step_s


def weights(seconds: Array, shares: Sequence[float]) -> Array:
    """[class, ...] w_g for [class, ...] seconds of all work on a device of each class."""
    speed = 1.0 / seconds
    return np.asarray(speed / np.tensordot(np.asarray(shares), speed, axes=1))


def least_pipeline(
    batches: Sequence[Ledger], rates: Sequence[Rates], shares: Sequence[float], crossing_s: Array, link_s: Array, *,
    states_known: bool, shards_known: bool = False,
) -> Array:  # fmt: skip
    """[n] seconds of a step of one pipeline whose layers the classes share. batches: one ledger of mean stages under
    the rates of every class; crossing_s: [n] of a micro-batch's messages, one way, from class to class; link_s: [n] how
    long they keep the link busy.

    1f1b: stage 0 starts a micro-batch only when the one pp before it is back, so every pp of them take a round trip
    through all stages. All: the link sends m times.
    """
    first, classes = batches[0], list(zip(batches, rates, strict=True))
    seconds_by_kind = [stage_seconds.kind_seconds(batch, rate) for batch, rate in classes]
    none = np.zeros(len(first.m))
    extra = [stage_seconds.unhidden_s(batch, rate, shards_known=shards_known) if states_known else none
             for batch, rate in classes]  # fmt: skip
    pp = first.layouts["pp"].astype(np.float64)
    alone = np.array([sum(first.totals[k] * seconds[k] for k in first.kinds) / pp for seconds in seconds_by_kind])
    w = weights(alone + extra, shares)
    work = {k: np.array([seconds[k] for seconds in seconds_by_kind]) for k in first.kinds}
    load = sum(first.totals[k] * (w * work[k]).min(axis=0) for k in first.kinds) / pp
    load = load + (w * np.array(extra)).min(axis=0)
    least = sum(first.totals[k] * work[k].min(axis=0) for k in first.kinds)
    weight_s = [batch.over_devices(batch.per_kind(kernel_seconds(batch.tables, rate).weight_s))
                for batch, rate in classes]  # fmt: skip
    passed = np.minimum(np.max(weight_s, axis=0), least)
    inside_s = np.min([stage_messages.hop_s(batch, rate) for batch, rate in classes], axis=0)
    one_way_s = np.maximum(pp - len(shares), 0.0) * inside_s + crossing_s
    schedule = first.layouts["schedule"]
    plain = ~FOLDED[schedule] & ~INTERLEAVED[schedule]
    w_share, f_share = _shares(batches, rates, seconds_by_kind)
    # Linear in what all devices do together, or in the fullest one's load: so least work and least load bound them.
    step_s = least_step_s(Pipelines(
        schedule=schedule, pp=pp, vpp=first.layouts["vpp"].astype(np.float64), m=first.m, total_s=least,
        weight_s=passed, layers_s=least, load_s=load, forward_share=f_share, weight_share=w_share,
        hop_s=np.where(plain, one_way_s / np.maximum(pp - 1, 1.0), inside_s),
    ))  # fmt: skip
    round_trips = np.where(schedule == CODE["1f1b"], np.ceil(first.m / pp) * (least + 2 * one_way_s), 0.0)
    step_s = np.maximum(np.maximum(step_s, round_trips), first.m * link_s)
    return np.asarray(step_s + np.min(_updates(batches, rates, states_known), axis=0))


def _shares(
    batches: Sequence[Ledger], rates: Sequence[Rates], seconds_by_kind: Sequence[dict[int, Array]]
) -> tuple[Array, Array]:
    """[n] the share of W in a piece of work at most, and of F in a layer at least, on any class."""
    layers, weight, forward = batches[0].problem.num_kinds, [], []
    for batch, rate, seconds in zip(batches, rates, seconds_by_kind, strict=True):
        kernels = kernel_seconds(batch.tables, rate)
        of_w, of_f = batch.per_kind(kernels.weight_s), batch.per_kind(kernels.forward_s)
        with np.errstate(invalid="ignore"):  # of what takes no time
            weight += [of_w[k] / seconds[k] for k in batch.kinds]
            forward += [of_f[k] / seconds[k] for k in batch.kinds if k < layers]
    return np.nanmax(weight, axis=0), np.nanmin(forward, axis=0)


def least_replicas(
    batches: Sequence[Ledger], rates: Sequence[Rates], shares: Sequence[float], mean: float, sum_s: float, *,
    equal: bool, states_known: bool, shards_known: bool = False,
) -> Array:  # fmt: skip
    """[n] seconds of a step of replicas that each lie in one class. mean: the part of the ledger's micro-batches that
    the mean replica runs: those of class g take m_g cycles of the slowest stage, and sum_g f_g m_g = mean m. equal: all
    run equally many, so the slowest class bounds the step. sum_s: of
    the sum of all gradients over the classes at least, of which data_parallel.exposed_dp_s hides no more than a cycle,
    in an interleaved pipeline pp of them."""
    cycles = [stage_seconds.cycle_s(batch, rate, states_known=states_known, shards_known=shards_known)
              for batch, rate in zip(batches, rates, strict=True)]  # fmt: skip
    speed = np.tensordot(np.asarray(shares), 1.0 / np.array(cycles), axes=1)
    step_s = mean * batches[0].m * (np.max(cycles, axis=0) if equal else 1.0 / speed)
    if states_known:
        x = batches[0].layouts
        window = np.where((x["vpp"] > 1) & (x["pp"] > 1), x["pp"], 1.0)
        step_s = step_s + np.maximum(sum_s - window * np.max(cycles, axis=0), 0.0)
    # Whichever replica ends last waits for sums in which every rank has its part.
    sums = np.array([optimizer_seconds.reductions_s(batch, rate) for batch, rate in zip(batches, rates, strict=True)])
    update = np.min(_updates(batches, rates, states_known) - sums, axis=0) + np.tensordot(np.asarray(shares), sums, 1)
    return np.asarray(step_s + update)


def _updates(batches: Sequence[Ledger], rates: Sequence[Rates], states_known: bool) -> Array:
    """[class, n] seconds of the optimizer at least."""
    return np.array([optimizer_seconds.least_optimizer_s(batch, rate, states_known)
                     for batch, rate in zip(batches, rates, strict=True)])  # fmt: skip
