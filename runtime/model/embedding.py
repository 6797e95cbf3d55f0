"""The embedding: the table of tokens, learned positions, and an optional norm."""

from __future__ import annotations

from torch import Tensor

from ...cost_models.specs.model import ModelSpec
from ..parallel import tensor_parallel as tp
from .block import Block, Context
from .images import SequenceImages
from .norms import Norm
from .vision_tower import Tower


class TokenTable(Block):
    """One row per token, split by rows over tp. Predictions on a separate last stage use a copy of this table."""

    reads_again = False  # the gradient of a lookup needs no row

    def __init__(self, context: Context, spec: ModelSpec) -> None:
        super().__init__(context)
        self.add("tokens", [spec.vocab, spec.hidden], 0, std=context.numerics.std(1))
        self.first, _ = context.part(spec.vocab)
        self.scale = spec.embedding_scale

    def look_up(self, tokens: Tensor) -> Tensor:
        """[b, s] -> [b, s/tp, h]."""
        rows = tp.embed(tokens, self.tensor("tokens"), self.first, self.context.group)
        return rows if self.scale == 1.0 else rows * self.scale


class Embedding(TokenTable):
    """Tokens, learned positions and images; tokens [b, s] -> [b, s/tp, h]."""

    def __init__(self, context: Context, spec: ModelSpec, seen: SequenceImages | None = None) -> None:
        """seen: images that take the places of some tokens."""
        super().__init__(context, spec)
        if spec.learned_positions:
            self.add("positions", [spec.learned_positions, spec.hidden])
        self.norm = Norm(context, spec.hidden, spec.norm_bias) if spec.embedding_norm else None
        self.tower = None if seen is None else Tower(context, seen)
        self.reads_again = self.norm is not None or seen is not None

    def see(self, tokens: Tensor, tapped: list[Tensor]) -> Tensor:
        """The same with images. tapped: gets a tensor for each of the first layers, whose output it is added to."""
        x = self.forward(tokens)
        if self.tower is None:
            return x
        features, *others = self.tower.forward(tokens[:, self.tower.seen.places])
        tapped += others
        return self.tower.place(x, features)

    def forward(self, tokens: Tensor) -> Tensor:
        group, cp = self.context.group, self.context.cp
        x = self.look_up(tokens)
        table = self.maybe("positions")
        if table is not None:
            rows = table if cp is None else table[cp.positions(tokens.shape[1] * cp.group.size).to(table.device)]
            x = x + rows[group.rank * x.shape[1] : (group.rank + 1) * x.shape[1]]
        return x if self.norm is None else self.norm(x)
