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

from ...cost_models.specs.cluster import ClusterSpec
from ..io import registry
from ..stack import load as stacks
from . import calibration
from .calibration import PRIORS, Calibration, ConstantPath, entry_of
from .reference_devices import FALLBACK_DEVICE, generation, reference_device

Scope = Literal["family", "accelerator", "generation", "shared"]
UNIDENTIFIED = 0.9  # posterior over prior width from which the runs hold next to no information

@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the table."""

    scope: Scope  # what owns the number
    owners: Sequence[str]  # one constant for each
    place: ConstantPath  # with `{}` for the owner
    low: float  # physical bound
    high: float  # physical bound
    width: float  # standard deviation of the prior: of the logarithm, or (logit) of the log-odds
    meaning: str  # for reports
    logit: bool = False  # a share in (0, 1)


# Numbers that are not here stay at their priors: fitting them did not help on runs left out (docs/concepts/trust.md).
TABLE = (
    Entry("family", ("megatron-core", "torchtitan", "internevo", "jax"), ("stacks", "{}", "throughput"), 0.5, 1.5, 0.12,
          "rate that its kernels keep up in a long run over the device's"),
    Entry("family", ("megatron-bridge", "nemo-mlperf-v3.0", "nemo-mlperf-v4.1",
                     "megatron-deepspeed-2021"), ("stacks", "{}", "throughput"), 0.5, 1.5, 0.08,
          "the same of a version, over its family's"),
    Entry("family", (), ("stacks", "{}", "host_s_per_kernel"), 1e-6, 2e-4, 0.4,
          "seconds that the host takes to launch a kernel"),
    Entry("family", ("megatron-core",), ("stacks", "{}", "contention"), 0.02, 0.4, 0.4,
          "added per second that communication and compute run side by side"),
    Entry("family", ("torch-fsdp",), ("stacks", "{}", "elementwise_traffic"), 1.0, 2.0, 0.15,
          "traffic of element-wise kernels over that of fused ones"),
    Entry("family", ("torchtitan",), ("stacks", "{}", "cast_bytes"), 2.0, 8.0, 0.3,
          "moved to quantise one element to fp8"),
    Entry("accelerator", ("a100-sxm-40gb", "h100-hbm2e-96gb"), ("assumptions", "training_factor", "{}", "gemm"),
          0.5, 1.1, 0.08, "rate of products in training over that of a benchmark"),
    Entry("accelerator", ("h100-hbm2e-96gb",), ("assumptions", "training_factor", "{}", "attention"), 0.4, 1.3, 0.12,
          "rate of attention in training over that of a benchmark"),
    Entry("accelerator", ("a100-sxm-80gb", "h100-hbm2e-96gb"), ("assumptions", "memory_efficiency", "{}", "fused"),
          0.4, 1.0, 0.12, "share of memory bandwidth that fused element-wise kernels reach"),
    Entry("accelerator", ("h100-sxm-80gb", "h100-hbm2e-96gb", "b200-sxm-180gb"), ("assumptions", "fp8_factor", "{}"),
          0.6, 1.05, 0.08, "rate of fp8 products over twice that of bf16"),
    Entry("shared", ("flash2", "triton"), ("assumptions", "attention", "ampere", "{}", "forward"), 0.2, 1.5, 0.15,
          "rate of an attention kernel on Ampere over what was measured of it or of its nearest"),
    Entry("shared", ("unaligned_64",), ("assumptions", "unaligned", "ampere", "{}"), 1.0, 2.5, 0.1,
          "time factor of Ampere's products whose dimensions are no multiple of 64"),
)  # fmt: skip
# Constants of hardware that is not NVIDIA's. Its own runs fit them, those of TABLE held: scalars of a generation that
# no table measures, whose other efficiencies are borrowed.
OTHER_TABLE = (
    Entry("generation", ("tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu7x"), ("assumptions", "training_factor", "{}", "gemm"),
          0.4, 1.2, 0.2, "rate of products in training over the share of the peak that an A100 reaches"),
    Entry("generation", ("tpu7x", "cdna3", "cdna4"), ("assumptions", "fp8_factor", "{}"), 0.4, 1.2, 0.2,
          "rate of fp8 products over twice that of bf16"),
)  # fmt: skip
# Fields that a user's own runs may move, whatever their family.
_OF_ANY_FAMILY = ("throughput", "host_s_per_kernel")


@dataclass(frozen=True, slots=True)
class Constant:
    """One number that may move."""

    entry: Entry  # its line of the table
    owner: str  # family, version, accelerator, generation or kind of link
    prior: float  # mean of the prior, in base units
    over: str = ""  # the family that a version's prior is relative to; empty: none

    @property
    def place(self) -> ConstantPath:
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
        low, high = (math.log(end / self.prior) / self.entry.width for end in (self.entry.low, self.entry.high))
        return low, high


def constants(base: Calibration = PRIORS, table: Sequence[Entry] = TABLE) -> tuple[Constant, ...]:
    """Every constant of a table, with the prior mean that `base` gives it."""
    return tuple(constant_of(entry, owner, base) for entry in table for owner in entry.owners)


def of_family(family: str, base: Calibration) -> tuple[Constant, ...]:
    """The constants that runs of one stack family may move: its own lines of the table, and _OF_ANY_FAMILY."""
    of_families = [entry for entry in TABLE if all(stacks.is_family(name) for name in entry.owners)]
    of_any = {entry.place[-1]: entry for entry in of_families if entry.place[-1] in _OF_ANY_FAMILY}
    listed = [entry for entry in TABLE if entry.scope == "family" and family in entry.owners]
    rest = [entry for entry in listed if entry not in of_any.values()]
    return tuple(constant_of(entry, family, base) for entry in [*of_any.values(), *rest])


def constant_of(entry: Entry, owner: str, base: Calibration = PRIORS) -> Constant:
    """The constant of one owner, with the prior mean that `base` gives it."""
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
    if entry.scope == "generation":
        borrowed = (owner, FALLBACK_DEVICE)
        return calibration.value_of(block, path[2], *borrowed) if len(path) == 3 else float(entry_of(block, *borrowed))
    if entry.scope != "accelerator":
        for part in path[1:]:
            block = block[part]
        return float(block)
    gpu = registry.gpu_entry(owner).spec
    names = (owner, reference_device(gpu)[0], "default")
    if len(path) == 3:
        return calibration.value_of(block, path[2], *names[:2])
    return float(next(block[name] for name in names if name in block))


def touches(constant: Constant, stack_name: str, cluster: ClusterSpec) -> bool:
    """Whether the constant can move a run of this stack on this cluster at all."""
    if constant.place[0] == "stacks":
        return constant.owner in stacks.lineage(stack_name)
    if constant.entry.scope == "generation":
        return constant.owner == generation(cluster.gpu.arch)
    if constant.entry.scope == "accelerator":
        return constant.owner in (cluster.gpu.name, reference_device(cluster.gpu)[0])
    return constant.place[1] != "fabrics" or any(constant.owner in level.kind for level in cluster.levels)


def values_at(chosen: Sequence[Constant], z: Sequence[float]) -> list[float]:
    """The value of every chosen constant z prior widths from its mean; a version's mean is its family's value."""
    families = {c.place: c.value(steps) for c, steps in zip(chosen, z, strict=True) if not c.over}
    above = [families.get(("stacks", c.over, c.place[-1]), c.prior) for c in chosen]
    return [c.value(steps, mean if c.over else None) for c, steps, mean in zip(chosen, z, above, strict=True)]


def calibration_at(chosen: Sequence[Constant], z: Sequence[float], base: Calibration, source: str) -> Calibration:
    """`base` with every chosen constant z prior widths from its mean."""
    values = {constant.place: value for constant, value in zip(chosen, values_at(chosen, z), strict=True)}
    return Calibration.of({**dict(places(base)), **values}, source)


def places(of: Calibration) -> Iterator[tuple[ConstantPath, float]]:
    """Every value of a calibration with its place."""
    yield from _leaves(("stacks",), of.stacks)
    yield from _leaves(("assumptions",), of.assumptions)


def _leaves(above: ConstantPath, below: Mapping[str, object]) -> Iterator[tuple[ConstantPath, float]]:
    for key, value in below.items():
        if isinstance(value, Mapping):
            yield from _leaves((*above, key), value)
        elif isinstance(value, int | float):
            yield (*above, key), float(value)
