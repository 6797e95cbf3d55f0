"""The limits of this runtime, shared by planning, `emit` and `launch` (runtime/job.py)."""

from __future__ import annotations

from math import isqrt

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layer_kinds.gated_delta_net import GatedDeltaNet
from ....cost_models.layer_kinds.mamba2 import Mamba2
from ....cost_models.layouts import CP_ALGORITHMS, OFFLOADS, PRECISIONS, Layout, Layouts
from ....cost_models.problem import Problem
from ....cost_models.quantities.params import lora_targets
from ....cost_models.schedule_kinds import SPLITS_BACKWARD
from ....cost_models.specs.model import DROPOUTS, Attention, Layer, ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule, only, violations
from ..option_lists import OptionList
from ..other_layers import parts_beside, whole_heads
from ..switch_options import rules_of
from . import techniques

_TARGET_NAME = "meshwright"


# The families that tests compare with transformers, by logits and gradients. `own` is the explicit form of a model,
# which states all its parts.
COMPARED = frozenset({
    "arcee", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "falcon", "gemma", "gemma2",
    "gemma3", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2", "gpt_neox", "gpt_oss", "granite", "granitemoe",
    "hy_v3", "internlm3", "llama", "minimax_m2", "ministral3", "mistral", "mixtral", "nemotron", "nemotron_h", "olmo2",
    "olmo3", "olmoe", "opt", "own", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "seed_oss",
    "smollm3", "stablelm", "starcoder2", "t5",
})  # fmt: skip


_GATES = ("clamped swiglu",)  # functions of a gate and its input together
_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", *_GATES)


_MIXERS = (Mamba2, GatedDeltaNet, type(None))
_OPTIMIZERS = ("adamw", "sgd")


def _sequence_parallel(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["tp"] == 1) | (columns["sequence_parallel"] == 1))


