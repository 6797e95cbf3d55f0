"""The specification of a model: its layers, their parts and its vocabulary. Quantities only, in base SI units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from .diffusion import Diffusion, Modulation
from .encoder import Encoder
from .graph import Graph
from .layer_inputs import LayerInputs
from .retrieval import Retrieval
from .rope_scaling import RopeScaling
from .sparse_index import SparseIndex
from .vision import VisionTower

# Dropout in configs, by field: a training without it computes the same network.
DROPOUTS = ("activation_dropout", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop",
            "decoder_layerdrop", "dropout", "dropout_rate", "embd_pdrop", "embedding_dropout", "encoder_layerdrop",
            "hidden_dropout", "hidden_dropout_prob", "layerdrop", "resid_pdrop", "residual_dropout")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention of one layer: grouped-query (MHA and MQA included), or multi-head latent (MLA) with `kv_lora_rank`."""

    heads: int  # query heads
    kv_heads: int  # key and value heads
    head_dim: int  # width of a query or key head; MLA: without and with positions together
    value_head_dim: int  # width of a value head
    window: int | None = None  # tokens that a query sees at most (sliding window or chunk), None: all before it
    qkv_bias: bool = False  # of the projections of queries, keys and values
    output_bias: bool = False  # of the output projection
    output_gate: bool = False  # whether a sigmoid of a second query projection multiplies the output (Qwen3-Next)
    gates_heads: bool = False  # whether that gate is one number of a head, not one of an element (Step-3.5)
    values_from_keys: bool = False  # whether keys and values come out of one projection (Gemma 4)
    value_norm: bool = False  # whether values are normed, without weights (Gemma 4)
    takes_keys: bool = False  # whether keys and values are those of an earlier layer, so that it makes none (Gemma 3n)
    rotary: bool = True  # whether queries and keys are turned, where the model has such positions
    norm_parameters: int = 0  # elements of query/key (and MLA latent) norms
    sink_parameters: int = 0  # learned attention sinks (gpt-oss: one per head)
    q_lora_rank: int | None = None  # MLA: rank of the query compression, None: direct projection
    kv_lora_rank: int | None = None  # MLA: rank of the key/value compression; set = this is MLA
    rope_head_dim: int = 0  # MLA: the part of head_dim that carries positions, shared by all heads in the key
    score_scale: float | None = None  # factor of the scores; None: 1 / sqrt(head_dim)
    index: SparseIndex | None = None  # of latent attention; None: it sees all tokens before
    score_softcap: float | None = None  # c: scores become c tanh(score / c) (Gemma 2, arXiv 2408.00118)
    causal: bool = True  # a query sees no later tokens
    key_bias: bool = True  # of the projection of keys, where that of queries has one (not in Whisper)
    relative_bias: bool = False  # scores get a learned number by distance and head (T5, arXiv 1910.10683, section 2.1)
    bias_parameters: int = 0  # elements of the table of these numbers, which the first layer of a stack has

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank is not None

    @property
    def gates(self) -> int:
        """Numbers of the gate of a token."""
        return self.output_gate * self.heads * (1 if self.gates_heads else self.value_head_dim)

    @property
    def suits_flash(self) -> bool:
        """torch's flash kernel takes it: check_head_dim_size_flash in its sdp_utils.cpp."""
        return self.head_dim == self.value_head_dim and self.head_dim % 8 == 0 and self.head_dim <= 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Dense feed-forward block: two matrices, or three when gated (SwiGLU, GeGLU)."""

    inner: int  # width
    gated: bool = True  # three matrices
    bias: bool = False  # of all matrices
    activation_parameters: int = 0  # learned numbers of the activation function (xIELU, arXiv 2411.13010: two)
    sparsity: float = 0.0  # share of a token's gates that a threshold sets to 0 (arXiv 2506.06644); 0: no threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """Routed experts, `top_k` of `experts` per token, and shared experts seen by every token."""

    experts: int  # number of routed experts
    top_k: int  # routed experts of a token
    expert_inner: int  # width of an expert
    gated: bool = True  # three matrices per expert
    expert_bias: bool = False  # of all matrices of routed and of shared experts
    router_bias: bool = False  # one per expert, of the router's product
    # Whether an expert's score has a number added for the choice alone, which no gradient moves (arXiv 2408.15664).
    choice_bias: bool = False
    shared_inner: int = 0  # width of all shared experts as one block, 0: none
    latent: int | None = None  # width that tokens are projected to before they go to experts, None: hidden (Nemotron 3)
    shared_gate: bool = False  # qwen2_moe: a learned scalar gate (hidden elements) on the shared expert
    # Whether a layer of 2 (hidden + 1) elements weighs the outputs of shared and of routed experts (arXiv 2201.05596).
    residual: bool = False
    router_factors: bool = False  # Gemma 4: a norm of the router's input with weights, a factor of each expert
    branch_norms: bool = False  # Gemma 4: three of the norms are of shared outputs and of routed in- and outputs
    groups: int = 1  # of neighbouring experts (DeepSeek-V2, arXiv 2405.04434, 2.2.2)
    top_groups: int = 1  # groups that the experts of a token are in; 1 of 1: a free choice
    # Function of the router's logits; no cost depends on it.
    router_scores: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    router_normalised: bool = True  # whether a token's weights are its scores over their sum; no cost depends on it
    router_scale: float = 1.0  # factor of these weights; no cost depends on it
    # An expert gets this many times its even share of the tokens of each rank, (0, experts / top_k]: those with the
    # largest weights, and any others with weight 0 where fewer chose it. None: as many as chose it.
    capacity_factor: float | None = None

    def capacity(self, tokens: Any) -> Any:
        """Tokens of an expert out of the `tokens` of a rank's micro-batch, a number or an array (Megatron Core,
        transformer/moe/moe_utils.py, get_capacity)."""
        share = tokens * self.top_k / self.experts * (self.capacity_factor or 1.0)
        return -(-share // 1)  # rounded up


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """Another block than attention that mixes the tokens of a sequence: a state-space model, linear attention or a
    convolution. Each is a file of `layer_kinds`."""

    kind: ClassVar[str]  # its name in plans, screens and the explicit form of a model


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of layer: blocks that mix tokens, then a feed-forward block. A layer may lack either."""

    attention: Attention | None  # block, None: none
    feed_forward: FeedForward | MixtureOfExperts | None  # block, None: none
    mixer: Mixer | None = None  # block in place of attention, or beside it on the same input (Falcon-H1)
    num_norms: int = 2  # of hidden: 2 pre-norm, 4 around blocks (gemma-2), 1 shared or alone; those of branches too
    norm_bias: bool = False  # of these norms
    output_norms: bool = False  # the two norms are of the outputs of the blocks (OLMo 2, arXiv 2501.00656)
    parallel_blocks: bool = False  # both blocks take the layer's input, their outputs are added together (GPT-J)
    cross_attention: Attention | None = None  # block between these two, to the output of the encoder
    encodes: bool = False  # whether it is in an encoder beside a decoder, so that its tokens are those of the source
    starts: bool = False  # whether it is the first of its stack and holds what comes before (stack_start.py)
    modulation: Modulation | None = None  # of its norms and blocks by the time step of a diffusion
    augmented_rank: int = 0  # of two products beside attention, whose output is added (LAuReL, arXiv 2411.07501)
    streams: int = 1  # 2: tokens of the text have weights of their own, and attention is among all tokens (Flux)

    @property
    def is_moe(self) -> bool:
        return isinstance(self.feed_forward, MixtureOfExperts)

    @property
    def transformer_blocks(self) -> tuple[Attention, FeedForward | MixtureOfExperts]:
        """Its attention and its feed-forward block. Raises TypeError unless these two are all that it has."""
        if self.attention is None or self.feed_forward is None or self.mixer is not None:
            raise TypeError("not a transformer layer")
        return self.attention, self.feed_forward

    @property
    def is_transformer(self) -> bool:
        """Whether it is attention and a feed-forward block, and nothing else."""
        return self.attention is not None and self.feed_forward is not None and self.mixer is None

    @property
    def num_blocks(self) -> int:
        """Blocks that add to the residual stream: one that mixes tokens, cross attention, a feed-forward block."""
        return int(self.mixes) + int(self.cross_attention is not None) + int(self.feed_forward is not None)

    @property
    def mixes(self) -> bool:
        """Whether any of its blocks mixes tokens."""
        return self.attention is not None or self.mixer is not None


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A language model, which may see images or have an encoder, or a diffusion transformer. Results depend on the
    fields from `rope_theta` on, costs on `rope_scaling` alone of them, by its amplitude, and on `tower`, `encoder` and
    `diffusion`."""

    name: str  # canonical
    family: str  # model_type of config.json
    hidden: int  # width
    vocab: int  # rows of the token table
    kinds: tuple[Layer, ...]  # distinct layers
    pattern: tuple[int, ...]  # [layer] index into `kinds`
    max_positions: int  # longest sequence
    tied_embeddings: bool = False  # the head is the token table
    learned_positions: int = 0  # rows of a learned position table, 0: RoPE or ALiBi
    token_types: int = 0  # rows of a learned table of types, added to the rows of tokens (BERT: its two sentences)
    embedding_norm: bool = False  # after the token table
    final_norm: bool = True  # before the head
    norm_bias: bool = False  # of the final and embedding norm
    head_bias: bool = False  # one per token
    head_transform: bool = False  # a dense layer with bias and activation, before the final norm (BERT)
    transform_norm: bool = False  # a norm before that layer, too (BERT of Megatron Core, whose encoder ends in one)
    pooled_classes: int = 0  # of a second head, on a dense layer of the first token (BERT: next sentence), 0: none
    token_head: bool = True  # a product with the vocabulary; False: another head replaces it (classifiers, critics)
    token_labels: int = 0  # values that the head of a critic or a reward model gives each token, 0: no such head
    embedding_dim: int | None = None  # width of the token table where it is projected (opt-350m), None: hidden
    mtp_layers: int = 0  # multi-token-prediction modules, beside the layers
    mtp_pattern: tuple[int, ...] = ()  # [layer of a module] index into `kinds`; (): one layer, as the last of the model
    mtp_shared: bool = False  # whether all modules have the weights of one (Megatron Core, mtp_use_repeated_layer)
    dropout: bool = False  # trained with dropout on hidden states: saves one-byte masks
    source: str = ""  # of the numbers
    rope_theta: float | None = 10_000.0  # base of the rotary positions; None: learned ones, or ALiBi
    norm_epsilon: float = 1e-5  # of all norms
    activation: str = "silu"  # silu, gelu, gelu_tanh, relu, relu2 or another name; of the gate where blocks are gated
    rope_scaling: RopeScaling | None = None  # None: not stretched
    # share of a head that is rotated; in latent attention, of the part with positions
    partial_rotary_factor: float = 1.0
    assumed: tuple[str, ...] = ()  # fields that are defaults, not from the source
    window_rope_theta: float | None = None  # base in layers with a window, never scaled; None: as in the others
    unit_offset_norms: bool = False  # norms multiply by 1 + weight (Gemma)
    embedding_scale: float = 1.0  # factor of the rows of the token table
    residual_streams: int = 1  # copies of the hidden state between blocks, mixed around each (DeepSeek-V4)
    alternates: bool = False  # layers run on one of these streams, and predict and correct the others (AltUp)
    layer_inputs: LayerInputs | None = None  # what each layer gets of a token beside these; None: nothing
    residual_scale: float = 1.0  # factor of what each block adds to the residual stream
    logit_scale: float = 1.0  # factor of the logits
    logit_softcap: float | None = None  # c: logits become c tanh(logit / c)
    # Factor of the balancing loss of each layer of experts, 0: none. It counts as moe_aux_loss_coeff of Megatron Core:
    # even loads give a loss of 1, and layers add up.
    moe_aux_loss_coeff: float = 0.0
    moe_aux_loss_per_sequence: bool = False  # loads are of sequences (seq_aux_loss), else of micro-batches (aux_loss)
    unmodelled: tuple[str, ...] = ()  # fields of the source that change results and have none here
    tower: VisionTower | None = None  # beside the embedding, None: text alone
    encoder: Encoder | None = None  # its layers are the first ones; None: all layers are of one stack
    diffusion: Diffusion | None = None  # it denoises latents; None: a language model
    unmasks: bool = False  # answers are masked tokens that it fills in over several passes (LLaDA, arXiv 2502.09992)
    graph: Graph | None = None  # whose vertices are its tokens; None: a model of sequences
    retrieval: Retrieval | None = None  # its layers are those of an encoder of queries, and of one of texts

    @property
    def num_layers(self) -> int:
        return len(self.pattern)

    @property
    def towers(self) -> int:
        """Encoders of these layers, each with weights of its own."""
        return 1 if self.retrieval is None else len(self.retrieval.shares)

    @property
    def inputs(self) -> int:
        """Rows of what makes a hidden state: one per token of the vocabulary, or per value of a token."""
        if self.graph is not None:
            return self.graph.features
        return self.vocab if self.diffusion is None else self.diffusion.inputs

    @property
    def bidirectional(self) -> bool:
        """Whether it is an encoder alone: tokens attend to those before and after them (BERT)."""
        alone = self.encoder is None and self.diffusion is None
        return alone and any(not attention.causal for attention in self.attentions)

    @property
    def fills(self) -> bool:
        """Whether it generates all tokens of an answer, or of an image, together in several passes."""
        return self.unmasks or self.diffusion is not None

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of each kind that has one."""
        return tuple(kind.attention for kind in self.kinds if kind.attention is not None)

    @property
    def feed_forwards(self) -> tuple[FeedForward | MixtureOfExperts, ...]:
        """The feed-forward block of each kind that has one."""
        return tuple(kind.feed_forward for kind in self.kinds if kind.feed_forward is not None)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixer of each kind that has one."""
        return tuple(kind.mixer for kind in self.kinds if kind.mixer is not None)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """A sentence on `assumed` for the user, or none."""
        values = ", ".join(f"{name} {getattr(self, name) or 'none'}" for name in self.assumed)
        return (f"assumed, since the model's config lacks them: {values}",) if values else ()

    @property
    def dropouts(self) -> tuple[str, ...]:
        """The fields of its config that ask for dropout."""
        return tuple(name for name in self.unmodelled if name in DROPOUTS)

    @property
    def trained_scaling(self) -> RopeScaling | None:
        """The scaling of sequences that the model has positions for: `dynamic` starts beyond them."""
        return None if self.rope_scaling is None or self.rope_scaling.kind == "dynamic" else self.rope_scaling

    @property
    def latent_scale(self) -> float:
        """The factor of the scores of latent attention, beside the root of its width."""
        return 1.0 if self.rope_scaling is None else self.rope_scaling.latent_scale

    @property
    def capacity_factor(self) -> float | None:
        """The capacity factor of its routed experts; None where they drop no token."""
        blocks = self.feed_forwards
        return next((block.capacity_factor for block in blocks if isinstance(block, MixtureOfExperts)), None)

    @property
    def is_moe(self) -> bool:
        return any(kind.is_moe for kind in self.kinds)
