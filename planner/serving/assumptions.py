"""Sentences on the limits and seconds of a plan to serve that no measurement gave."""

from __future__ import annotations

from ...cost_models.serving.pool import MEMORY_SHARE, WORKING_BYTES
from ...cost_models.serving.service import FULLEST
from ...cost_models.serving.shared_iterations import BUSIEST
from ...cost_models.specs.cluster import ClusterSpec
from ..request.images import assumed_of_images
from ..request.serving import ServingRequest
from ..request.serving_references import CHECKPOINT
from .formats import PRODUCTS
from .space import Served


def assumptions(served: Served, request: ServingRequest, cluster: ClusterSpec) -> tuple[str, ...]:
    work = request.workload
    memory = f"an engine takes {100 * MEMORY_SHARE:g} % of the memory of a GPU"
    if served.model.fills:
        memory += (f", {WORKING_BYTES / 2**30:g} GiB of it beside weights and room, the activations of "
                   f"{served.engine.chunk_tokens:,} tokens among them (the largest batch of {served.engine.name})")
        stable = f"{100 * FULLEST:g} % of the room is taken"
    else:
        memory += f", {WORKING_BYTES / 2**30:g} GiB of it beside weights and cache"
        stable = f"prompts take {100 * BUSIEST:g} % of the time, or {100 * FULLEST:g} % of the cache is taken"
    rate = () if work.concurrency is not None else (f"a rate is stable until {stable}",)
    return (memory, *rate, *_of_weights(request, cluster), *_of_recurrences(served),
            *assumed_of_images(work, served.model.tower))  # fmt: skip


def _of_weights(request: ServingRequest, cluster: ClusterSpec) -> tuple[str, ...]:
    """The format of the weights where the checkpoint decides it, and the GPUs that do not multiply it."""
    weights = str(request.workload.precision)
    if request.origins.get("workload.precision") != CHECKPOINT:
        return ()
    widens = dict.fromkeys(group.gpu.name for group in cluster.groups
                           if PRODUCTS.get(weights, weights) not in group.gpu.peak_flops_per_s)  # fmt: skip
    widened = f"; products on {', '.join(widens)} widen them to 16 bits" if widens else ""
    return (f"weights are in {weights}, the format of the checkpoint{widened}; `--dtype` prices another one",)


def _of_recurrences(served: Served) -> tuple[str, ...]:
    """How recurrences over prompts are priced (`_passes_s` in cost_models/serving/iteration.py)."""
    if all(served.model.kinds[kind].mixer is None for kind in served.model.pattern):
        return ()
    return ("products of recurrences over prompts reach the rate of attention, and their kernels the bandwidth of "
            "large products",)  # fmt: skip
