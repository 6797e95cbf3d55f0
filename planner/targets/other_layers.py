"""Rules for frameworks that do not build or split layers other than those of a transformer, or heads of keys."""

from __future__ import annotations

import numpy as np

from ...cost_models.arrays import Mask
from ...cost_models.layer_kinds.compressed_attention import CompressedAttention
from ...cost_models.problem import Problem
from ...cost_models.quantities.layer_operations import name_of
from ...cost_models.specs.model import MixtureOfExperts, ModelSpec
from ..space.rules import Columns, Rule


def other_layers(model: ModelSpec, builder: str) -> list[str]:
    """Problems of layers other than attention with a feed-forward block, and of parts beside these, which `builder`
    lacks."""
    names = list(dict.fromkeys(name_of(kind) for kind in model.kinds if not kind.is_transformer))
    text = f"model.kinds: {builder} builds layers of attention and a feed-forward block, not {', '.join(names)}"
    return [*([text] if names else []), *(f"{field}: {builder} has no {part}" for field, part in parts_beside(model))]


def parts_beside(model: ModelSpec) -> list[tuple[str, str]]:
    """Field and name of each part of Gemma 3n that only transformers builds, and of DeepSpeed's own experts."""
    kinds, attentions, blocks = model.kinds, model.attentions, model.feed_forwards
    parts = {
        ("model.alternates", "residual streams that layers predict and correct (AltUp)"): model.alternates,
        ("model.layer_inputs", "embeddings of each layer"): model.layer_inputs is not None,
        ("model.kinds.augmented_rank", "products of a low rank beside attention (LAuReL)"):
            any(kind.augmented_rank for kind in kinds),
        ("model.kinds.takes_keys", "layers that take the keys and values of an earlier one"):
            any(attention.takes_keys for attention in attentions),
        ("model.kinds.sparsity", "thresholds of gates"): any(getattr(block, "sparsity", 0.0) for block in blocks),
        ("model.kinds.residual", "layer that weighs the outputs of shared and of routed experts"):
            any(getattr(block, "residual", False) for block in blocks),
        ("model.kinds.experts", "layers with different numbers of experts"):
            len({block.experts for block in blocks if isinstance(block, MixtureOfExperts)}) > 1,
    }  # fmt: skip
    return [part for part, applies in parts.items() if applies]


def masked_squares(model: ModelSpec) -> list[str]:
    """Problems of layers of transformers whose memory plans do not count.

    The only attention kernel of DeepSeek-V4 keeps the scores of all tokens by all tokens and entries (5.24,
    modeling_deepseek_v4.py).
    """
    text = "model.kinds: transformers stores full score matrices of compressed attention, which plans do not count"
    return [text] if any(isinstance(mixer, CompressedAttention) for mixer in model.mixers) else []


def whole_sequences(target: str, framework: str) -> Rule:
    """The rule of a framework that runs the layers of transformers: the mask of an index covers whole sequences."""

    def allows(columns: Columns, problem: Problem) -> Mask:
        chosen = any(attention.index is not None for attention in problem.model.attentions)
        return np.asarray((columns["cp"] == 1) | (not chosen))

    text = f"{framework} does not pass the index mask to ranks of context parallelism: cp {{cp}}"
    return Rule(f"{target}: chosen tokens", ("cp",), allows, text)


def whole_mixers(target: str, framework: str) -> Rule:
    """The rule of a framework that runs the layers of transformers: it splits no mixer other than attention."""

    def allows(columns: Columns, problem: Problem) -> Mask:
        whole = (columns["tp"] == 1) & (columns["cp"] == 1)
        return np.asarray(whole | (not problem.model.mixers))

    text = f"{framework} splits attention, but not the model's other mixers: tp {{tp}}, cp {{cp}}"
    return Rule(f"{target}: mixers", ("tp", "cp"), allows, text)


def whole_heads(target: str, framework: str) -> Rule:
    """The rule of a framework that splits the columns of the key and value projections evenly and takes what a rank has
    as heads. Copies of a head would need a sum of their gradients over ranks."""

    def allows(columns: Columns, problem: Problem) -> Mask:
        whole = [attention.kv_heads % columns["tp"] == 0 for attention in problem.model.attentions]
        return np.asarray(np.all(whole, axis=0)) if whole else np.ones(len(columns["tp"]), dtype=bool)

    text = f"{framework} deals out whole key/value heads: tp {{tp}} does not divide the {{kv_heads}}"
    return Rule(f"{target}: kv heads", ("tp",), allows, text)
