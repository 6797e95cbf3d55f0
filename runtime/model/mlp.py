"""The dense feed-forward block, its inner width split over tensor-parallel ranks."""

from __future__ import annotations

from torch import Tensor

from ...cost_models.specs.model import FeedForward
from .activations import activated
from .block import Block, Context


class Mlp(Block):
    """Dense feed-forward block, inner width split over tp; [b, s/tp, h] -> [b, s/tp, h]."""

    def __init__(self, context: Context, spec: FeedForward, hidden: int, module: str = "mlp") -> None:
        """module: the recompute module that covers the whole block."""
        super().__init__(context)
        self.module = module
        self.names = ("gate", "up") if spec.gated else ("up",)
        for name in self.names:
            self.add_product(name, [spec.inner, hidden], 0, name)
            if spec.bias:
                self.add(f"{name}_bias", [spec.inner], 0, start=0.0)
        self.add_product("down", [hidden, spec.inner], 1, "down")
        if spec.bias:
            self.add("down_bias", [hidden], start=0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.context.recompute.region(self.module, self._through, x)

    def _through(self, x: Tensor) -> Tensor:
        recompute = self.context.recompute.inside(self.module)
        out = activated(recompute, self.context.numerics.activation, *self.columns(x, *self.names))
        return self.row(out, "down")
