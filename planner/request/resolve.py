"""From a request to everything that pricing needs: model, cluster, workload, stack, rates, target, rules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ...cost_models.layouts import FIELD_NAMES, encode
from ...cost_models.problem import Problem
from ...cost_models.quantities.params import lora_shapes, lora_targets
from ...cost_models.rates.collectives import Levels
from ...cost_models.rates.rates import Rates
from ...cost_models.specs.cluster import ClusterSpec, GpuSpec
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.notice import Notice
from ...cost_models.specs.stack import StackSpec
from ...cost_models.specs.workload import Workload
from ...cost_models.techniques import registry as techniques
from ...cost_models.units import parse
from ...errors import InputError
from ...profiles.cluster.load import load_cluster
from ...profiles.rates.provenance import files_behind
from ...profiles.stack import load as stacks
from ...profiles.stack.rates import HOST_MEMORY_SHARE, rates_for
from ...profiles.stack.stack_file import load_stacks
from ..space.rules import Rule, fixed, legality
from ..space.tree import Space
from ..switches.base import Situation, spelled
from ..switches.choices import Choice, choose
from ..switches.registry import SWITCHES, with_switches
from ..targets.base import Target
from ..targets.registry import target as load_target
from . import headroom
from .doubts import doubts
from .graphs import workload_of_graph
from .images import with_images
from .latents import workload_of_latents
from .lengths import check_positions
from .load import Request
from .model_changes import NO_FROZEN_COPY, as_asked
from .model_reference import referenced_model, text_model
from .references import together
from .source import with_source
from .stages import given_stages


@dataclass(frozen=True)
class Resolved:
    """A request with all its references loaded."""

    request: Request
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    stack: StackSpec  # with its switches set, and under the techniques of the workload
    plain_stack: StackSpec  # before that
    target: Target
    warnings: tuple[Notice, ...]
    network: Mapping[str, float] | None = None  # bytes/s per GPU that each kind of group finds (placement/place.py)
    nodes: tuple[int, ...] | None = None  # in the order that was chosen to hold the ranks, where links differ
    links: Mapping[str, Levels] | None = None  # that kinds of groups find in place of the cluster's (replicas.py)
    stages: tuple[int, ...] | None = None  # [chunk] layers that the request gives; None: it gives none
    switches: Choice = field(default_factory=Choice)  # of the software, and those that a search compares
    headroom_share: float | None = None  # of the memory, where no layout leaves the headroom (drivers/headroom.py)
    job_gpus: int | None = None  # GPUs of the job, of which `cluster` is one island (islands.py); None: its own

    @cached_property
    def problem(self) -> Problem:
        num_gpus = self.job_gpus or self.cluster.num_gpus
        on_host = any(group.gpu.is_host for group in self.cluster.groups)
        return Problem(
            self.model, self.workload, self.stack, num_gpus, self.cluster.gpus_per_node, on_host, self.stages,
            domain=self.cluster.levels[0].size, any_fp8_layout=self.cluster.gpu.any_fp8_layout,
        )  # fmt: skip

    @cached_property
    def rates(self) -> Rates:
        rates = rates_for(self.cluster, self.stack, self.workload.precision)
        if self.links is not None:
            rates = replace(rates, links=self.links)
        return rates if self.network is None else rates.on_network(self.network)

    @cached_property
    def fixes(self) -> tuple[Rule, ...]:
        """One rule per `--fix`."""
        alone = "zero" in self.target.axes(self.problem)
        return tuple(fixed(name, encode(name, value), f"{name}={_spelled(value)}", stages_alone=alone)
                     for name, value in self.request.fix.items() if name in FIELD_NAMES)  # fmt: skip

    @property
    def space(self) -> Space:
        return self.space_under(self.target_rules, self.fixes)

    @property
    def target_rules(self) -> tuple[Rule, ...]:
        return self.target.rules_for(self.workload)

    def space_under(self, *rules: tuple[Rule, ...]) -> Space:
        own = self.target.compared(self.problem, self.request.fix)
        return Space(self.problem, legality(self.problem) + sum(rules, ()), {**self.switches.axes, **own})

    @property
    def memory_bytes(self) -> float:
        """The most that a layout may use of each GPU: whether a given layout fits."""
        limit = self.workload.max_memory_bytes
        return min(self.cluster.memory_bytes, limit) if limit else self.cluster.memory_bytes

    @property
    def headroom_bytes(self) -> float:
        """Bytes of `memory_bytes` that a chosen layout leaves free."""
        given, limited = self.request.workload.headroom, self.workload.max_memory_bytes is not None
        return headroom.left_bytes(given, self.memory_bytes, limited=limited, share=self.headroom_share)

    @property
    def budget_bytes(self) -> float:
        """The most that a layout may use of each GPU to be chosen."""
        return self.memory_bytes - self.headroom_bytes

    @property
    def host_bytes(self) -> float:
        """Host memory that a GPU's offloaded states and activations may take; infinite where no file states it."""
        shares = [
            group.host_memory_bytes / group.gpus_per_node for group in self.cluster.groups if group.host_memory_bytes
        ]
        known = len(shares) == len(self.cluster.groups)
        return HOST_MEMORY_SHARE * min(shares) if known else float("inf")

    def for_target(self, name: str) -> Resolved:
        """The same request for another target, with that target's software unless the request names one."""
        target = load_target(name)
        usual_stack = _fitting(_stack(None, target, self.cluster.gpu), self.workload, self.cluster, self.model)
        plain_stack = self.plain_stack if self.request.stack else usual_stack
        return replace(self, plain_stack=plain_stack, stack=plain_stack, target=target).switched()

    @property
    def fixed_switches(self) -> dict[str, str]:
        """The values of switches that the request fixes."""
        return {name: spelled(value) for name, value in self.request.fix.items() if name in SWITCHES}

    def switched(self) -> Resolved:
        """The request with its switches chosen for its target. Raises InputError for a fixed value that the target
        lacks."""
        situation = Situation(problem=self.problem, cluster=self.cluster)
        return self.under(choose(self.target.name, situation, self.fixed_switches))

    def under(self, choice: Choice) -> Resolved:
        """The request with these switches of the software, and with the changes of its techniques."""
        stack = techniques.on_stack(with_switches(self.plain_stack, choice.settings), self.workload.techniques)
        return replace(self, stack=stack, switches=choice)

    @cached_property
    def profiles(self) -> dict[str, str]:
        """Digest of every file of facts behind the plan."""
        files = files_behind([group.gpu.name for group in self.cluster.groups],
                             [group.node for group in self.cluster.groups], self.stack.name)  # fmt: skip
        return {name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in sorted(files.items())}


