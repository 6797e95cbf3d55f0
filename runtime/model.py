"""Decoders of the GPT and Llama families, in chunks as pipeline stages hold them; shapes from the plan's ModelSpec.

The element counts equal `cost_models.params`. Initial weights depend on the seed and the parameter's name only, never
on the layout: every rank draws the whole parameter and keeps its part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from ..cost_models.specs import FeedForward, Layer, ModelSpec
from ..planner.plan import Chunk
from . import tensor_parallel as tp
from .blocks import Block, Context, Experts, Mlp, Norm, SelfAttention, Split
from .recompute import whole

# ModelSpec has none: the usual width of a GPT's initial weights.
INITIAL_STD = 0.02



class Draw(Protocol):
    """Fills a parameter with its initial weights."""

    def __call__(self, parameter: Tensor, name: str, split: Split, seed: int, *, tied: bool) -> None: ...


Run = Callable[[nn.Module, Callable[[Tensor], Tensor], Tensor], Tensor]


class DecoderLayer(Block):
    """Attention and feed-forward block, each behind its norm and beside the residual stream."""

    def __init__(self, context: Context, spec: Layer, hidden: int) -> None:
        super().__init__(context)
        self.attention_norm = Norm(context, hidden, spec.norm_bias)
        self.attention = SelfAttention(context, spec.attention, hidden)
        self.feed_forward_norm = Norm(context, hidden, spec.norm_bias)
        block = spec.feed_forward
        self.feed_forward: Block = (
            Mlp(context, block, hidden) if isinstance(block, FeedForward) else Experts(context, block, hidden)
        )

    def forward(self, x: Tensor, positions: tuple[Tensor, Tensor] | None) -> Tensor:
        recompute = self.context.recompute
        with recompute.layer():
            x = x + self.attention(recompute.output("norm", self.attention_norm, x), positions)
            out: Tensor = x + self.feed_forward(recompute.output("norm", self.feed_forward_norm, x))
            return out


class Embedding(Block):
    """Token table, split by rows over tp, and learned positions; tokens [b, s] -> [b, s/tp, h]."""

    def __init__(self, context: Context, spec: ModelSpec) -> None:
        super().__init__(context)
        self.add("tokens", [spec.vocab, spec.hidden], 0)
        if spec.learned_positions:
            self.add("positions", [spec.learned_positions, spec.hidden])
        self.norm = Norm(context, spec.hidden, spec.norm_bias) if spec.embedding_norm else None

    def forward(self, tokens: Tensor) -> Tensor:
        group, cp = self.context.group, self.context.cp
        x = tp.embed(tokens, self.tensor("tokens"), self.splits["tokens"].first, group)
        table = self.maybe("positions")
        if table is not None:
            rows = table if cp is None else table[cp.positions(tokens.shape[1] * cp.group.size).to(table.device)]
            x = x + rows[group.rank * x.shape[1] : (group.rank + 1) * x.shape[1]]
        return x if self.norm is None else self.norm(x)


class Head(Block):
    """Final norm, output projection, loss. `tied`: the module that holds the projection of tied embeddings."""

    def __init__(self, context: Context, spec: ModelSpec, tied: Embedding | None) -> None:
        super().__init__(context)
        self.norm = Norm(context, spec.hidden, spec.norm_bias) if spec.final_norm else None
        self.first, _ = context.part(spec.vocab)
        self._tied = (tied,)  # in a tuple, so that it is not a submodule here
        if tied is None:
            self.add("projection", [spec.vocab, spec.hidden], 0)
        if spec.head_bias:
            self.add("projection_bias", [spec.vocab], 0, start=0.0)

    def logits(self, x: Tensor) -> Tensor:
        """[b, s/tp, h] -> [b, s, vocab / tp]."""
        x = x if self.norm is None else self.norm(x)
        tied = self._tied[0]
        weight = self.tensor("projection") if tied is None else tied.tensor("tokens")
        return tp.column(x, [weight], [self.maybe("projection_bias")], self.context.group, waits=False)[0]

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Sum of the losses of all tokens, nats."""
        return tp.cross_entropy(self.logits(x), targets, self.first, self.context.group)


