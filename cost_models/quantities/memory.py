"""Bytes of model states and buffers on one GPU.

States per trained parameter (FORMULAS 5.1): weight (2 in bf16, 4 in fp32), gradient (as the stack accumulates it;
Megatron in fp16 also its fp32 copy of what a rank updates: 4 + 16/d), optimizer (`OPTIMIZER_BYTES`). ZeRO shards the
optimizer (1), gradients (2) and weights (3) over shard x cp ranks; routed experts over their own data-parallel ranks,
shard x cp x tp / (ep x etp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..arrays import Array
from ..layer_kinds.registry import kind_of
from ..specs.model import Layer, ModelSpec
from ..specs.stack import StackSpec
from ..specs.vision import VisionTower
from ..specs.workload import Workload
from . import params, vision
from .element_bytes import quantises_once

# Bytes per trained parameter beside weight and gradient: fp32 master copy (4, absent in fp32 training) + moments.
OPTIMIZER_BYTES = {"adamw": 8.0, "adamw-bf16": 4.0, "adamw-8bit": 2.0, "sgd": 4.0, "muon": 8.0}
MOMENTS = {"adamw": 2, "adamw-bf16": 2, "adamw-8bit": 2, "sgd": 1, "muon": 2}  # tensors, beside the master copy
MOMENTUM_BYTES = 4.0  # the moment of a matrix that Muon orthogonalises (matrices.py); OPTIMIZER_BYTES are of the rest
MASTER_BYTES = 4.0
GRADIENT_BYTES = 2.0  # of a gradient as the backward pass makes it
# nf4: 4 bits and 0.127 bits of doubly quantised block constants (QLoRA, arXiv 2305.14314, section 3).
BASE_WEIGHT_BYTES = {"bf16": 2.0, "int8": 1.0, "nf4": 4.127 / 8}
REPLICATED = ("norms", "qk_norm", "router", "router_bias", "router_factors", "o_bias", "cross_o_bias", "cross_qk_norm",
              "encoder_norm", "frontend", "modulation", "q_a", "kv_a", "shared_gate", "coefficient", "activation",
              "latent", "streams", "stream_biases", "layer_input", "augmented", "index_q", "index_k", "index_norm",
              "index_weights")  # fmt: skip


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of each state."""

    weight: float  # as products read it
    gathered: float  # of a layer, on its way to ranks that share it
    frozen_weight: float  # of a frozen base, quantised under LoRA
    gradient: float  # as it is summed
    sharded_sum: float  # the same of a whole gradient under ZeRO-2 and 3
    master_gradient: float  # its fp32 copy for the update, of what a rank updates
    optimizer: float  # moments and master weight
    orthogonalised: float  # the same of a matrix that Muon updates
    split_master: float  # of `optimizer`, left out on the GPU under ZeRO-1, where the bf16 weight has them
    quantised_copy: float  # of a weight for products, with its transpose where they need one
    replaces_weight: bool  # whether that copy is all there is of a weight, where a distributed optimizer makes it

    def update_bytes(self, optimizer: float) -> float:
        """Bytes that an update moves per parameter with so many of states: gradient and states read, states and weight
        written; a copy of the gradient written and read."""
        return self.gradient + 2 * self.master_gradient + 2 * optimizer + self.weight

    @classmethod
    def of(cls, workload: Workload, stack: StackSpec, *, any_fp8_layout: bool = False) -> StateBytes:
        fp32 = workload.precision == "fp32"
        fp16_gradients = stack.fp16_gradients and workload.precision == "fp16"
        # Without fp32 copies the optimizer works on bf16 weights, and its moments are bf16 too.
        width = 1.0 if fp32 or stack.master_weights else 0.5
        master = 0.0 if fp32 or not stack.master_weights else MASTER_BYTES
        gradient = 4.0 if fp32 else GRADIENT_BYTES if fp16_gradients else float(stack.gradient_bytes)
        narrow = stack.sharded_sum_bytes if stack.sharded_sum_bytes and not fp32 else gradient
        once = quantises_once(workload, stack, any_fp8_layout=any_fp8_layout)
        base = BASE_WEIGHT_BYTES[workload.lora.base_dtype] if workload.lora else 2.0
        weight = 4.0 if fp32 else 2.0
        return cls(
            weight=weight,
            gathered=_gathered_bytes(workload, stack) or weight,
            frozen_weight=4.0 if fp32 else base,
            gradient=gradient,
            sharded_sum=min(narrow, gradient),
            master_gradient=MASTER_BYTES if fp16_gradients else 0.0,
            optimizer=OPTIMIZER_BYTES[workload.optimizer] * width + master,
            orthogonalised=MOMENTUM_BYTES * width + master,
            split_master=2.0 if _splits_master(workload, stack) else 0.0,
            quantised_copy=(1 if once else 2) * workload.operand_bytes if workload.is_quantised else 0.0,
            # Weights of TransformerEngine that are quantised before they are gathered.
            replaces_weight=workload.is_quantised and stack.caches_fp8_weights and stack.fp8_gather,
        )


def _gathered_bytes(workload: Workload, stack: StackSpec) -> float:
    """Bytes of an element of a weight that is quantised before it is gathered: 1 in fp8; half in NVFP4, without the
    scales of blocks (Megatron-LM d98e8a64, core/distributed/param_and_grad_buffer.py, _compute_nvfp4_packed_layout). 0:
    of one that is not."""
    if not stack.fp8_gather or stack.gathers_in_bf16:
        return 0.0
    of_kept = 0.5 if stack.caches_fp8_weights else 0.0
    return {"fp8": 1.0, "fp4": of_kept}.get(workload.precision, 0.0)


