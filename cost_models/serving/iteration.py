"""Seconds of one iteration of an engine: a batch that decodes and prompt tokens beside it (chunked prefill)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..arrays import Array
from ..rates import collectives
from .constants import ServingConstants
from .image_placement import placement
from .kernel_counts import TOWER_KERNELS
from .messages import NO_SECONDS, REDUCTIONS_PER_LAYER, REMEMBERED, collectives_s, messages_s, sum_s
from .methods import PLAIN, Methods
from .pool import ACTIVATION_BYTES, Pool

_NORM_BYTES = 16.0  # per element of the hidden state and layer: two norms read and write it and the residual stream
_ROUTED_BYTES = 8.0  # per element of a token's copy: into the order of the experts and back, each read and written
_HALF_TILE = 32.0  # rows of a tile of the smallest products that an expert leaves empty in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The work of an iteration of one instance, columns [n]."""

    sequences: Array  # that decode one token each, and verify those of a draft
    context: Array  # tokens in the cache of each
    prompt_tokens: Array  # prefilled beside them
    prompt_context: Array  # tokens that a prompt token sees, in the mean
    prompt_groups: Array  # groups of attention data parallelism that the prompt tokens lie in, evenly; the others wait
    answer: Array | float = np.inf  # tokens that are filled in, of each sequence; of other models nothing is


def iteration_seconds(pool: Pool, constants: ServingConstants, batch: Batch) -> Array:
    """[n] seconds. Products and reads of weights are each a soft maximum (exponent 4, as in rates/surfaces.py); the
    parts of a layer come one after another, and add. The host launches kernels of iterations with prompts alone
    (`Pool.host_s`): one without them replays CUDA graphs, and the host prepares it while the one before it runs
    (asynchronous scheduling of vLLM 0.32, overlap schedulers of SGLang 0.5 and TensorRT-LLM 1.2), but for `step_s`. An
    engine without graphs takes at least `launch_s`; each stage launches its layers for every part of the sequences in
    turn. Groups of attention data parallelism have a process each that schedules and samples their sequences (vLLM
    0.32, DPEngineCoreProc; SGLang 0.5, DataParallelController; TensorRT-LLM 1.2, the PyExecutor of each rank)."""
    passes = _filling_s if pool.methods.fills else _device_s
    device = np.maximum(passes(pool, constants, batch), pool.launch_s)
    if pool.drafts:
        drafted = _draft_s(pool, constants, batch) / pool.methods.draft_speed
        # The draft begins with what the lower layers give, and runs beside the upper ones.
        device = np.maximum(device + drafted - (1.0 - pool.methods.draft_from_share) * device, device)
    if not (pool.methods.host_beside or pool.methods.fills):
        device = device + np.where(batch.prompt_tokens > 0, pool.host_s, 0.0)
    return np.asarray(device + constants.step_s + constants.sequence_s * batch.sequences / pool.attention_dp)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unchanging:
    """What all iterations of a pool have in common, columns [n]: thousands of batches are priced on one pool."""

    plain: bool  # no method changes how the parts are combined
    dense: Array  # parameters of dense blocks that a rank multiplies a token with
    head: Array  # of the head, the same of a token that is sampled
    dense_flops_per_s: Array  # that products of dense blocks reach
    dense_read_s4: Array  # fourth power of the seconds in which their weights and the head are read
    has_experts: bool
    cache_bytes_per_s: Array  # at which caches are read
    state_bytes: Array  # of a sequence on a rank, which a recurrence reads and writes
    norm_bytes: Array  # of a token, over the elements of its hidden state
    routed_bytes: Array  # the same of a token's copies in the order of experts, on all ranks that share them
    scans: bool  # layers have recurrences
    short_s: Array  # of kernels that are too short to fill a GPU

    @classmethod
    def of(cls, pool: Pool, constants: ServingConstants) -> _Unchanging:
        model, dense, head = pool.model, pool.model.dense_of_rank(pool.tp), pool.model.head_parameters / pool.tp
        weights = (dense + model.still_parameters / pool.tp) * pool.weight_bytes
        read = weights / _narrow(pool.weight_bytes, constants) + 2.0 * head
        return cls(
            plain=pool.methods == PLAIN, dense=dense, head=head,
            dense_flops_per_s=pool.dense_flops_per_s * constants.compute_share,
            dense_read_s4=(read / (pool.memory_bw_bytes_per_s * constants.bandwidth_share)) ** 4,
            has_experts=bool(model.moe_layers.any()),
            cache_bytes_per_s=pool.memory_bw_bytes_per_s * constants.cache_share,
            state_bytes=2.0 * model.state_bytes / pool.tp,
            norm_bytes=_NORM_BYTES * model.layers, routed_bytes=_ROUTED_BYTES * model.moe_layers * model.top_k,
            scans=bool(model.scan_bytes.any() or model.scan_flops.any()), short_s=constants.short_s * model.kernels,
        )  # fmt: skip


