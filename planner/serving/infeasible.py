"""Why no deployment keeps the promises, and what would."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.serving.percentiles import Latencies
from ...cost_models.serving.pool import MEMORY_SHARE
from ...cost_models.units import GIB
from ...errors import NoFeasibleLayoutError
from .candidates import Demand, deployment_id, layout_id
from .disaggregated import search_disaggregated, without_transfer
from .instance import Instance, pool
from .promises import ALONE, holds_a_sequence, priced, unpromised
from .search import Deployment, DeploymentResult, search
from .space import Space, Spaces


def no_deployment(
    spaces: Spaces, demand: Demand, result: DeploymentResult, between_bw: float
) -> NoFeasibleLayoutError:  # fmt: skip
    """The reason, in the order: no layout, no memory, one request alone, the load. between_bw: bytes/s of a GPU from
    site to site."""
    aggregated = _instances(spaces.aggregated)
    prompts, answers = aggregated or _instances(spaces.prefill), aggregated or _instances(spaces.decode)
    if not prompts or not answers:
        rules = ", ".join(sorted(spaces.ruled_out))
        numbers = [space.site.num_gpus for space in (*spaces.aggregated, *spaces.prefill)]
        broken = f"all break rules of {rules}" if rules else f"one takes more than the {max(numbers, default=0)} GPUs"
        return NoFeasibleLayoutError(f"no layout of an instance is legal: {broken}", hint="leave out a `--fix`")
    if not aggregated and not result.total:
        sizes = [min(it.layout.gpus for it in instances) for instances in (prompts, answers)]
        text = f"an instance that prefills takes {sizes[0]} of the GPUs and one that decodes {sizes[1]}"
        return NoFeasibleLayoutError(f"{text}: the cluster cannot hold both", hint="leave out a `--fix`")
    if not aggregated and (reason := without_transfer(spaces.prefill, spaces.decode)) is not None:
        return NoFeasibleLayoutError(reason, hint="leave out a `--fix`")
    held = [_that_fit(instances, demand) for instances in (prompts, answers)]
    for instances, fitting in zip((prompts, answers), held, strict=True):
        if not fitting:
            return _no_memory(instances, demand)
    promises = demand.promises
    ttft_s = _latencies_alone(held[0], demand, disaggregated=not aggregated).ttft_s
    tpot_s = _latencies_alone(held[1], demand, disaggregated=not aggregated).tpot_s
    if (ttft_s > promises.ttft_s).all():
        return _alone("TTFT", held[0], ttft_s, promises.ttft_s, "more tp or shorter prompts")
    if (tpot_s > promises.tpot_s).all():
        return _alone("TPOT", held[1], tpot_s, promises.tpot_s, "more tp, or weights of fewer bytes (`--dtype fp8`)")
    most = _most(spaces, demand, between_bw)
    if most is None:
        text = (f"no layout keeps both promises for one request alone: TTFT {_text(promises.ttft_s)} and TPOT "
                f"{_text(promises.tpot_s)}")  # fmt: skip
        return NoFeasibleLayoutError(text, hint="more tp, shorter prompts, or a later promise")
    return _too_much(spaces, demand, most, between_bw)


def _instances(spaces: Sequence[Space]) -> list[Instance]:
    return [instance for space in spaces for instance in space.instances]


def _that_fit(instances: Sequence[Instance], demand: Demand) -> list[Instance]:
    """Those whose cache holds a request."""
    fits = holds_a_sequence(pool(instances), demand.promises)
    return [instance for instance, is_held in zip(instances, fits, strict=True) if is_held]


def _latencies_alone(instances: Sequence[Instance], demand: Demand, *, disaggregated: bool) -> Latencies:
    """[instance] those of a request alone. disaggregated: without the transfer of its cache."""
    one = pool(instances)
    shape = len(instances)
    return priced(one, one, np.full(shape, disaggregated), np.full(shape, ALONE), demand.promises,
                  demand.constants).latencies  # fmt: skip


def _no_memory(instances: Sequence[Instance], demand: Demand) -> NoFeasibleLayoutError:
    """The layout with the most room beside its weights."""
    columns = pool(instances)
    room = columns.cache_bytes
    best = int(np.argmax(room / columns.fullest_share))
    requests = demand.promises.requests
    shared = columns.prefix_bytes(np.array(requests.running_prompt), requests.prefix_hit)
    held = columns.held_bytes(np.array(requests.longest), np.array(0.0))
    needed = ((held + (requests.prefixes - 1.0) * shared * (requests.prefixes > 0)) * columns.fullest_share)[best]
    whole, weights = columns.memory_bytes[best] * MEMORY_SHARE / GIB, columns.weights_bytes[best] / GIB
    working = float(np.broadcast_to(columns.working_bytes, room.shape)[best])
    name = layout_id(instances[best].layout)
    beside = f"{requests.prefixes:,.0f} shared prefixes and " if requests.prefixes > 1 else ""
    what = "a pass has room for no sequence" if columns.methods.fills else "the KV cache holds no sequence"
    text = (f"{what}: of {whole:.1f} GiB of a GPU for the engine, {name} "
            f"takes {weights:.1f} for weights and {working / GIB:.1f} for buffers, which leaves "
            f"{max(room[best], 0.0) / GIB:.1f} for {beside}a sequence of {needed / GIB:.2f}"
            f"{'' if len(requests.weights) == 1 else f', the longest: {requests.longest:,.0f} tokens'}")  # fmt: skip
    return NoFeasibleLayoutError(text, hint="more GPUs for an instance, `--dtype fp8`, or shorter requests")


def _alone(
    name: str, instances: Sequence[Instance], seconds: Array, promised: float, cure: str
) -> NoFeasibleLayoutError:  # fmt: skip
    best = int(np.argmin(seconds))
    text = (f"{name} {_text(promised)} cannot be kept: one request alone takes {_text(float(seconds[best]))} at best, "
            f"by {layout_id(instances[best].layout)}")  # fmt: skip
    return NoFeasibleLayoutError(text, hint=f"{cure}: replicas do not shorten one request")


def _most(
    spaces: Spaces, demand: Demand, between_bw: float, *, promised: bool = True
) -> Deployment | None:  # fmt: skip
    """The deployment that carries most. promised: within the promises."""
    promises = demand.promises if promised else unpromised(demand.promises)
    kept = list(search(spaces.aggregated, None, promises, demand.constants).deployments)
    if spaces.prefill and (promised or not kept):
        kept += search_disaggregated(
            spaces.prefill, spaces.decode, None, promises, demand.constants, between_bw
        ).deployments
    return max(kept, key=lambda it: it.largest_load, default=None)


def _too_much(spaces: Spaces, demand: Demand, most: Deployment, between_bw: float) -> NoFeasibleLayoutError:
    """The load is too high: how much the cluster carries, with the promises and without."""
    load, unit = demand.load or 0.0, " requests at once" if demand.promises.closed else "/s"
    text = (f"{load:g}{unit} is too much: {most.gpus} GPUs keep the promises up to {most.largest_load:.3g}{unit} "
            f"({deployment_id(most)})")  # fmt: skip
    stable = None if demand.promises.closed else _most(spaces, demand, between_bw, promised=False)
    if stable is not None:
        text += f"; the queue is stable up to {stable.largest_load:.3g}/s ({deployment_id(stable)})"
    needed = int(np.ceil(load / most.largest_load * most.gpus))
    return NoFeasibleLayoutError(text, hint=f"about {needed} such GPUs, or a lower rate")


def _text(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
