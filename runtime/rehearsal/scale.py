"""`--scale-down`: the same layout on a small model, so that a plan for a cluster can be rehearsed on two cores.

Kept: every axis above 1 (at 2, or at the user's number; at 4 for an axis that ep and etp share), vpp, schedule, longer
chunks, heads per key/value head, tied embeddings, kinds of layers, recomputation, renumbered ranks. Shrunk: GPUs,
width, depth, vocabulary, tokens, micro-batches (to pp + 2).

Two ranks per axis reveal most faults, except those of a ring's second hop or of a middle stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import numpy as np

from ...cost_models.degrees import sequence_parts
from ...cost_models.layouts import CP_ALGORITHMS, Layout
from ...cost_models.quantities.stages import devices_of
from ...cost_models.specs.model import Attention, FeedForward, MixtureOfExperts, ModelSpec
from ...cost_models.specs.workload import Images
from ...errors import InputError, UnsupportedError
from ...planner.document.candidate import Chunk
from ..job import Job
from ..parallel.strategies import Strategies, parts_of
from .scale_axes import MOST_MICRO_BATCH, shrunk_layout
from .scale_chunks import chunk_sizes, picked_chunks, stack_sizes
from .scale_images import small_images, small_tower
from .scale_layers import kept_layers, rehearsed, shrunk
from .scale_mixers import eighths, small_mixer
from .scale_stacks import small_source, with_stacks
from .scale_techniques import shrunk_knobs, small_technique

VOCAB, SEQ_LEN, WIDTH = 256, 64, 128
MOST_EXPERTS = 8
MOST_LORA_RANK = 8


def scale_down(job: Job, keep: Mapping[str, int] | None = None) -> tuple[Job, list[str]]:
    """The rehearsal of a job, and one line per shrunk part.

    keep: axis (of AXES) -> ranks to keep, where 2 are too few. Raises InputError if the layout or the model has fewer,
    UnsupportedError for layer-wise strategies.
    """
    keep = keep or {}
    if job.lora is not None:
        job = replace(job, lora=replace(job.lora, rank=min(job.lora.rank, MOST_LORA_RANK)))
    if job.strategies is not None and keep:
        raise UnsupportedError("a plan whose layers have strategies of their own is shrunk to powers of two only",
                               hint="leave out `--keep`")  # fmt: skip
    if job.strategies is not None:
        return _with_strategies(job, job.strategies)
    layout = shrunk_layout(job.layout, keep)
    picked = picked_chunks(job, layout)
    sizes, recomputed = chunk_sizes(job, picked)
    parts = int(sequence_parts(asdict(layout))[1])
    seq_len = min(-(-SEQ_LEN * layout.cp // parts) * parts, job.seq_len)  # equal tokens per rank
    model = _model(job, sum(sizes), seq_len, _num_head_shards(layout), layout)
    # Interleaved stages process micro-batches in rounds of pp.
    micro_batches = 2 * layout.pp if layout.vpp > 1 and layout.pp > 2 else layout.pp + 2
    batch = layout.dp * layout.micro_batch * micro_batches
    images, model = _seen(job, model, layout, sizes[0])
    source_len = small_source(job.source_len, seq_len, layout.tp)
    if source_len is not None:
        model = with_stacks(model, job.model, stack_sizes(job.model, picked), source_len)
    small = replace(
        job, layout=layout, model=model, chunks=_build_chunks(layout, sizes, recomputed), seq_len=seq_len,
        global_batch=batch, predicted_step_s=None, predicted_mfu=None, logical_of_rank=_rank_map(job, layout),
        images=images, source_len=source_len,
    )  # fmt: skip
    small = replace(small, technique=small_technique(job.technique, small.num_replicas))
    return small, _notes(job, small)


def _with_strategies(job: Job, strategies: Strategies) -> tuple[Job, list[str]]:
    if job.logical_of_rank is not None:
        raise UnsupportedError("a plan that renumbers ranks and gives layers strategies of their own cannot be shrunk",
                               hint="`--choice` of a layout whose layers are alike")  # fmt: skip
    pp = min(job.layout.pp, 2)
    small = {strategy: shrunk(strategies, strategy, pp, MOST_MICRO_BATCH) for strategy in job.layouts}
    stages = [kept_layers(strategies.of_chunk(job.chunks[round(stage * (job.layout.pp - 1) / max(pp - 1, 1))]))
              for stage in range(pp)]  # fmt: skip
    small_strategies = rehearsed(strategies, stages, small)
    layout, sizes = small[job.layout], [len(kept) for kept in stages]
    seq_len = min(SEQ_LEN * max(strategy.cp for strategy in small.values()), job.seq_len)
    most = max(map(parts_of, small.values()))
    model = _model(job, sum(sizes), seq_len, most, replace(layout, tp=most, cp=1))
    rehearsal = replace(
        job, layout=layout, model=model, chunks=_build_chunks(layout, sizes, [0] * pp), seq_len=seq_len,
        global_batch=layout.dp * layout.micro_batch * (pp + 2), predicted_step_s=None, predicted_mfu=None,
        strategies=small_strategies,
    )  # fmt: skip
    return rehearsal, [*_notes(job, rehearsal), str(small_strategies)]


def _rank_map(job: Job, small: Layout) -> tuple[int, ...] | None:
    """The plan's rank map on the kept ranks, in their order.

    On each axis two adjacent ranks that the map swaps are kept, so that the rehearsal also renumbers ranks.
    """
    if job.logical_of_rank is None:
        return None
    large = job.layout
    shape, kept = _shape(large), _shape(small)
    seat = sorted(range(large.num_gpus), key=job.logical_of_rank.__getitem__)  # logical -> physical rank
    turned = next((rank for rank in range(1, len(seat)) if seat[rank] < seat[rank - 1]), 0)
    stay = []
    for axis, (size, number) in enumerate(zip(shape, kept, strict=True)):
        both = {int(np.unravel_index(rank, shape)[axis]) for rank in (turned, max(turned - 1, 0))}
        others = [index for index in range(size) if index not in both]
        stay.append(sorted([*both, *others[: number - len(both)]]))
    ranks = [int(np.ravel_multi_index(index, shape)) for index in itertools.product(*stay)]
    return tuple(sorted(range(len(ranks)), key=lambda logical: seat[ranks[logical]]))


def _shape(layout: Layout) -> tuple[int, ...]:
    """Ranks of each axis, the slowest first."""
    return layout.pp, layout.dp, layout.cp, layout.tp


def _build_chunks(layout: Layout, sizes: list[int], recomputed: list[int]) -> tuple[Chunk, ...]:
    devices = devices_of(layout)
    chunks, start = [], 0
    for index, (device, size, again) in enumerate(zip(devices, sizes, recomputed, strict=True)):
        chunks.append(Chunk(
            stage=device, chunk=devices[:index].count(device), embedding=index == 0,
            layers=(start, start + size - 1) if size else (), head=index == len(devices) - 1, gpu="",
            recompute_layers=again,
        ))  # fmt: skip
        start += size
    return tuple(chunks)


def _num_head_shards(layout: Layout) -> int:
    """The minimum number of key/value heads for the layout, because ulysses scatters whole heads."""
    ulysses = layout.cp > 1 and CP_ALGORITHMS[layout.cp_algorithm] == "ulysses"
    return layout.tp * (layout.cp if ulysses else 1)


def _model(job: Job, num_layers: int, seq_len: int, least_heads: int, layout: Layout) -> ModelSpec:
    """The small model. num_layers, seq_len, layout: of the rehearsal; least_heads: minimum of key/value heads.

    A window shorter than sequences covers the same fraction of the short ones.
    """
    model = job.model

    def small(spec: Attention) -> Attention:
        window = _window(spec.window, job.seq_len, seq_len)
        return replace(_attention(spec, least_heads, model.hidden), window=window)

    hidden = _hidden(model, small)
    shrink = hidden / model.hidden
    kinds = tuple(
        replace(kind, attention=None if kind.attention is None else small(kind.attention),
                cross_attention=None if kind.cross_attention is None else small(kind.cross_attention),
                mixer=kind.mixer and small_mixer(kind.mixer, shrink, layout.tp, layout.cp, seq_len),
                feed_forward=kind.feed_forward and _feed_forward(kind.feed_forward, shrink, layout.ep))
        for kind in model.kinds
    )  # fmt: skip
    return replace(
        model, kinds=kinds, pattern=_pattern(model, num_layers), hidden=hidden, vocab=min(model.vocab, VOCAB),
        max_positions=min(model.max_positions, seq_len), learned_positions=min(model.learned_positions, seq_len),
        embedding_dim=None,
    )  # fmt: skip


def _seen(job: Job, small: ModelSpec, layout: Layout, layers: int) -> tuple[Images | None, ModelSpec]:
    """Small images and the model with a small tower. layers: of the first chunk."""
    if job.images is None or job.model.tower is None:
        return None, small
    pairs = next((attention.head_dim // 2 for attention in small.attentions), 1)
    tower = small_tower(job.model.tower, small.hidden, layout.tp, layers, pairs)
    return small_images(job.images, tower), replace(small, tower=tower)


def _hidden(model: ModelSpec, small: Callable[[Attention], Attention]) -> int:
    """The hidden width, equal to that of all heads as in the plan. Heads of latent attention are wider than that."""
    if not model.attentions:
        return WIDTH
    first = model.attentions[0]
    ratio = 1.0 if first.is_mla else model.hidden / (first.heads * first.head_dim)
    shrunk = small(first)
    return eighths(shrunk.heads * shrunk.head_dim * ratio)


def _window(window: int | None, length: int, short: int) -> int | None:
    return None if window is None or window >= length else max(window * short // length, 1)


def _attention(spec: Attention, least_heads: int, hidden: int) -> Attention:
    per_kv = spec.heads // spec.kv_heads
    wanted = -(-(2 if per_kv > 1 else 4) // least_heads) * least_heads
    kv_heads = min(spec.kv_heads // least_heads * least_heads, wanted)
    if not kv_heads:
        raise InputError(f"{least_heads} ranks need a key/value head each, and the model has {spec.kv_heads}",
                         hint="keep less of tp, or of cp with ulysses")  # fmt: skip
    heads = kv_heads * per_kv
    head_dim = min(max(WIDTH // heads // 8 * 8, 8), 32, spec.head_dim)
    value_dim = head_dim if spec.value_head_dim == spec.head_dim else min(spec.value_head_dim, head_dim)
    of_heads = spec.norm_parameters in (0, 2 * spec.head_dim)
    norms = 2 * head_dim if of_heads else (heads + kv_heads) * head_dim
    scale = None if spec.score_scale is None else spec.score_scale * (spec.head_dim / head_dim) ** 0.5
    if spec.is_mla:
        return _latent(spec, heads, head_dim, hidden)
    return replace(spec, heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_head_dim=value_dim,
                   norm_parameters=norms if spec.norm_parameters else 0, score_scale=scale,
                   sink_parameters=heads if spec.sink_parameters else 0,
                   bias_parameters=spec.bias_parameters // spec.heads * heads)  # fmt: skip


def _latent(spec: Attention, heads: int, head_dim: int, hidden: int) -> Attention:
    """Latent attention with values as wide as keys, and latents in the planned ratio to the hidden width.

    The CPU's flash kernel supports only equal widths, and keeps the same tensors as the GPU's kernel.
    """
    shrink = heads * head_dim / hidden
    rope = eighths(head_dim * spec.rope_head_dim / spec.head_dim)
    kv_rank = eighths((spec.kv_lora_rank or 0) * shrink)
    q_rank = None if spec.q_lora_rank is None else eighths(spec.q_lora_rank * shrink)
    return replace(
        spec, heads=heads, kv_heads=heads, head_dim=head_dim, value_head_dim=head_dim, rope_head_dim=rope,
        q_lora_rank=q_rank, kv_lora_rank=kv_rank, norm_parameters=(q_rank or 0) + kv_rank,
    )  # fmt: skip


def _feed_forward(
    block: FeedForward | MixtureOfExperts, shrink: float, ep: int
) -> FeedForward | MixtureOfExperts:
    if isinstance(block, FeedForward):
        return replace(block, inner=eighths(block.inner * shrink))
    experts = min(block.experts, MOST_EXPERTS)
    experts -= experts % max(ep, 2) if experts > 1 else 0
    if not experts:
        raise InputError(f"{ep} ranks need an expert each, and the model has {block.experts}", hint="keep less of ep")
    groups = max(number for number in range(1, min(block.groups, max(experts // 2, 1)) + 1) if experts % number == 0)
    top_groups = max(round(groups * block.top_groups / block.groups), 1)
    top_k = min(block.top_k, top_groups * experts // groups)
    factor = None if block.capacity_factor is None else min(block.capacity_factor, experts / top_k)
    return replace(
        block, experts=experts, groups=groups, top_groups=top_groups, top_k=top_k, capacity_factor=factor,
        expert_inner=eighths(block.expert_inner * shrink),
        shared_inner=eighths(block.shared_inner * shrink) if block.shared_inner else 0,
    )  # fmt: skip


def _pattern(model: ModelSpec, num_layers: int) -> tuple[int, ...]:
    """Selects layers evenly. Every kind of layer is kept while there are layers for it."""
    last = model.num_layers - 1
    picked = [model.pattern[round(i * last / max(num_layers - 1, 1))] for i in range(num_layers)]
    for kind in sorted(set(model.pattern) - set(picked)):
        often = max(set(picked), key=picked.count)
        if picked.count(often) > 1:
            picked[round(model.pattern.index(kind) * (num_layers - 1) / max(last, 1))] = kind
    return tuple(picked)


def _notes(before: Job, after: Job) -> list[str]:
    pairs = {
        "GPUs": (before.world_size, after.world_size), "layers": (before.model.num_layers, after.model.num_layers),
        "hidden": (before.model.hidden, after.model.hidden), "vocabulary": (before.model.vocab, after.model.vocab),
        "tokens per sequence": (before.seq_len, after.seq_len),
        "tokens of the source": (before.source_len or 0, after.source_len or 0),
        "micro-batches": (before.num_micro_batches, after.num_micro_batches),
    }  # fmt: skip
    changed = [f"{name} {a:,} -> {b:,}" for name, (a, b) in pairs.items() if a != b]
    mapped = after.logical_of_rank
    if mapped is not None and mapped != tuple(range(len(mapped))):
        changed.append(f"rank map kept: ranks 0 to {len(mapped) - 1} act as {', '.join(map(str, mapped))}")
    changed += shrunk_knobs(before.technique, after.technique)
    return [f"layout {before.layout_id} -> {after.layout_id}", *changed]
