"""Ledger x rates -> step time and memory: the only place that adds terms up.

A term is exposed seconds of a step; their sum is the step time. Memory is the fullest stage's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from ..arrays import Array, Ints
from ..quantities.device_memory import DeviceMemory
from ..quantities.ledger import Ledger
from ..quantities.lengths import imbalance
from ..rates.layer_seconds import COMPONENTS
from ..rates.rates import Rates
from .comparison_seconds import comparisons_s
from .data_parallel import exposed_dp_s, exposed_fragments_s
from .optimizer_seconds import optimizer_s
from .per_pass_overhead import per_pass_overhead_s
from .pipeline_overhead import pipeline_s
from .reserved_memory import fullest_stage
from .rounding_seconds import rounded_weights_s
from .stage_messages import messages_once_s
from .stage_seconds import component_s, stage_seconds
from .stragglers import waiting_share
from .unpaired_passes import unpaired_s
from .vocabulary_seconds import exposed_vocabulary_s

# name -> (words for people, what it may hide behind)
TERMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "matmul": ("matmul", ()),
    "attention": ("attention", ()),
    "memory": ("norms, elementwise", ()),
    "tp": ("tp comm, exposed", ("matmul",)),
    "cp": ("cp comm, exposed", ("attention",)),
    "ep": ("ep comm, exposed", ("matmul", "attention", "memory")),
    "unpaired": ("ep comm of first and last passes", ()),
    "host": ("kernel launches", ("matmul",)),
    "accumulate": ("gradient accumulation", ()),
    "imbalance": ("uneven lengths", ()),
    "fsdp": ("gather and scatter, exposed", ("matmul", "attention", "memory")),
    "resharding": ("resharding between layers", ()),
    "vocabulary": ("vocabulary over stages", ()),
    "comparison": ("comparing all vectors", ()),
    "rounding": ("rounding of weights", ()),
    "bubble": ("pipeline bubble", ()),
    "pp": ("pp comm, exposed", ()),
    "dp": ("dp comm, exposed", ("matmul", "attention", "memory")),
    "optimizer": ("optimizer", ()),
    "offload": ("offload, exposed", ("matmul", "attention")),
    "stragglers": ("waiting for slow GPUs", ()),
}


class OnceTerm(Protocol):
    """[n] seconds of a term."""

    def __call__(self, ledger: Ledger, rates: Rates) -> Array: ...


# name -> [n] seconds that every step has once, whichever stage is slowest and whatever runs the pipeline. Each place
# that adds up a step adds all of these: here, the bounds, the simulated step, the integer program, strategies by layer.
ONCE_TERMS: Mapping[str, OnceTerm] = {"pp": messages_once_s, "unpaired": unpaired_s,
                                         "comparison": comparisons_s, "rounding": rounded_weights_s}


@dataclass(frozen=True, eq=False)
class Estimate:
    """Time and memory of every layout of a ledger. Bytes take as long as seconds, so they are worked out when asked."""

    ledger: Ledger
    rates: Rates
    terms: dict[str, Array]  # term of TERMS -> [n] exposed seconds
    slowest: Ints  # [n] profile of the slowest stage

    @cached_property
    def step_s(self) -> Array:
        """[n] seconds, the sum of `terms`."""
        return np.asarray(sum(self.terms.values()))

    @property
    def device_bytes(self) -> Array:
        """[n] of the fullest GPU, as the driver would show them."""
        return self._fullest[0]

    @property
    def fullest(self) -> Ints:
        """[n] profile of the stage with the fullest GPU."""
        return self._fullest[1]

    @cached_property
    def host_bytes(self) -> Array:
        """[n] in host memory, of the GPU with most of them."""
        return np.asarray(np.max([self._memory.host_bytes(j) for j in range(self.ledger.num_profiles)], axis=0))

    @cached_property
    def _memory(self) -> DeviceMemory:
        return DeviceMemory(self.ledger)

    @cached_property
    def _fullest(self) -> tuple[Array, Ints]:
        return fullest_stage(self._memory, self.rates)


def price(ledger: Ledger, rates: Rates, *, detail: bool = False) -> Estimate:
    """Step time and memory of every layout of the ledger. `detail` splits compute into COMPONENTS."""
    return Estimate(ledger, rates, *step_terms(ledger, rates, detail=detail))


def step_terms(ledger: Ledger, rates: Rates, *, detail: bool = False) -> tuple[dict[str, Array], Ints]:
    """[n] exposed seconds of every term, whose sum is the step time; and the profile of the slowest stage."""
    x, m = ledger.layouts, ledger.m
    stage = stage_seconds(ledger, rates)
    # In the steady state every stage runs at the pace of the slowest one: m of its cycles are the base of the step, and
    # all other stages only show in filling and draining the pipeline.
    slowest = np.argmax(stage.cycle, axis=0)
    pick = np.arange(len(x))
    cycle, forward, backward = (a[slowest, pick] for a in (stage.cycle, stage.forward, stage.backward))
    compute = forward + backward
    terms: dict[str, Array] = {"compute": m * compute, "fsdp": m * stage.fsdp[slowest, pick]}
    terms["accumulate"] = m * stage.accumulate[slowest, pick]
    terms["offload"] = m * stage.offload[slowest, pick]
    terms["bubble"], messages_s = pipeline_s(ledger, rates, stage, cycle)
    terms["imbalance"] = _imbalance(ledger, rates, slowest)
    terms["pp"] = messages_s
    for name, once_s in once_terms(ledger, rates).items():
        terms[name] = terms.get(name, 0.0) + once_s
    if ledger.vocabulary is not None:
        terms["vocabulary"] = exposed_vocabulary_s(ledger, rates, cycle)
    terms["dp"] = exposed_dp_s(ledger, rates, forward, backward, stage.used[:, slowest, pick])
    terms["optimizer"] = ledger.once(lambda unlike: optimizer_s(unlike, rates))
    if ledger.store is not None and ledger.store.during_backward:
        # A layer's states move while the layers before it are differentiated, over links that are idle then.
        room = rates.stack.offload_overlap * stage.spare[slowest, pick]
        terms["optimizer"] = np.maximum(terms["optimizer"] - room, 0.0)
    # Delayed exchanges hide behind whole steps, so all other terms must be known first.
    alone = (1.0 + waiting_share(ledger)) * np.asarray(sum(terms.values()))
    terms["dp"] = terms["dp"] + exposed_fragments_s(ledger, rates, alone)
    if detail:
        terms = {**_components(ledger, rates, slowest), **{k: v for k, v in terms.items() if k != "compute"}}
    terms["stragglers"] = waiting_share(ledger) * np.asarray(sum(terms.values()))
    return terms, slowest


def once_terms(ledger: Ledger, rates: Rates) -> dict[str, Array]:
    """[n] seconds of each of ONCE_TERMS. A term of TERMS with the same name may have a part of another kind too."""
    return {name: ledger.once(partial(seconds, rates=rates)) for name, seconds in ONCE_TERMS.items()}


def once_terms_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] their sum."""
    return np.asarray(sum(once_terms(ledger, rates).values()))


def _imbalance(ledger: Ledger, rates: Rates, slowest: Ints) -> Array:
    """Documents of different length: what the busiest data-parallel rank's attention takes longer (lengths.py)."""
    workload, dp = ledger.problem.workload, ledger.layouts["dp"]
    if not workload.lengths or not workload.packed:
        return np.zeros(len(dp))
    distinct, inverse = np.unique(dp, return_inverse=True)
    more = np.array([imbalance(workload, int(ranks)) - 1.0 for ranks in distinct])[inverse]
    attention = component_s(ledger, rates, COMPONENTS.index("attention"))
    return np.asarray(more * ledger.m * attention[slowest, np.arange(len(dp))])


def _components(ledger: Ledger, rates: Rates, slowest: Ints) -> dict[str, Array]:
    """The slowest stage's compute, by component: m micro-batches of forward, backward and recomputation."""
    pick = np.arange(len(slowest))
    out = {name: ledger.m * component_s(ledger, rates, index)[slowest, pick] for index, name in enumerate(COMPONENTS)}
    out["host"] = out["host"] + ledger.m * per_pass_overhead_s(ledger, rates).sum(axis=0)[slowest, pick]
    return out
