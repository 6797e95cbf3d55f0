"""Makes every kernel of `kernels.py` run with torch's own functions, as an eager training step calls them.

A factory allocates random inputs (zeros run faster on some GPUs) and returns the action to time. Backward passes are
taken alone, from a graph that is retained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .kernels import Kernel
from .timing import Action

ActionFactory = Callable[[Kernel, torch.dtype, torch.device], Action]
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}  # kernels.DTYPES
SCALE = 0.02  # of weights and gradients: the usual width


@dataclass(frozen=True)
class CustomKernels:
    """Kernels of software that runs other operations than torch's fused ones."""

    factories: Mapping[str, ActionFactory]  # by kind of kernel; the other kinds are those of FACTORIES
    with_forward: tuple[str, ...] = ()  # kinds whose backward pass runs together with a forward pass


NO_CUSTOM_KERNELS = CustomKernels({})


def make(kernel: Kernel, dtype: str, device: torch.device, custom: CustomKernels = NO_CUSTOM_KERNELS) -> Action:
    """The action of `kernel`, with inputs of its own."""
    return custom.factories.get(kernel.kind, FACTORIES[kernel.kind])(kernel, _TYPES[dtype], device)


def input_bytes(kernel: Kernel, dtype: str) -> float:
    """Approximate bytes of one set of inputs: the cache must not hold all sets."""
    width = _TYPES[dtype].itemsize
    if kernel.kind == "gemm":
        m, n, k = (kernel[dim] for dim in "mnk")
        return float(width * (m * k + n * k + m * n))
    if kernel.kind == "attention":
        keys_and_values = kernel["kv_heads"] * (kernel["head_dim"] + kernel["value_head_dim"])
        row = kernel["heads"] * kernel["head_dim"] + keys_and_values
        return float(width * kernel["batch"] * kernel["tokens"] * row)
    if kernel.kind in ("update", "accumulation"):
        return 4.0 * 4 * kernel["parameters"]
    if kernel.kind == "loss":
        return float(width * kernel["tokens"] * kernel["vocab"])
    return kernel.num_bytes / 2


def _random(*shape: int, like: tuple[torch.dtype, torch.device], scale: float = 1.0, grad: bool = False) -> Tensor:
    dtype, device = like
    return torch.randn(*shape, dtype=dtype, device=device).mul_(scale).requires_grad_(grad)


def _backward(out: Tensor, inputs: Sequence[Tensor]) -> Action:
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _either(kernel: Kernel, forward: Callable[[], Tensor], inputs: Sequence[Tensor]) -> Action:
    return forward if kernel.direction == "forward" else _backward(forward(), inputs)


