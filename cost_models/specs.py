"""The shared vocabulary: what a model, a cluster and a workload are, in base SI units.

`profiles` fills these from files; the cost models and the planner read nothing else. All are frozen and hold
quantities only: efficiencies and fitted constants live in `rates.Rates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import log
from typing import Any, Literal

Precision = Literal["bf16", "fp16", "fp8", "fp32", "fp4"]
# Bytes of an element of a product's operands. fp4 with the scales of its blocks: a byte per 16 elements (NVFP4; MXFP4:
# per 32). Those of fp8 are fewer than one in 32 elements and left out.
OPERAND_BYTES: Mapping[str, float] = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp32": 4.0, "fp4": 0.5 + 1 / 16}
AttentionKernel = Literal["unfused", "triton", "flash1", "flash2", "flash3", "cudnn", "sdpa"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention of one layer: grouped-query (MHA and MQA included), or multi-head latent (MLA) with `kv_lora_rank`.

    head_dim is the width of a query or key head (MLA: nope + rope part), value_head_dim that of a value head.
    window: how many tokens a query sees at most (sliding window or chunk), None: all before it.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    norm_parameters: int = 0  # elements of query/key (and MLA latent) norms
    sink_parameters: int = 0  # learned attention sinks (gpt-oss: one per head)
    q_lora_rank: int | None = None  # MLA: rank of the query compression, None: direct projection
    kv_lora_rank: int | None = None  # MLA: rank of the key/value compression; set = this is MLA
    rope_head_dim: int = 0  # MLA: the part of head_dim that carries positions, shared by all heads in the key

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank is not None

    @property
    def suits_flash(self) -> bool:
        """torch's flash kernel takes it: check_head_dim_size_flash in its sdp_utils.cpp."""
        return self.head_dim == self.value_head_dim and self.head_dim % 8 == 0 and self.head_dim <= 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Dense feed-forward block: two matrices, or three when gated (SwiGLU, GeGLU)."""

    inner: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """Routed experts, `top_k` of `experts` per token, plus shared experts seen by every token (as one wide block).

    groups, top_groups: the experts are in `groups` groups of neighbours, and those of a token in `top_groups` of them
    (DeepSeek-V2, arXiv 2405.04434, 2.2.2); 1 of 1 is a free choice. Costs do not depend on the last three, what is
    computed does: a token's weights are the router's scores, where `router_normalised` over their sum, times the scale.
    capacity_factor: an expert gets this many times its even share of the tokens of each rank, (0, experts / top_k]:
    those with the largest weights, and any others with weight 0 where fewer chose it. None: as many as chose it.
    """

    experts: int
    top_k: int
    expert_inner: int
    gated: bool = True
    expert_bias: bool = False
    router_bias: bool = False
    shared_inner: int = 0
    shared_gate: bool = False  # qwen2_moe: a learned scalar gate (hidden elements) on the shared expert
    groups: int = 1
    top_groups: int = 1
    router_scores: Literal["softmax", "sigmoid"] = "softmax"
    router_normalised: bool = True
    router_scale: float = 1.0
    capacity_factor: float | None = None

    def capacity(self, tokens: Any) -> Any:
        """Tokens of an expert out of the `tokens` of a rank's micro-batch, a number or an array (Megatron Core,
        transformer/moe/moe_utils.py, get_capacity)."""
        share = tokens * self.top_k / self.experts * (self.capacity_factor or 1.0)
        return -(-share // 1)  # rounded up


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of decoder layer. num_norms counts norms of size hidden in the layer (2 pre-norm, 4 gemma-2, 1 gptj)."""

    attention: Attention
    feed_forward: FeedForward | MixtureOfExperts
    num_norms: int = 2
    norm_bias: bool = False

    @property
    def is_moe(self) -> bool:
        return isinstance(self.feed_forward, MixtureOfExperts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary positions are stretched beyond the length of the first training. Names and meaning are those of
    rope_parameters in config.json (transformers 5.23, modeling_rope_utils.py); a kind uses its own numbers only.

    dynamic: not up to max_positions, which no plan exceeds. longrope: its lists of factors, one a frequency, are not
    held. mscale, mscale_all_dim: 0 where they are not given.
    """

    kind: Literal["linear", "dynamic", "yarn", "longrope", "llama3"]
    factor: float
    original_max_positions: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    truncate: bool = True

    def __str__(self) -> str:
        first = f" from {self.original_max_positions}" if self.original_max_positions else ""
        return f"{self.kind} x{self.factor:g}{first}"

    @property
    def amplitude(self) -> float:
        """What cos and sin are multiplied by (YaRN, arXiv 2309.00071, section 3.4)."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._grown(self.mscale) / self._grown(self.mscale_all_dim)
        return self._grown(1.0)

    @property
    def latent_scale(self) -> float:
        """Of the scores of latent attention (DeepseekV3Attention in transformers)."""
        return self._grown(self.mscale_all_dim) ** 2 if self.kind == "yarn" and self.mscale_all_dim else 1.0

    def _grown(self, mscale: float) -> float:
        return 0.1 * mscale * log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder-only language model.

    `kinds` are the distinct layers, `pattern[i]` says which kind layer i is. `learned_positions` is the number of rows
    of a learned position table (0: RoPE or ALiBi). `embedding_dim` differs from hidden where the embedding is
    projected (opt-350m). `mtp_layers`: multi-token-prediction modules, counted apart from the layers.

    Costs do not depend on the last six, what is computed does. `activation`: silu, gelu, gelu_tanh, relu, relu2 or
    another name, of the gate where blocks are gated. `partial_rotary_factor`: the share of a head that is rotated (of
    the part that carries positions, in latent attention). `assumed`: which are defaults, not from the source.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    kinds: tuple[Layer, ...]
    pattern: tuple[int, ...]
    max_positions: int
    tied_embeddings: bool = False
    learned_positions: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    norm_bias: bool = False  # of the final and embedding norm
    head_bias: bool = False
    embedding_dim: int | None = None
    mtp_layers: int = 0
    dropout: bool = False  # trained with dropout on hidden states: saves one-byte masks
    source: str = ""
    rope_theta: float | None = 10_000.0  # base of the rotary positions; None: learned ones, or ALiBi
    norm_epsilon: float = 1e-5
    activation: str = "silu"
    rope_scaling: RopeScaling | None = None
    partial_rotary_factor: float = 1.0
    assumed: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.pattern)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the user should know of `assumed`: a sentence, or none."""
        values = ", ".join(f"{name} {getattr(self, name) or 'none'}" for name in self.assumed)
        return (f"assumed, since the model's config does not say: {values}",) if values else ()

    @property
    def trained_scaling(self) -> RopeScaling | None:
        """The scaling of sequences that the model has positions for: `dynamic` starts beyond them."""
        return None if self.rope_scaling is None or self.rope_scaling.kind == "dynamic" else self.rope_scaling

    @property
    def latent_scale(self) -> float:
        """What latent attention multiplies its scores by, beside the root of its width."""
        return 1.0 if self.rope_scaling is None else self.rope_scaling.latent_scale

    @property
    def capacity_factor(self) -> float | None:
        """That of its routed experts; None where they drop no token."""
        blocks = (kind.feed_forward for kind in self.kinds)
        return next((block.capacity_factor for block in blocks if isinstance(block, MixtureOfExperts)), None)

    @property
    def is_moe(self) -> bool:
        return any(kind.is_moe for kind in self.kinds)


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One accelerator, datasheet facts only. peak_flops_per_s: dense, per dtype; memory_bytes: what the driver shows.

    unconfirmed: names of fields whose value no stored source confirms; plan_only: no target runs on it (TPU, Trainium,
    Gaudi, Ascend). measured: of a device that no catalogue knows, what prices it, from `profile kernels`
    (profiles/measured_device.py); its peaks are then the best product that was measured.
    """

    name: str
    vendor: str
    arch: str
    peak_flops_per_s: Mapping[str, float]
    memory_bytes: float
    memory_bw_bytes_per_s: float
    link_bw_bytes_per_s: float  # to the other GPUs of its node, all links together, one direction
    pcie_bw_bytes_per_s: float  # to the host, one direction
    num_sms: int | None = None
    tdp_w: float | None = None
    plan_only: bool = False
    unconfirmed: tuple[str, ...] = ()
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def is_host(self) -> bool:
        """Whether its memory is that of the host: a CPU rank, the only kind of device that is measured so."""
        return bool(self.measured)