_unchanging = lru_cache(maxsize=REMEMBERED)(_Unchanging.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Seconds of the parts of an iteration on the GPUs, columns [n]."""

    products: Array  # with the reads of their weights
    cache: Array  # attention of answers
    prompts: Array  # attention of prompts
    prompt_sums: Array  # of `sums`, those of prompts, where a method hides them
    passes: Array  # norms, order of experts, recurrences; the tower that sees the images of prompts
    kernels: Array  # that are too short to fill a GPU
    sums: Array  # of tensor parallelism
    exchanges: Array  # of tokens with their experts
    messages: Array  # between stages


def _device_s(pool: Pool, constants: ServingConstants, batch: Batch) -> Array:
    """The model runs once: a token of each sequence and the proposed ones, and the prompts."""
    same = _unchanging(pool, constants)
    if pool.methods.streams > 1:
        batch = replace(batch, prompt_tokens=batch.prompt_tokens * pool.methods.streams)
    decoded = batch.sequences * (1.0 + pool.draft_tokens)
    together = decoded + batch.prompt_tokens
    tokens = decoded / pool.attention_dp + batch.prompt_tokens / batch.prompt_groups  # of the fullest group
    sums, exchanges = collectives_s(pool, constants, tokens)
    answers_sums = None if same.plain else collectives_s(pool, constants, decoded / pool.attention_dp)[0]
    passes_s = _passes_s(pool, same, batch, together, tokens)
    if pool.images is not None:
        passes_s = passes_s + _images_s(pool, constants, batch.prompt_tokens / batch.prompt_groups)
    parts = _Parts(
        products=_products_s(pool, constants, same, decoded, tokens, together),
        cache=_decode_attention_s(pool, same, batch), prompts=_prompt_attention_s(pool, batch),
        passes=passes_s, kernels=same.short_s,
        sums=sums, prompt_sums=NO_SECONDS if answers_sums is None else np.maximum(sums - answers_sums, 0.0),
        exchanges=exchanges,
        messages=messages_s(pool, tokens),
    )  # fmt: skip
    if same.plain:
        return _one_after_another(parts)
    number = max(pool.methods.nano_batches, 2.0 if pool.methods.sums_in_halves else 1.0)
    split = _products_s(pool, constants, same, decoded / number, tokens / number, together / number) * number
    return _by_methods(pool, parts, split, tokens)


def _filling_s(pool: Pool, constants: ServingConstants, batch: Batch) -> Array:
    """A pass over all tokens of each sequence, its prompt among them. Where they are cached, a pass over a block of the
    answer, but for the first one of each block, which caches all tokens anew (Fast-dLLM, arXiv 2505.22618)."""
    methods = pool.methods
    batch = replace(batch, prompt_tokens=np.zeros_like(batch.sequences), sequences=batch.sequences * methods.copies)
    if methods.patches:
        return _patches_s(pool, constants, batch)
    whole = _device_s(replace(pool, draft_tokens=np.maximum(batch.context - 1.0, 0.0)), constants, batch)
    if not methods.block_tokens:
        return whole
    block = np.minimum(methods.block_tokens, batch.answer)
    within = _device_s(replace(pool, draft_tokens=block - 1.0), constants, batch)
    renewed = np.minimum(pool.step_tokens / block, 1.0)
    return np.asarray(renewed * whole + (1.0 - renewed) * within)


def _patches_s(pool: Pool, constants: ServingConstants, batch: Batch) -> Array:
    """Each rank runs its patch of the tokens through all weights, and attends to its own and to a share of the others'
    keys and values, which it has of the pass before: they are gathered meanwhile (DistriFusion, arXiv 2402.19481)."""
    ranks, share = pool.tp, pool.methods.patch_context
    one, none = np.ones_like(ranks), np.zeros_like(ranks)
    seen = replace(batch, context=batch.context * (1.0 + share * (ranks - 1.0)) / ranks)
    alone = replace(pool, tp=one, draft_tokens=np.maximum(batch.context / ranks - 1.0, 0.0),
                    all_reduce=collectives.Curve(none, none, none))  # fmt: skip
    gathered = ACTIVATION_BYTES * pool.model.kv_elements / pool.model.layers * batch.context * batch.sequences * share
    sent_s = pool.model.layers * collectives.call_seconds(pool.all_gather, gathered)
    return np.maximum(_device_s(alone, constants, seen), np.where(ranks > 1, sent_s, 0.0))


def _one_after_another(parts: _Parts) -> Array:
    compute = parts.products + parts.cache + parts.prompts + parts.passes
    return np.asarray(compute + parts.sums + parts.exchanges + parts.messages + parts.kernels)


def _by_methods(pool: Pool, parts: _Parts, split: Array, tokens: Array) -> Array:
    """As the methods of the engine combine the parts. split: seconds of the products in parts of the tokens."""
    methods = pool.methods
    device = _one_after_another(parts)
    if methods.nano_batches > 1:
        device = np.minimum(device, _in_nano_batches(methods, replace(parts, products=split)))
    elif methods.hidden_sums:
        beside = split + parts.cache + parts.prompts + parts.passes + parts.kernels
        taken = methods.sums_multiprocessors
        hidden = methods.hidden_sums * np.minimum(parts.prompt_sums if methods.sums_of_prompts else parts.sums, beside)
        shown = _one_after_another(replace(parts, products=split)) - hidden + hidden * taken / (1.0 - taken)
        device = np.where(tokens >= methods.hides_from_tokens, shown, device)
    if methods.window_layers:
        device = np.maximum(device, pool.streamed_bytes / methods.disk_bytes_per_s)
    return np.asarray(device)


def _in_nano_batches(methods: Methods, parts: _Parts) -> Array:
    """Reads of the cache and messages run at their full rate with a part of the multiprocessors, and products with the
    others: the longest of the three, or the sum of what each needs of all multiprocessors (NanoFlow, arXiv
    2408.12757)."""
    products = parts.products + parts.prompts + parts.passes
    sent = parts.sums + parts.exchanges
    needed = products + methods.reads_share * parts.cache + methods.messages_share * sent
    longest = np.maximum(needed, np.maximum(parts.cache, sent))
    return np.asarray(longest + parts.messages + parts.kernels)


def _products_s(
    pool: Pool, constants: ServingConstants, same: _Unchanging, decoded: Array, tokens: Array, together: Array
) -> Array:  # fmt: skip
    dense_s = _dense_s(same, decoded / pool.attention_dp, tokens)
    return dense_s + _experts_s(pool, constants, together) if same.has_experts else dense_s


def _draft_s(pool: Pool, constants: ServingConstants, batch: Batch) -> Array:
    """The draft runs once for each token that it proposes, one after another, and once over the prompts."""
    draft, none = pool.drafting, np.zeros_like(batch.sequences)
    proposed_s = _device_s(draft, constants, replace(batch, prompt_tokens=none))
    prompts_s = _device_s(draft, constants, replace(batch, sequences=none))
    prompts_s = np.where(batch.prompt_tokens > 0, prompts_s, 0.0)
    once = np.where(batch.sequences > 0, pool.draft_tokens, 0.0)
    return np.where(pool.draft_tokens > 0, once * proposed_s + prompts_s, 0.0)


def _soft_maximum(a: Array, b: Array) -> Array:
    return np.asarray((a**4 + b**4) ** 0.25)


def _dense_s(same: _Unchanging, sampled: Array, tokens: Array) -> Array:
    """Attention projections, dense blocks, shared experts; and the head, for tokens that are sampled."""
    flops = 2.0 * (same.dense * tokens + same.head * sampled)
    return np.asarray(((flops / same.dense_flops_per_s) ** 4 + same.dense_read_s4) ** 0.25)


def _narrow(num_bytes: Array, constants: ServingConstants) -> Array:
    """Rate of reading weights of so many bytes each, over that of 8 and 16 bits."""
    return np.where(num_bytes < 1.0, constants.narrow_share, 1.0)


def touched_experts(experts: Array, top_k: Array, tokens: Array) -> Array:
    """[n] experts of a layer that any of the tokens chose, where choices are even: E (1 - (1 - k/E)^T)."""
    return np.asarray(experts * -np.expm1(tokens * np.log1p(-np.minimum(top_k / experts, 1.0 - 1e-9))))


def _experts_s(pool: Pool, constants: ServingConstants, together: Array) -> Array:
    """Routed experts: all groups of attention data parallelism share them. together: tokens of all groups."""
    model = pool.model
    share = model.top_k / model.experts
    touched = touched_experts(model.experts, model.top_k, together) / model.experts
    flops = 2.0 * model.expert_parameters * (share * together + touched * _HALF_TILE) / pool.stage_gpus
    read = model.expert_parameters * pool.expert_bytes * touched / pool.stage_gpus
    read = read / _narrow(pool.expert_bytes, constants)
    rate = pool.flops_per_s * constants.compute_share * constants.expert_share
    return _soft_maximum(flops / rate, read / (pool.memory_bw_bytes_per_s * constants.bandwidth_share))


def _decode_attention_s(pool: Pool, same: _Unchanging, batch: Batch) -> Array:
    model, sequences = pool.model, batch.sequences / pool.attention_dp
    cached = pool.kv_read_bytes * model.read_elements(batch.context) / pool.kv_split
    if model.chooses:
        cached = cached + model.index_bytes * batch.context
    read = sequences * (cached + same.state_bytes)
    flops = sequences * (1.0 + pool.draft_tokens) * model.decode_flops(batch.context, pool.tp)
    return _soft_maximum(flops / pool.attention_flops_per_s, read / same.cache_bytes_per_s)


def _images_s(pool: Pool, constants: ServingConstants, tokens: Array) -> Array:
    """The tower on the images of so many prompt tokens, and its sums: tensor parallelism splits it (vLLM 0.32:
    --mm-encoder-tp-mode, default `weights`)."""
    images = pool.images
    if images is None:
        return np.zeros_like(tokens)
    left, prompts = placement(pool, constants).left, tokens / images.prompt
    flops, read = prompts * sum(images.flops), np.where(tokens > 0, 2.0 * images.parameters, 0.0)
    products_s = _soft_maximum(flops / (pool.flops_per_s * constants.compute_share),
                               read / (pool.memory_bw_bytes_per_s * constants.bandwidth_share))  # fmt: skip
    summed = sum_s(pool, constants, ACTIVATION_BYTES * images.width * images.rows * prompts)
    each_s = constants.short_s * TOWER_KERNELS + np.where(pool.tp > 1, REDUCTIONS_PER_LAYER * summed, 0.0)
    layers_s = np.where(tokens > 0, images.layers * each_s, 0.0)
    return np.asarray(left * (products_s / pool.tp + layers_s))


def _prompt_attention_s(pool: Pool, batch: Batch) -> Array:
    tokens = batch.prompt_tokens / batch.prompt_groups
    flops = tokens * pool.model.prompt_flops(batch.prompt_context, pool.tp)
    return np.asarray(flops / pool.attention_flops_per_s)


def _passes_s(pool: Pool, same: _Unchanging, batch: Batch, together: Array, tokens: Array) -> Array:
    """Norms, which every tp rank computes whole, the copies of tokens in the order of their experts, and recurrences
    over prompts, whose products in 16 bits are taken to reach the rate of attention (assumed)."""
    model, elements = pool.model, same.norm_bytes * tokens
    if same.has_experts:
        elements = elements + same.routed_bytes * together / pool.ep
    moved = model.hidden * elements
    if not same.scans:
        return np.asarray(moved / pool.memory_bw_bytes_per_s)
    scanned = batch.prompt_tokens / batch.prompt_groups / pool.tp
    moved = moved + model.scan_bytes * scanned
    return np.asarray(moved / pool.memory_bw_bytes_per_s + model.scan_flops * scanned / pool.attention_flops_per_s)
