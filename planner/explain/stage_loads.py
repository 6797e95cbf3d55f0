"""Why stages are as they are: what each of them does, how many layers its embedding or head is worth, and what the same
layout takes with even stages."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from ...cost_models.quantities.stages import EMBEDDING, EMBEDDING_COPY, EXTRA_KINDS, HEAD, MTP, on_devices
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ..document.base import rounded
from ..document.candidate import Candidate
from ..evaluation.staged import Staged
from ..heterogeneous.candidates import staged_as
from ..request.load import Request
from ..request.resolve import resolve


class StageLoads(BaseModel):
    """The work of the stages of a pipeline. Seconds; per micro-batch where noted.

    stage_s: [stage] forward, backward and recomputation of a micro-batch; layer_s: of a mean layer; embedding_layers,
    head_layers (with MTP modules): how many mean layers take as long. step_s: simulated, unless simulated says no.
    even_*: the same layout with stages as even as possible: layers of each, and what its fullest GPU needs. can_split:
    whether `plan --stages own` can place its layers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage_s: tuple[float, ...]
    even_stage_s: tuple[float, ...]
    layer_s: float
    embedding_layers: float
    head_layers: float
    step_s: float
    even_step_s: float
    even_layers: tuple[int, ...]
    even_device_bytes: float
    memory_bytes: float
    simulated: bool
    can_split: bool


def stage_loads(request: Request, candidate: Candidate) -> StageLoads:
    """For a candidate of the plan for `request`, with a pipeline or a single stage."""
    staged = staged_as(resolve(request), candidate)
    even, edges = staged.split(None), slice(-EXTRA_KINDS, None)
    kernels, layer_s = kernel_seconds(staged.ledger.tables, staged.resolved.rates), staged.mean_layer_s
    kind_s = kernels.forward_s[:, staged.key] + kernels.backward_s[:, staged.key]
    worth = (staged.ledger.splits.total[0] * kind_s)[edges] / layer_s
    one_layer_set = staged.ledger.vocabulary is None and staged.resolved.nodes is None
    can_split = staged.is_simulated and one_layer_set and staged.resolved.target.stages != "even"
    can_split = can_split and staged.resolved.workload.objective != "memory"
    return StageLoads(**rounded({
        "stage_s": _stage_s(staged), "even_stage_s": _stage_s(even), "layer_s": layer_s,
        "embedding_layers": float(worth[EMBEDDING] + worth[EMBEDDING_COPY]),
        "head_layers": float(worth[HEAD] + worth[MTP]) + len(staged.resolved.problem.mtp),
        "step_s": staged.step_s, "even_step_s": even.step_s, "even_layers": list(_layers(even)),
        "even_device_bytes": even.device_bytes, "memory_bytes": staged.resolved.memory_bytes,
        "simulated": staged.is_simulated, "can_split": can_split,
    }))  # fmt: skip


def _stage_s(staged: Staged) -> list[float]:
    """[stage] seconds of a micro-batch."""
    costs = staged.costs
    chunks = np.array(costs.forward_s) + np.array(costs.input_s) + np.array(costs.weight_s)
    spread = staged.ledger.vocabulary is not None
    devices = 2 * staged.devices if spread else staged.devices  # of chunks of layers, then of those of the vocabulary
    return [float(seconds) for seconds in on_devices(chunks[: len(devices)], devices)]


def _layers(staged: Staged) -> list[int]:
    return [int(layers) for layers in on_devices(np.array(staged.partition.sizes), staged.devices)]