Topology = Literal["switch", "mesh", "torus", "pcie"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """One level of the bandwidth hierarchy, innermost first.

    size: GPUs joined at this level or below (8 for a node, 72 for an NVL72 rack, the whole cluster for the last).
    bw_bytes_per_s: per GPU, one direction, when all GPUs below use it at once. topology `mesh`: a group of n of the
    level's GPUs gets (n-1)/(size-1) of it, since each pair has a link of its own (MI300X); `switch`: all of it.
    shared_by: how many times faster one GPU sends while those that it shares its port with are silent; their messages
    go one after the other. 1: each has its own, or they share it packet by packet.
    """

    name: str
    size: int
    bw_bytes_per_s: float
    latency_s: float
    topology: Topology = "switch"
    kind: str = ""  # nvlink4, pcie5, ndr-ib, roce, efa, slingshot, ethernet, wan ...: selects the measured curves
    source: str = ""  # where bandwidth and latency come from
    shared_by: float = 1.0


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes that are alike. measured: constants of their GPUs and hosts that were measured on this cluster
    (profiles/device_files.py): gemm, attention, fused, reserve_share, context_bytes and others."""

    node: str
    gpu: GpuSpec
    num_nodes: int
    gpus_per_node: int
    host_memory_bytes: float | None = None
    host_memory_bw_bytes_per_s: float | None = None
    price_usd_per_node_hour: float | None = None
    unconfirmed: tuple[str, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class NodeLinks:
    """The network from node to node where it is not the same everywhere; nodes in the order of the groups.

    bw_bytes_per_s[i][j]: what node i sends to node j with all its NICs, one direction; the diagonal says nothing (0).
    """

    bw_bytes_per_s: tuple[tuple[float, ...], ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class Island:
    """Nodes that are alike and near one another: a group of nodes, or its part in one site. Nodes `first_node` to
    first_node + num_nodes - 1 of the cluster; levels: of these nodes alone."""

    name: str
    group: int  # index into ClusterSpec.groups
    first_node: int
    num_nodes: int
    levels: tuple[NetworkLevel, ...]


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """What joins two islands (`ends`, indices into ClusterSpec.islands). link: what one GPU may send over it, one
    direction, however few send; node_bytes_per_s: what the GPUs of a node share of it, gpus_per_node of them;
    trunk_bytes_per_s: what all that cross share. Where nothing is shared, more than any link has."""

    ends: tuple[int, int]
    link: NetworkLevel
    gpus_per_node: int
    node_bytes_per_s: float
    trunk_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Groups of nodes and the bandwidth hierarchy that joins them.

    Where groups or links differ, each level carries the weakest of their values, and `gpu` is the weakest GPU: a plan
    made so is safe on all of them, and the warnings of the plan say so. hosts: names of the nodes, () where none are
    given; links: only where nodes are not joined alike, and then the last level is the weakest of them. collectives:
    constants that were measured on this cluster: kind of level -> operation -> fields of collectives.OpRates. islands,
    bridges: where there are several groups or sites, each alone and what joins every two of them.
    """

    name: str
    groups: tuple[NodeGroup, ...]
    levels: tuple[NetworkLevel, ...]
    warnings: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    links: NodeLinks | None = None
    collectives: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    islands: tuple[Island, ...] = ()
    bridges: tuple[Bridge, ...] = ()

    @property
    def num_nodes(self) -> int:
        return sum(group.num_nodes for group in self.groups)

    @cached_property
    def num_gpus(self) -> int:
        return sum(group.num_gpus for group in self.groups)

    @cached_property
    def gpus_per_node(self) -> int:
        return min(group.gpus_per_node for group in self.groups)

    @cached_property
    def gpu(self) -> GpuSpec:
        """The GPU that limits a uniform plan: the least bf16 (else fp16, else any) peak, then the least memory."""
        return self._limiting.gpu

    @property
    def measured(self) -> Mapping[str, float]:
        """What was measured of that GPU and its hosts."""
        return self._limiting.measured

    @property
    def _limiting(self) -> NodeGroup:
        return min(self.groups, key=lambda group: (_peak(group.gpu.peak_flops_per_s), group.gpu.memory_bytes))

    @property
    def memory_bytes(self) -> float:
        return min(group.gpu.memory_bytes for group in self.groups)

    @property
    def usd_per_hour(self) -> float | None:
        prices = [g.price_usd_per_node_hour for g in self.groups]
        if any(price is None for price in prices):
            return None
        return sum(p * g.num_nodes for p, g in zip(prices, self.groups, strict=True) if p is not None)


def _peak(peaks: Mapping[str, float]) -> float:
    return max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0)) or max(peaks.values(), default=0.0)


