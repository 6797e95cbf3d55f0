"""Initial weights. They depend on the seed and the parameter's name only, never on the layout.

Every rank draws the whole parameter and keeps its part.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import torch
from torch import Tensor

from .block import ParamShard, named_splits
from .decoder import DecoderChunk

# ModelSpec has no such field; weights of T5 have deviations of their own (block.py). Source: `initializer_range` of the
# GPT-2 and Llama configs in transformers 5.23.
INITIAL_STD = 0.02


class InitParam(Protocol):
    """Fills a parameter, or a buffer, with its initial weights."""

    def __call__(self, parameter: Tensor, name: str, split: ParamShard, seed: int, *, tied: bool) -> None: ...


def materialise(chunk: DecoderChunk, seed: int) -> None:
    """Allocates the parameters and fills them with their initial weights."""
    for name, parameter, split in named_splits(chunk):
        parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
        init_param(parameter, name, split, seed, tied=chunk.spec.tied_embeddings)


def same_weight(name: str, *, tied: bool) -> str:
    """The name of a weight. Tied embeddings have one name on all stages."""
    return "embedding.tokens" if tied and name == "head.projection" else name


@torch.no_grad()
def init_param(parameter: Tensor, name: str, split: ParamShard, seed: int, *, tied: bool) -> None:
    """Draws initial weights. A tied head on another stage draws the weights of the embedding."""
    if split.start is not None:
        parameter.fill_(split.start)
        return
    drawn = torch.empty(split.shape, dtype=torch.float32)
    digest = hashlib.sha256(f"{seed}/{same_weight(name, tied=tied)}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    drawn.normal_(std=split.std or INITIAL_STD, generator=generator)
    for dim, first in split.firsts:
        drawn = drawn.narrow(dim, first, parameter.shape[dim])
    parameter.copy_(drawn)
