"""Operations of this runtime that `profile kernels` times in place of torch's fused ones, on a single device.

Its factories replace those of `profiles/profilers/runners.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from ..model.activations import ACTIVATIONS, gated
from ..model.dispatch import combine
from ..model.norms import Norm
from ..model.rope import rotate
from ..optimizer import optimizer_of
from ..parallel import tensor_parallel as tp
from ..parallel.sharding import squared_norm
from .single_rank import single_context, single_group

Action = Callable[[], object]
_EXPERTS = 8  # among which tokens choose: sorting takes as long for any number of them


class Kernel(Protocol):
    """The interface of profiles.profilers.kernels.Kernel."""

    @property
    def direction(self) -> str: ...
    def __getitem__(self, dim: str) -> int: ...


ActionFactory = Callable[[Kernel, torch.dtype, torch.device], Action]


def _either(kernel: Kernel, forward: Callable[[], Tensor], *inputs: Tensor) -> Action:
    """Runs the forward pass, or the backward pass alone on a kept graph."""
    if kernel.direction == "forward":
        return forward
    out = forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _random(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device=device).requires_grad_()


def _norm(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    norm = Norm(single_context(dtype, device), kernel["hidden"], bool(kernel["bias"]))
    for parameter in norm.parameters():
        parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
        parameter.data.fill_(1.0)
    x = _random(kernel["tokens"], kernel["hidden"], dtype=dtype, device=device)
    return _either(kernel, lambda: norm(x), x, *norm.parameters())


def _rotary(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    x = _random(1, kernel["tokens"], kernel["heads"], kernel["head_dim"], dtype=dtype, device=device)
    cos, sin = (torch.randn(kernel["tokens"], kernel["head_dim"] // 2, dtype=dtype, device=device) for _ in range(2))
    return _either(kernel, lambda: rotate(x, cos, sin), x)


def _activation(activation: str) -> ActionFactory:
    def make(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
        inputs = [_random(kernel["tokens"], kernel["inner"], dtype=dtype, device=device)
                  for _ in range(1 + kernel["gated"])]  # fmt: skip
        if kernel["gated"]:
            return _either(kernel, lambda: gated(activation, *inputs), *inputs)
        return _either(kernel, lambda: ACTIVATIONS[activation](*inputs), *inputs)

    return make


def _permute(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    """As `Experts` does it: the copies of tokens are ordered by expert, and summed up with their weights."""
    tokens, copies = kernel["tokens"], kernel["copies"]
    x = _random(tokens, kernel["hidden"], dtype=dtype, device=device)
    weights = _random(copies, dtype=dtype, device=device)
    chosen = torch.randint(_EXPERTS, (copies,), device=device)

    def forward() -> Tensor:
        order = chosen.argsort(stable=True)
        source = order * tokens // copies
        return combine(x[source], weights[order], source, tokens)

    if kernel.direction == "forward":
        return forward
    gradient = torch.randn_like(x)
    return lambda: torch.autograd.grad(forward(), (x, weights), gradient)


def _loss(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    logits = _random(1, kernel["tokens"], kernel["vocab"], dtype=dtype, device=device)
    targets = torch.randint(kernel["vocab"], (1, kernel["tokens"]), device=device)
    group = single_group()

    def forward() -> Tensor:
        return tp.cross_entropy(logits, targets, 0, group)

    if kernel.direction == "forward":
        return forward
    return lambda: torch.autograd.grad(forward(), logits)


def _update(optimizer: str) -> ActionFactory:
    """Gradient norm, optimizer step, cast of the weights to the compute dtype, and zeroed gradients."""

    def make(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
        master = torch.nn.Parameter(torch.randn(kernel["parameters"], device=device))
        gradient = torch.randn(kernel["parameters"], device=device)
        weights = torch.empty(kernel["parameters"], dtype=dtype, device=device)
        stepped = optimizer_of(optimizer, [master], 1e-4)

        @torch.no_grad()
        def update() -> None:
            master.grad = gradient
            float(squared_norm(gradient))
            gradient.mul_(0.5)  # clipped
            stepped.step()
            if weights.dtype != master.dtype:
                weights.copy_(master)
            gradient.zero_()

        return update

    return make


# Kinds whose backward pass consumes the kept tensors. Each is timed after its own forward pass.
WITH_FORWARD = ("loss", "permute")


def action_factories(activation: str, optimizer: str) -> Mapping[str, ActionFactory]:
    """Kind of kernel -> the runtime's operation where it differs from torch's fused kernel."""
    return {"norm": _norm, "rotary": _rotary, "activation": _activation(activation), "permute": _permute, "loss": _loss,
            "update": _update(optimizer)}  # fmt: skip
