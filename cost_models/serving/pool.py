"""A pool of equal engine instances, one pool per row: its model, layout, precision and rates as columns [n]."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from ..arrays import Array, Ints
from ..rates.collectives import Curve
from .methods import PLAIN, Methods
from .seen_images import SeenImages
from .served_model import ServedModel

# Share of device memory that an engine takes for weights, activations and cache: --gpu-memory-utilization of vLLM
# 0.32 (default 0.92, 0.9 before 0.17); free_gpu_memory_fraction of TensorRT-LLM 1.2 (0.9 of what weights leave).
MEMORY_SHARE = 0.9
# Beside weights and cache: activations of the largest batch, CUDA graphs, communication buffers (assumed).
WORKING_BYTES = 4 * 2**30
# Tokens of a block of the cache, which is shared as a whole: the default of vLLM 0.32 (--block-size).
BLOCK_TOKENS = 16
HOST_KERNELS = 1000.0  # launched on prompts, by which the host seconds of an engine's release are stated
ACTIVATION_BYTES = 2.0  # of an element of hidden states


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Columns [n]. An instance is tp x attention_dp x pp GPUs. Compared by identity, as caches of its terms do."""

    model: ServedModel
    draft: ServedModel  # proposes tokens, on the same GPUs as the model; `ServedModel.none` without speculation
    draft_tokens: Array  # proposed for each sequence and iteration; 0: no speculation
    step_tokens: Array  # of an answer that an iteration gives a sequence, mean: accepted ones and that of the model
    tp: Array  # ranks that split attention and dense blocks
    attention_dp: Array  # groups of tp ranks with sequences of their own, which share the experts
    pp: Array  # stages
    ep: Array  # ranks that share the experts of a stage; the other tp x attention_dp / ep split each expert
    instances: Array  # of the pool
    weight_bytes: Array  # per parameter of dense blocks
    expert_bytes: Array  # per parameter of routed experts
    kv_bytes: Array  # per element of the cache
    kv_read_bytes: Array  # the same as its reading takes time: not less than of bf16 where kernels convert
    flops_per_s: Array  # of products, in the format of the activations, as fitted to measured products
    dense_flops_per_s: Array  # of those of dense blocks, which may have another format than routed experts
    attention_flops_per_s: Array  # of the attention kernel
    memory_bw_bytes_per_s: Array  # bytes/s that large products of a training step read at
    memory_bytes: Array  # of a GPU
    all_reduce: Curve  # over tp
    in_node: Array  # 1: tp is within a node
    own_sum_bytes: Array  # of the largest all-reduce over tp that a kernel of the engine makes; NCCL makes larger ones
    all_to_all: Curve  # over tp x attention_dp
    all_gather: Curve  # over tp
    p2p: Curve  # from stage to stage, the slowest way
    host_s: Array  # of an iteration that takes prompts, whose kernels the host launches one by one
    launch_s: Array  # of the host, in which it launches the kernels of any iteration one by one; 0: CUDA graphs
    chunk_tokens: Array  # prompt tokens of an iteration at most
    largest_batch: Array  # tokens of an iteration for which the engine leaves room where no option states them
    max_sequences: Array  # of a group of tp ranks, by the engine's options
    mixes_prompts: Array  # 1: prompts are prefilled beside sequences that decode; 0: decoding stops for them
    decodes_first: Array  # 1: disaggregated, instances that decode also make the first token; 0: those that prefill do
    reserved_output: Array  # share of an answer that a sequence needs room for when it starts
    int4_flops_per_s: Array  # of products of 4-bit integers, as those of `flops_per_s`; 0: the GPU has none
    host_bw_bytes_per_s: Array  # of a GPU to the memory of its host, one direction
    methods: Methods = PLAIN
    images: SeenImages | None = None  # of a request; None: text alone

    def hosted(self, host_s: Array) -> Pool:
        """The pool on hosts that take so many seconds [n] of an iteration with prompts per `HOST_KERNELS`."""
        return replace(self, host_s=host_s * self.model.kernels / HOST_KERNELS)

    def rows(self, index: Ints, instances: Array) -> Pool:
        """The rows `index` [m], with so many instances each [m]."""
        taken = {name: getattr(self, name)[index] for name in _COLUMNS}
        model, draft = self.model.rows(index), self.draft.rows(index)
        curves = {name: getattr(self, name).rows(index) for name in _CURVES}
        return replace(self, **{**taken, **curves, "model": model, "draft": draft, "instances": instances})

    @cached_property
    def stage_gpus(self) -> Array:
        """[n] GPUs of a stage of an instance."""
        return self.tp * self.attention_dp

    @property
    def gpus(self) -> Array:
        """[n] GPUs of all instances."""
        return self.stage_gpus * self.pp * self.instances

    @cached_property
    def kv_split(self) -> Array:
        """[n] parts of the cache over the tp ranks: heads are copied where there are fewer than ranks."""
        return np.minimum(self.tp, self.model.kv_heads)

    @property
    def stage_shares(self) -> Array:
        """[stage, n] of all layers, those of each stage of `stage_layers`. Layers count as equal ones."""
        return stage_layers(self.model.layers, self.pp) / np.maximum(self.model.layers, 1.0)

    @property
    def fullest_share(self) -> Array:
        """[n] of all layers, those of the stage with most."""
        return np.asarray(self.stage_shares.max(axis=0))

    @property
    def weights_bytes(self) -> Array:
        """[n] of a GPU of the fullest stage."""
        return np.asarray(self._stage_weights_bytes.max(axis=0))

    @property
    def _stage_weights_bytes(self) -> Array:
        """[stage, n] of a GPU: dense blocks (but `whole_parameters`), token table and head split over tp, experts over
        all GPUs of a stage; the same of the draft. The table is on the first stage and the head on the last, which
        holds a table again that is tied. Of layers that are read from a disk those of the window alone. A vision tower
        has 16 bits, and is on the first stage."""
        methods, none = self.methods, np.zeros_like(self.tp)
        layers = both = end = none
        for model in (self.model, self.draft)[: 1 if methods.draft_elsewhere else 2]:
            whole = methods.whole_heads or methods.patches
            size = methods.head_bytes * model.head_parameters / (1.0 if whole else self.tp)
            both, end = both + model.tables * size, end + (model.tables > 0) * size
            layers = layers + self._layers_bytes(model)
        if methods.window_layers:
            layers = layers * np.minimum(methods.window_layers / self.model.layers, 1.0)
        tower = 0.0 if self.images is None else ACTIVATION_BYTES * self.images.parameters / self.tp
        ends = np.where(self.pp > 1, end, both)
        return np.asarray(layers * self.stage_shares + np.array([ends + tower, none, ends]))

    def _layers_bytes(self, model: ServedModel) -> Array:
        """The part of a rank in the layers of all stages."""
        ranks = np.ones_like(self.tp) if self.methods.patches else self.tp
        dense = model.dense_of_rank(ranks) + model.still_parameters / ranks
        experts = model.expert_parameters * self.expert_bytes / self.stage_gpus
        return np.asarray(dense * self.weight_bytes + experts)

    @property
    def streamed_bytes(self) -> Array:
        """[n] of a GPU, read from its disk in an iteration."""
        return np.where(self.methods.window_layers < self.model.layers, self._layers_bytes(self.model) / self.pp, 0.0)

    @cached_property
    def drafts(self) -> bool:
        """Whether a model proposes the tokens that are verified."""
        return bool(self.draft.layers.any() and self.draft_tokens.any())

    @cached_property
    def grouped(self) -> bool:
        """Whether instances have several groups of attention data parallelism."""
        return bool((self.attention_dp > 1).any())

    @cached_property
    def staged(self) -> bool:
        """Whether instances are pipelines."""
        return bool((self.pp > 1).any())

    @property
    def drafting(self) -> Pool:
        """The draft as a pool of its own."""
        none = np.zeros_like(self.tp)
        return replace(self, model=self.draft, draft=self.draft, draft_tokens=none, step_tokens=none + 1.0, images=None)

    def kv_elements(self, tokens: Array) -> Array:
        """[n] of a sequence of so many tokens, all layers and those of a draft, on one of the ranks that split its
        cache."""
        own, draft = (model.kv_elements * tokens + model.window_kv_elements * np.minimum(tokens, model.window)
                      for model in (self.model, self.draft))  # fmt: skip
        draft = draft * (not self.methods.draft_elsewhere)
        return np.asarray(own / self.kv_split + draft / np.minimum(self.tp, self.draft.kv_heads))

    @property
    def state_bytes(self) -> Array:
        """[n] of a sequence on a rank, those of a draft too: recurrences keep the state before each token that is to be
        verified (vLLM 0.32, MambaSpec.num_speculative_blocks)."""
        draft = self.draft.state_bytes * (not self.methods.draft_elsewhere)
        return np.asarray((self.model.state_bytes * (1.0 + self.draft_tokens) + draft) / self.tp)

    def sequence_bytes(self, tokens: Array) -> Array:
        """[n] of the cache of a sequence of so many tokens on a rank, all layers."""
        return np.asarray(self.kv_bytes * self.kv_elements(tokens) + self._beside_bytes * tokens + self.state_bytes)

    @property
    def _beside_bytes(self) -> Array:
        """[n] per token on a rank: keys of indexes, and what latents in fp8 of layers with one have beside elements."""
        model = self.model
        return np.asarray(model.index_bytes + np.where(self.kv_bytes < ACTIVATION_BYTES, model.chosen_fp8_bytes, 0.0))

    @property
    def cache_bytes(self) -> Array:
        """[n] of a GPU that weights and buffers leave."""
        return np.asarray(self.memory_bytes * MEMORY_SHARE - self.weights_bytes - self.working_bytes)

    @property
    def room_bytes(self) -> Array:
        """[n] bytes that caches of all layers may have, on a GPU of each stage: the stage with least room for its share
        of them gives as many blocks to all (vLLM 0.32, get_kv_cache_configs)."""
        room = self.memory_bytes * MEMORY_SHARE - self._stage_weights_bytes - self.working_bytes
        shares = self.stage_shares
        held = np.maximum(room, 0.0) / np.where(shares > 0, shares, 1.0)
        return np.asarray(np.where(shares > 0, held, np.inf).min(axis=0))

    @property
    def working_bytes(self) -> Array | float:
        """[n] of a GPU, beside weights and cache; of models that fill in without activations, which `held_bytes`
        has."""
        if not self.methods.fills:
            return WORKING_BYTES
        activations = ACTIVATION_BYTES * (self.model.hidden + self._block_elements) * self.largest_batch
        return np.maximum(WORKING_BYTES - activations, 0.0)

    @property
    def _block_elements(self) -> Array:
        """[n] of a token on a rank: the input of a block of a layer, with the most that the block makes of it."""
        ranks = np.ones_like(self.tp) if self.methods.patches else self.tp
        return np.asarray(self.model.hidden + self.model.block_elements / ranks)

    def roomier(self, more: float) -> Pool:
        """The pool with so much more of the bytes that weights and buffers leave, as a share of them."""
        return replace(self, memory_bytes=self.memory_bytes + more * self.cache_bytes / MEMORY_SHARE)

    def prefix_bytes(self, prompt: Array, prefix_hit: Array | float) -> Array:
        """[n] bytes of the whole blocks of a shared prefix on a rank that splits it, in layers that cache all
        tokens."""
        tokens = np.floor(prompt * prefix_hit / BLOCK_TOKENS) * BLOCK_TOKENS
        return np.asarray((self.kv_bytes * self.model.kv_elements / self.kv_split + self._beside_bytes) * tokens)

    def first_tokens(self, output: Array) -> Array:
        """[n] tokens of an answer that come first, together: one, of models that fill in a block or all of them."""
        methods = self.methods
        if not methods.fills:
            return np.ones_like(output)
        return np.minimum(methods.block_tokens, output) if methods.block_tokens else output

    def first_passes(self, output: Array) -> Array:
        """[n] of a model that fills in, until those."""
        return np.asarray(self.methods.frames * self.first_tokens(output) / self.given_tokens(output))

    def given_tokens(self, output: Array) -> Array:
        """[n] of an answer that an iteration gives; a model that fills in gives no more than the answer."""
        return np.minimum(self.step_tokens, output) if self.methods.fills else self.step_tokens

    def held_bytes(self, prompt: Array, output: Array) -> Array:
        """[n] bytes of a request on a GPU, of all layers: the cache of its sequence, or all that a pass over its
        tokens holds, where the model fills them in."""
        if self.methods.fills:
            return self._pass_bytes(prompt + output)
        return self.sequence_bytes(prompt + self.reserved_output * output)

    def _pass_bytes(self, tokens: Array) -> Array:
        """Bytes of each copy of a sequence in a pass: the hidden state of its tokens, and the input of a block of a
        layer with the most that the block makes of it, or the logits of all tokens. Logits in 16 bits are assumed:
        LLaDA's published code samples in float64. Between passes only caches stay: of all tokens where a pass runs over
        a block of the answer, and in patches the keys and values of all layers that the next pass reads (DistriFusion,
        arXiv 2402.19481, section 4.2)."""
        model, methods = self.model, self.methods
        ranks = np.ones_like(self.tp) if methods.patches else self.tp
        logits = model.head_parameters / np.maximum(model.hidden, 1.0) / ranks
        worked = model.hidden + np.maximum(self._block_elements, logits)
        cached = self.kv_bytes * self.kv_elements(tokens) if methods.block_tokens else np.zeros_like(tokens)
        if methods.patches:
            seen = tokens * (1.0 + methods.patch_context * (self.tp - 1.0)) / self.tp
            tokens, cached = tokens / self.tp, ACTIVATION_BYTES * model.kv_elements * seen
        return np.asarray(methods.copies * (ACTIVATION_BYTES * worked * tokens + cached))

    def capacity(
        self, prompt: Array, output: Array, prefix_hit: Array | float = 0.0, prefixes: Array | float = 0.0
    ) -> Array:  # fmt: skip
        """[n] sequences that an instance has room for; 0 where the weights leave none. prompt, output: tokens of those
        that decode at a time, when their answers are whole. prefix_hit: share of the prompt in blocks that lie in the
        cache once for all sequences; prefixes: how many different ones are kept there. Windows share nothing."""
        shared = self.prefix_bytes(prompt, prefix_hit)
        room = self.room_bytes - prefixes * shared
        held = np.floor(np.maximum(room, 0.0) / (self.held_bytes(prompt, output) - shared))
        groups = 1.0 if self.methods.context_everywhere else self.attention_dp
        return np.asarray(np.minimum(held, self.max_sequences * self.attention_dp / groups) * groups)

    def swap_s(self, tokens: Array) -> Array:
        """[n] seconds in which the cache of a request of so many tokens leaves the GPU and comes back, for all of its
        swaps: its bytes at the rate of the link, and the start of every copy."""
        copied = self.sequence_bytes(tokens) * self.fullest_share
        once = copied / self.host_bw_bytes_per_s + copied / self.methods.swap_copy_bytes * self.methods.swap_copy_s
        return np.asarray(2.0 * self.methods.swaps * once)


def stage_layers(layers: Array, pp: Array) -> Array:
    """[stage, n] layers of the first of `pp` stages, of the fullest one between (0: there is none) and of the last.
    Layers that are left where all have equally many go to the stages before the last one, from behind, and to the first
    one only where every other has one (vLLM 0.32, get_pp_indices)."""
    even = np.floor(layers / pp)
    left = layers - even * pp
    first = even + (pp > 1) * (left == pp - 1)
    return np.array([first, np.where(pp > 2, even + (left > 0), 0.0), even])


_COLUMNS = [field.name for field in fields(Pool) if field.type == "Array"]
_CURVES = [field.name for field in fields(Pool) if field.type == "Curve"]
