"""The space of deployments: which layouts an instance of an engine may have on each group of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...cost_models.rates.collectives import Levels
from ...cost_models.serving.seen_images import SeenImages
from ...cost_models.specs.cluster import ClusterSpec, GpuSpec
from ...cost_models.specs.model import FeedForward, MixtureOfExperts, ModelSpec
from ...cost_models.techniques.base import Applied
from ...cost_models.techniques.registry import broken_needs
from ...profiles.stack.engines import Engine, Engines
from ..document.serving_plan import ROLES
from .instance import Instance, InstanceLayout, Passes, Speculation, plain_pool

CHUNKS = (2048, 4096, 8192, 16384)  # prompt tokens of an iteration that are compared
_MOST_STAGES = 16  # of an instance
_ALL = 0  # of the axis `ep`: all GPUs of a stage share the experts


@dataclass(frozen=True, kw_only=True)
class Site:
    """Nodes that are alike, on which instances of one kind stand."""

    name: str
    gpu: GpuSpec
    num_gpus: int
    gpus_per_node: int
    levels: Levels
    usd_per_gpu_hour: float | None  # rent; None: not known


def sites_of(cluster: ClusterSpec) -> tuple[Site, ...]:
    """Groups of nodes that differ are sites of their own."""
    if not cluster.islands:
        group = cluster.groups[0]
        return (_site(cluster.name, cluster, 0, group.num_nodes, cluster.levels),)
    return tuple(_site(island.name, cluster, island.group, island.num_nodes, island.levels)
                 for island in cluster.islands)  # fmt: skip


def _site(name: str, cluster: ClusterSpec, number: int, num_nodes: int, levels: Levels) -> Site:
    group = cluster.groups[number]
    rent = group.usd_per_node_hour
    return Site(name=name, gpu=group.gpu, num_gpus=num_nodes * group.gpus_per_node, gpus_per_node=group.gpus_per_node,
                levels=levels, usd_per_gpu_hour=None if rent is None else rent / group.gpus_per_node)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Served:
    """The common part of all instances of a request."""

    model: ModelSpec
    weights: str
    cache: str
    engine: Engine
    host_s: float
    speculation: Speculation | None = None
    passes: Passes | None = None
    images: SeenImages | None = None
    techniques: Applied = ()

    @classmethod
    def of(
        cls, model: ModelSpec, weights: str, cache: str, engines: Engines, engine: str, *,
        speculation: Speculation | None = None, passes: Passes | None = None, images: SeenImages | None = None,
        techniques: Applied = (),
    ) -> Served:  # fmt: skip
        """The model on an engine, by the name of the engine. Raises UnknownNameError for one that is not known."""
        return cls(model=model, weights=weights, cache=cache, engine=engines.of(engine),
                   host_s=engines.host_s(engine, ""), speculation=speculation, passes=passes,
                   images=images, techniques=techniques)  # fmt: skip

    def instance(self, site: Site, layout: InstanceLayout, chunk_tokens: int) -> Instance:
        """An instance of it on GPUs of a site."""
        return Instance(
            model=self.model, gpu=site.gpu, levels=site.levels, host_gpus=site.gpus_per_node, weights=self.weights,
            cache=self.cache, engine=self.engine, host_s=self.host_s, layout=layout, chunk_tokens=chunk_tokens,
            max_sequences=self.engine.max_sequences, speculation=self.speculation, passes=self.passes,
            images=self.images, techniques=self.techniques)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Space:
    """The legal instances of a site, and how many deployments break which rule."""

    site: Site
    instances: tuple[Instance, ...]
    least: int  # instances of a deployment
    most: tuple[int, ...]  # [instance] that the site has GPUs for
    total: int  # deployments: instances of one layout, one or more
    ruled_out: Mapping[str, int]
    by_axis: Mapping[str, int]


def space_of(site: Site, served: Served, fix: Mapping[str, int], *, across_nodes: bool = False) -> Space:
    """Deployments on a site: tp within a node, pp in powers of two, attention data parallelism and experts in parallel
    where a model has experts; every number of replicas. fix: axis -> the one value it has. across_nodes: tp may span
    several nodes, too."""
    axes = _axes(site, served.model, across_nodes=across_nodes)
    axes |= {name: (value,) for name, value in fix.items() if name in axes}
    ruled_out: Counter[str] = Counter()
    instances, most, total, least = list[Instance](), list[int](), 0, fix.get("replicas", 1)
    for tp, pp, groups, ep, chunk in product(*axes.values()):
        layout = InstanceLayout(tp=tp, attention_dp=groups, pp=pp, ep=ep or tp * groups, instances=1)
        number = site.num_gpus // layout.gpus
        if not number or (ep == _ALL and layout.ep == 1):
            continue
        number = least if "replicas" in fix and least <= number else number
        numbers = max(number - least + 1, 1)
        total += numbers
        broken = "gpus" if number < least else _broken(served, layout)
        if broken is not None:
            ruled_out[broken] += numbers
            continue
        instances.append(served.instance(site, layout, chunk))
        most.append(number)
    counts = {name: len(values) for name, values in axes.items()}
    return Space(site=site, instances=tuple(instances), least=least, most=tuple(most), total=total,
                 ruled_out=dict(ruled_out),
                 by_axis={**counts, "replicas": max(most, default=0)})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spaces:
    """The instances of all sites, by what they do."""

    aggregated: tuple[Space, ...]
    prefill: tuple[Space, ...]  # empty: no disaggregated instances are sought
    decode: tuple[Space, ...]

    @classmethod
    def of(
        cls, sites: Sequence[Site], served: Served, fix: Mapping[str, int], *, across_nodes: bool = False
    ) -> Spaces:  # fmt: skip
        """fix: as in `space_of`; `prefill.tp` is that of disaggregated instances that prefill, and leaves no others."""

        def made(axes: Mapping[str, int]) -> tuple[Space, ...]:
            return tuple(space_of(site, served, axes, across_nodes=across_nodes) for site in sites)

        both = {name: value for name, value in fix.items() if "." not in name}
        if len(both) == len(fix):
            spaces = made(both)
            # A pass is over prompt and answer, where a model fills in all tokens of the answer.
            disaggregated = () if "replicas" in fix or served.model.fills else spaces
            return cls(aggregated=spaces, prefill=disaggregated, decode=disaggregated)
        prefill, decode = (
            made({**both, **{name.removeprefix(role): value for name, value in fix.items() if name.startswith(role)}})
            for role in (f"{name}." for name in ROLES)
        )
        none = tuple(replace(space, instances=(), most=(), total=0, ruled_out={}) for space in prefill)
        return cls(aggregated=none, prefill=prefill, decode=decode)

    def under(self, techniques: Applied) -> tuple[Spaces, tuple[str, ...]]:
        """The instances that the techniques serve by, and the needs that all of them break."""
        every = {id(space): space for space in (*self.aggregated, *self.prefill, *self.decode)}
        made = {key: under(space, techniques) for key, space in every.items()}
        unmet = [made[key][1] for key, space in every.items() if space.instances]

        def of(spaces: Sequence[Space]) -> tuple[Space, ...]:
            return tuple(made[id(space)][0] for space in spaces)

        kept = Spaces(aggregated=of(self.aggregated), prefill=of(self.prefill), decode=of(self.decode))
        return kept, unmet[0] if unmet and all(unmet) else ()

    @property
    def ruled_out(self) -> Counter[str]:
        """Deployments of one layout by the rule that they break."""
        every = {id(space): space.ruled_out for space in (*self.aggregated, *self.prefill, *self.decode)}
        return sum((Counter(counts) for counts in every.values()), Counter())


def under(space: Space, techniques: Applied) -> tuple[Space, tuple[str, ...]]:
    """The instances that the techniques serve by, and the needs that every instance breaks."""
    if not techniques or not space.instances:
        return space, ()
    kept, ruled_out, unmet = np.ones(len(space.instances), dtype=bool), Counter(space.ruled_out), list[str]()
    numbers = np.array(space.most) - space.least + 1
    for name, text, broken in broken_needs(plain_pool(space.instances), techniques):
        unmet += [f"{name} needs {text}"] if broken.all() else []
        if (newly := kept & broken).any():
            ruled_out[name] += int(numbers[newly].sum())
        kept &= ~broken
    rows = np.flatnonzero(kept)
    instances = tuple(replace(space.instances[row], techniques=techniques) for row in rows)
    return replace(space, instances=instances, most=tuple(space.most[row] for row in rows),
                   ruled_out=dict(ruled_out)), tuple(unmet)  # fmt: skip


def _axes(site: Site, model: ModelSpec, *, across_nodes: bool) -> dict[str, tuple[int, ...]]:
    node = tuple(n for n in range(1, site.gpus_per_node + 1) if site.gpus_per_node % n == 0)
    if across_nodes:
        node += tuple(site.gpus_per_node * n for n in (2, 4, 8) if site.gpus_per_node * n <= site.num_gpus)
    stages = tuple(2**k for k in range(_MOST_STAGES.bit_length()) if 2**k <= min(site.num_gpus, _MOST_STAGES))
    groups = tuple(2**k for k in range(site.num_gpus.bit_length())) if model.is_moe else (1,)
    return {"tp": node, "pp": stages, "attention_dp": groups, "ep": (1, _ALL) if model.is_moe else (1,),
            "chunk_tokens": CHUNKS}  # fmt: skip


def _broken(served: Served, layout: InstanceLayout) -> str | None:
    """The first rule that a layout breaks. Drafts over several stages are not priced."""
    if served.speculation is None:
        return next(broken_rules(served.model, layout), None)
    if layout.pp > 1:
        return "speculation over stages"
    draft = served.speculation.draft
    broken = next(broken_rules(draft, layout), None) if draft is not None and not draft.is_moe else None
    return next(broken_rules(served.model, layout), broken and f"{broken} of the draft")


def broken_rules(model: ModelSpec, layout: InstanceLayout) -> Iterator[str]:
    """Names of the rules that a layout breaks (vLLM 0.32: ModelConfig.verify_with_parallel_config and
    QKVParallelLinear; with --enable-expert-parallel experts are shared by all GPUs of a stage)."""
    for attention in model.attentions:
        heads, pairs = attention.heads, attention.kv_heads
        if heads % layout.tp:
            yield "heads"
        if not attention.is_mla and pairs % layout.tp and layout.tp % pairs:
            yield "kv heads"
    stage = layout.stage_gpus
    experts = [block for block in model.feed_forwards if isinstance(block, MixtureOfExperts)]
    if any(block.inner % layout.tp for block in model.feed_forwards if isinstance(block, FeedForward)):
        yield "width"
    if layout.ep == 1 and any(block.expert_inner % stage for block in experts):
        yield "width"
    if layout.pp > model.num_layers:
        yield "layers"
    if layout.ep not in (1, stage) or (layout.ep > 1 and any(layout.ep > block.experts for block in experts)):
        yield "experts"
