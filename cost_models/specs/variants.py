"""Variants of a model: the same layers with another capacity of experts, without the vision tower, or with
another head."""

from __future__ import annotations

from dataclasses import replace

from .model import Layer, MixtureOfExperts, ModelSpec


def text_of(model: ModelSpec) -> ModelSpec:
    """The language model alone."""
    return model if model.tower is None else replace(model, tower=None)


def valued(model: ModelSpec) -> ModelSpec:
    """The model as critic or reward model: one value for each token in place of logits, by h weights that no token
    table shares (GenericForSequenceClassification of transformers 5.24 with one label; LinearForLastLayer of
    verl-project/verl@1dda039b)."""
    return replace(model, token_head=False, token_labels=1, tied_embeddings=False, head_bias=False, mtp_layers=0,
                   mtp_pattern=(), mtp_shared=False)  # fmt: skip


def with_capacity(model: ModelSpec, factor: float | None) -> ModelSpec:
    """The model whose experts all have this capacity factor."""

    def capped(kind: Layer) -> Layer:
        block = kind.feed_forward
        if not isinstance(block, MixtureOfExperts):
            return kind
        return replace(kind, feed_forward=replace(block, capacity_factor=factor))

    return replace(model, kinds=tuple(map(capped, model.kinds)))
