"""Decoders of the GPT, Llama and DeepSeek families, in chunks as pipeline stages hold them.

Shapes are those of the plan's ModelSpec: the element counts equal `cost_models.params`. Initial weights depend on the
seed and the parameter's name only, never on the layout: every rank draws the whole parameter and keeps its part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...cost_models.specs.model import FeedForward, Layer, ModelSpec
from ...planner.document.plan import Chunk
from ..parallel import tensor_parallel as tp
from ..parallel.context_parallel import ContextParallel
from ..parallel.recompute import whole
from .blocks import Block, Context, Experts, Mlp, Norm, ParamShard, SelfAttention
from .latent_attention import LatentAttention
from .multi_token import PREDICTION_WEIGHT, Prediction
from .rope import frequencies, rotated_width

# ModelSpec has none: the usual width of a GPT's initial weights.
INITIAL_STD = 0.02



class InitParam(Protocol):
    """Fills a parameter with its initial weights."""

    def __call__(self, parameter: Tensor, name: str, split: ParamShard, seed: int, *, tied: bool) -> None: ...


Run = Callable[[nn.Module, Callable[[Tensor], Tensor], Tensor], Tensor]


class DecoderLayer(Block):
    """Attention and feed-forward block, each behind its norm and beside the residual stream."""

    def __init__(self, context: Context, spec: Layer, hidden: int) -> None:
        super().__init__(context)
        self.attention_norm = Norm(context, hidden, spec.norm_bias)
        kind = LatentAttention if spec.attention.is_mla else SelfAttention
        self.attention = kind(context, spec.attention, hidden)
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


class TokenTable(Block):
    """One row per token, split by rows over tp; by itself the copy that predictions use on a last stage that is not the
    first one too."""

    reads_again = False  # a lookup's gradient asks for no row

    def __init__(self, context: Context, spec: ModelSpec) -> None:
        super().__init__(context)
        self.add("tokens", [spec.vocab, spec.hidden], 0)
        self.first, _ = context.part(spec.vocab)

    def look_up(self, tokens: Tensor) -> Tensor:
        """[b, s] -> [b, s/tp, h]."""
        return tp.embed(tokens, self.tensor("tokens"), self.first, self.context.group)


class Embedding(TokenTable):
    """Tokens and learned positions; tokens [b, s] -> [b, s/tp, h]."""

    def __init__(self, context: Context, spec: ModelSpec) -> None:
        super().__init__(context, spec)
        if spec.learned_positions:
            self.add("positions", [spec.learned_positions, spec.hidden])
        self.norm = Norm(context, spec.hidden, spec.norm_bias) if spec.embedding_norm else None
        self.reads_again = self.norm is not None

    def forward(self, tokens: Tensor) -> Tensor:
        group, cp = self.context.group, self.context.cp
        x = self.look_up(tokens)
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

    def logits(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        """[b, s/tp, h] -> [b, s, vocab / tp]. norm: in place of the model's final one."""
        norm = norm or self.norm
        x = x if norm is None else norm(x)
        tied = self._tied[0]
        weight = self.tensor("projection") if tied is None else tied.tensor("tokens")
        return tp.column(x, [weight], [self.maybe("projection_bias")], self.context.group, waits=False)[0]

    def loss(self, x: Tensor, targets: Tensor, norm: Norm | None = None) -> Tensor:
        """Sum of the losses of all tokens, nats."""
        return tp.cross_entropy(self.logits(x, norm), targets, self.first, self.context.group)