def _spelled(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def resolve(request: Request) -> Resolved:
    """Load what `request` refers to. Raises InputError for anything that does not exist or fit together, and
    UnsupportedError where the target that was asked for runs the plan itself and cannot train the model."""
    (model, workload, model_warnings), cluster, target = together(
        request, {"model": partial(_trained, request), "cluster": partial(cluster_of, request),
                  "target": partial(load_target, request.target)})  # fmt: skip
    stack = _fitting(_stack(request.stack, target, cluster.gpu), workload, cluster, model)
    resolved = Resolved(
        request=request, model=model, cluster=cluster, workload=workload, stack=stack, plain_stack=stack,
        target=target, warnings=(), stages=given_stages(request, model, target),
    ).switched()
    headroom.check_limit(workload.max_memory_bytes, cluster)
    headroom.check_headroom(request.workload.headroom, resolved.memory_bytes)
    of_model = [Notice("model", text) for text in model_warnings]
    doubted = doubts(resolved.problem, cluster.gpu, target, asked="target" in request.origins)
    return replace(resolved, warnings=(*of_model, *cluster.warnings, *doubted))


def cluster_of(request: Request) -> ClusterSpec:
    """The cluster of a request, without the nodes that are left out, at the price of spot nodes where it is given."""
    cluster = load_cluster(request.cluster, gpu=request.gpu, num_gpus=request.gpus, exclude=request.exclude)
    if request.spot is None or request.spot.price is None:
        return cluster
    groups = tuple(group.at_price(parse(request.spot.price, "USD/h")) for group in cluster.groups)
    return replace(cluster, groups=groups)


def unplaced(request: Request, num_gpus: int) -> tuple[Problem, Target]:
    """The training problem on one node of a device that no catalogue knows yet."""
    model, workload, _ = _trained(request)
    target = load_target(request.target)
    return Problem(model, workload, _stack(request.stack, target), num_gpus, num_gpus), target


def _trained(request: Request) -> tuple[ModelSpec, Workload, list[str]]:
    """Model and workload, and warnings. Raises InputError if one does not fit the other."""
    pictured = request.workload.images is not None
    model, warnings = referenced_model(request.model) if pictured else text_model(request.model, trains=True)
    if model.diffusion is not None:
        return model, workload_of_latents(model, model.diffusion, request), warnings
    if model.graph is not None:
        return model, workload_of_graph(model, model.graph, request), warnings
    workload = with_source(model, request.to_workload(model.max_positions), request.workload)
    warnings = [*warnings, *check_positions(model, workload.seq_len)]
    if workload.trains_layers and workload.trains_layers > model.num_layers:
        raise InputError(
            f"train.last_layers {workload.trains_layers} is more than the {model.num_layers} layers of {model.name}",
            hint="leave it out to train all layers",
        )
    _check_adapters(model, workload)
    if request.workload.reference and not (model.token_head and not request.workload.reward_model):
        raise InputError(f"{model.name}: {NO_FROZEN_COPY}", hint="leave it out")
    model, workload = with_images(as_asked(model, request.workload), workload, request.workload)
    return model, workload, warnings


def _check_adapters(model: ModelSpec, workload: Workload) -> None:
    """Adapters must have something to sit on: routed experts take none."""
    if workload.lora is None:
        return
    have = lora_targets(model)
    if missing := [name for name in workload.lora.targets if name not in have]:
        raise InputError(
            f"train.lora: {model.name} has no {', '.join(missing)} projection outside its routed experts",
            hint=f"it has {', '.join(have)}: `--lora 16:{','.join(have)}`" if have else "no layer of it takes adapters",
        )
    widest = max(min(inputs, outputs) for kind in model.kinds
                 for inputs, outputs, _ in lora_shapes(model, kind, workload.lora.targets).values())  # fmt: skip
    if workload.lora.rank > widest:
        names = ", ".join(workload.lora.targets)
        raise InputError(
            f"train.lora.rank: {workload.lora.rank} is more than the {widest} that {names} of {model.name} have",
            hint="a higher rank than that of the matrix that adapters change adds nothing: give a lower one",
        )


def _stack(reference: str | Mapping[str, Any] | None, target: Target, gpu: GpuSpec | None = None) -> StackSpec:
    """The stack that the request names, else the only one for such GPUs, else that of the target."""
    if reference is None:
        return stacks.load_stack(gpu.usual_stack if gpu and gpu.usual_stack else target.stack)
    if isinstance(reference, str):
        families = load_stacks(reference)
        family = stacks.family_of(target.stack)[0] if len(families) > 1 else next(iter(families))
        if family not in families:
            hint = f"it has {', '.join(families)}; `--target` names another framework"
            raise InputError(f"{reference} has no stack for target {target.name} ({family})", hint=hint)
        return families[family]
    raise InputError("stack: must be a name or a file", hint=f"known: {', '.join(stacks.stack_names())}")


def _fitting(stack: StackSpec, workload: Workload, cluster: ClusterSpec, model: ModelSpec) -> StackSpec:
    """Training in fp32 runs plain products, since no flash kernel of a GPU computes in it. torch's own attention has a
    memory-efficient kernel for it, which keeps no scores either, but takes a key and value for each query
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, can_use_mem_efficient_attention)."""
    if workload.precision != "fp32" or cluster.gpu.measured:
        return stack
    shared = any(kind.attention is not None and not kind.attention.is_mla
                 and kind.attention.kv_heads < kind.attention.heads for kind in model.kinds)  # fmt: skip
    return stack if stack.attention == "sdpa" and not shared else replace(stack, attention="unfused")