def _splits_master(workload: Workload, stack: StackSpec) -> bool:
    return stack.splits_master_weights and (workload.precision, workload.optimizer) == ("bf16", "adamw-bf16")


# DeepSpeed's reduce_bucket_size, allgather_bucket_size (runtime/zero/config.py, and utils.py of the pipeline engine).
BUCKET_ELEMENTS = 5e8


def flat_buffer_bytes(stack: StackSpec, states: StateBytes, whole: Array, updated: Array) -> Array:
    """[n] bytes of the flat copies of StackSpec.flat_buffers, of a rank that has the gradients of `whole` parameters
    and updates `updated`. They are blocks of their own: one that is larger than what activations free is new memory."""
    if stack.flat_buffers == "none":
        return np.zeros_like(whole)
    bucket = np.minimum(BUCKET_ELEMENTS, whole)
    if states.gradient > GRADIENT_BYTES:
        # v0.6.3, bf16_optimizer.py: sums apart from what the backward pass makes. They are one tensor, and so is the
        # copy of them in the dtype of weights that is reduced (engine.py, allreduce_no_retain and allreduce_bucket).
        # An all-reduce of that sends as much as a reduce-scatter of the sums.
        return np.asarray(2 * GRADIENT_BYTES * whole + states.weight * bucket)
    return np.asarray((states.gradient + MASTER_BYTES) * updated + (states.gradient + states.weight) * bucket)


@dataclass(frozen=True, slots=True)
class KindParameters:
    """Parameters of one layer kind."""

    sharded: float  # split over tp
    replicated: float  # whole on every rank of tp
    experts: float  # routed experts
    trained_sharded: float  # of `sharded`, adapters included
    trained_replicated: float  # of `replicated`, adapters included
    trained_experts: float  # of `experts`
    frozen: bool  # whether the base does not train


NO_PARAMETERS = KindParameters(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, False)  # of a layer with the weights of another one


def replicated_parameters(kind: Layer, named: Mapping[str, int]) -> int:
    """Elements of a layer that every rank of tensor parallelism has whole. named: its groups."""
    whole = (*REPLICATED, *(kind_of(kind.mixer).replicated if kind.mixer is not None else ()))
    return sum(named.get(name, 0) for name in whole)


def layer_parameters(model: ModelSpec, kind: Layer, trains: str, workload: Workload) -> KindParameters:
    """Parameters of a decoder layer; `trains` as in operations.Trains."""
    named = params.layer_parameters(model, kind)
    experts = float(params.expert_parameters(model, kind))
    replicated = float(replicated_parameters(kind, named))
    sharded = sum(named.values()) - experts - replicated
    if trains == "all":
        return KindParameters(sharded, replicated, experts, sharded, replicated, experts, False)
    split, whole_too = 0.0, 0.0
    if trains == "lora" and workload.lora is not None:
        split, whole_too = map(float, params.lora_parameters(model, kind, workload.lora.rank, workload.lora.targets))
    return KindParameters(sharded, replicated, experts, split, whole_too, 0.0, True)


def edge_parameters(
    model: ModelSpec, trains_all: bool, tower: KindParameters | None = None, *, splits_projection: bool = False
) -> tuple[KindParameters, ...]:
    """Embedding with the vision tower, head with the final norm, MTP projection with its norms, and the copy of the
    embedding (stages.py). Of these ends, tensor parallelism splits what has a row per token; splits_projection: and
    the projection."""
    table, beside = float(params.table_parameters(model)), float(params.beside_head_parameters(model))
    norm = float(params.final_norm_parameters(model))
    share = 1 / model.mtp_layers if model.mtp_layers and model.mtp_shared else 1.0  # those of one are a part of each
    projection, norms = (share * number * (model.mtp_layers > 0) for number in (2 * model.hidden**2, 3 * model.hidden))
    mtp = (projection, norms) if splits_projection else (0.0, projection + norms)

    def edge(sharded: float, replicated: float) -> KindParameters:
        share = 1.0 if trains_all else 0.0
        return KindParameters(sharded, replicated, 0.0, share * sharded, share * replicated, 0.0, not trains_all)

    embedding, head = params.embedding_parameters(model) - table, params.head_parameters(model) - beside
    ends = edge(table, embedding), edge(head, beside + norm), edge(*mtp), edge(table, 0.0)
    return ends if tower is None else (_together(ends[0], tower), *ends[1:])


def _together(one: KindParameters, other: KindParameters) -> KindParameters:
    return KindParameters(
        one.sharded + other.sharded, one.replicated + other.replicated, one.experts + other.experts,
        one.trained_sharded + other.trained_sharded, one.trained_replicated + other.trained_replicated,
        one.trained_experts + other.trained_experts, one.frozen,
    )  # fmt: skip


def tower_parameters(tower: VisionTower, trains_all: bool, *, freezes: bool) -> KindParameters:
    """A vision tower with its projector, which trains wherever the embedding does, without idle parts."""
    every, whole = vision.parameters(tower), vision.replicated(tower)
    trained = [name for name in every if trains_all and (name in vision.PROJECTOR or not freezes)
               and name != vision.IDLE]
    sharded, replicated = sum(every.values()) - sum(whole.values()), sum(whole.values())
    trained_whole = sum(whole[name] for name in trained)
    trained_split = sum(every[name] for name in trained) - trained_whole
    return KindParameters(sharded, replicated, 0.0, trained_split, trained_whole, 0.0, not trained)


def engine_bytes(model: ModelSpec) -> float:
    """Bytes of all weights in bf16, in which they move to an engine and score."""
    return BASE_WEIGHT_BYTES["bf16"] * params.total_parameters(model)