def plainly(module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Runs a part of the model whose weights are always there."""
    return function(x)


class DecoderChunk(nn.Module):
    """A run of layers of one pipeline stage, with the embedding or the head where the chunk has them.

    `run` is called for each part with its module, so that sharded weights can be gathered around it.
    """

    def __init__(
        self, context: Context, spec: ModelSpec, chunk: Chunk, seq_len: int, tied: Embedding | None = None
    ) -> None:
        """tied: the embedding of another chunk on the same device, where the model ties the head to it."""
        super().__init__()
        self.context, self.spec, self.run = context, spec, plainly
        first, last = (chunk.layers[0], chunk.layers[-1]) if chunk.layers else (0, -1)
        self.embedding = Embedding(context, spec) if chunk.embedding else None
        self.layers = nn.ModuleDict({
            str(i): DecoderLayer(context, spec.kinds[spec.pattern[i]], spec.hidden) for i in range(first, last + 1)
        })  # fmt: skip
        self.recomputed = frozenset(str(i) for i in range(first, first + chunk.recompute_layers))
        tied = (self.embedding or tied) if spec.tied_embeddings else None
        self.head = Head(context, spec, tied) if chunk.head else None
        self.seq_len = seq_len

    run: Run

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Name and module of embedding, layers and head: what is gathered and reduced as one."""
        if self.embedding is not None:
            yield "embedding", self.embedding
        yield from ((f"layers.{name}", layer) for name, layer in self.layers.items())
        if self.head is not None:
            yield "head", self.head

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Tokens [b, s] or activations [b, s/tp, h] of this rank -> activations, or the sum of losses at the head."""
        if self.embedding is not None:
            x = self.run(self.embedding, self.embedding, x)
        for name, layer in self.layers.items():
            x = self.run(layer, self._layer(name, layer), x)
        if self.head is None:
            return x
        if targets is None:
            raise ValueError("the chunk with the head needs targets")
        head, labels = self.head, targets
        return self.run(head, lambda last: head.loss(last, labels), x)

    def _layer(self, name: str, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        theta = self.spec.rope_theta
        positions = self._rotary(layer, theta) if theta is not None and not self.spec.learned_positions else None
        if name in self.recomputed:
            return lambda x: whole(lambda inner: layer(inner, positions), x)
        return lambda x: layer(x, positions)

    def _rotary(self, layer: nn.Module, theta: float) -> tuple[Tensor, Tensor]:
        """cos and sin [s, d/2] of this rank's tokens, made once per head dim."""
        if not isinstance(layer, DecoderLayer):
            raise TypeError("not a decoder layer")
        width, context = layer.attention.spec.head_dim, self.context
        if width not in self._tables:
            exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
            angles = context.positions(self.seq_len).double()[:, None] / theta**exponents
            made = [each.to(context.device, context.dtype) for each in (angles.cos(), angles.sin())]
            self._tables[width] = made[0], made[1]
        return self._tables[width]

    @property
    def _tables(self) -> dict[int, tuple[Tensor, Tensor]]:
        found: dict[int, tuple[Tensor, Tensor]] = self.__dict__.setdefault("_rotary_tables", {})
        return found


def named_splits(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter, Split]]:
    """Full name, parameter and split of every parameter of `module`."""
    for path, block in module.named_modules(prefix=prefix):
        if isinstance(block, Block):
            for name, split in block.splits.items():
                yield f"{path}.{name}", block.get_parameter(name), split


def materialise(chunk: DecoderChunk, seed: int) -> None:
    """Gives the parameters memory of their own, with their initial weights."""
    for name, parameter, split in named_splits(chunk):
        parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
        draw(parameter, name, split, seed, tied=chunk.spec.tied_embeddings)


def same_weight(name: str, *, tied: bool) -> str:
    """The name of a weight; tied embeddings have one, on whatever stages they are."""
    return "embedding.tokens" if tied and name == "head.projection" else name


@torch.no_grad()
def draw(parameter: Tensor, name: str, split: Split, seed: int, *, tied: bool) -> None:
    """Initial weights. A head that is tied but on another stage draws what the embedding draws."""
    if split.start is not None:
        parameter.fill_(split.start)
        return
    drawn = torch.empty(split.shape, dtype=torch.float32)
    digest = hashlib.sha256(f"{seed}/{same_weight(name, tied=tied)}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    drawn.normal_(std=INITIAL_STD, generator=generator)
    if split.dim is not None:
        drawn = drawn.narrow(split.dim, split.first, parameter.shape[split.dim])
    parameter.copy_(drawn)
