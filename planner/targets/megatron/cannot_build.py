"""Models and kinds of training that pretrain_gpt.py has no argument for."""

from __future__ import annotations

from typing import Any

from ....cost_models.specs.model import DROPOUTS, Attention, MixtureOfExperts, ModelSpec
from ....cost_models.specs.workload import Workload
from ..option_lists import OptionList
from ..other_layers import parts_beside
from .delta_net import cannot_replace
from .feed_forward import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS, blocks
from .hybrid import cannot_mix, is_hybrid
from .model import windows
from .mtp import cannot_predict
from .muon import cannot_orthogonalise
from .rope import cannot_rotate

# Family -> its parts without an argument, or with a position in the model that no plan holds.
_OTHER_FAMILIES = {
    "falcon": "attention and feed-forward in parallel", "gemma": "GeGLU and scaled embeddings",
    "gpt_neox": "attention and feed-forward in parallel", "gptj": "attention and feed-forward in parallel",
    "granite": "scaled embeddings, residuals, scores and logits",
    "llama4": "attention in chunks, layers without rotary positions, and experts whose inputs are weighed",
    "olmo2": "norms behind its blocks",
}  # fmt: skip


def cannot_build(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training without an argument."""
    hybrid = is_hybrid(model)
    if other := (cannot_mix if hybrid else cannot_replace)(model, options):
        return other
    attentions = {_plain(attention) for attention in model.attentions}
    dense, routed = blocks(model)
    attention = model.attentions[0]
    known = GATED_ACTIVATIONS if model.feed_forwards[0].gated else PLAIN_ACTIVATIONS
    head_norms = (0, 2 * attention.head_dim)
    unwritten = [name for name in model.unmodelled if name not in DROPOUTS]
    biases = {attention.output_bias, *(block.bias for block in dense), *_biases(routed)}
    family = next((name for name in _OTHER_FAMILIES if model.family.startswith(name)), "")
    reasons = {
        f"model.family: {model.family} has {_OTHER_FAMILIES.get(family)}, which is not written": bool(family),
        "model.kinds: layers differ in more than window and experts": max(map(len, (attentions, dense, routed))) > 1,
        "model.kinds.num_norms: each block has a norm":
            {kind.num_norms for kind in model.kinds} != {1 if hybrid else 2},
        f"model.activation: {model.activation} is none of {', '.join(known)}": model.activation not in known,
        "model.kinds.gated: blocks are gated all or none": len({block.gated for block in model.feed_forwards}) > 1,
        "model.kinds.norm_parameters: query and key norms are those of one head, each":
            not attention.is_mla and attention.norm_parameters not in head_norms,
        "model.rope_theta: positions are rotary or learned":
            model.rope_theta is None and not (model.learned_positions or hybrid),
        "model.kinds.bias: attention output, feed-forward, experts and router have bias terms all or none":
            len(biases) > 1,
        **_cannot_route(routed),
        "model.kinds.window: there is one size of window": len(windows(model, workload)) > 1,
        f"model.unmodelled: {', '.join(unwritten)} of the model's config is not written": bool(unwritten),
        "model.embedding_norm: the embedding has no norm": model.embedding_norm,
        "model.embedding_dim: the embedding is as wide as the model": model.embedding_dim not in (None, model.hidden),
        "model.head_bias: the head has no bias": model.head_bias,
        "model.final_norm: there is always a final norm": not model.final_norm,
        "workload.lora: pretrain_gpt.py trains no adapters": workload.lora is not None,
        "workload.trains_layers: pretrain_gpt.py trains all layers": workload.trains_layers is not None,
        f"workload.optimizer: there is no {workload.optimizer}": workload.optimizer == "adamw-8bit",
        **cannot_predict(model, options, hybrid=hybrid), **_unwritten(model), **cannot_rotate(model, options),
        **cannot_orthogonalise(workload, options),
    }  # fmt: skip
    return [text for text, applies in reasons.items() if applies]


def _unwritten(model: ModelSpec) -> dict[str, bool]:
    """Parts that the written arguments lack, in any family."""
    scores = any(attention.score_scale or attention.score_softcap for attention in model.attentions)
    factors = {model.embedding_scale, model.residual_scale, model.logit_scale}
    return {
        "model.kinds.output_norms: norms are in front of the blocks": any(kind.output_norms for kind in model.kinds),
        "model.kinds.parallel_blocks: blocks run in turn": any(kind.parallel_blocks for kind in model.kinds),
        "model.logit_scale: embeddings, residuals, scores and logits have no factors":
            factors != {1.0} or scores or model.logit_softcap is not None,
        "model.kinds.output_gate: an output gate of attention has one value per element":
            any(attention.gates_heads for attention in model.attentions),
        "model.kinds.output_gate: latent attention has no output gate":
            any(attention.output_gate and attention.is_mla for attention in model.attentions),
        "model.kinds.values_from_keys: keys and values have projections of their own, and values no norm":
            any(attention.values_from_keys or attention.value_norm for attention in model.attentions),
        "model.kinds.rotary: attention without positions is not written":
            not is_hybrid(model) and not all(attention.rotary for attention in model.attentions),
        **{f"{field}: there are no {part}": True for field, part in parts_beside(model)},
    }  # fmt: skip


def _cannot_route(routed: list[MixtureOfExperts]) -> dict[str, bool]:
    """Sentence -> whether it applies to blocks of experts."""
    return {
        "model.kinds.router_normalised: sigmoid scores of several experts are divided by their sum":
            any(block.router_scores == "sigmoid" and not block.router_normalised and block.top_k > 1
                for block in routed),
        "model.kinds.router_normalised: the score of a token's only expert is not divided by itself":
            any(block.router_normalised and block.top_k == 1 for block in routed),
        "model.kinds.router_factors: routers have no norm, and experts no factors":
            any(block.router_factors for block in routed),
        "model.kinds.branch_norms: outputs of shared and of routed experts have no norms of their own":
            any(block.branch_norms for block in routed),
        "model.kinds.choice_bias: it is added to sigmoid scores only":
            any(block.choice_bias and block.router_scores != "sigmoid" for block in routed),
    }  # fmt: skip


def _biases(routed: list[MixtureOfExperts]) -> set[bool]:
    """Whether linear layers of experts and of their routers have biases."""
    return {block.expert_bias for block in routed} | {block.router_bias for block in routed}


def _plain(attention: Attention) -> tuple[Any, ...]:
    """A copy of an attention without its window."""
    return tuple(getattr(attention, name) for name in Attention.__dataclass_fields__ if name != "window")
