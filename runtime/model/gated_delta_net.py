"""Gated DeltaNet (arXiv 2412.06464), heads split over tensor-parallel ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cost_models.layer_kinds.gated_delta_net import CHUNK, GatedDeltaNet
from .block import Context
from .chunked_scan import by_head, convolved, in_blocks, scan, widened
from .mixer_block import FIRST_DECAY, FIRST_STEP, MixerBlock

_EPSILON = 1e-6  # added to the squares of queries and keys (Qwen3NextGatedDeltaNet in transformers 5.24)


class GatedDeltaNetMixer(MixerBlock):
    """Gated DeltaNet. `write` is the fraction of a value that replaces the state's value, `step` controls the decay."""

    def __init__(self, context: Context, spec: GatedDeltaNet, hidden: int) -> None:
        super().__init__(context)
        self.spec = spec
        self.widths = {"q": spec.keys, "k": spec.keys, "v": spec.values, "gate": spec.values,
                       "write": spec.value_heads, "step": spec.value_heads}  # fmt: skip
        self.add_projections(self.widths, hidden, bias=False)
        for name in "qkv":
            self.add_convolution(name, self.widths[name], spec.conv_kernel, bias=False)
        self.add("decay", [spec.value_heads], 0, start=FIRST_DECAY)
        self.add("step_start", [spec.value_heads], 0, start=FIRST_STEP)
        self.add("norm", [spec.value_head_dim], start=1.0)
        self.add("out", [hidden, spec.values], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.row(self.over_sequences(self._scanned, *self.columns(x, *self.widths)), "out")

    def _scanned(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, write: Tensor, step: Tensor) -> Tensor:
        spec = self.spec
        state = widened(v.new_zeros(len(v), step.shape[-1], spec.key_head_dim, spec.value_head_dim))
        before = [part.new_zeros(len(part), spec.conv_kernel - 1, part.shape[-1]) for part in (q, k, v)]
        return in_blocks(self._block, (state, *before), (q, k, v, gate, write, step), CHUNK)

    def _block(
        self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, write: Tensor, step: Tensor, state: Tensor, *before: Tensor
    ) -> tuple[Tensor, ...]:
        spec, made, after = self.spec, [], []
        units = {"q": (spec.key_heads, spec.key_head_dim), "k": (spec.key_heads, spec.key_head_dim),
                 "v": (spec.value_heads, spec.value_head_dim)}  # fmt: skip
        for (name, (heads, width)), part, last in zip(units.items(), (q, k, v), before, strict=True):
            out, following = convolved(part, last, self.here(f"{name}_conv", heads), None)
            made.append(by_head(out, width=width))
            after.append(following)
        queries, keys, values = made
        decay, start = (widened(self.here(name, spec.value_heads)) for name in ("decay", "step_start"))
        forgets = -decay.exp() * F.softplus(widened(step) + start)
        out, state = scan(_unit(queries) * spec.key_head_dim**-0.5, _unit(keys), values, forgets, state, CHUNK,
                          widened(write).sigmoid())  # fmt: skip
        return self._gated(out, gate), state, *after

    def _gated(self, out: Tensor, gate: Tensor) -> Tensor:
        """Norm of each head, then the gate."""
        epsilon = self.context.numerics.norm_epsilon
        normal = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + epsilon) * widened(self.tensor("norm"))
        return (normal.flatten(2) * F.silu(widened(gate))).to(gate.dtype)


def _unit(x: Tensor) -> Tensor:
    """Scales vectors to length 1 along the last dim."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPSILON)
