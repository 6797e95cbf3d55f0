"""A vision tower of Qwen3-VL's kind beside the embedding: a pre-norm encoder over the patches of each image, and
mergers that turn blocks of patches into tokens.

Symbols: i images of a micro-batch, n patches of an image, h hidden; `x` is [i, n, h]. Heads and inner widths are split
over tp; activations are not, since every rank encodes all images (Megatron-Bridge, as planned).
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...cost_models.specs.vision import VisionTower
from ..parallel import tensor_parallel as tp
from ..parallel.recompute import whole
from ..parallel.split_backward import linear
from .activations import ACTIVATIONS
from .block import Block, Context
from .images import SequenceImages
from .norms import Norm
from .rope import rotate

# Qwen3VLVisionModel of transformers 5.24: its norms, the base of its rotation.
_EPSILON, _THETA = 1e-6, 10_000.0


def freezes(name: str) -> bool:
    """Whether a weight, by its full name, does not train where a tower is frozen: all but the mergers."""
    within = name.removeprefix("embedding.tower.")
    return within != name and not within.startswith("merger")


class TowerBlock(Block):
    """Products whose inputs every tp rank has whole."""

    def add_linear(self, name: str, outputs: int, inputs: int, dim: int) -> None:
        """A weight [outputs, inputs] split over tp along dim, and its bias."""
        self.add(name, [outputs, inputs], dim)
        self.add(f"{name}_bias", [outputs], 0 if dim == 0 else None, start=0.0)

    def outputs(self, x: Tensor, *names: str) -> list[Tensor]:
        """Products with weights split by outputs."""
        x = tp.copied(x, self.context.group)
        return [linear(x, self.tensor(name), self.tensor(f"{name}_bias")) for name in names]

    def inputs(self, x: Tensor, name: str) -> Tensor:
        """The product with a weight split by inputs, summed over tp."""
        bias = self.tensor(f"{name}_bias")
        if self.context.group.size == 1:
            return linear(x, self.tensor(name), bias)
        return tp.summed(linear(x, self.tensor(name)), self.context.group) + bias


class VisionLayer(TowerBlock):
    """Attention among the patches of an image, and a feed-forward block."""

    def __init__(self, context: Context, spec: VisionTower) -> None:
        super().__init__(context)
        self.spec, h = spec, spec.hidden
        self.attention_norm = Norm(context, h, bias=True, epsilon=_EPSILON)
        for name in ("q", "k", "v"):
            self.add_linear(name, h, h, 0)
        self.add_linear("o", h, h, 1)
        self.feed_forward_norm = Norm(context, h, bias=True, epsilon=_EPSILON)
        self.add_linear("up", spec.inner, h, 0)
        self.add_linear("down", h, spec.inner, 1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        width = self.spec.hidden // self.spec.heads
        q, k, v = (out.view(*out.shape[:2], -1, width) for out in self.outputs(self.attention_norm(x), "q", "k", "v"))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = x + self.inputs(mixed.transpose(1, 2).flatten(2), "o")
        inner = ACTIVATIONS[self.spec.activation](self.outputs(self.feed_forward_norm(x), "up")[0])
        return x + self.inputs(inner, "down")


class Merger(TowerBlock):
    """Blocks of patches to tokens: a norm and two products around GELU; [i, n, h] -> [i, n / merge^2, output].

    by_block: its norm is over the patches of a block together (mergers of taps), else over each patch.
    """

    def __init__(self, context: Context, spec: VisionTower, *, by_block: bool) -> None:
        super().__init__(context)
        self.width, self.by_block = spec.hidden * spec.merge**2, by_block
        self.norm = Norm(context, self.width if by_block else spec.hidden, bias=True, epsilon=_EPSILON)
        self.add_linear("up", self.width, self.width, 0)
        self.add_linear("down", spec.output, self.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        blocks = (len(x), -1, self.width)
        x = self.norm(x.view(blocks)) if self.by_block else self.norm(x).view(blocks)
        return self.inputs(F.gelu(self.outputs(x, "up")[0]), "down")


class Tower(Block):
    """The images of a micro-batch as tokens of the language model."""

    def __init__(self, context: Context, seen: SequenceImages) -> None:
        super().__init__(context)
        self.seen, spec = seen, seen.tower
        values = spec.channels * spec.frames * spec.patch**2
        self.add("patches", [spec.hidden, values])
        self.add("patches_bias", [spec.hidden], start=0.0)
        self.add("positions", [spec.positions, spec.hidden])
        self.layers = nn.ModuleList([VisionLayer(context, spec) for _ in range(spec.layers)])
        self.mergers = nn.ModuleList([Merger(context, spec, by_block=True) for _ in spec.taps])
        self.merger = Merger(context, spec, by_block=False)
        self.recomputes = False  # whether layers are made again in the backward pass
        if seen.freezes:
            for parameter in (*self.parameters(recurse=False), *self.layers.parameters()):
                parameter.requires_grad_(False)
        self._placed = cache(self._places_of_rank)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """Tokens of the data at the places of images [b, m] -> features [b, m, output]: of the last layer, and of each
        tap."""
        pixels = self.seen.pixels(tokens, self.context.dtype)
        x = linear(pixels, self.tensor("patches"), self.tensor("patches_bias"))
        x = x + self._learned_positions(x.device, x.dtype)
        angles = self._angles().to(x.device)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        tapped = []
        for index, layer in enumerate(self.layers):
            x = whole(layer, x, cos, sin) if self.recomputes and x.requires_grad else layer(x, cos, sin)
            if index in self.seen.tower.taps:
                tapped.append(self.mergers[self.seen.tower.taps.index(index)](x))
        features = [self.merger(x), *tapped]
        return [tp.copied(each.reshape(len(tokens), -1, each.shape[-1]), self.context.group) for each in features]

    def place(self, x: Tensor, features: Tensor, *, add: bool = False) -> Tensor:
        """Puts features [b, m, h] in the places of images of this rank's tokens x [b, s/tp, h], or adds them there."""
        first, rows = self._placed(x.shape[1], x.device)
        here = features[:, first : first + len(rows)]
        return x.index_add(1, rows, here) if add else x.index_copy(1, rows, here)

    def _places_of_rank(self, length: int, device: torch.device) -> tuple[int, Tensor]:
        """Number of the first of its features, and their places among the `length` tokens of this rank."""
        places, start = self.seen.places, self.context.group.rank * length
        first, last = (bisect_left(places, end) for end in (start, start + length))
        rows = torch.tensor([place - start for place in places[first:last]], dtype=torch.long, device="cpu")
        return first, rows.to(device)  # a copy, which a trace of memory sees

    def _grid(self) -> Tensor:
        """[2, n] row and column of each patch, in the order of the tokens that they become."""
        (rows, columns), merge = self.seen.grid, self.seen.tower.merge
        every = torch.stack(torch.meshgrid(torch.arange(rows * merge), torch.arange(columns * merge), indexing="ij"))
        return every.view(2, rows, merge, columns, merge).transpose(2, 3).reshape(2, -1)

    def _angles(self) -> Tensor:
        """[n, head width / 2] angles: half of the rotary pairs turn by row, half by column."""
        width = self.seen.tower.hidden // self.seen.tower.heads // 2
        turns = _THETA ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        return (self._grid()[..., None] * turns).transpose(0, 1).flatten(1)

    def _learned_positions(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """[n, h] learned positions of the patches: the square table, resampled bilinearly from corner to corner."""
        side, (rows, columns) = int(self.seen.tower.positions**0.5), self.seen.grid
        merge, table = self.seen.tower.merge, self.tensor("positions")
        axes = []
        for places, size in zip(self._grid(), (rows * merge, columns * merge), strict=True):
            at = places.double() * ((side - 1) / (size - 1) if size > 1 else 0.0)
            low = at.floor().long()
            axes.append(((low, 1 - at + low), ((low + 1).clamp(max=side - 1), at - low)))
        out = torch.zeros((), dtype=dtype, device=device)
        for row, row_share in axes[0]:
            for column, column_share in axes[1]:
                share = (row_share * column_share)[:, None].to(device, dtype)
                out = out + F.embedding((row * side + column).to(device), table) * share
        return out
