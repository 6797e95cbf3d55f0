"""Table 1: (layer kind x shard key) -> shapes, FLOPs, bytes and saved tensors of one micro-batch on one rank.

A shard key is the columns that shapes depend on (KEY_FIELDS). A search has thousands of keys however many million
layouts, so everything here is an array over keys, and efficiencies are looked up once per key, never per layout.
Quantities only: no bandwidth, no efficiency (`rates` turns these into seconds).

Symbols: T tokens of the rank's micro-batch after context parallelism (b*s/c), h hidden, a heads, g KV heads, d head
dim, f FFN inner size, t tensor-parallel ranks, w bytes per activation element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array
from ..specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from ..specs.stack import StackSpec
from ..specs.workload import Workload
from .element_bytes import activation_bytes, cast_bytes
from .operations import LAST, Core, Exchange, Gemm, LayerOperations, MemoryTraffic, Saved, Trains, tag
from .params import lora_shapes
from .shards import Shard


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds the operations of every layer kind for a batch of shard keys."""

    model: ModelSpec
    workload: Workload
    stack: StackSpec
    shard: Shard

    @property
    def kept_input(self) -> float:
        """Bytes per element that a product keeps of its input."""
        quantised = self.workload.is_quantised and self.stack.saves_fp8_inputs
        return self.workload.operand_bytes if quantised else activation_bytes(self.workload)

    def layer(self, kind: Layer, trains: Trains = "all") -> LayerOperations:
        """Operations of one decoder layer of `kind`."""
        lora = self.workload.lora if trains == "lora" else None
        adapted = frozenset(lora_shapes(self.model, kind, lora.targets)) if lora is not None else frozenset()
        ops = LayerOperations(name="moe layer" if kind.is_moe else "layer", trains=trains, adapted=adapted)
        shard, h, w = self.shard, self.model.hidden, activation_bytes(self.workload)
        ops.input_bytes = w * h * shard.sp_tokens
        ops.kernels = self.stack.kernels_per_layer
        self._norms(ops, kind)
        self._attention(ops, kind.attention)
        if isinstance(kind.feed_forward, MixtureOfExperts):
            self._experts(ops, kind.feed_forward)
        else:
            self._dense(ops, kind.feed_forward.inner, kind.feed_forward.gated)
        if self.model.dropout:  # two one-byte masks (after attention, after the feed-forward block)
            ops.saved.append(Saved("dropout masks", 2.0 * h * shard.sp_tokens))
            # The mask written; backward, a pass of its own over it and the gradient (torch native_dropout_backward).
            elements = 2.0 * h * shard.sp_tokens
            ops.traffic.append(MemoryTraffic("dropout", elements, (1 + 2 * w) * elements))
        projections = 4  # query, key, value; output
        self._tensor_parallel(ops, inputs=3)
        if isinstance(kind.feed_forward, FeedForward):
            inputs = 2 if kind.feed_forward.gated else 1
            self._tensor_parallel(ops, inputs=inputs, last=LAST)
            projections += inputs + 1
        ops.kernels = ops.kernels + np.where(shard.tp > 1, self.stack.kernels_per_projection * projections, 0.0)
        if self.workload.is_quantised:
            self._casts(ops)
        if trains == "lora" and self.workload.lora is not None:
            self._adapters(ops, kind)
        for exchange in ops.exchanges:
            if exchange.axis != "ep":  # those are among the kernels of the expert block
                ops.kernels = ops.kernels + np.where(exchange.num_bytes > 0, exchange.forward_calls, 0.0)
        return ops

    def _norms(self, ops: LayerOperations, kind: Layer) -> None:
        # Each block's norm keeps its input (the residual stream) and its output (the input of the next product).
        h, w, tokens = self.model.hidden, activation_bytes(self.workload), self.shard.sp_tokens
        down = kind.attention.is_mla  # key, value and mostly query come out of latents
        inputs = {"attention": () if kind.attention.q_lora_rank else ("q",) if down else ("q", "k", "v"),
                  "feed-forward": ("gate", "up")}  # fmt: skip
        for block, projections in inputs.items():
            ops.saved.append(Saved(f"{block} norm input", w * h * tokens))
            if self._norms_in_steps:  # fp32 input (4), what its weights multiply (w), but not its input (w)
                ops.saved.append(Saved(f"{block} norm steps", 4.0 * h * tokens, tag("norm")))
            if ops.keeps_input(*projections):
                ops.saved.append(Saved(f"{block} norm output", self.kept_input * h * tokens, tag("norm")))
            ops.waiting.append(self.kept_input * h * tokens)
        ops.traffic.append(self._norm("norms", kind.num_norms * h * tokens, tag("norm")))
        ops.traffic.append(MemoryTraffic("residuals", 2 * 3 * w * h * tokens, 2 * 2 * w * h * tokens))

    def _norm(self, name: str, elements: Array, tags: int = 0) -> MemoryTraffic:
        """RMS norms (others are one kernel in torch, too). One by one, torch's steps move, in bytes per element: cast,
        square 8, mean 4, scale 8, cast back, weights 2 w; backward: weights 6 w, cast, scale 24, mean 4, square 28, sum
        12, cast back (torchtitan, models/norms.py of 2024, `rmsnorm`; torch tools/autograd/derivatives.yaml)."""
        w, casts = activation_bytes(self.workload), self._fp32_casts
        if not self._norms_in_steps:
            return MemoryTraffic(name, 2 * w * elements, 4 * w * elements, tags)
        return MemoryTraffic(
            name, (casts + 20 + 2 * w) * elements, (casts + 68 + 6 * w) * elements, tags, fusable=False
        )

    @property
    def _norms_in_steps(self) -> bool:
        return not self.stack.fused_norms and not self.model.norm_bias

    @property
    def _fp32_casts(self) -> float:
        """Bytes per element to fp32 and back: torch makes no copy of what is fp32 already."""
        w = activation_bytes(self.workload)
        return 0.0 if w == 4 else 2 * (w + 4)

    def _attention(self, ops: LayerOperations, attention: Attention) -> None:
        shard, h, w = self.shard, self.model.hidden, activation_bytes(self.workload)
        tokens, a, d, dv = shard.tokens, attention.heads / shard.tp, attention.head_dim, attention.value_head_dim
        g = np.maximum(attention.kv_heads / shard.tp, 1.0)
        if attention.is_mla:
            self._latent_projections(ops, attention)
            g = a  # MLA decompresses keys and values for every head before the core
        else:
            self._gemm(ops, "qkv", tokens, a * d + g * (d + dv), h)
            ops.waiting.append(w * tokens * (a * d + g * (d + dv)))
        self._gemm(ops, "attention output", tokens, h, a * dv)
        ops.waiting += [self.kept_input * tokens * a * dv, w * h * shard.sp_tokens]
        context = self.context(attention)
        flops = 2.0 * tokens * a * (d + dv) * context / 2  # causal half of QK^T and PV
        ops.cores.append(Core(flops, context, d, tag("attn")))
        heads_bytes = w * tokens * (a * d + g * (d + dv))
        ops.saved.append(Saved("query, key, value", heads_bytes, tag("mla") if attention.is_mla else 0))
        if attention.norm_parameters and not attention.is_mla:
            # Norms of heads keep what goes in; what comes out, turned to its positions, is what attention keeps.
            ops.saved.append(Saved("input of query and key norms", w * tokens * (a + g) * d))
        out, projected = w * tokens * a * dv, ops.keeps_input("o")
        if projected:
            ops.saved.append(Saved("attention output", out))
        # The core keeps it as it made it: by heads. The product after it keeps what came back by tokens.
        apart = np.where(shard.ulysses > 1, out, 0.0) if projected else out
        ops.saved.append(Saved("attention output by heads", apart, tag("attn")))
        if self.kept_input < w and projected:  # the core keeps it too, as it made it
            ops.saved.append(Saved("quantised attention output", self.kept_input * tokens * a * dv))
        if not self.model.learned_positions:
            # Else cast to fp32, turned as complex numbers, cast back (torchtitan, apply_rotary_emb).
            per_element = 2 * w if self.stack.fused_positions else self._fp32_casts + 8
            moved = per_element * tokens * (a + g) * d
            ops.traffic.append(MemoryTraffic("positions", moved, moved, fusable=self.stack.fused_positions))
        if self.stack.attention == "unfused":
            self._scores(ops, tokens * a)
            # Heads come one after another and are put side by side.
            ops.traffic.append(MemoryTraffic("heads joined", 2 * w * tokens * a * dv, 2 * w * tokens * a * dv))
        else:
            ops.saved.append(Saved("log-sum-exp", 4.0 * tokens * a, tag("attn")))
        self._context_parallel(ops, a * d, g * d, g * dv)

    def _scores(self, ops: LayerOperations, rows: Array) -> None:
        """Unfused attention, one row per query and head: the whole square is materialised. Kept: softmax output (w),
        dropout mask (1) and dropout output (w), 5*a*s/h of Korthikanti. The softmax itself is in the surface."""
        w, scores = activation_bytes(self.workload), rows * self.workload.seq_len
        ops.saved.append(Saved("attention scores", ((2 * w + 1) if self.model.dropout else w) * scores, tag("attn")))
        if self.model.dropout:  # read, written, and the mask; the same of the gradient
            ops.traffic.append(
                MemoryTraffic("score dropout", (2 * w + 1) * scores, (2 * w + 1) * scores, tag("attn"), False)
            )

    def _latent_projections(self, ops: LayerOperations, attention: Attention) -> None:
        """MLA: the down projections are replicated over tp, the up projections split by heads."""
        shard, h, w = self.shard, self.model.hidden, activation_bytes(self.workload)
        a, rank, rope = attention.heads / shard.tp, attention.kv_lora_rank or 0, attention.rope_head_dim
        latent = rank + rope
        ops.waiting.append(w * shard.tokens * a * attention.head_dim)
        if attention.q_lora_rank:
            ops.waiting.append(2 * w * shard.sp_tokens * attention.q_lora_rank)
            self._gemm(ops, "query down", shard.sp_tokens, attention.q_lora_rank, h)
            self._gemm(ops, "query up", shard.tokens, a * attention.head_dim, attention.q_lora_rank, tag("mla"))
            latent += attention.q_lora_rank
        else:
            self._gemm(ops, "query", shard.tokens, a * attention.head_dim, h, tag("mla"))
        nope_and_value = attention.head_dim - rope + attention.value_head_dim
        ops.waiting += [w * shard.sp_tokens * (2 * rank + rope), w * shard.tokens * a * nope_and_value]
        self._gemm(ops, "key-value down", shard.sp_tokens, rank + rope, h)
        self._gemm(ops, "key-value up", shard.tokens, a * nope_and_value, rank, tag("mla"))
        ops.saved.append(Saved("latent", w * shard.sp_tokens * latent))
        inputs = {("q",): attention.q_lora_rank or 0, ("k", "v"): rank + rope}  # of the up projections: normed latents
        normed = sum(width for names, width in inputs.items() if ops.keeps_input(*names))
        ops.saved.append(Saved("latent norm output", w * shard.sp_tokens * normed))

    def context(self, attention: Attention) -> float:
        """Mean causal span in tokens: a query sees half of it. A window W of a long context C counts 2W - W^2/C."""
        full = self.workload.context_tokens
        if attention.window is None or attention.window >= full:
            return full
        return 2 * attention.window - attention.window**2 / full

    def _context_parallel(self, ops: LayerOperations, q_width: Array, k_width: Array, v_width: Array) -> None:
        """Ring: KV travels c-1 hops, again with its gradient; all-gather: KV out, gradients back; Ulysses: A2A of
        queries, keys and values, and of what comes out."""
        shard, w = self.shard, activation_bytes(self.workload)
        kv = w * shard.tokens * (k_width + v_width)
        ring = np.where(shard.allgather, 1.0, shard.ring)
        if (ring > 1).any():
            hops, stride = ring - 1, shard.tp * shard.ulysses
            sent = np.where(ring > 1, kv, 0.0)
            ops.exchanges.append(Exchange("cp", "p2p", sent, ring, stride, hops, 2 * hops, tag("attn")))
        gathered = np.where(shard.allgather, shard.cp, 1.0)
        if (gathered > 1).any():
            full = np.where(gathered > 1, kv * shard.cp, 0.0)
            ops.exchanges.append(Exchange("cp", "all_gather", full, gathered, shard.tp, 1, 1, tag("attn")))
            ops.exchanges.append(Exchange("cp", "reduce_scatter", full, gathered, shard.tp, 0, 1))
        if (shard.ulysses > 1).any():
            out = q_width * (v_width / k_width)
            # Recomputed attention that stops with the last tensor that it needs does not send its output again.
            again = 0 if self.stack.recompute_stops_early else tag("attn")
            for width, tags in ((q_width + k_width + v_width, tag("attn")), (out, again)):
                heads = np.where(shard.ulysses > 1, w * shard.tokens * width, 0.0)
                ops.exchanges.append(Exchange("cp", "all_to_all", heads, shard.ulysses, shard.tp, 1, 1, tags))

    def _dense(self, ops: LayerOperations, inner: float, gated: bool) -> None:
        shard, h, w = self.shard, self.model.hidden, activation_bytes(self.workload)
        f, tokens = inner / shard.tp, shard.tokens
        self._gemm(ops, "up", tokens, f * (2 if gated else 1), h)
        self._gemm(ops, "down", tokens, h, f, LAST)
        ops.waiting.append((w * (2 if gated else 1) + self.kept_input) * tokens * f + w * h * shard.sp_tokens)
        self._activation(ops, tokens * f, gated, tag("act"), w, ops.keeps_input("down"))

    def _activation(
        self, ops: LayerOperations, elements: Array, gated: bool, tags: int, w: float, keeps_output: bool
    ) -> None:
        parts = 2 if gated else 1
        # The inputs of the activation go with an expert block that is recomputed as a whole, not with `act` alone.
        outer = tags & ~tag("act")
        kept = 1.0 if self.stack.saves_fp8_activations and self.workload.is_quantised else w
        ops.saved.append(Saved("activation input", parts * kept * elements, outer))
        if keeps_output:
            ops.saved.append(Saved("activation output", self.kept_input * elements, tags))
        else:
            ops.unkept_output = np.maximum(ops.unkept_output, w * elements)
        passes, fused = (parts + 1, 2 * parts + 1), not gated or self.stack.fused_activation
        if not fused:  # activation 2 and product 3; backward: two products 3 each, activation 3
            ops.saved.append(Saved("activation of the gate", w * elements, tags))
            passes = (5, 9)
        forward, backward = (number * w * elements for number in passes)
        ops.traffic.append(MemoryTraffic("activation", forward, backward, tags, fusable=fused))

    def _experts(self, ops: LayerOperations, block: MixtureOfExperts) -> None:
        shard, h, w = self.shard, self.model.hidden, activation_bytes(self.workload)
        load = np.where(shard.ep > 1, self.stack.moe_imbalance, 1.0)  # a rank with all experts gets every token
        local = shard.sp_tokens  # with tp > 1, experts need sequence parallelism: each rank routes its own tokens
        routed = block.top_k * local * load  # tokens that arrive at a rank of the expert group
        if block.capacity_factor is not None:
            routed = block.experts * block.capacity(local)
        rows = routed * shard.etp  # gathered over expert-tensor ranks
        num_local = block.experts / shard.ep
        inner = block.expert_inner / shard.etp
        parts, moe = (2 if block.gated else 1), tag("moe")
        self._gemm(ops, "router", local, float(block.experts), h, wide=True)
        self._gemm(ops, "experts up", rows / num_local, inner * parts, h, moe, count=num_local)
        self._gemm(ops, "experts down", rows / num_local, h, inner, moe, count=num_local)
        ops.waiting.append((w * parts + self.kept_input) * rows * inner + (w + self.kept_input) * rows * h)
        ops.waiting.append(w * local * block.experts)
        self._activation(ops, rows * inner, block.gated, tag("act", "moe"), w, ops.keeps_input())
        if ops.keeps_input():
            ops.saved.append(Saved("dispatched tokens", self.kept_input * rows * h, moe))
        if not self.stack.weighs_activations:
            ops.saved.append(Saved("expert outputs", w * routed * h, moe))
        ops.saved.append(Saved("router", 4.0 * local * block.experts))
        ops.traffic.append(MemoryTraffic("permute", 4 * w * routed * h, 4 * w * routed * h, moe))
        ops.kernels = ops.kernels + self.stack.kernels_per_expert_block + self.stack.kernels_per_expert * num_local
        ops.host_waits = self.stack.dropless and block.capacity_factor is None
        self._all_to_alls(ops, block, np.where(shard.ep > 1, routed * h, 0.0))
        if (shard.etp > 1).any():
            full = np.where(shard.etp > 1, w * rows * h, 0.0)
            ops.exchanges.append(Exchange("ep", "all_gather", full, shard.etp, np.ones_like(full), 1, 1, moe))
            ops.exchanges.append(Exchange("ep", "reduce_scatter", full, shard.etp, np.ones_like(full), 1, 1, moe))
        if block.shared_inner:
            self._dense(ops, float(block.shared_inner), block.gated)
            self._tensor_parallel(ops)

    def _all_to_alls(self, ops: LayerOperations, block: MixtureOfExperts, elements: Array) -> None:
        """Tokens to their experts and back, their gradients likewise: `elements` of a rank each time."""
        shard, w, moe, dispatch = self.shard, activation_bytes(self.workload), tag("moe"), self.stack.ep_dispatch
        once_per_node = dispatch.startswith("deduplicated")
        groups = (block.groups, block.top_groups)
        reach = (float(block.top_k), groups) if once_per_node else (1.0, (1, 1))
        quantised = dispatch.endswith("fp8") and self.workload.is_quantised
        for num_bytes, calls in ((1.0, 1), (w, 1)) if quantised else ((w, 2),):
            sent = num_bytes * elements
            ops.exchanges.append(Exchange("ep", "all_to_all", sent, shard.ep, shard.etp, calls, calls, moe, *reach))

    def _tensor_parallel(
        self, ops: LayerOperations, blocks: Array | float = 1, *, inputs: int = 1, last: int = 0
    ) -> None:
        """Per block: all-gather and reduce-scatter with sequence parallelism, else an all-reduce; same backward, where
        each of `inputs` projections may reduce its part of the gradient by itself."""
        shard = self.shard
        full = np.where(shard.tp > 1, activation_bytes(self.workload) * self.model.hidden * shard.tokens, 0.0)
        with_sp, without = np.where(shard.sp > 0, full, 0.0), np.where(shard.sp > 0, 0.0, full)
        one = np.ones_like(full)
        ops.exchanges.append(Exchange("tp", "all_gather", with_sp, shard.tp, one, blocks, blocks))
        back = blocks * (inputs if self.stack.tp_plan == "by-projection" else 1)
        ops.exchanges.append(Exchange("tp", "reduce_scatter", with_sp, shard.tp, one, blocks, back, last))
        ops.exchanges.append(Exchange("tp", "all_reduce", without, shard.tp, one, blocks, back, last))

    def _casts(self, ops: LayerOperations) -> None:
        """The operands of a product are quantised, and the gradient of its output; weights once per step (step.py) or
        in every forward pass."""
        stack, moved = self.stack, cast_bytes(self.workload, self.stack)
        for gemm in [g for g in ops.gemms if not g.wide]:
            weights = 0.0 if stack.caches_fp8_weights else gemm.n * gemm.k
            forward = moved * gemm.count * (gemm.m * gemm.k + weights)
            backward = moved * gemm.count * gemm.m * gemm.n
            ops.traffic.append(MemoryTraffic(f"casts of {gemm.name}", forward, backward, gemm.tag, fusable=False))
            ops.kernels = ops.kernels + self.stack.kernels_per_cast * gemm.count

    def _adapters(self, ops: LayerOperations, kind: Layer) -> None:
        """LoRA: two thin products beside each targeted projection, of which the second keeps its input, too."""
        lora, shard, w = self.workload.lora, self.shard, activation_bytes(self.workload)
        if lora is None:
            return
        ones = np.ones_like(shard.tokens)
        rank = lora.rank * ones
        ops.waiting.clear()  # of weights that are frozen
        for name, (inputs, outputs, splits_outputs) in lora_shapes(self.model, kind, lora.targets).items():
            width_in = inputs * ones / (1.0 if splits_outputs else shard.tp)
            width_out = outputs * ones / (shard.tp if splits_outputs else 1.0)
            ops.gemms.append(Gemm(f"adapter in {name}", shard.tokens, rank, width_in, ones, wide=True))
            ops.gemms.append(Gemm(f"adapter out {name}", shard.tokens, width_out, rank, ones, wide=True))
            ops.saved.append(Saved(f"adapter {name}", w * shard.tokens * lora.rank))
            # A rank keeps its part of what all have: the input of a product split by outputs, the gradient of one
            # split by inputs.
            whole, part = (outputs, inputs) if splits_outputs else (inputs, outputs)
            ops.waiting.append(w * (shard.tokens * whole / shard.tp + shard.sp_tokens * part))
            ops.waiting.append(2 * w * shard.tokens * lora.rank)
        dequantised = {"bf16": 0.0, "int8": 3.0, "nf4": 2.5}[lora.base_dtype]  # read packed, write bf16
        if dequantised:
            elements = sum(g.count * g.n * g.k for g in ops.gemms if not g.name.startswith("adapter"))
            moved = dequantised * np.asarray(elements)
            ops.traffic.append(MemoryTraffic("dequantisation", moved, moved, fusable=False))

    def embedding(self, trains: Trains = "all") -> LayerOperations:
        """Token lookup: memory-bound; its gradient is a scatter-add."""
        moved = 2 * activation_bytes(self.workload) * self.model.hidden * self.shard.tokens
        ops = LayerOperations(name="embedding", trains=trains, kernels=3.0)
        ops.traffic.append(MemoryTraffic("embedding", moved, 2 * moved))
        if self.model.dropout:
            ops.saved.append(Saved("dropout mask", self.model.hidden * self.shard.sp_tokens))
        return ops

    def head(self, trains: Trains = "all") -> LayerOperations:
        """Final norm, output projection and loss, vocabulary split over tp. The logits are a buffer of their own."""
        ops = LayerOperations(name="head", trains=trains, kernels=10.0)
        self._head(ops)
        return ops

    def _head(self, ops: LayerOperations) -> None:
        shard, h, w = self.shard, self.model.hidden, activation_bytes(self.workload)
        parts = shard.head_parts(self.stack)
        self._gemm(ops, "head", shard.tokens, self.model.vocab / parts, h, wide=True)
        whole = shard.tokens * self.model.vocab
        logits, half = whole / shard.loss_parts(self.stack), self.stack.loss_traffic_bytes / 2
        ops.traffic.append(MemoryTraffic("loss", half * logits, half * logits, fusable=False))
        if not self.stack.split_logits:  # made in parts, but the loss takes them whole
            joined = np.where(parts > 1, w * whole, 0.0)
            ops.exchanges.append(Exchange("tp", "all_gather", joined, shard.tp, np.ones_like(whole), 1, 0))
        steps = 4.0 if self._norms_in_steps else 0.0
        ops.saved.append(Saved("final norm", ((1 + ops.keeps_input()) * w + steps) * h * shard.sp_tokens))
        ops.traffic.append(self._norm("final norm", h * shard.sp_tokens))
        self._tensor_parallel(ops, np.minimum(parts - 1, 1.0))

    def mtp(self, trains: Trains = "all") -> LayerOperations:
        """An MTP module beside its layer: two norms, a 2h -> h product, another run of the head (DeepSeek-V3, 2.2)."""
        shard, h, w = self.shard, self.model.hidden, activation_bytes(self.workload)
        ops = LayerOperations(name="mtp", trains=trains, kernels=16.0)
        self._gemm(ops, "mtp projection", shard.sp_tokens, float(h), 2.0 * h, wide=True)
        ops.saved.append(Saved("mtp input", (2 + 2 * ops.keeps_input()) * w * h * shard.sp_tokens))
        self._head(ops)
        return ops

    def _gemm(
        self, ops: LayerOperations, name: str, m: Array, n: Array | float, k: Array | float, tags: int = 0,
        count: Array | float = 1.0, wide: bool = False,
    ) -> None:  # fmt: skip
        shape = self.shard.tokens.shape
        rows, columns, depth, times = (
            np.broadcast_to(np.asarray(x, dtype=np.float64), shape) for x in (m, n, k, count)
        )
        trained = ops.trains == "all"
        ops.gemms.append(Gemm(name, rows, columns, depth, times, tag=tags, has_wgrad=trained, wide=wide))
