"""Mamba-2 (arXiv 2405.21060), heads and groups split over tensor-parallel ranks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ...cost_models.layer_kinds.mamba2 import Mamba2
from .block import Context
from .chunked_scan import by_head, convolved, in_blocks, scan, widened
from .mixer_block import FIRST_DECAY, FIRST_STEP, MixerBlock
from .norms import rms_norm


class Mamba2Mixer(MixerBlock):
    """Mamba-2. x is the value, b the key, c the query of linear attention; `step` scales a token's contribution."""

    def __init__(self, context: Context, spec: Mamba2, hidden: int) -> None:
        super().__init__(context)
        self.spec, shared = spec, spec.groups * spec.state
        self.widths = {"gate": spec.inner, "x": spec.inner, "b": shared, "c": shared, "step": spec.heads}
        self.add_projections(self.widths, hidden, spec.in_bias)
        for name in "xbc":
            self.add_convolution(name, self.widths[name], spec.conv_kernel, spec.conv_bias)
        self.add("decay", [spec.heads], 0, start=FIRST_DECAY)
        self.add("step_start", [spec.heads], 0, start=FIRST_STEP)
        self.add("skip", [spec.heads], 0, start=1.0)
        if spec.gated_norm:
            self.add("norm", [spec.inner], 0, start=1.0)
        self.add("out", [hidden, spec.inner], 1)
        if spec.out_bias:
            self.add("out_bias", [hidden], start=0.0)

    def forward(self, x: Tensor) -> Tensor:
        gate, x, b, c, step = self.columns(x, *self.widths)
        out = self.over_sequences(self._scanned, gate, x, self._for_ranks(b), self._for_ranks(c), step)
        return self.row(self._normed(out) if self.spec.gated_norm else out, "out")

    def _for_ranks(self, shared: Tensor) -> Tensor:
        """B or C [b, s, groups x state]. Several cp ranks share a group where there are fewer groups than ranks."""
        cp, groups = self.context.cp, self.spec.groups // self.context.group.size
        if cp is None or groups % cp.group.size == 0:
            return shared
        return by_head(shared, groups).repeat_interleave(cp.group.size // groups, dim=2).flatten(2)

    def _scanned(self, gate: Tensor, x: Tensor, b: Tensor, c: Tensor, step: Tensor) -> Tensor:
        spec, heads = self.spec, step.shape[-1]
        state = widened(x.new_zeros(len(x), heads, spec.state, spec.head_dim))
        before = [part.new_zeros(len(part), spec.conv_kernel - 1, part.shape[-1]) for part in (x, b, c)]
        return in_blocks(self._block, (state, *before), (gate, x, b, c, step), spec.chunk)

    def _block(
        self, gate: Tensor, x: Tensor, b: Tensor, c: Tensor, step: Tensor, state: Tensor, *before: Tensor
    ) -> tuple[Tensor, ...]:
        spec, made, after = self.spec, [], []
        units = {"x": spec.heads, "b": spec.groups, "c": spec.groups}
        for name, part, last in zip("xbc", (x, b, c), before, strict=True):
            bias = self.here_or_none(f"{name}_conv_bias", units[name])
            out, following = convolved(part, last, self.here(f"{name}_conv", units[name]), bias)
            made.append(by_head(out, width=spec.head_dim if name == "x" else spec.state))
            after.append(following)
        values, keys, queries = made
        decay, start, skip = (widened(self.here(name, spec.heads)) for name in ("decay", "step_start", "skip"))
        taken = F.softplus(widened(step) + start).clamp(min=spec.least_step)
        out, state = scan(queries, keys, values * taken[..., None], -decay.exp() * taken, state, spec.chunk)
        out = (out + skip[:, None] * values).flatten(2) * F.silu(widened(gate))
        return out.to(x.dtype), state, *after

    def _normed(self, out: Tensor) -> Tensor:
        """Each group by itself."""
        groups = self.spec.groups // self.context.group.size
        weight = self.tensor("norm").view(groups, -1)
        return rms_norm(by_head(out, groups), weight, self.context.numerics.norm_epsilon).flatten(2)