def plainly(module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Runs a part of the model whose weights are always there."""
    return function(x)


def _sent_away(layer: nn.Module, run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`run`, the forward pass of a layer; what it saves is sent to the host where the layer's strategy says so."""
    offload = layer.context.recompute.offload if isinstance(layer, Block) else None
    if offload is None:
        return run

    def running(x: Tensor) -> Tensor:
        with offload.layer():
            return run(x)

    return running


def _start(x: Tensor) -> Tensor:
    """What a frozen embedding has made, as the input of a layer like any other: its backward pass ends in a gradient of
    its input. That one is for nobody."""
    x.requires_grad_()
    x.register_post_accumulate_grad_hook(_dropped)  # type: ignore[no-untyped-call]
    return x


def _dropped(x: Tensor) -> None:
    x.grad = None


class DecoderChunk(nn.Module):
    """A run of layers of one pipeline stage, with the embedding or the head where the chunk has them.

    `run` is called for each part with its module, so that sharded weights can be gathered around it.
    """

    def __init__(
        self, context: Context, spec: ModelSpec, chunk: Chunk, seq_len: int, embedding: Embedding | None = None,
        own: Callable[[str], Context] | None = None,
    ) -> None:  # fmt: skip
        """embedding: that of another chunk on the same device, which head and predictions may share. own: the context
        of a part, where `context` is not that of all."""
        super().__init__()
        self.context, self.spec, self.run = context, spec, plainly
        of = own or (lambda part: context)
        first, last = (chunk.layers[0], chunk.layers[-1]) if chunk.layers else (0, -1)
        self.embedding = Embedding(of("embedding"), spec) if chunk.embedding else None
        self.layers = nn.ModuleDict({
            str(i): DecoderLayer(of(f"layers.{i}"), spec.kinds[spec.pattern[i]], spec.hidden)
            for i in range(first, last + 1)
        })  # fmt: skip
        self.recomputed = frozenset(str(i) for i in range(first, first + chunk.recompute_layers))
        embedding = self.embedding or embedding
        self.head = Head(of("head"), spec, embedding if spec.tied_embeddings else None) if chunk.head else None
        self.seq_len = seq_len
        self.moves: dict[str, Callable[[Tensor], Tensor]] = {}
        self._predict(chunk, embedding)

    run: Run
    moves: dict[str, Callable[[Tensor], Tensor]]  # by part: what brings activations into its cut

    def _predict(self, chunk: Chunk, embedding: Embedding | None) -> None:
        """Modules beside the head; where no embedding is on this device, with a copy of its table."""
        context, spec = self.context, self.spec
        number = spec.mtp_layers if chunk.head else 0
        kind = spec.kinds[spec.pattern[-1]]
        adapters = context.adapters
        context = context if adapters is None else replace(context, adapters=adapters.without())
        self.predictions = nn.ModuleList([
            Prediction(context, spec, DecoderLayer(context, kind, spec.hidden)) for _ in range(number)
        ])  # fmt: skip
        self.predictions_recomputed = bool(chunk.layers) and len(self.recomputed) == len(self.layers)
        self.token_copy = TokenTable(context, spec) if number and embedding is None else None
        self._table = (self.token_copy or embedding,)  # in a tuple, as in the head

    @property
    def table(self) -> TokenTable | None:
        """Where predictions find the embeddings of tokens, on this chunk or another one of the device."""
        return self._table[0]

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Name and module of embedding, layers, head and predictions: what is gathered and reduced as one. A copy of
        the embedding has its name, as they are one weight."""
        table = self.embedding or self.token_copy
        if table is not None:
            yield "embedding", table
        yield from ((f"layers.{name}", layer) for name, layer in self.layers.items())
        if self.head is not None:
            yield "head", self.head
        yield from ((f"predictions.{name}", module) for name, module in self.predictions.named_children())

    def forward(self, x: Tensor, *targets: Tensor) -> Tensor:
        """Tokens [b, s] or activations [b, s/tp, h] of this rank -> activations, or the sum of losses at the head.
        targets: the tokens one further [b, s], and for each prediction those one further still."""
        if self.embedding is not None:
            x = self.run(self.embedding, self.embedding, x)
            x = x if x.requires_grad else _start(x)
        for name, layer in self.layers.items():
            x = self.run(layer, self._layer(name, layer), self._moved(f"layers.{name}", x))
        if self.head is None:
            return x
        if len(targets) != 1 + len(self.predictions):
            raise ValueError(f"the chunk with the head needs {1 + len(self.predictions)} rows of targets")
        head = self.head
        x = self._moved("head", x)
        loss = self.run(head, lambda last: head.loss(last, targets[0]), x)
        for index, module in enumerate(self.predictions):
            x, further = self._predicted(head, module, x, targets[index], targets[index + 1])
            loss = loss + PREDICTION_WEIGHT / len(self.predictions) * further
        return loss

    def _predicted(
        self, head: Head, module: nn.Module, x: Tensor, tokens: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A prediction's output and loss, from the output before it and the next tokens."""
        table = self.table
        if not isinstance(module, Prediction) or table is None:
            raise TypeError("a prediction needs its module and a table of tokens")
        made_again = self.predictions_recomputed
        layer = _sent_away(module.layer, self._whole(module.layer) if made_again else self._plain(module.layer))
        following, made = self.run(table, table.look_up, tokens), []

        def run(before: Tensor) -> Tensor:
            made.append(layer(module.joined(before, following)))
            return head.loss(made[0], targets, module.norm)

        loss = self.run(module, run, x)
        return made[0], loss

    def _moved(self, part: str, x: Tensor) -> Tensor:
        return self.moves[part](x) if part in self.moves else x

    def _layer(self, name: str, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        entire = isinstance(layer, DecoderLayer) and layer.context.recompute.entire
        return _sent_away(layer, self._whole(layer) if entire or name in self.recomputed else self._plain(layer))

    def _plain(self, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        rotary = self.spec.rope_theta is not None and not self.spec.learned_positions
        positions = self._rotary(layer) if rotary else None
        return lambda x: layer(x, positions)

    def _whole(self, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        """All of the layer recomputed in the backward pass."""
        plain = self._plain(layer)
        return lambda x: whole(plain, x)

    def _rotary(self, layer: nn.Module) -> tuple[Tensor, Tensor]:
        """cos and sin [s, d/2] of this rank's tokens, made once per width that turns and share of the tokens."""
        if not isinstance(layer, DecoderLayer):
            raise TypeError("not a decoder layer")
        context, scaling = layer.context, self.spec.rope_scaling
        width = rotated_width(self.spec, layer.attention.spec)
        if (width, context.cp) not in self._tables:
            angles = context.positions(self.seq_len).double()[:, None] * frequencies(self.spec, width)
            amplitude = 1.0 if scaling is None else scaling.amplitude
            made = [(amplitude * each).to(context.device, context.dtype) for each in (angles.cos(), angles.sin())]
            self._tables[width, context.cp] = made[0], made[1]
            if context.recompute.offload is not None:
                context.recompute.offload.stays(made)
        return self._tables[width, context.cp]

    @property
    def _tables(self) -> dict[tuple[int, ContextParallel | None], tuple[Tensor, Tensor]]:
        found: dict[Any, tuple[Tensor, Tensor]] = self.__dict__.setdefault("_rotary_tables", {})
        return found


def named_splits(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter, ParamShard]]:
    """Full name, parameter and split of every parameter of `module`."""
    for path, block in module.named_modules(prefix=prefix):
        if isinstance(block, Block):
            for name, split in block.splits.items():
                yield f"{path}.{name}", block.get_parameter(name), split


def materialise(chunk: DecoderChunk, seed: int) -> None:
    """Gives the parameters memory of their own, with their initial weights."""
    for name, parameter, split in named_splits(chunk):
        parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
        init_param(parameter, name, split, seed, tied=chunk.spec.tied_embeddings)


def same_weight(name: str, *, tied: bool) -> str:
    """The name of a weight; tied embeddings have one, on whatever stages they are."""
    return "embedding.tokens" if tied and name == "head.projection" else name


@torch.no_grad()
def init_param(parameter: Tensor, name: str, split: ParamShard, seed: int, *, tied: bool) -> None:
    """Initial weights. A head that is tied but on another stage draws what the embedding draws."""
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
