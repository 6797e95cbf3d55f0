"""An encoder and the decoder that attends to its output, in chunks of pipeline stages (T5).

Between two chunks goes what the second one needs: inside the encoder the hidden states of the source; from the decoder
on the encoder's output and, behind it along the sequence, the hidden states of the target; before a head alone those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...cost_models.specs.encoder import Encoder
from ...cost_models.specs.model import ModelSpec
from ...planner.document.candidate import Chunk
from .decoder import DecoderChunk
from .norms import Norm
from .relative_bias import RelativeBias

# Names of parts, beside those of every model.
ENCODER_NORM, ENCODER_BIAS, DECODER_BIAS = "encoder_norm", "encoder_bias", "decoder_bias"


class EncoderDecoderChunk(DecoderChunk):
    """A run of layers of the encoder, of the decoder or of both, with the parts before the first layer of a stack.

    Stages that have layers of a stack have a copy of its biases by distance; one where the decoder starts has a copy of
    the token table, if the embedding is elsewhere.
    """

    def __init__(self, context: Any, spec: ModelSpec, chunk: Chunk, *args: Any, **kwargs: Any) -> None:
        super().__init__(context, spec, chunk, *args, **kwargs)
        self.places = (chunk.layers[0], chunk.layers[-1]) if chunk.layers else None  # of its layers in the model
        starts = self._starts(chunk)
        norm_bias = spec.kinds[spec.pattern[self.first_of_decoder]].norm_bias
        self.encoder_norm = Norm(context, spec.hidden, norm_bias) if starts else None
        self.encoder_bias = self._biases(0, ENCODER_BIAS)
        self.decoder_bias = self._biases(self.first_of_decoder, DECODER_BIAS)

    @property
    def first_of_decoder(self) -> int:
        return encoder_of(self.spec).layers

    def _biases(self, first: int, name: str) -> RelativeBias | None:
        """The biases of the stack that starts with layer `first`, if layers of this chunk have them."""
        attention = self.spec.kinds[self.spec.pattern[first]].attention
        if attention is None or name not in {bias_of(self.spec, int(index)) for index in self.layers}:
            return None
        buckets = attention.bias_parameters // attention.heads
        return RelativeBias(self.context, buckets, attention.heads, self.spec.hidden, causal=attention.causal)

    def _starts(self, chunk: Chunk) -> bool:
        """Whether the first layer of the decoder is in a chunk."""
        return bool(chunk.layers) and chunk.layers[0] <= self.first_of_decoder <= chunk.layers[-1]

    def _looks_up(self, chunk: Chunk) -> bool:
        return self._starts(chunk)

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        yield from super().parts()
        own = {ENCODER_NORM: self.encoder_norm, ENCODER_BIAS: self.encoder_bias, DECODER_BIAS: self.decoder_bias}
        yield from ((name, part) for name, part in own.items() if part is not None)

    def forward(self, x: Tensor, *texts: Tensor) -> Tensor:
        """Tokens of the source [b, source] or what arrives [b, (source | source + s | s) / tp, h] -> what the next
        chunk needs, or the sum of losses at the head.

        texts: tokens of the target, and those shifted by one, [b, s] each; True [b, source] for padding of the source,
        which no token attends to, or nothing.
        """
        padding = texts[2] if len(texts) > 2 else None
        encoded: Tensor | None = None
        if self.embedding is not None:
            x = self.run(self.embedding, self.embedding, x)
        elif self.places is not None and self.places[0] > self.first_of_decoder:
            encoded, x = self._parted(x)
        bias = self._made(self.encoder_bias if encoded is None else self.decoder_bias, x)
        for name, layer in self.layers.items():
            if int(name) == self.first_of_decoder:
                encoded, x = self._started(x, texts[0])
                bias = self._made(self.decoder_bias, x)
            x = self.run(layer, self._layer(name, layer, bias, encoded, padding), x)
        if self.head is not None:
            head = self.head
            return self.run(head, lambda last: head.loss(last, texts[1]), x)
        is_last = self.places is not None and self.places[1] == self.spec.num_layers - 1
        return x if encoded is None or is_last else torch.cat([encoded, x], 1)

    def _parted(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The tensors that arrive at a chunk of the decoder, as the encoder's output and the hidden states of the
        target."""
        ranks = self.context.group.size
        return x[:, : self._source // ranks], x[:, self._source // ranks :]

    def _started(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's output, and the hidden states of the target before the first layer."""
        norm, table = self.encoder_norm, self.table
        if norm is None or table is None:
            raise RuntimeError("the chunk where the decoder starts needs a norm and a token table")
        return self.run(norm, norm, x), self.run(table, table.look_up, tokens)

    def _made(self, biases: RelativeBias | None, x: Tensor) -> Tensor | None:
        """The numbers for all scores of a stack."""
        if biases is None:
            return None
        length = self._source if biases is self.encoder_bias else self.seq_len
        return self.run(biases, lambda _: biases(length), x)

    @property
    def _source(self) -> int:
        return self.source_len or self.seq_len


def encoder_of(spec: ModelSpec) -> Encoder:
    if spec.encoder is None:
        raise TypeError(f"{spec.name} has no encoder")
    return spec.encoder


def bias_of(spec: ModelSpec, index: int) -> str | None:
    """The part that makes the biases by distance of a layer; None: it has none."""
    attention = spec.kinds[spec.pattern[index]].attention
    if attention is None or not attention.relative_bias:
        return None
    return ENCODER_BIAS if index < encoder_of(spec).layers else DECODER_BIAS


def chunk_type(spec: ModelSpec) -> type[DecoderChunk]:
    """The class of the chunks of a model."""
    return DecoderChunk if spec.encoder is None else EncoderDecoderChunk
