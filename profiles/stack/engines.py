"""Inference engines: one file each in catalogue/engines/, and what was fitted to measured runs of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Literal, Protocol

from ...cost_models.serving.constants import ServingConstants
from ...cost_models.serving.messages import REDUCTIONS_PER_LAYER
from ...errors import UnknownNameError
from ..io.folders import CATALOGUE, MEASURED
from ..rates.calibration import load_yaml

_LIMITS = ("chunk_tokens", "shares_chunk", "max_sequences", "mixes_prompts", "decodes_first", "reserved_output",
           "own_sums", "own_sums_over_pcie", "own_sums_over_hosts", "disaggregated_pp",
           "disaggregated_state_tp")  # fmt: skip
FITTED_FILE = MEASURED / "serving.yaml"
UNSTATED = "unstated"
# Of a version before 1.0 three numbers make a release, afterwards two: SGLang 0.5.1 and 0.5.9 are a year apart.
_RELEASE = re.compile(r"0\.\d+\.\d+|[1-9]\d*\.\d+|0\.\d+")
_MONTH = re.compile(r"(20\d\d)-?(0[1-9]|1[0-2])")


DisaggregatedPp = Literal["any", "equal or one", "none"]
DisaggregatedTp = Literal["any", "equal"]


class EngineDegrees(Protocol):
    """The degrees of an instance of an engine."""

    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def ep(self) -> int: ...
    @property
    def attention_dp(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The limits of an engine's iterations where no option sets them."""

    name: str
    chunk_tokens: int  # prompt tokens of an iteration
    shares_chunk: bool = False  # its groups of attention data parallelism divide its option, and its default, by them
    max_sequences: int  # sequences of an iteration
    mixes_prompts: bool  # prompts are prefilled beside sequences that decode; else decoding stops for them
    decodes_first: bool  # disaggregated, the instance that decodes makes the first token, else that which prefills
    reserved_output: float  # share of an answer that a sequence needs room for when it starts
    # Kernels of a whole layer that the host launches one by one in every iteration, and seconds of each; 0: iterations
    # that only decode replay CUDA graphs.
    layer_kernels: float = 0.0
    split_kernels: float = REDUCTIONS_PER_LAYER  # launches' worth of the host that tensor parallelism adds to a layer
    token_kernels: float = 0.0  # that the last stage launches to choose the next tokens of a part of the sequences
    kernel_s: float = 0.0
    # Bytes of the largest all-reduce by a kernel of its own, by compute capability (`any`: all others) and ranks, and
    # the most ranks over PCIe; NCCL makes all others.
    own_sums: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    own_sums_over_pcie: int = 0
    own_sums_over_hosts: bool = False  # among hosts that one NVLink joins, too
    # Degrees of instances that prefill and decode between which it moves caches: stages, and tp where layers keep a
    # state in place of a cache.
    disaggregated_pp: DisaggregatedPp = "any"
    disaggregated_state_tp: DisaggregatedTp = "any"

    def group_chunk(self, groups: int, tokens: int | None = None) -> int:
        """Prompt tokens of an iteration of one of so many groups of attention data parallelism, where its option has
        `tokens`; None: where nothing sets it."""
        given = self.chunk_tokens if tokens is None else tokens
        return max(given // groups, 1) if self.shares_chunk else given

    def launch_s(self, layers: int, tp: int, pp: int) -> float:
        """Seconds in which the host launches the kernels of an iteration one by one, on ranks that split so many layers
        by tp and pp; 0: CUDA graphs."""
        if not self.layer_kernels:
            return 0.0
        of_layer = self.layer_kernels + (self.split_kernels if tp > 1 else 0.0)
        return self.kernel_s * (layers * of_layer + pp * self.token_kernels)

    def no_transfer(self, prefill: EngineDegrees, decode: EngineDegrees, *, states: bool) -> str | None:
        """Why caches do not get from an instance that prefills to one that decodes; None: they do. states: whether
        layers of the model keep one."""
        stages = f"prefill has pp {prefill.pp} and decode pp {decode.pp}"
        if self.disaggregated_pp == "none" and max(prefill.pp, decode.pp) > 1:
            return f"{stages}: {self.name} moves caches of instances without stages"
        if self.disaggregated_pp == "equal or one" and decode.pp not in (1, prefill.pp):
            return f"{stages}: {self.name} moves caches to as many stages, or to one"
        if states and self.disaggregated_state_tp == "equal" and prefill.tp != decode.tp:
            return f"prefill has tp {prefill.tp} and decode tp {decode.tp}: {self.name} moves states between equal tp"
        return None

    def own_sum_bytes(self, capability: float | None, ranks: int) -> float:
        """Bytes; 0: NCCL makes all. capability: of GPUs joined by a switch of NVLink, None: of all others."""
        known = self.own_sums.get(str(capability), self.own_sums.get("any", {}))
        return float(known.get(ranks, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """All engines, and the fitted constants."""

    engines: Mapping[str, Engine]  # every spelling -> engine
    constants: ServingConstants
    # Engine -> release -> host seconds of an iteration with prompts, per 1,000 kernels that it launches for them.
    hosts: Mapping[str, Mapping[str, float]]

    def of(self, name: str) -> Engine:
        """Raises UnknownNameError."""
        if name not in self.engines:
            known = sorted({engine.name for engine in self.engines.values()})
            error = UnknownNameError("engine", name, known)
            error.hint = error.hint or f"known: {', '.join(known)}"
            raise error
        return self.engines[name]

    def limited(self, name: str, max_sequences: int) -> Engines:
        """The same with another limit on the sequences of an iteration of one engine."""
        limited = replace(self.of(name), max_sequences=max_sequences)
        return replace(self, engines={**self.engines, name: limited})

    def host_s(self, name: str, version: str) -> float:
        """Those of `hosts`; the median of the engine's releases for one that no run measured."""
        known = self.hosts.get(self.of(name).name, {})
        return known.get(release_of(version), median(known.values()) if known else 0.0)


def release_of(version: str) -> str:
    """`1.2.0rc6.post1` is 1.2, `0.5.9` itself; builds of a night `nightly-2026-02` by their month, else `nightly`;
    `unstated` where there is none."""
    if match := _RELEASE.match(version):
        return match[0]
    if "nightly" not in version and "dev" not in version:
        return UNSTATED
    return "-".join(("nightly", *(month.groups() if (month := _MONTH.search(version)) else ())))


@cache
def shipped_engines(fitted: Path = FITTED_FILE) -> Engines:
    """The engines of the catalogue with the constants that ship."""
    content = load_yaml(fitted)
    constants = ServingConstants(**{name: float(value) for name, value in content["constants"].items()})
    hosts = {engine: {release: float(value) for release, value in releases.items()}
             for engine, releases in content["host_s"].items()}  # fmt: skip
    return Engines(engines=_engines(), constants=constants, hosts=hosts)


def engine_names() -> frozenset[str]:
    """Every spelling of every engine."""
    return frozenset(_engines())


@cache
def _engines() -> Mapping[str, Engine]:
    found: dict[str, Engine] = {}
    for path in sorted((CATALOGUE / "engines").glob("*.yaml")):
        content = load_yaml(path)
        engine = Engine(name=path.stem, **{name: content[name]["value"] for name in _LIMITS})
        found |= dict.fromkeys(content["names"], engine)
    return found
