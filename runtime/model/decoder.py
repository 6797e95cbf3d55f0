"""Decoders of the GPT, Llama and DeepSeek families, in chunks of pipeline stages.

Shapes are those of the plan's ModelSpec: the element counts equal `cost_models.quantities.params`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ...cost_models.specs.model import ModelSpec
from ...planner.document.candidate import Chunk
from ..parallel.context_parallel import ContextParallel
from ..parallel.recompute import whole
from .block import Block, Context
from .embedding import Embedding, TokenTable
from .head import Head, ValueHead
from .images import SequenceImages
from .layer import DecoderLayer
from .multi_token import PREDICTION_WEIGHT, Prediction
from .rope import Rotation, frequencies

Run = Callable[[nn.Module, Callable[[Tensor], Tensor], Tensor], Tensor]


def plainly(module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Runs a part of the model whose weights are always resident."""
    return function(x)


def _sent_away(layer: nn.Module, run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`run`, the forward pass of a layer, with activation offload where the layer's strategy has it."""
    offload = layer.context.recompute.offload if isinstance(layer, Block) else None
    if offload is None:
        return run

    def running(x: Tensor) -> Tensor:
        with offload.layer():
            return run(x)

    return running


def _start(x: Tensor) -> Tensor:
    """Marks the output of a frozen embedding as requiring a gradient.

    The first layer then has a backward pass like any other, which computes the gradient of its input. It is discarded.
    """
    x.requires_grad_()
    x.register_post_accumulate_grad_hook(_dropped)  # type: ignore[no-untyped-call]
    return x


def _dropped(x: Tensor) -> None:
    x.grad = None


class DecoderChunk(nn.Module):
    """A run of layers of one pipeline stage, with the embedding or the head where the chunk contains them.

    `run` is called for each part with its module, so that sharded weights can be gathered around it.
    """

    head_type: type[Head] = Head

    def __init__(
        self, context: Context, spec: ModelSpec, chunk: Chunk, seq_len: int, embedding: Embedding | None = None,
        context_of: Callable[[str], Context] | None = None, seen: SequenceImages | None = None,
        source_len: int | None = None,
    ) -> None:  # fmt: skip
        """embedding: the embedding in another chunk on this device, which head and predictions may share.

        context_of: the context of a part, where it differs from `context`. seen: the images of sequences. source_len:
        tokens that an encoder reads, if there is one.
        """
        super().__init__()
        self.context, self.spec, self.run, self.seen = context, spec, plainly, seen
        self.source_len = source_len
        of = context_of or (lambda part: context)
        first, last = (chunk.layers[0], chunk.layers[-1]) if chunk.layers else (0, -1)
        self.embedding = Embedding(of("embedding"), spec, seen) if chunk.embedding else None
        self.layers = nn.ModuleDict({
            str(i): DecoderLayer(of(f"layers.{i}"), spec.kinds[spec.pattern[i]], spec.hidden)
            for i in range(first, last + 1)
        })  # fmt: skip
        self.recomputed = frozenset(str(i) for i in range(first, first + chunk.recompute_layers))
        if self.embedding is not None and self.embedding.tower is not None:
            self.embedding.tower.recomputes = chunk.recompute_layers > 0
        embedding = self.embedding or embedding
        copied = embedding is None and self._looks_up(chunk)
        self.token_copy = TokenTable(self._unadapted, spec) if copied else None
        self._table = (self.token_copy or embedding,)  # in a tuple, as in the head
        tied = self.table if spec.tied_embeddings else None
        self.head = self.head_type(of("head"), spec, tied) if chunk.head else None
        self.seq_len = seq_len
        self.moves: dict[str, Callable[[Tensor], Tensor]] = {}
        self._predict(chunk)

    run: Run
    moves: dict[str, Callable[[Tensor], Tensor]]  # part -> function that reshards its input activations

    def _looks_up(self, chunk: Chunk) -> bool:
        """Whether tokens are looked up beside what arrives, so that a device without the embedding has a copy of it."""
        return chunk.head and self.spec.mtp_layers > 0

    def _predict(self, chunk: Chunk) -> None:
        """Prediction modules next to the head."""
        context, spec = self._unadapted, self.spec
        number = spec.mtp_layers if chunk.head else 0
        kind = spec.kinds[spec.pattern[-1]]
        self.predictions = nn.ModuleList([
            Prediction(context, spec, DecoderLayer(context, kind, spec.hidden)) for _ in range(number)
        ])  # fmt: skip
        self.predictions_recomputed = bool(chunk.layers) and len(self.recomputed) == len(self.layers)

    @property
    def _unadapted(self) -> Context:
        """The context of weights that get no adapters."""
        adapters = self.context.adapters
        return self.context if adapters is None else replace(self.context, adapters=adapters.without())

    @property
    def table(self) -> TokenTable | None:
        """The token table for further lookups, in this chunk or another one of the device."""
        return self._table[0]

    def split(self, cp: ContextParallel) -> None:
        """Splits the rows that come next in another way."""
        self.context = replace(self.context, cp=cp)
        self._tables.clear()
        for module in self.modules():
            if isinstance(module, Block):
                module.context = self.context

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Name and module of embedding, layers, head and predictions, which are gathered and reduced as units.

        A copy of the embedding has the name of the embedding, because they are one weight.
        """
        table = self.embedding or self.token_copy
        if table is not None:
            yield "embedding", table
        yield from ((f"layers.{name}", layer) for name, layer in self.layers.items())
        if self.head is not None:
            yield "head", self.head
        yield from ((f"predictions.{name}", module) for name, module in self.predictions.named_children())

    def forward(self, x: Tensor, *targets: Tensor) -> Tensor:
        """Tokens [b, s] or activations [b, s/tp, h] of this rank -> activations, or the sum of losses at the head.

        targets: the tokens shifted by one [b, s], and by one more for each prediction.
        """
        tapped: list[Tensor] = []
        if (embedding := self.embedding) is not None:
            x = self.run(embedding, lambda tokens: embedding.see(tokens, tapped), x)
            x = x if x.requires_grad else _start(x)
        for name, layer in self.layers.items():
            x = self.run(layer, self._layer(name, layer), self._moved(f"layers.{name}", x))
            if tapped and embedding is not None and embedding.tower is not None:
                x = embedding.tower.place(x, tapped.pop(0), add=True)
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
        """Output and loss of a prediction module, from the previous output and the next tokens."""
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

    def _layer(self, name: str, layer: nn.Module, *beside: Tensor | None) -> Callable[[Tensor], Tensor]:
        """beside: further inputs of the layer, which all layers of a stack share."""
        entire = isinstance(layer, DecoderLayer) and layer.context.recompute.entire
        run = self._whole if entire or name in self.recomputed else self._plain
        return _sent_away(layer, run(layer, *beside))

    def _plain(self, layer: nn.Module, *beside: Tensor | None) -> Callable[[Tensor], Tensor]:
        rotary = self.spec.rope_theta is not None and not self.spec.learned_positions
        positions = self._rotary(layer) if rotary and isinstance(layer, DecoderLayer) and layer.rotates else None
        return lambda x: layer(x, positions, *beside)

    def _whole(self, layer: nn.Module, *beside: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Runs a layer that is fully recomputed in the backward pass."""
        plain = self._plain(layer, *beside)
        return lambda x: whole(plain, x)

    def _rotary(self, layer: nn.Module) -> tuple[Tensor, Tensor]:
        """cos and sin [s, d/2] of this rank's tokens, computed once per rotation and share of the tokens."""
        if not isinstance(layer, DecoderLayer) or layer.attention is None:
            raise TypeError("not a decoder layer with attention")
        context, rotation = layer.context, Rotation.of(self.spec, layer.attention.spec)
        key = rotation, context.cp, self.seq_len
        if key not in self._tables:
            turns = frequencies(rotation)
            places = context.positions(self.seq_len)[:, None] if self.seen is None else (
                self.seen.rotary_positions(len(turns)))
            angles = places.double() * turns
            made = [(rotation.amplitude * values).to(context.device, context.dtype)
                    for values in (angles.cos(), angles.sin())]  # fmt: skip
            self._tables[key] = made[0], made[1]
            if context.recompute.offload is not None:
                context.recompute.offload.stays(made)
        return self._tables[key]

    @property
    def _tables(self) -> dict[tuple[Rotation, ContextParallel | None, int], tuple[Tensor, Tensor]]:
        tables: dict[Any, tuple[Tensor, Tensor]] = self.__dict__.setdefault("_rotary_tables", {})
        return tables


class ValueChunk(DecoderChunk):
    """The same of a model that gives each token a value."""

    head_type = ValueHead
