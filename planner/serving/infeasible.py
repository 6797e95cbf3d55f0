"""Why no deployment keeps the promises, and what would."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.serving.pool import MEMORY_SHARE, WORKING_BYTES
from ...errors import NoFeasibleLayoutError
from .apart import search_apart
from .candidates import Question, deployment_id, layout_id
from .instance import Instance, pool
from .promises import holds_a_sequence, priced, unpromised
from .search import Found, search
from .space import Space

_GIB = 2.0**30
_ALONE = 1e-3  # of a load: a request meets no other one


def no_deployment(
    spaces: Sequence[Space], question: Question, found: Found, between_bw: float | None
) -> NoFeasibleLayoutError:  # fmt: skip
    """The reason, in the order: no layout, no memory, one request alone, the load. between_bw: bytes/s of a GPU from
    site to site; None: prefill and decode are not sought apart."""
    instances = [instance for space in spaces for instance in space.instances]
    if not instances:
        rules = ", ".join(sorted(found.ruled_out))
        return NoFeasibleLayoutError(f"no layout of an instance is legal: all break rules of {rules or 'GPUs'}",
                                     hint="leave out a `--fix`")  # fmt: skip
    columns = pool(instances)
    fits = holds_a_sequence(columns, question.promises)
    if not fits.any():
        return _no_memory(instances, question)
    rows = np.flatnonzero(fits)
    one = columns.rows(rows, np.ones(len(rows)))
    alone = priced(one, one, np.zeros(len(rows), dtype=bool), np.full(len(rows), _ALONE), question.promises,
                   question.constants).latencies  # fmt: skip
    held = [instances[row] for row in rows]
    promises = question.promises
    if (alone.ttft_s > promises.ttft_s).all():
        return _alone("TTFT", held, alone.ttft_s, promises.ttft_s, "more tp or shorter prompts")
    if (alone.tpot_s > promises.tpot_s).all():
        return _alone("TPOT", held, alone.tpot_s, promises.tpot_s, "more tp, or weights of fewer bytes (`--dtype fp8`)")
    if ((alone.ttft_s > promises.ttft_s) | (alone.tpot_s > promises.tpot_s)).all():
        text = (f"no layout keeps both promises for one request alone: TTFT {_text(promises.ttft_s)} and TPOT "
                f"{_text(promises.tpot_s)}")  # fmt: skip
        return NoFeasibleLayoutError(text, hint="more tp, shorter prompts, or a later promise")
    return _too_much(spaces, question, between_bw)


def _no_memory(instances: Sequence[Instance], question: Question) -> NoFeasibleLayoutError:
    """The layout with the most room beside its weights."""
    columns = pool(instances)
    room = columns.cache_bytes
    best = int(np.argmax(room * columns.pp))
    requests = question.promises.requests
    tokens = requests.running_prompt + columns.reserved_output * requests.running_output
    shared = columns.prefix_elements(np.array(requests.running_prompt), requests.prefix_hit)
    elements = columns.kv_elements(tokens) + (requests.prefixes - 1.0) * shared * (requests.prefixes > 0)
    needed = (columns.kv_bytes * elements / columns.pp)[best]
    whole, weights = columns.memory_bytes[best] * MEMORY_SHARE / _GIB, columns.weights_bytes[best] / _GIB
    name = layout_id(instances[best].layout)
    beside = f"{requests.prefixes:,.0f} shared prefixes and " if requests.prefixes > 1 else ""
    text = (f"the KV cache holds no sequence: of {whole:.1f} GiB of a GPU for the engine, {name} "
            f"takes {weights:.1f} for weights and {WORKING_BYTES / _GIB:.1f} for buffers, which leaves "
            f"{max(room[best], 0.0) / _GIB:.1f} for {beside}a sequence of {needed / _GIB:.2f}")  # fmt: skip
    return NoFeasibleLayoutError(text, hint="more GPUs for an instance, `--dtype fp8`, or shorter requests")


def _alone(
    name: str, instances: Sequence[Instance], seconds: Array, promised: float, cure: str
) -> NoFeasibleLayoutError:  # fmt: skip
    best = int(np.argmin(seconds))
    text = (f"{name} {_text(promised)} cannot be kept: one request alone takes {_text(float(seconds[best]))} at best, "
            f"by {layout_id(instances[best].layout)}")  # fmt: skip
    return NoFeasibleLayoutError(text, hint=f"{cure}: replicas do not shorten one request")


def _too_much(spaces: Sequence[Space], question: Question, between_bw: float | None) -> NoFeasibleLayoutError:
    """The load is too high: how much the cluster carries, with the promises and without."""
    kept = search(spaces, None, question.promises, question.constants).deployments
    if between_bw is not None and not question.promises.closed:
        apart = search_apart(spaces, None, question.promises, question.constants, between_bw).deployments
        kept = tuple(sorted((*kept, *apart), key=lambda it: -it.largest_load))
    stable = search(spaces, None, unpromised(question.promises), question.constants).deployments
    load, unit = question.load or 0.0, " requests at once" if question.promises.closed else "/s"
    most = kept[0]
    name = deployment_id(most) + (", prefill and decode together" if question.promises.closed else "")
    text = (f"{load:g}{unit} is too much: {most.gpus} GPUs keep the promises up to {most.largest_load:.3g}{unit} "
            f"({name})")  # fmt: skip
    if not question.promises.closed:
        text += f"; the queue is stable up to {stable[0].largest_load:.3g}/s ({deployment_id(stable[0])})"
    needed = int(np.ceil(load / most.largest_load * most.gpus))
    return NoFeasibleLayoutError(text, hint=f"about {needed} such GPUs, or a lower rate")


def _text(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
