"""Times kernels that `meshwright profile kernels` has no runner for, on one NVIDIA GPU; no meshwright plan is needed.

Grouped products of experts, the permutation around them, products in fp8 with their casts, attention under a mask,
chunked scans (flash-linear-attention, where it is installed), and products that run for seconds. Each line of OUT is
one kernel: its name, its shape, the median and the quartiles of its seconds, and the device with its versions.

    python benchmarks/gpu_kernels.py -o kernels.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from meshwright.profiles.profilers import environment, timing

EFFORT = timing.Effort(samples=9, seconds=0.1, total_s=float("inf"))
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
SUSTAINED_S = 3.0  # long enough that clocks settle at what the power limit allows
DEVICE = "cuda"

Action = Callable[[], object]
Shape = tuple[int, int, int, int, int]  # batch, tokens, heads, width of keys, width of values
Scan = tuple[Callable[[], Any], list[torch.Tensor]]  # a run, and the tensors that get gradients


@dataclass(frozen=True)
class Case:
    """One kernel to time."""

    name: str
    shape: dict[str, int]
    make: Callable[[], Action]  # allocates inputs and returns the action
    num_bytes: float  # of one set of inputs, about


def _random(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=BF16, device=DEVICE).requires_grad_(grad)


def _backward(out: torch.Tensor, inputs: list[torch.Tensor]) -> Action:
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def grouped() -> Iterator[Case]:
    """Products of `experts` experts, whose tokens differ by up to a half from their mean: weights [experts, k, n]."""
    for n, k in ((1536, 2048), (2048, 768), (4096, 7168), (7168, 2048), (28672, 4096)):
        for experts, tokens in ((8, 512), (8, 4096), (16, 512), (32, 256), (32, 1024), (64, 128), (128, 256)):
            if experts * n * k > 1 << 31:
                continue
            shape = {"experts": experts, "tokens": tokens, "n": n, "k": k}
            num_bytes = 2.0 * experts * (tokens * (n + k) + n * k)
            for pass_ in ("forward", "weight gradient"):
                make = _grouped_factory(experts, tokens, n, k, pass_)
                yield Case(f"grouped product, {pass_}", shape, make, num_bytes)


def _grouped_factory(experts: int, tokens: int, n: int, k: int, pass_: str) -> Callable[[], Action]:
    def make() -> Action:
        share = np.random.default_rng(0).uniform(0.5, 1.5, experts)
        ends = np.round(np.cumsum(share / share.sum()) * experts * tokens / 16) * 16
        offsets = torch.tensor(ends.astype(np.int32), device=DEVICE)
        x = _random(experts * tokens, k)
        if pass_ == "forward":
            weights = _random(experts, n, k).transpose(1, 2)
            return lambda: torch._grouped_mm(x, weights, offs=offsets)
        gradient = _random(experts * tokens, n)
        return lambda: torch._grouped_mm(gradient.t(), x, offs=offsets)

    return make


def permutation() -> Iterator[Case]:
    """Rows of [tokens, hidden] copied to the experts of each token, and summed on the way back."""
    for tokens, hidden, topk in ((8192, 2048, 8), (4096, 7168, 8), (8192, 4096, 2)):
        shape = {"tokens": tokens, "hidden": hidden, "topk": topk}

        def gather(tokens: int = tokens, hidden: int = hidden, topk: int = topk) -> Action:
            x, order = _random(tokens, hidden), torch.randperm(tokens * topk, device=DEVICE) // topk
            return lambda: x.index_select(0, order)

        def scatter(tokens: int = tokens, hidden: int = hidden, topk: int = topk) -> Action:
            rows, order = _random(tokens * topk, hidden), torch.randperm(tokens * topk, device=DEVICE) // topk
            return lambda: torch.zeros(tokens, hidden, dtype=BF16, device=DEVICE).index_add_(0, order, rows)

        def spread(tokens: int = tokens, hidden: int = hidden, topk: int = topk) -> Action:
            rows, order = _random(tokens * topk, hidden), torch.randperm(tokens * topk, device=DEVICE) // topk
            index = order[:, None].expand(-1, hidden)
            return lambda: torch.zeros(tokens, hidden, dtype=BF16, device=DEVICE).scatter_add_(0, index, rows)

        num_bytes = 2.0 * tokens * hidden * (1 + topk)
        yield Case("permutation, scatter_add", shape, spread, num_bytes)
        yield Case("permutation, gather", shape, gather, num_bytes)
        yield Case("permutation, scatter", shape, scatter, num_bytes)


def fp8() -> Iterator[Case]:
    """Products of fp8 operands with a scale per tensor, and the casts that make them."""
    shapes = ((8192, 6144, 4096), (8192, 28672, 4096), (8192, 4096, 14336), (4096, 4096, 7168), (2048, 2048, 2048),
              (16384, 16384, 16384))  # fmt: skip
    for m, n, k in shapes:
        def product(m: int = m, n: int = n, k: int = k) -> Action:
            a, b = _random(m, k).to(FP8), _random(n, k).to(FP8).t()
            one = torch.ones((), device=DEVICE)
            return lambda: torch._scaled_mm(a, b, one, one, out_dtype=BF16, use_fast_accum=True)

        def plain(m: int = m, n: int = n, k: int = k) -> Action:
            a, b = _random(m, k), _random(n, k)
            return lambda: F.linear(a, b)

        shape, num_bytes = {"m": m, "n": n, "k": k}, float(m * k + n * k)
        yield Case("product in fp8", shape, product, num_bytes)
        yield Case("product in bf16", shape, plain, 2 * num_bytes)
    for m, k in ((8192, 4096), (8192, 14336)):
        def cast(m: int = m, k: int = k) -> Action:
            x, scale = _random(m, k), torch.ones((), device=DEVICE)
            return lambda: (x * scale).to(FP8)

        def largest(m: int = m, k: int = k) -> Action:
            x = _random(m, k)
            return lambda: x.abs().amax()

        yield Case("cast to fp8", {"m": m, "k": k}, cast, 2.0 * m * k)
        yield Case("largest magnitude", {"m": m, "k": k}, largest, 2.0 * m * k)


def masked() -> Iterator[Case]:
    """Attention under a mask of True and False over the whole square."""
    for batch, heads, tokens, width in ((1, 32, 4096, 128), (1, 32, 8192, 128), (1, 16, 8192, 192), (1, 16, 8192, 256)):
        shape = {"batch": batch, "heads": heads, "tokens": tokens, "head_dim": width}
        for pass_ in ("forward", "backward"):
            def make(shape: dict[str, int] = shape, pass_: str = pass_) -> Action:
                b, h, t, d = shape.values()
                q, k, v = (_random(b, h, t, d, grad=pass_ == "backward") for _ in range(3))
                mask = torch.ones(b, 1, t, t, dtype=torch.bool, device=DEVICE).tril()
                attend = lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # noqa: E731
                return attend if pass_ == "forward" else _backward(attend(), [q, k, v])

            yield Case(f"attention under a mask, {pass_}", shape, make, 6.0 * batch * heads * tokens * width)


def _inputs(shape: Shape, *, grad: bool) -> dict[str, torch.Tensor]:
    """Queries and keys of unit length, and values."""
    batch, tokens, heads, key, value = shape
    q, k = (F.normalize(_random(batch, tokens, heads, key), dim=-1).detach().requires_grad_(grad) for _ in range(2))
    return {"q": q, "k": k, "v": _random(batch, tokens, heads, value, grad=grad)}


def _decays(*shape: int, grad: bool) -> torch.Tensor:
    return F.logsigmoid(torch.randn(*shape, device=DEVICE) + 3.0).detach().requires_grad_(grad)


def _delta(function: Any, shape: Shape, *, of_channels: bool, grad: bool) -> Scan:
    """A delta rule with decays of heads, or of channels of keys."""
    given, heads = _inputs(shape, grad=grad), shape[:3]
    g = _decays(*heads, *([shape[3]] if of_channels else []), grad=grad)
    beta = torch.rand(*heads, dtype=BF16, device=DEVICE).requires_grad_(grad)
    return lambda: function(**given, g=g, beta=beta), [*given.values(), g, beta]


def _linear_attention(function: Any, shape: Shape, *, grad: bool) -> Scan:
    given, g = _inputs(shape, grad=grad), _decays(*shape[:3], grad=grad)
    return lambda: function(**given, g=g), [*given.values(), g]


def _scan_kinds() -> dict[str, tuple[Callable[..., Scan], tuple[Shape, ...]]]:
    """What makes a scan, and its shapes in published models. Raises ImportError without flash-linear-attention."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda
    from fla.ops.simple_gla import chunk_simple_gla

    return {
        "gated delta rule": (
            partial(_delta, chunk_gated_delta_rule, of_channels=False),
            ((1, 8192, 32, 128, 128), (4, 4096, 16, 128, 128))),
        "mamba-2 as gated linear attention": (
            partial(_linear_attention, chunk_simple_gla), ((1, 8192, 128, 128, 64), (1, 8192, 64, 128, 128))),
        "kimi delta attention": (partial(_delta, chunk_kda, of_channels=True), ((1, 8192, 32, 128, 128),)),
    }  # fmt: skip


