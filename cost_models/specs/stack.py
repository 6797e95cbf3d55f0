"""The software that runs a plan: its abilities and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

AttentionKernel = Literal["unfused", "triton", "flash1", "flash2", "flash3", "cudnn", "sdpa"]


@dataclass(frozen=True, kw_only=True)
class StackSpec:
    """The abilities and costs of the software (a file in catalogue/stacks/, each value with its source).

    Overlap shares in [0, 1]: the part of that communication which hides behind compute that is really there. In square
    brackets: what is physically possible, for whoever fits these numbers.
    """

    name: str  # of the stack
    attention: AttentionKernel  # kernel
    throughput: float  # rate of its kernels in a long run over what the device's efficiencies promise [0.5, 1.5]
    elementwise_traffic: float  # memory traffic of element-wise kernels over perfectly fused ones [1, 2]
    # One kernel each, which keeps nothing between; else a kernel per step, of which norms and positions take fp32.
    fused_norms: bool
    fused_positions: bool  # rotary ones
    fused_activation: bool  # gate, activation and product
    tp_overlap: float  # of collectives of tensor parallelism
    dp_overlap: float  # of the reduction of gradients
    dp_gather_overlap: float  # of gathering the weights that ZeRO-1 and 2 updated
    # How those weights travel: one all-gather, or one broadcast after another by every rank that updated some.
    dp_gather: Literal["all_gather", "broadcasts"]
    fsdp_overlap: float  # of gathers and scatters of sharded states
    # Moved per parameter beside a collective of sharded states, unhidden: out of the gathered buffer into the weights
    # [0, 4]; out of the gradients, as they are computed, into the buffer to scatter, in the reduced dtype [0, 14].
    gather_copy_bytes: float
    scatter_copy_bytes: float
    # Training in fp8. Where a line does not say `fp8 alone`, fp4 training has it too.
    fp8_gather: bool  # weights of layers are quantised before they are gathered; in fp4 where they are kept so
    cp_overlap: float  # of the exchange of keys and values
    ep_overlap: float  # of the messages of experts
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
    # one in their dtype and one in fp32; where the sums are fp32, the gradients of a micro-batch are whole beside them,
    # and so is the copy in the dtype of the weights that is reduced.
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
    ep_dispatch: Literal["allgather", "alltoall", "deduplicated", "deduplicated-fp8"]
    dropless: bool  # no token is dropped: the host reads how many each expert got, and waits for it in every layer
    moe_imbalance: float  # tokens of the busiest expert rank over the mean [1, 3]
    sources: Mapping[str, str] = field(default_factory=dict)  # field -> source
    saves_fp8_activations: bool = False  # what an activation function takes is kept in fp8
    # A token's weight for an expert multiplies what the activation puts out, so no output of the expert is kept for it.
    weighs_activations: bool = False
    # Where Adam's moments are in bf16 and a distributed optimizer (ZeRO-1) updates bf16 weights on the GPU, of the fp32
    # weights it keeps the 16 bits that those lack.
    splits_master_weights: bool = False
    # A tensor in fp8 has one scale, and is kept once on GPUs whose products take it in either layout (fp8 alone).
    scales_tensors: bool = False
    # Where the optimizer is on the host, ZeRO-3 sums up gradients in buffers there: in every micro-batch a rank's part
    # comes to the GPU and goes back, or goes there and comes back. The update takes an fp32 copy of the last.
    sums_on_host: bool = False
    # Ranks of tp each make a part of the outputs of a prediction module's projection and gather those of the others;
    # else each has all of its weights and projects its part of the sequence.
    splits_mtp_projection: bool = False
    # Where tp has more ranks than there are key/value heads, each makes a part of all that the projections put out and
    # gathers those of the others, of which it takes the heads that it needs; else it makes these heads.
    gathers_projections: bool = False
    # For norms of queries and keys over all heads, ranks of tp gather those of the others; else they sum squares.
    gathers_normed_heads: bool = False
    # Weights that are quantised when they are kept go round in bf16 all the same.
    gathers_in_bf16: bool = False
    # The products and the activation of experts are one kernel, which leaves out rows that are only room, in a graph of
    # the whole iteration. So in NVFP4, whatever this says.
    fuses_expert_blocks: bool = False
    # Of collectives of tensor parallelism that gather and scatter a sequence: beside the products that they feed.
    sequence_parallel_overlap: float = 0.0
    # Share of the messages of experts that hides where a layout sends them beside another micro-batch (`ep_overlap`).
    ep_overlap_beside: float = 0.0
    # Rotary positions are one kernel, too, where the cosine and sine are multiplied by a number (YaRN).
    fused_scaled_positions: bool = True
    # Ranks of tp without sequence parallelism each keep 1/tp of the input of a recomputed layer, and gather it before
    # they recompute the layer.
    splits_layer_inputs: bool = False
    # Experts under tp without sequence parallelism: each rank sends 1/tp of the copies of the tokens that all ranks of
    # tp hold, and gathers what comes back. Else there are no such layouts.
    drops_duplicate_tokens: bool = False
    # What is reduced at once after the last backward pass: buckets of many gradients; or those of every layer and end
    # of the model, and under tp, once more, those of weights that it does not split, which are summed over tp, too.
    reduces: Literal["buckets", "parts"] = "buckets"
    # Ranks of tp gather the latents of latent attention, each made from its part of the sequence; else its input.
    gathers_latents: bool = True
    # Copies of sharded or whole parameters sum their gradients after every micro-batch, but not in a pipeline and not
    # where `sharded_states` is fsdp2-no-sync.
    sums_every_pass: bool = False
    # Messages of other micro-batches that a stage of a pipeline holds buffers for, as it asks before it needs them.
    messages_ahead: int = 0
    # Gradients of a layer are scattered beside the backward pass of the one before it, whose gradients are whole, too.
    scatters_beside: bool = False
    # Of Muon with a layer-wise optimizer: buffers have a layout in which a rank's matrices are next to one another, so
    # that gradients are scattered and what Adam updates is shared byte by byte. Else gradients are summed everywhere,
    # and every parameter is whole on one rank.
    layer_wise_layout: bool = True
    # How ranks of context parallelism share a mixer with a state. heads: they swap tokens for heads before it, and back
    # behind it (as Ulysses). gather: each gets the states of all (LASP-2, arXiv 2502.07563). scan: each gets that of
    # the ranks before it, from its neighbour (ZeCO, arXiv 2507.01004).
    mixer_context: Literal["heads", "gather", "scan"] = "heads"
    # All-to-alls that swap tokens for heads (Ulysses, mixers) block; none of them hides (`cp_overlap`).
    blocking_heads: bool = False
    # Of a mixer with a state nothing is kept between its projections: its convolution and scan are steps of torch that
    # run again in the backward pass. Else they are kernels that keep some of what they make.
    recomputes_scans: bool = False
    # Attention to chosen tokens is that of all tokens, with a mask that hides the others; the index scores tokens by
    # every head in fp32, and trains by no loss. Else kernels read the chosen tokens alone.
    masks_chosen_tokens: bool = False
    # Where attention is unfused: sequences times heads of a rank must be a multiple of this for the kernel that scales,
    # masks and takes the softmax at once. Other numbers go through torch, in five steps and fp32.
    fused_softmax_multiple: int = 1
    # The products of a rank's experts are one kernel, or kernels on several streams, and fill the GPU together. Else
    # each starts when the one before has ended.
    experts_at_once: bool = True
    # What sums up the rows that experts put out: a fused kernel of a permutation, or a function of torch.
    sums_rows: Literal["fused", "scatter_add", "index_add"] = "fused"
    sorts_own_rows: bool = True  # a rank with all experts, too, puts rows in the order of experts once they are copied
    # Attention over ranks that share a sequence is torch's, of eager kernels (layer_kinds/torch_ring.py).
    rings_in_torch: bool = False
    # What goes round a ring of context parallelism, and for which attention (layer_kinds/rings.py). keys: keys and
    # values together. queries: queries one way, outputs back the other (TokenRing). scores: keys, until all scores of a
    # rank's queries are there, then values (Ring Self-Attention).
    ring_sends: Literal["keys", "queries", "scores"] = "keys"
    repeats_keys: bool = False  # keys and values are copied for every query head before attention
    # Per parameter, as whole gradients of sharded weights (ZeRO-2 and 3) are summed and reduced; 0: gradient_bytes.
    # What was scattered has gradient_bytes again. Training in fp32 has fp32 gradients.
    sharded_sum_bytes: int = 0
    # Training in fp16 accumulates and reduces gradients in fp16, and the update takes an fp32 copy of its part of them.
    fp16_gradients: bool = False
    # Share of what tokens send to experts, and get back, that stays on their rank beyond an even share (`on_stack` of
    # techniques).
    tokens_at_home: float = 0.0
    # Whether gradients are made. Else each step compares the losses of two forward passes (`on_stack` of techniques).
    differentiates: bool = True
    # Streams of the model that compute each token, and learned keys and values of each in every attention
    # (quantities/parallel_streams.py; `on_stack` of techniques).
    streams: int = 1
    prefix_tokens: int = 0
    step_reductions: int = 0  # numbers that all ranks sum up, one by one, once per step: norm of the gradient, loss

    @property
    def is_fsdp2(self) -> bool:
        return self.sharded_states != "zero"
