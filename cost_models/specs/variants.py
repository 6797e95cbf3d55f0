"""Variants of a model: the same layers with another capacity of experts, or without the vision tower."""

from __future__ import annotations

from dataclasses import replace

from .model import Layer, MixtureOfExperts, ModelSpec


def text_of(model: ModelSpec) -> ModelSpec:
    """The language model alone."""
    return model if model.tower is None else replace(model, tower=None)


def with_capacity(model: ModelSpec, factor: float | None) -> ModelSpec:
    """The model whose experts all have this capacity factor."""

    def capped(kind: Layer) -> Layer:
        block = kind.feed_forward
        if not isinstance(block, MixtureOfExperts):
            return kind
        return replace(kind, feed_forward=replace(block, capacity_factor=factor))

    return replace(model, kinds=tuple(map(capped, model.kinds)))