OptimizerName = Literal["adamw", "adamw-bf16", "adamw-8bit", "sgd"]


LoraTarget = Literal["q", "k", "v", "o", "gate", "up", "down"]


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters of `rank` on the named projections; the base weights are frozen in `base_dtype`."""

    rank: int
    targets: tuple[str, ...]  # of LoraTarget
    base_dtype: Literal["bf16", "int8", "nf4"] = "bf16"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step.

    seq_len: tokens of the longest sequence (memory); mean_len and mean_square_len: E[s] and E[s^2] of the documents
    in tokens and tokens^2 (attention). packed: documents fill sequences of seq_len, else each is padded to it.
    trains_layers: how many of the last layers are trained (None: all; 0 only with lora). techniques: with their knobs
    (techniques/registry.py).
    """

    seq_len: int
    global_batch: int  # sequences
    precision: Precision = "bf16"
    optimizer: OptimizerName = "adamw"
    mean_len: float | None = None
    mean_square_len: float | None = None
    packed: bool = True
    lengths: tuple[tuple[int, float], ...] = ()  # histogram: (length, share of documents)
    lora: Lora | None = None
    trains_layers: int | None = None
    total_tokens: float | None = None
    objective: Literal["step", "cost", "memory"] = "step"
    max_memory_bytes: float | None = None
    kind: Literal["train"] = "train"
    techniques: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()

    @property
    def is_quantised(self) -> bool:
        """Operands of the layers' products are narrower than what is kept and sent between them."""
        return self.precision in ("fp8", "fp4")

    @property
    def operand_bytes(self) -> float:
        return OPERAND_BYTES[self.precision]

    @property
    def tokens_per_step(self) -> float:
        """Useful tokens per step: padding does not count."""
        if self.packed or self.mean_len is None:
            return float(self.seq_len * self.global_batch)
        return self.mean_len * self.global_batch

    @property
    def context_tokens(self) -> float:
        """Context that attention spans, tokens: E[s^2]/E[s] of packed documents; seq_len for one length or padding."""
        if self.mean_len is None or self.mean_square_len is None or not self.packed:
            return float(self.seq_len)
        return self.mean_square_len / self.mean_len