def _flash(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts that torch's flash kernel supports. Only this kernel accepts keys in parts."""
    fits = all(attention.suits_flash for attention in problem.model.attentions)
    elsewhere = (columns["cp"] == 1) | (columns["cp_algorithm"] == CP_ALGORITHMS.index("ulysses"))
    return np.asarray(elsewhere | (fits & (columns["precision"] == PRECISIONS.index("bf16"))))


def _whole_sequences(columns: Columns, problem: Problem) -> Mask:
    """Mask for ring and all-gather attention, which sum over parts of the keys: no windows, softcaps or sinks."""
    length = problem.workload.seq_len
    plain = not any(_changes_scores(attention, length) for attention in problem.model.attentions)
    return np.asarray((columns["cp"] == 1) | (columns["cp_algorithm"] == CP_ALGORITHMS.index("ulysses")) | plain)


def _here(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts without activation offload in a split backward pass, whose wgrad stash stays on the GPU."""
    sent = np.isin(columns["offload"], [i for i, name in enumerate(OFFLOADS) if "act" in name.split("+")])
    return np.asarray(~sent | ~SPLITS_BACKWARD[columns["schedule"]])


def _whole(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts without sharded weights or gradients in a split backward pass, which needs them resident."""
    return np.asarray((columns["zero"] <= 1) | ~SPLITS_BACKWARD[columns["schedule"]] | problem.stack.is_fsdp2)


def _swaps_heads(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts in which ranks do not exchange the states of a mixer."""
    return np.asarray((columns["cp"] == 1) | (not problem.model.mixers) | (problem.stack.mixer_context == "heads"))


def cannot_build(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that the runtime lacks."""
    reasons = {**_training(model, workload), **_network(model), **_tower(model), **_encoder(model)}
    of_layers = dict.fromkeys(text for kind in model.kinds for text in _lacks(kind))
    out = [*(text for text, applies in reasons.items() if applies), *of_layers]
    if model.family not in COMPARED:
        out.append(f"the runtime's blocks have not been compared with those of the family {model.family}")
    return out


def _training(model: ModelSpec, workload: Workload) -> dict[str, bool]:
    """Sentence -> whether it applies to how the model is trained."""
    lora = workload.lora
    base = "bf16" if lora is None else lora.base_dtype
    has = lora_targets(model)
    lacks = [] if lora is None else [name for name in lora.targets if name not in has]
    return {
        f"adapters of {model.name} sit on {', '.join(has) or 'no projection'}, not on {', '.join(lacks)}": bool(lacks),
        f"the runtime keeps frozen weights in bf16, not in {base}": base != "bf16",
        "the runtime trains all layers, or nothing but adapters":
            workload.trains_layers not in ((None,) if lora is None else (0, None)),
        "the runtime freezes the vision tower alone, not the language model": workload.freeze_language,
        f"the runtime has no optimizer {workload.optimizer}": workload.optimizer not in _OPTIMIZERS,
        "the runtime's multi-token prediction needs a head of its own, not the embedding's":
            model.mtp_layers > 0 and model.tied_embeddings,
        "the runtime's prediction modules are one layer each, as the last of the model, with weights of their own":
            model.mtp_layers > 0 and (len(model.mtp_pattern) > 0 or model.mtp_shared),
    }  # fmt: skip


def _network(model: ModelSpec) -> dict[str, bool]:
    """Sentence -> whether it applies to the network outside its layers."""
    unread = [name for name in model.unmodelled if name not in DROPOUTS]
    return {
        **{f"the runtime has no {part}": True for _, part in parts_beside(model)},
        f"the runtime has no activation {model.activation}": model.activation not in _ACTIVATIONS,
        f"the runtime has {model.activation} only in gated blocks":
            model.activation in _GATES and not all(block.gated for block in model.feed_forwards),
        "the runtime has no ALiBi positions":
            model.rope_theta is None and not model.learned_positions
            and any(attention.rotary for attention in model.attentions),
        "the runtime has gated DeltaNet with silu only":
            model.activation != "silu" and any(isinstance(mixer, GatedDeltaNet) for mixer in model.mixers),
        "the runtime has no longrope: plans do not hold its lists of factors":
            model.rope_scaling is not None and model.rope_scaling.kind == "longrope",
        "the runtime has no projected embedding": model.embedding_dim not in (None, model.hidden),
        f"the runtime does not know the model's {', '.join(unread)}": bool(unread),
    }  # fmt: skip


def _tower(model: ModelSpec) -> dict[str, bool]:
    """Sentence -> whether it applies to the vision tower."""
    tower = model.tower
    if tower is None:
        return {}
    side = isqrt(tower.positions)
    return {
        "the runtime has no vision tower whose tokens are means of patches (Gemma 3)": tower.merger == "mean",
        "the runtime has no vision tower on tiles of an image (Phi-4-multimodal)": tower.merger == "pooled",
        "the runtime has no vision tower with class tokens and an adapter (Llama 4)": tower.merger == "adapter",
        "the runtime has no vision tower without learned positions (Qwen2-VL, Qwen2.5-VL)": tower.positions == 0,
        "the runtime has no vision tower whose patches are one token each (PaliGemma)": tower.merger == "linear",
        f"the runtime's vision tower has no activation {tower.activation}": tower.activation not in _ACTIVATIONS[:-1],
        f"the runtime resamples square tables of positions, and {tower.positions} is no square":
            side * side != tower.positions,
        f"the runtime turns heads of the vision tower by row and column: 4 does not divide their width of "
        f"{tower.hidden // tower.heads}": tower.hidden // tower.heads % 4 != 0,
        "the runtime has no images beside multi-token prediction": model.mtp_layers > 0,
    }  # fmt: skip


def _encoder(model: ModelSpec) -> dict[str, bool]:
    """Sentence -> whether it applies to an encoder, alone or before a decoder."""
    encoder, rotary = model.encoder, any(attention.rotary for attention in model.attentions)
    return {
        "the runtime has no encoder without a decoder": model.bidirectional,
        "the runtime has no encoder of sound (Whisper)": encoder is not None and not encoder.reads_text,
        "the runtime's encoders and their decoders have no positions but biases by distance (T5)":
            encoder is not None and (model.learned_positions > 0 or (rotary and model.rope_theta is not None)),
        "the runtime has no norm of the embedding beside an encoder": encoder is not None and model.embedding_norm,
    }  # fmt: skip


def _lacks(kind: Layer) -> list[str]:
    """One sentence per part of a layer that the runtime lacks."""
    block, crosses = kind.feed_forward, kind.cross_attention is not None
    most = kind.num_blocks  # norms, one for each block
    numbers = (1, most) if kind.parallel_blocks else (most, most if crosses else 2 * most)
    reasons = {
        "the runtime has no layers of attention beside another mixer":
            kind.attention is not None and kind.mixer is not None,
        f"the runtime has no mixer {getattr(kind.mixer, 'kind', '')}": not isinstance(kind.mixer, _MIXERS),
        "the runtime has no layers without a block": most == 0,
        "the runtime has no experts of a latent width": getattr(block, "latent", None) is not None,
        "the runtime has no factors of a router": getattr(block, "router_factors", False),
        "the runtime has no norms of the outputs of shared and of routed experts":
            getattr(block, "branch_norms", False),
        f"the runtime has layers of {numbers[0]} or {numbers[1]} norms, not {kind.num_norms}":
            kind.num_norms not in numbers,
        "the runtime has norms of outputs in layers with 2 norms, whose blocks run in turn":
            kind.output_norms and (kind.parallel_blocks or kind.num_norms != 2),
        "the runtime has attention to an encoder in layers of norms before blocks that run in turn":
            crosses and (kind.output_norms or kind.parallel_blocks),
    }  # fmt: skip
    attentions = [attention for attention in (kind.attention, kind.cross_attention) if attention is not None]
    lacking = dict.fromkeys(text for attention in attentions for text in _lacks_attention(attention))
    return [*(text for text, applies in reasons.items() if applies), *lacking]


def _lacks_attention(attention: Attention) -> list[str]:
    latents = (attention.q_lora_rank or 0) + (attention.kv_lora_rank or 0)
    heads = attention.heads + attention.kv_heads
    norms = (latents,) if attention.is_mla else (0, 2 * attention.head_dim, heads * attention.head_dim)
    unit = "rank of its latents" if attention.is_mla else "element of a head, or of all heads"
    other_scores = _changes_scores(attention, None) or attention.score_scale is not None
    reasons = {
        "the runtime's latent attention has no windows, softcaps or sinks": attention.is_mla and other_scores,
        "the runtime's latent attention has no gate of its output": attention.is_mla and attention.output_gate,
        "the runtime has no attention to tokens that an index chooses": attention.index is not None,
        "the runtime has no gates of whole heads": attention.gates_heads,
        "the runtime has no values out of the projection of keys": attention.values_from_keys,
        "the runtime has no norms of values": attention.value_norm,
        "the runtime has biases of keys where queries have them": attention.qkv_bias and not attention.key_bias,
        "the runtime's latent attention has positions": attention.is_mla and not attention.rotary,
        f"the runtime's norms in attention have one weight per {unit}": attention.norm_parameters not in norms,
    }  # fmt: skip
    return [text for text, applies in reasons.items() if applies]


def _changes_scores(attention: Attention, seq_len: int | None) -> bool:
    """Whether the scores differ from plain causal attention. seq_len None: any window counts."""
    cut = attention.window is not None and (seq_len is None or attention.window < seq_len)
    return cut or attention.score_softcap is not None or attention.sink_parameters > 0


def _whole_images(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts whose ranks have the whole sequences that images are in."""
    return np.asarray((columns["cp"] == 1) | (problem.workload.images is None))


RULES = (
    Rule(
        f"{_TARGET_NAME}: sequence_parallel",
        ("tp", "sequence_parallel"),
        _sequence_parallel,
        "the runtime's tensor parallelism is always sequence-parallel",
    ),
    only(
        _TARGET_NAME, "cp_algorithm", ("ring", "allgather", "ulysses"), "the runtime has no {algorithm} attention yet"
    ),
    Rule(
        f"{_TARGET_NAME}: flash attention",
        ("cp", "cp_algorithm", "precision"),
        _flash,
        "cp {cp} ({algorithm}) needs the flash kernel: bf16, one head dim, a multiple of 8 up to 256",
    ),
    Rule(
        f"{_TARGET_NAME}: windows, softcaps, sinks",
        ("cp", "cp_algorithm"),
        _whole_sequences,
        "cp {cp} ({algorithm}) has no windows, softcaps or attention sinks: only Ulysses sees whole sequences",
    ),
    Rule(
        f"{_TARGET_NAME}: mixers",
        ("cp",),
        _swaps_heads,
        "the runtime swaps tokens for heads around mixers, cp {cp} passes on states (`mixer_context` of the stack)",
    ),
    Rule(
        f"{_TARGET_NAME}: images",
        ("cp",),
        _whole_images,
        "the runtime's images need whole sequences, cp {cp} splits them",
    ),
    whole_heads(_TARGET_NAME, "the runtime"),
    Rule(
        f"{_TARGET_NAME}: zero",
        ("schedule", "zero"),
        _whole,
        "the runtime shards no weights or gradients (z{zero}) in {schedule_name}, which needs them whole",
    ),
    Rule(
        f"{_TARGET_NAME}: offload",
        ("schedule", "offload"),
        _here,
        "the runtime offloads no activations in {schedule_name}: what waits for the gradients of weights stays",
    ),
    only(_TARGET_NAME, "precision", ("bf16", "fp32"), "the runtime trains in bf16 or fp32"),
    *rules_of(_TARGET_NAME),
)


def refusal(layout: Layout, problem: Problem) -> str | None:
    """Why the runtime cannot execute a layout (the first reason), or None.

    Legality, which holds for all targets, is checked last, because a plan may have been edited.
    """
    if untrained := cannot_train(problem.model, problem.workload):
        return untrained
    columns, rules = Layouts.of([layout]), RULES + techniques.rules(problem.workload)
    broken = (rule.explain(layout, problem) for rule in rules if not bool(rule.allows(columns, problem)[0]))
    return next(broken, None) or next(iter(violations(layout, problem)), None)


def cannot_train(model: ModelSpec, workload: Workload) -> str | None:
    """Why the runtime trains a model in no layout, or None."""
    return techniques.cannot_exchange(workload) or next(iter(cannot_build(model, workload, None)), None)
