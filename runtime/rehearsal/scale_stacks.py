"""A small encoder and decoder for `--scale-down`.

Kept: chunks of one stack and of both, biases by distance, attention to the encoder, the first layer of each stack.
Shrunk: layers, and the source to at most half as many tokens again as a short sequence, so that both lengths differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...cost_models.specs.model import ModelSpec


def with_stacks(
    small: ModelSpec, model: ModelSpec, sizes: Sequence[tuple[int, int]], source_len: int
) -> ModelSpec:  # fmt: skip
    """The small model with as many layers of each stack as `sizes` has. Those of `model` are evenly picked, the first
    one of each stack among them."""
    if model.encoder is None:
        raise TypeError(f"{model.name} has no encoder")
    layers, numbers = model.encoder.layers, [sum(column) for column in zip(*sizes, strict=True)]
    pattern: list[int] = []
    for stack, number in zip((model.pattern[:layers], model.pattern[layers:]), numbers, strict=True):
        pattern += [stack[round(i * (len(stack) - 1) / max(number - 1, 1))] for i in range(number)]
    encoder = replace(model.encoder, layers=numbers[0], max_positions=source_len)
    return replace(small, pattern=tuple(pattern), encoder=encoder)


def small_source(source_len: int | None, seq_len: int, tp: int) -> int | None:
    """Tokens of a short source, equal on all ranks. seq_len: of the rehearsal."""
    if source_len is None:
        return None
    return min(seq_len * 3 // 2, source_len) // tp * tp