@dataclass(frozen=True, kw_only=True)
class StackSpec:
    """What the software that will run the plan can do (a file in profiles/stacks/, each value with its source).

    Overlap shares in [0, 1]: the part of that communication which hides behind compute that is really there. In square
    brackets: what is physically possible, for whoever fits these numbers.
    """

    name: str
    attention: AttentionKernel
    throughput: float  # rate of its kernels in a long run over what the device's efficiencies promise [0.5, 1.5]
    elementwise_traffic: float  # memory traffic of element-wise kernels over perfectly fused ones [1, 2]
    # One kernel each, which keeps nothing between; else a kernel per step, of which norms and positions take fp32.
    fused_norms: bool
    fused_positions: bool  # rotary ones
    fused_activation: bool  # gate, activation and product
    tp_overlap: float
    dp_overlap: float  # of the reduction of gradients
    dp_gather_overlap: float  # of gathering the weights that ZeRO-1 and 2 updated
    # How those weights travel: one all-gather, or one broadcast after another by every rank that updated some.
    dp_gather: Literal["all_gather", "broadcasts"]
    fsdp_overlap: float
    # Moved per parameter beside a collective of sharded states, unhidden: out of the gathered buffer into the weights
    # [0, 4]; out of the gradients, as they are computed, into the buffer to scatter, in the reduced dtype [0, 14].
    gather_copy_bytes: float
    scatter_copy_bytes: float
    # Training in fp8. Where a line does not say `fp8 alone`, fp4 training has it too.
    fp8_gather: bool  # sharded weights of layers are quantised before they are gathered (fp8 alone)
    cp_overlap: float
    ep_overlap: float
    offload_overlap: float  # of the compute beside them, what copies to the host may hide behind
    contention: float  # added per second that communication and compute run side by side [0, 0.4]
    gradient_bytes: int  # per parameter, as accumulated and reduced
    fused_accumulation: bool  # weight-gradient products add to the sum; else their result is written, read and added
    optimizer_extra_bytes: float  # moved per updated parameter beyond gradient, states and weight [0, 120]
    logit_bytes: float  # held per logit at the loss, all copies together
    loss_traffic_bytes: float  # moved per logit by softmax and cross entropy, both passes [8, 80]
    cast_bytes: float  # moved to quantise one element to fp8, in both layouts that products read [2, 8] (fp8 alone)
    caches_fp8_weights: bool  # weights are quantised once per step, not in every forward pass
    saves_fp8_inputs: bool  # what a product keeps for its backward pass is its quantised input
    kernels_per_layer: float  # launched per dense layer and forward pass, twice that backward [5, 60]
    kernels_per_expert_block: float  # more in a layer with experts: router, dispatch, combination [20, 200]
    kernels_per_expert: float  # and per expert of a rank: its products are launched one by one [0, 6]
    kernels_per_cast: float  # per product of operands that are quantised, and per expert [0, 6]
    kernels_per_projection: float  # that a projection split over tp costs the host beside its own [0, 100]
    host_s_per_kernel: float  # [1e-6, 80e-6]
    straggler_share: float  # added to a step per doubling of the GPUs above 8: all wait for the slowest [0, 0.02]
    nics_per_ring: float  # of a node that one ring uses, at most [1, 16]
    split_messages: bool  # ranks of tp without sequence parallelism each send 1/tp of a stage's message, and gather
    # How sharded states live through a step. zero: stage 2 gathers weights once per step, stages 2 and 3 scatter every
    # micro-batch. fsdp2: stage 2 gathers weights for every micro-batch; in a pipeline weights and gradients stay whole
    # from the first micro-batch to the last, so that stages 2 and 3 hold and move what stage 1 does. fsdp2-no-sync: as
    # fsdp2, and gradients stay whole over the micro-batches of a step without a pipeline too.
    sharded_states: Literal["zero", "fsdp2", "fsdp2-no-sync"]
    # Flat copies beside the states. deepspeed: buckets to reduce and gather, and of the gradients that a rank updates
    # one in their dtype and one in fp32; where the sums are fp32, the gradients of a micro-batch are whole beside them.
    flat_buffers: Literal["none", "deepspeed"]
    master_weights: bool  # fp32 copies and moments beside bf16 weights; else moments are as narrow as the weights
    split_logits: bool  # the loss takes a part of the vocabulary on each tp rank, and not all of it on all of them
    # What tensor parallelism splits. megatron: blocks, token table and head; a block's input is gathered once, and its
    # gradient reduced once. by-projection: every projection of a block reduces the gradient of its input by itself; the
    # token table is whole; so is the head without sequence parallelism, which there is not in a pipeline.
    tp_plan: Literal["megatron", "by-projection"]
    recompute_stops_early: bool  # a recomputed layer ends before its last product, whose result nothing needs
    cached_gradients: bool  # where products add to the sum by themselves, a gradient of every weight shape is kept
    # How tokens reach their experts. alltoall: one copy per expert. deduplicated: one per node, handed on inside it
    # (DeepEP, HybridEP), and summed there on the way back. deduplicated-fp8: and quantised before they leave where
    # training is in fp8, as are the gradients of what comes back.
    ep_dispatch: Literal["alltoall", "deduplicated", "deduplicated-fp8"]
    dropless: bool  # no token is dropped: the host reads how many each expert got, and waits for it in every layer
    moe_imbalance: float  # tokens of the busiest expert rank over the mean [1, 3]
    sources: Mapping[str, str] = field(default_factory=dict)
    saves_fp8_activations: bool = False  # what an activation function takes is kept in fp8
    # A token's weight for an expert multiplies what the activation puts out, so no output of the expert is kept for it.
    weighs_activations: bool = False
    # What is reduced at once after the last backward pass: buckets of many gradients; or those of every layer and end
    # of the model, and under tp, once more, those of weights that it does not split, which are summed over tp, too.
    reduces: Literal["buckets", "parts"] = "buckets"
    # Messages of other micro-batches that a stage of a pipeline holds buffers for, as it asks before it needs them.
    messages_ahead: int = 0
    step_reductions: int = 0  # numbers that all ranks sum up, one by one, once per step: norm of the gradient, loss

    @property
    def is_fsdp2(self) -> bool:
        return self.sharded_states != "zero"


def with_capacity(model: ModelSpec, factor: float | None) -> ModelSpec:
    """The model whose experts all have this capacity factor."""

    def one(kind: Layer) -> Layer:
        block = kind.feed_forward
        if not isinstance(block, MixtureOfExperts):
            return kind
        return replace(kind, feed_forward=replace(block, capacity_factor=factor))

    return replace(model, kinds=tuple(map(one, model.kinds)))


# Fields that came after the first plans, with the value at which they say nothing.
_SILENT = {"groups": 1, "top_groups": 1, "router_scores": "softmax", "router_normalised": True, "router_scale": 1.0,
           "capacity_factor": None, "partial_rotary_factor": 1.0, "saves_fp8_activations": False,
           "weighs_activations": False, "reduces": "buckets", "messages_ahead": 0, "step_reductions": 0}


def told(spec: ModelSpec | StackSpec) -> dict[str, Any]:
    """The fields of a model or stack as files hold them: without those that say nothing, which older files lack."""
    return asdict(spec, dict_factory=lambda pairs: {k: v for k, v in pairs if k not in _SILENT or v != _SILENT[k]})
