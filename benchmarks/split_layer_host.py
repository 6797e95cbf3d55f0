"""Host seconds of a layer that decodes in eager torch, with whole projections and with those of tensor parallelism.

    python benchmarks/split_layer_host.py

ReaLHF (openpsi-project/ReaLHF 5469ca4f) splits a layer as Megatron-LM does: split projections are an autograd
function in Python under `custom_fwd`, those of one input together, and the two that end a block sum by
`torch.distributed`. Tensors are so small here that the host alone takes time, and the group is torch's own stand-in,
which sends nothing: what NCCL adds on the host is not in it. Prints what splitting adds, in launches of the whole
layer, by seconds of CPU of this process in the least of several rounds, so that other work counts little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

_WIDTH, _CALLS, _ROUNDS = 16, 200, 60
LAUNCHES = 29.0  # of the whole layer (planner/workflows/realhf.py)


class Norm(nn.Module):
    """A norm in steps of torch, as LlamaRMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float64)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class _Products(torch.autograd.Function):
    """Products of one input, which is kept for the gradient."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, _fused, _reduces, _sequence, *weights):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, *weights)
        return tuple(torch.matmul(x, weight.t()) for weight in weights)


class _Summed(torch.autograd.Function):
    """The sum over the ranks."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        dist.all_reduce(x)
        return x


class Projections(nn.Module):
    """Projections of one input. split: those of tensor parallelism, made together; ends: they end a block, and sum."""

    def __init__(self, number: int, *, split: bool, ends: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(number))
        self.split, self.ends = split, ends

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not self.split:
            return tuple(layer(x) for layer in self.layers)
        made = _Products.apply(x, False, True, False, *(layer.weight for layer in self.layers))
        return tuple(_Summed.apply(each) for each in made) if self.ends else made


class Block(nn.Module):
    """A layer that decodes one token: attention, here one step of torch, and a gated feed-forward block."""

    def __init__(self, *, split: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm() for _ in range(2))
        self.inputs, self.gated = Projections(3, split=split), Projections(2, split=split)
        self.out, self.down = (Projections(1, split=split, ends=True) for _ in range(2))
        self.lengths = torch.ones(1, dtype=torch.int32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.view(1, 1, 2, -1) for each in self.inputs(self.norms[0](x)))
        self.lengths + 1
        x = x + self.out(torch.addcmul(q, k, v).flatten(start_dim=-2))[0]
        gate, up = self.gated(self.norms[1](x))
        return self.down(nn.functional.silu(gate) * up)[0] + x


def seconds(calls: Sequence[Callable[[], object]]) -> list[float]:
    """CPU seconds of each call, in the least of several rounds, which take turns."""
    rounds: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS):
        for call, taken in zip(calls, rounds, strict=True):
            start = time.process_time()
            for _ in range(_CALLS):
                call()
            taken.append((time.process_time() - start) / _CALLS)
    return [min(taken) for taken in rounds]


def main() -> None:
    """Measure both layers."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    x, whole, split = torch.randn(1, 1, _WIDTH), Block(split=False), Block(split=True)
    with torch.no_grad():
        whole_s, split_s = seconds((lambda: whole(x), lambda: split(x)))
    added = (split_s / whole_s - 1.0) * LAUNCHES
    print(f"whole {whole_s * 1e6:.1f} us, split {split_s * 1e6:.1f} us: {split_s / whole_s:.2f} times, "
          f"{added:.1f} launches of {LAUNCHES:g} more")  # fmt: skip


if __name__ == "__main__":
    main()
