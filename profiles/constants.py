"""The numbers that calibration may move: where each stands, how far it may go, and how sure its prior is.

One line of TABLE per number and kind of owner. A constant belongs to a stack family (its versions' numbers count as its
own), to an accelerator, or is shared by all; it never depends on a model, a run or a source. Its prior mean is the
value in stacks/*.yaml or measured/assumptions.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..cost_models.specs import ClusterSpec
from . import calibration, rates, registry, stacks
from .calibration import PRIORS, Calibration, Place

Scope = Literal["family", "accelerator", "shared"]
MOST = {"family": 8, "accelerator": 6, "all": 70}

_CORE, _LM, _FSDP, _TITAN = "megatron-core", "megatron-lm", "torch-fsdp", "torchtitan"
_FAMILIES = (_CORE, _LM, "deepspeed", _FSDP, _TITAN, "internevo", "jax")
_VERSIONS = (
    "megatron-core-2025-no-overlap", "nemo-mlperf-v3.1", "nemo-mlperf-v5.0", "nemo-24.07", "megatron-bridge-26.02",
    "megatron-deepspeed-vtrain", "megatron-deepspeed-2022", "megatron-deepspeed-2021", "megatron-lm-2021",
    "megatron-lm-2022", "megatron-lm-2024", "torch-fsdp2-2025",
)  # fmt: skip
_GPUS = ("a100-sxm-80gb", "h100-sxm-80gb", "h100-hbm2e-96gb", "h200-sxm-141gb", "b200-sxm-180gb", "gb200-186gb",
         "gb300-288gb")  # fmt: skip
_FP8_GPUS = tuple(name for name in _GPUS if name != "a100-sxm-80gb")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the table. place: with `{}` for the owner. low, high: physical bounds. width: standard deviation of the
    prior, of the logarithm, or (logit) of the log-odds of a share."""

    scope: Scope
    owners: Sequence[str]
    place: Place
    low: float
    high: float
    width: float
    meaning: str
    logit: bool = False