def scans() -> Iterator[Case]:
    """Chunked scans of flash-linear-attention in the sizes of published models."""
    try:
        kinds = _scan_kinds()
    except ImportError as error:
        print(f"no chunked scans: {error}", file=sys.stderr)
        return
    names = ("batch", "tokens", "heads", "key_dim", "value_dim")
    for name, (factory, shapes) in kinds.items():
        for shape in shapes:
            b, t, h, k, v = shape
            for pass_ in ("forward", "backward"):
                def make(factory: Any = factory, shape: Shape = shape, pass_: str = pass_) -> Action:
                    run, given = factory(shape=shape, grad=pass_ == "backward")
                    return run if pass_ == "forward" else _backward(run()[0], given)

                sizes = dict(zip(names, shape, strict=True))
                yield Case(f"{name}, {pass_}", sizes, make, 2.0 * b * t * h * (2 * k + v))


def sustained() -> Iterator[tuple[str, dict[str, int], list[float]]]:
    """Seconds of products that follow one another for `SUSTAINED_S`, in tenths of that time."""
    for m, n, k in ((8192, 8192, 8192), (8192, 28672, 4096), (4096, 4096, 4096)):
        x, weight = _random(m, k), _random(n, k)
        started, times = time.perf_counter(), []
        while time.perf_counter() - started < SUSTAINED_S:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(max(int(0.1 * 6e14 / (2.0 * m * n * k)), 1)):
                F.linear(x, weight)
            last.record()
            torch.cuda.synchronize()
            times.append(1e-3 * first.elapsed_time(last) / max(int(0.1 * 6e14 / (2.0 * m * n * k)), 1))
        yield "sustained product in bf16", {"m": m, "n": n, "k": k}, times


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="file of the results, a JSON object a line")
    parser.add_argument("--limit", type=int, default=0, help="time this many kernels of each group only [all]")
    given = parser.parse_args(argv)
    device = timing.open_device("cuda")
    about = {**environment.environment(device), "date": str(datetime.now(UTC).date())}
    with given.out.open("w", encoding="utf-8") as file:

        def write(name: str, shape: dict[str, int], seconds: list[float]) -> None:
            quartiles = np.percentile(seconds, (25, 50, 75)).tolist()
            row = {"name": name, "shape": shape, "quartiles_s": quartiles, "samples": len(seconds), **about}
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{name} {shape}: {1e6 * quartiles[1]:.1f} us", flush=True)

        for group in (grouped, permutation, fp8, masked, scans):
            for index, case in enumerate(group()):
                if given.limit and index >= given.limit:
                    break
                try:
                    write(case.name, case.shape, timing.sample(case.make, case.num_bytes, device, EFFORT))
                except Exception as error:  # a kernel that this version lacks leaves the others
                    print(f"{case.name} {case.shape}: {type(error).__name__}: {error}"[:300], flush=True)
                torch.cuda.empty_cache()
        for name, shape, seconds in sustained():
            write(name, shape, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
