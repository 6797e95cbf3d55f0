"""Scans of mixers, traced once per shape and replayed in all other layers and micro-batches.

A scan has thousands of torch operations, each of which takes 0.2 ms without data. It runs three times per layer and
micro-batch: forward, recomputed as a whole, and recomputed by blocks. It keeps its inputs only, and its gradients leave
it together. Two numbers therefore describe its memory: the peak of its temporary bytes in the forward pass, and in the
backward pass. The first scan of a shape runs to measure them. A replay makes output and gradients of the right sizes,
and one tensor of the temporary bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..model import mixer_block
from ..parallel.recompute import whole
from .memory import PeakMemory


@dataclass(frozen=True)
class _Measured:
    """The measurements of a scan."""

    shape: torch.Size  # of the output
    dtype: torch.dtype
    forward_bytes: int  # peak in addition to its inputs and its output
    backward_bytes: int = 0  # peak in addition to its inputs and the gradient of its output
    weights: tuple[str, ...] = ()  # parameters that get gradients from it


@contextmanager
def replayed_scans(tracer: PeakMemory) -> Iterator[None]:
    """Context in which scans are replayed. `tracer` does not see the measuring runs."""
    measured: dict[Hashable, _Measured] = {}

    def scanned(function: Any, *inputs: Tensor) -> Tensor:
        key = _key(function, inputs)
        if key not in measured:
            with tracer.paused():
                measured[key] = _measure(function, inputs)
        scan, mixer = measured[key], function.__self__
        weights = [mixer.get_parameter(name) for name in scan.weights]
        return whole(lambda *tensors: _replay(scan, weights, tensors), *inputs)

    before = mixer_block.whole  # type: ignore[attr-defined]
    mixer_block.whole = scanned  # type: ignore[attr-defined, assignment]
    try:
        yield
    finally:
        mixer_block.whole = before  # type: ignore[attr-defined]


def _key(function: Any, inputs: Sequence[Tensor]) -> Hashable:
    """The key of a scan: everything that its memory depends on."""
    mixer: nn.Module = function.__self__
    tensors = [*mixer.parameters(), *inputs]
    return (function.__func__, mixer.spec, torch.is_grad_enabled(),
            *((tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad) for tensor in tensors))  # fmt: skip


def _measure(function: Any, inputs: Sequence[Tensor]) -> _Measured:
    """Runs a scan on inputs like these. Its gradients are returned and not accumulated.

    The inputs live until its end. In a fully recomputed layer only the scan holds them and its last block frees them,
    so the replay holds up to their bytes too long.
    """
    copies = [torch.empty_like(x).requires_grad_(x.requires_grad) for x in inputs]
    # Hooks around this scan, such as those of a recomputed layer, apply to its replay only.
    mixer: nn.Module = function.__self__
    with PeakMemory([*copies, *mixer.parameters()]) as memory, torch.autograd.graph.saved_tensors_hooks(_same, _same):
        before = memory.current
        out = whole(function, *copies)
        num_bytes = out.untyped_storage().nbytes()
        forward = _Measured(out.shape, out.dtype, memory.peak - before - num_bytes)
        if not out.requires_grad:
            return forward
        root: Tensor = _Root.apply(out)  # type: ignore[no-untyped-call]
        del out
        memory.peak = before = memory.current
        trained = {name: weight for name, weight in mixer.named_parameters() if weight.requires_grad}
        wanted = [*(x for x in copies if x.requires_grad), *trained.values()]
        gradients = torch.autograd.grad(root, wanted, allow_unused=True)
    of_weights = zip(trained, gradients[len(wanted) - len(trained) :], strict=True)
    return replace(forward, backward_bytes=memory.peak - before - num_bytes - root.nbytes,
                   weights=tuple(name for name, gradient in of_weights if gradient is not None))  # fmt: skip


def _same(tensor: Tensor) -> Tensor:
    return tensor


class _Root(torch.autograd.Function):
    """A scalar whose backward pass makes the gradient of `out` without another reference to it."""

    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        ctx.like = out.shape, out.dtype
        return out.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        shape, dtype = ctx.like
        return torch.empty(shape, dtype=dtype, device=grads[0].device)


def _replay(scan: _Measured, weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor:
    out: Tensor = _Replay.apply(scan, len(weights), *weights, *inputs)  # type: ignore[no-untyped-call]
    return out


class _Replay(torch.autograd.Function):
    """Keeps its inputs, so that a recomputation runs before its backward pass."""

    @staticmethod
    def forward(ctx: Any, scan: _Measured, num_weights: int, *tensors: Tensor) -> Tensor:
        ctx.scan, ctx.weights = scan, tensors[:num_weights]
        ctx.save_for_backward(*tensors[num_weights:])
        out = tensors[-1].new_empty(scan.shape, dtype=scan.dtype)
        _hold(scan.forward_bytes, out.device)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        like = (*ctx.weights, *ctx.saved_tensors)
        made = [torch.empty_like(tensor) if needed else None
                for tensor, needed in zip(like, ctx.needs_input_grad[2:], strict=True)]  # fmt: skip
        _hold(ctx.scan.backward_bytes - sum(gradient.nbytes for gradient in made if gradient is not None),
              grads[0].device)
        return None, None, *made


def _hold(num_bytes: int, device: torch.device) -> None:
    """Allocates one tensor of so many bytes and frees it at once."""
    torch.empty(max(num_bytes, 0), dtype=torch.uint8, device=device)