TABLE = (
    Entry("family", _FAMILIES, ("stacks", "{}", "throughput"), 0.5, 1.5, 0.12,
          "rate that its kernels keep up in a long run over the device's"),
    Entry("family", _VERSIONS, ("stacks", "{}", "throughput"), 0.5, 1.5, 0.08,
          "the same of a version, over its family's"),
    Entry("family", (_CORE, _LM), ("stacks", "{}", "host_s_per_kernel"), 1e-6, 2e-4, 0.4,
          "seconds that the host takes to launch a kernel"),
    Entry("family", (_FSDP,), ("stacks", "{}", "elementwise_traffic"), 1.0, 2.0, 0.15,
          "traffic of element-wise kernels over that of fused ones"),
    Entry("family", (_FSDP, _TITAN), ("stacks", "{}", "fsdp_overlap"), 0.0, 1.0, 1.0,
          "share of compute that gathers and scatters hide behind", logit=True),
    Entry("family", ("internevo",), ("stacks", "{}", "dp_overlap"), 0.0, 1.0, 1.0,
          "share of compute that gradient reduction hides behind", logit=True),
    Entry("family", (_CORE,), ("stacks", "{}", "kernels_per_expert_block"), 10.0, 1000.0, 0.4,
          "kernels that a layer with experts launches beyond a dense one's"),
    Entry("accelerator", _GPUS, ("assumptions", "training_factor", "{}", "gemm"), 0.5, 1.1, 0.08,
          "rate of products in training over that of a benchmark"),
    Entry("accelerator", _GPUS, ("assumptions", "training_factor", "{}", "attention"), 0.4, 1.3, 0.12,
          "rate of attention in training over that of a benchmark"),
    Entry("accelerator", _GPUS, ("assumptions", "memory_efficiency", "{}", "fused"), 0.4, 1.0, 0.12,
          "share of memory bandwidth that fused element-wise kernels reach"),
    Entry("accelerator", _FP8_GPUS, ("assumptions", "fp8_factor", "{}"), 0.6, 1.05, 0.08,
          "rate of fp8 products over twice that of bf16"),
    Entry("shared", ("hdr-ib", "ndr-ib", "roce"), ("assumptions", "fabrics", "{}", "efficiency"), 0.3, 1.0, 0.12,
          "share of NIC speed that rings reach"),
    Entry("shared", ("forward_bytes_per_score",), ("assumptions", "unfused", "{}"), 4.0, 20.0, 0.15,
          "traffic of attention without a fused kernel, bytes per score"),
    Entry("shared", ("generic",), ("stacks", "{}", "contention"), 0.02, 0.6, 0.3,
          "added per second that communication and compute run side by side"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Constant:
    """One number that may move. `over`: the family that a version's prior is relative to."""

    entry: Entry
    owner: str
    prior: float
    over: str = ""

    @property
    def place(self) -> Place:
        return tuple(part.format(self.owner) for part in self.entry.place)

    @property
    def name(self) -> str:
        """`megatron-core throughput`, `h100-sxm-80gb training_factor gemm`."""
        parts = self.place[1:]
        if self.entry.scope != "shared":
            parts = (self.owner, *(part for part in parts if part != self.owner))
        return " ".join(parts)

    def value(self, z: float, prior: float | None = None) -> float:
        """The value `z` prior widths from its mean."""
        mean = self.prior if prior is None else prior
        if self.entry.logit:
            return 1.0 / (1.0 + math.exp(-(math.log(mean / (1.0 - mean)) + self.entry.width * z)))
        return mean * math.exp(self.entry.width * z)

    @property
    def bounds(self) -> tuple[float, float]:
        """The physical bounds, in prior widths from the mean."""
        if self.entry.logit:
            return -8.0, 8.0
        low, high = self.entry.low, self.entry.high
        return tuple(math.log(end / self.prior) / self.entry.width for end in (low, high))  # type: ignore[return-value]


def constants(base: Calibration = PRIORS) -> tuple[Constant, ...]:
    """Every constant of the table, with the prior mean that `base` gives it."""
    return tuple(_constant(entry, owner, base) for entry in TABLE for owner in entry.owners)


def _constant(entry: Entry, owner: str, base: Calibration) -> Constant:
    prior = prior_value(entry, owner, base)
    family, version, _ = stacks.family_of(owner) if entry.place[0] == "stacks" else ("", "", [])
    return Constant(entry, owner, prior, family if version else "")


def prior_value(entry: Entry, owner: str, base: Calibration) -> float:
    """The value that holds without this constant: of the file, of the family, or borrowed from another device."""
    root, *path = (part.format(owner) for part in entry.place)
    if root == "stacks":
        stack = stacks.stack_for(owner, base)[0]
        return float(getattr(stack, path[-1]))
    block = calibration.assumptions(base.part(path[0]))[path[0]]
    if entry.scope != "accelerator":
        for part in path[1:]:
            block = block[part]
        return float(block)
    gpu = registry.gpu_entry(owner).spec
    names = (owner, rates.donor(gpu)[0], "default")
    if len(path) == 3:
        return rates.value_of(block, path[2], *names[:2])
    return float(next(block[name] for name in names if name in block))


def touches(constant: Constant, stack_name: str, cluster: ClusterSpec) -> bool:
    """Whether the constant can move a run of this stack on this cluster at all."""
    if constant.place[0] == "stacks":
        return constant.owner in stacks.lineage(stack_name)
    if constant.entry.scope == "accelerator":
        return constant.owner in (cluster.gpu.name, rates.donor(cluster.gpu)[0])
    return constant.place[1] != "fabrics" or any(constant.owner in level.kind for level in cluster.levels)


def calibration_at(chosen: Sequence[Constant], z: Sequence[float], base: Calibration, source: str) -> Calibration:
    """`base` with every chosen constant z prior widths from its mean; a version moves with its family."""
    values: dict[Place, float] = {}
    for constant, steps in zip(chosen, z, strict=True):
        if not constant.over:
            values[constant.place] = constant.value(steps)
    for constant, steps in zip(chosen, z, strict=True):
        if constant.over:
            above = values.get(("stacks", constant.over, constant.place[-1]), constant.prior)
            values[constant.place] = constant.value(steps, above)
    return Calibration.of({**dict(places(base)), **values}, source)


def places(of: Calibration) -> Iterator[tuple[Place, float]]:
    """Every value of a calibration with its place."""
    yield from _leaves(("stacks",), of.stacks)
    yield from _leaves(("assumptions",), of.assumptions)


def _leaves(above: Place, below: Mapping[str, object]) -> Iterator[tuple[Place, float]]:
    for key, value in below.items():
        if isinstance(value, Mapping):
            yield from _leaves((*above, key), value)
        elif isinstance(value, int | float):
            yield (*above, key), float(value)
