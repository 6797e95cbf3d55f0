"""A layer of a decoder, or of an encoder before one."""

from __future__ import annotations

from torch import Tensor

from ...cost_models.specs.model import FeedForward, Layer
from .attention import CrossAttention, SelfAttention
from .block import Block, Context
from .experts import Experts
from .latent_attention import LatentAttention
from .mixers import MIXERS
from .mlp import Mlp
from .norms import Norm


class DecoderLayer(Block):
    """A layer: a mixer of tokens (attention or another), attention to an encoder, a feed-forward block, or some.

    Norms apply to block inputs, block outputs or both. Norms named `attention` are also those of another mixer.
    """

    def __init__(self, context: Context, spec: Layer, hidden: int) -> None:
        super().__init__(context)
        self.parallel = spec.parallel_blocks

        def norm(wanted: bool) -> Norm | None:
            return Norm(context, hidden, spec.norm_bias) if wanted else None

        inputs, outputs = not spec.output_norms, spec.output_norms or spec.num_norms == 4
        self.attention_norm = norm(inputs and spec.mixes)
        self.attention: SelfAttention | LatentAttention | None = None
        if (attention := spec.attention) is not None:
            kind = LatentAttention if attention.is_mla else SelfAttention
            self.attention = kind(context, attention, hidden)
        self.mixer = None if spec.mixer is None else MIXERS[type(spec.mixer)](context, spec.mixer, hidden)
        self.attention_output_norm = norm(outputs and spec.mixes)
        self.cross_attention_norm = norm(spec.cross_attention is not None)
        self.cross_attention: CrossAttention | None = None
        if spec.cross_attention is not None:
            self.cross_attention = CrossAttention(context, spec.cross_attention, hidden)
        block, alone = spec.feed_forward, not spec.mixes
        self.feed_forward_norm = norm(inputs and block is not None and (alone or spec.num_norms > 1))
        self.feed_forward: Block | None = None
        if block is not None:
            of_block = Mlp if isinstance(block, FeedForward) else Experts
            self.feed_forward = of_block(context, block, hidden)  # type: ignore[arg-type]
        self.feed_forward_output_norm = norm(outputs and block is not None)

    @property
    def rotates(self) -> bool:
        """Whether the layer uses rotary positions, if the model has them."""
        return self.attention is not None and self.attention.spec.rotary

    def forward(
        self, x: Tensor, positions: tuple[Tensor, Tensor] | None, bias: Tensor | None = None,
        encoded: Tensor | None = None, padding: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """bias: numbers on the scores of attention [heads / tp, s, s]. encoded: this rank's part of the output of an
        encoder [b, source / tp, h]. padding: True [b, source] for tokens of the source that no token attends to; those
        are x itself where there is no `encoded`."""
        with self.context.recompute.layer():
            if self.parallel and self.feed_forward is not None:
                taken = self._normed(self.attention_norm, x)
                out = self._mixed(taken, positions)
                taken = taken if self.feed_forward_norm is None else self._normed(self.feed_forward_norm, x)
                return self._added(x, out + self.feed_forward(taken))
            if self.attention is not None or self.mixer is not None:
                out = self._mixed(self._normed(self.attention_norm, x), positions, bias,
                                  padding if encoded is None else None)  # fmt: skip
                x = self._added(x, self._normed(self.attention_output_norm, out))
            if self.cross_attention is not None:
                if encoded is None:
                    raise RuntimeError("a layer that attends to an encoder needs its output")
                x = self._added(x, self.cross_attention(self._normed(self.cross_attention_norm, x), encoded, padding))
            if self.feed_forward is not None:
                out = self.feed_forward(self._normed(self.feed_forward_norm, x))
                x = self._added(x, self._normed(self.feed_forward_output_norm, out))
            return x

    def _mixed(
        self, taken: Tensor, positions: tuple[Tensor, Tensor] | None, bias: Tensor | None = None,
        padding: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        out: Tensor
        if isinstance(self.attention, SelfAttention):
            out = self.attention(taken, positions, bias, padding)
        elif self.attention is not None:
            out = self.attention(taken, positions)
        elif self.mixer is not None:
            out = self.mixer(taken)
        else:
            raise RuntimeError("a layer without a block that mixes tokens")
        return out

    def _added(self, x: Tensor, out: Tensor) -> Tensor:
        """Adds to the residual stream."""
        return x.add(out, alpha=self.context.numerics.residual_scale)

    def _normed(self, norm: Norm | None, x: Tensor) -> Tensor:
        return x if norm is None else self.context.recompute.output("norm", norm, x)