def _gemm(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    """The layouts that torch.nn.functional.linear and its backward pass multiply: weights are [n, k]."""
    m, n, k = (kernel[dim] for dim in "mnk")
    like = dtype, device
    if kernel.direction == "forward":
        x, weight = _random(m, k, like=like), _random(n, k, like=like, scale=SCALE)
        return lambda: F.linear(x, weight)
    gradient = _random(m, n, like=like, scale=SCALE)
    if kernel.direction == "input gradient":
        weight = _random(n, k, like=like, scale=SCALE)
        return lambda: gradient @ weight
    x = _random(m, k, like=like)
    return lambda: gradient.t() @ x


def _attention(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    batch, tokens = kernel["batch"], kernel["tokens"]
    heads, kv_heads, width, value = (kernel[d] for d in ("heads", "kv_heads", "head_dim", "value_head_dim"))
    shapes = ((heads, width), (kv_heads, width), (kv_heads, value))
    grad = kernel.direction == "backward"
    q, k, v = (_random(batch, tokens, *shape, like=(dtype, device), grad=grad) for shape in shapes)
    query, key, values = (tensor.transpose(1, 2) for tensor in (q, k, v))
    shared = heads != kv_heads

    def attend() -> Tensor:
        return F.scaled_dot_product_attention(query, key, values, is_causal=True, enable_gqa=shared)

    return _either(kernel, attend, (q, k, v))


def _norm(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    width, grad = kernel["hidden"], kernel.direction == "backward"
    x = _random(kernel["tokens"], width, like=(dtype, device), grad=grad)
    weight = torch.ones(width, dtype=dtype, device=device, requires_grad=grad)
    if not kernel["bias"]:
        return _either(kernel, lambda: F.rms_norm(x, (width,), weight, 1e-5), (x, weight))
    bias = torch.zeros(width, dtype=dtype, device=device, requires_grad=grad)
    return _either(kernel, lambda: F.layer_norm(x, (width,), weight, bias, 1e-5), (x, weight, bias))


def _residual(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    """Backward too is one sum: of the gradients that reach the residual stream by either way."""
    x, y = (_random(kernel["tokens"], kernel["hidden"], like=(dtype, device)) for _ in range(2))
    return lambda: x + y


def _rotary(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    """Rotary positions in the halves of a head (arXiv 2104.09864), one operation after the other."""
    tokens, heads = kernel["tokens"], kernel["heads"]
    width = kernel["head_dim"]
    x = _random(tokens, heads, width, like=(dtype, device), grad=kernel.direction == "backward")
    cos, sin = (_random(tokens, 1, width // 2, like=(dtype, device)) for _ in range(2))

    def rotate() -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    return _either(kernel, rotate, (x,))


def _activation(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    shape, grad = (kernel["tokens"], kernel["inner"]), kernel.direction == "backward"
    up = _random(*shape, like=(dtype, device), grad=grad)
    if not kernel["gated"]:
        return _either(kernel, lambda: F.gelu(up), (up,))
    gate = _random(*shape, like=(dtype, device), grad=grad)
    return _either(kernel, lambda: F.silu(gate) * up, (gate, up))


def _permute(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    """Copies of tokens for their experts, and their sum. Each token has its copies behind one another, and an expert
    takes them from anywhere."""
    tokens, copies = kernel["tokens"], kernel["copies"]
    x = _random(tokens, kernel["hidden"], like=(dtype, device), grad=kernel.direction == "backward")
    source = torch.randperm(copies, device=device) * tokens // copies
    return _either(kernel, lambda: torch.zeros_like(x).index_add(0, source, x[source]), (x,))


def _sort(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    """Rows in another order. Backward too: gradients in the order before."""
    x = _random(kernel["rows"], kernel["hidden"], like=(dtype, device))
    order = torch.randperm(kernel["rows"], device=device)
    return lambda: x[order]


def _embedding(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    table = _random(kernel["vocab"], kernel["hidden"], like=(dtype, device), grad=kernel.direction == "backward")
    tokens = torch.randint(kernel["vocab"], (kernel["tokens"],), device=device)
    return _either(kernel, lambda: F.embedding(tokens, table), (table,))


def _loss(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    logits = _random(kernel["tokens"], kernel["vocab"], like=(dtype, device), grad=kernel.direction == "backward")
    targets = torch.randint(kernel["vocab"], (kernel["tokens"],), device=device)
    return _either(kernel, lambda: F.cross_entropy(logits.float(), targets, reduction="sum"), (logits,))


def _update(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    """Fused AdamW on fp32 states, norm and clipping of the gradient, and the weights in the compute dtype again."""
    size = kernel["parameters"]
    master = torch.nn.Parameter(_random(size, like=(torch.float32, device), scale=SCALE))
    gradient = _random(size, like=(torch.float32, device), scale=SCALE)
    master.grad = gradient
    weights = torch.empty(size, dtype=dtype, device=device)
    optimizer = torch.optim.AdamW([master], lr=1e-4, fused=True)

    def update() -> None:
        norm = torch.linalg.vector_norm(gradient)
        gradient.mul_(torch.clamp(1.0 / (norm + 1e-6), max=1.0))
        optimizer.step()
        weights.copy_(master.detach())

    return update


def _accumulation(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Action:
    total = _random(kernel["parameters"], like=(torch.float32, device))
    gradient = _random(kernel["parameters"], like=(dtype, device), scale=SCALE)
    return lambda: total.add_(gradient)


# One line per kind of kernel.
FACTORIES: dict[str, ActionFactory] = {
    "gemm": _gemm,
    "attention": _attention,
    "norm": _norm,
    "residual": _residual,
    "rotary": _rotary,
    "activation": _activation,
    "permute": _permute,
    "sort": _sort,
    "embedding": _embedding,
    "loss": _loss,
    "update": _update,
    "accumulation": _accumulation,
}
