"""Interruptions: how often a run stops, how often it should write checkpoints, and the share of its speed that remains.

GPUs fail one by one, and spot nodes are taken back one by one. Both are Poisson processes, so their rates add up to
the 1/M of the run. A checkpoint stops training for d, and r pass until the run goes on after an interruption. By J. T.
Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer Systems
22 (2006), 303-312, which extends J. W. Young, CACM 17 (1974), 530:
    interval I = sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d, or M where d >= 2 M   (equation 37)
    goodput = I / (M exp(r/M) (exp((I + d)/M) - 1))                                        (equation 20)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...cost_models import build_ledger, units
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities import tables
from ...cost_models.quantities.whole_matrices import saved_bytes
from ...errors import InputError
from ..request.resolve import Resolved

# name -> (value, source)
ASSUMED: Mapping[str, tuple[str, str]] = {
    "gpu_mtbf": ("50,677 h", "419 unexpected stops of 16,384 H100 in 54 days (Llama 3, arXiv 2407.21783, 3.3.4)"),
    "write_bandwidth": ("2 GB/s", "assumed, per node: one NVMe drive, or a share of a file system"),
    "detect": ("2 min", "assumed"),
    "restart": ("8 min", "assumed: reschedule, load the checkpoint, warm up"),
}
DIMENSIONS: Mapping[str, units.Dimension] = {"write_bandwidth": "B/s"}  # of those that are no seconds
_LEAST = 1e-3  # goodput below which a run is refused


@dataclass(frozen=True)
class Goodput:
    """A run that writes checkpoints at the best interval."""

    mtbf_s: float  # mean time between interruptions of the run
    checkpoint_s: float  # that a checkpoint stops training
    interval_s: float  # of training between two checkpoints
    goodput: float  # share of the time that makes progress, in (0, 1); 0 where no progress is left


def goodput(mtbf_s: float, checkpoint_s: float, recover_s: float, interval_s: float | None = None) -> Goodput:
    """Goodput by the formulas above. recover_s: from an interruption until training goes on. interval_s: None: the best
    one."""
    x = checkpoint_s / (2 * mtbf_s)
    if interval_s is None and x >= 1:
        interval_s = mtbf_s
    elif interval_s is None:
        interval_s = math.sqrt(2 * checkpoint_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - checkpoint_s
    exponents = (recover_s / mtbf_s, (interval_s + checkpoint_s) / mtbf_s)
    if max(exponents) > 300:  # more than a double holds: no checkpoint is ever reached
        return Goodput(mtbf_s, checkpoint_s, interval_s, 0.0)
    share = interval_s / (mtbf_s * math.exp(exponents[0]) * math.expm1(exponents[1]))
    return Goodput(mtbf_s, checkpoint_s, interval_s, share)


def run_mtbf_s(resolved: Resolved, num_gpus: int, gpu_mtbf_s: float) -> float:
    """Mean time between interruptions of a run on so many GPUs, by failures and, on spot nodes, by their owner."""
    rate = num_gpus / gpu_mtbf_s
    if resolved.request.spot is not None:
        every_s = units.parse(resolved.request.spot.interrupted_every, "s")
        cluster = resolved.cluster
        rate += max(num_gpus * cluster.num_nodes / cluster.num_gpus, 1.0) / every_s  # nodes of mean size
    return 1 / rate


def on_spot(resolved: Resolved) -> Goodput | None:
    """The goodput of a plan on spot nodes, by the assumed numbers; None for other nodes, whose runs are priced without
    interruptions. Raises InputError where no progress is left."""
    if resolved.request.spot is None:
        return None
    value = {name: units.parse(text, DIMENSIONS.get(name, "s")) for name, (text, _) in ASSUMED.items()}
    cluster = resolved.cluster
    written_s = checkpoint_bytes(resolved) / cluster.num_nodes / value["write_bandwidth"]
    mtbf_s, recover_s = run_mtbf_s(resolved, cluster.num_gpus, value["gpu_mtbf"]), value["detect"] + value["restart"]
    expected = goodput(mtbf_s, written_s, recover_s)
    if expected.goodput < _LEAST:
        raise InputError(f"spot: the run is interrupted every {mtbf_s:,.0f} s, but takes {recover_s:,.0f} s to recover "
                         f"and {written_s:,.0f} s for a checkpoint: it makes no progress",
                         hint="fewer nodes, or nodes that are interrupted less often")  # fmt: skip
    return expected


def spot_part(resolved: Resolved) -> dict[str, Any]:
    """`spot` of the resolved part of a plan, empty for other nodes."""
    expected = on_spot(resolved)
    return {} if expected is None else {"spot": asdict(expected)}


def checkpoint_bytes(resolved: Resolved) -> float:
    """Weights and optimizer states of the whole model, once: the content of a checkpoint."""
    problem = resolved.problem
    parameters = tables.build(problem, Layouts.of([Layout()])).parameters
    totals = build_ledger.build_totals(problem)
    weights = totals @ (parameters["dense_bytes"] + parameters["experts_bytes"])
    trained = totals @ (parameters["trained_dense"] + parameters["trained_experts"])
    return float(weights[0] + trained[0] * problem.state_bytes.optimizer - saved_bytes(problem, totals))
