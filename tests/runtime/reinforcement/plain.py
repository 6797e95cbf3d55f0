"""A small Llama in one process, in plain torch and float64, with nothing of the runtime's: its weights,
answers, and descent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from meshwright.cost_models.specs.model import ModelSpec
from torch import Tensor

Weights = dict[str, Tensor]


def drawn(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Random weights by name and seed, far enough from 0 that tokens differ in their chances."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return 1 + 0.1 * values if len(shape) == 1 else 0.25 * values


def fill(parameter: Tensor, name: str, split: Any, seed: int, *, tied: bool) -> None:
    """The same for the runtime: this rank's part of a parameter."""
    whole = drawn(name, tuple(split.shape), seed)
    for dim, first in split.firsts:
        whole = whole.narrow(dim, first, parameter.shape[dim])
    parameter.data.copy_(whole)


def llama_weights(spec: ModelSpec, seed: int, outputs: int) -> Weights:
    """All weights, by the names of checkpoints, as leaves. outputs: tokens, or 1 value."""
    attention, inner = spec.attentions[0], 64
    wide, narrow = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embedding.tokens": (spec.vocab, spec.hidden)}
    for layer in range(spec.num_layers):
        at = f"layers.{layer}"
        shapes |= {f"{at}.attention_norm.weight": (spec.hidden,), f"{at}.feed_forward_norm.weight": (spec.hidden,),
                   f"{at}.attention.q": (wide, spec.hidden), f"{at}.attention.k": (narrow, spec.hidden),
                   f"{at}.attention.v": (narrow, spec.hidden), f"{at}.attention.o": (spec.hidden, wide),
                   f"{at}.feed_forward.gate": (inner, spec.hidden), f"{at}.feed_forward.up": (inner, spec.hidden),
                   f"{at}.feed_forward.down": (spec.hidden, inner)}  # fmt: skip
    shapes |= {"head.norm.weight": (spec.hidden,), "head.projection": (outputs, spec.hidden)}
    return {name: drawn(name, shape, seed).requires_grad_() for name, shape in shapes.items()}


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def _turn(x: Tensor) -> Tensor:
    """Rotates [b, n, s, d] by positions, base 10,000: element i with element i + d / 2."""
    half = x.shape[-1] // 2
    speeds = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * speeds
    turned = torch.view_as_complex(torch.stack([x[..., :half], x[..., half:]], -1).contiguous())
    turned = turned * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def forward(weights: Weights, spec: ModelSpec, tokens: Tensor) -> Tensor:
    """Tokens [b, s] -> [b, s, outputs]."""
    heads, groups, width = spec.attentions[0].heads, spec.attentions[0].kv_heads, spec.attentions[0].head_dim
    x, length = weights["embedding.tokens"][tokens], tokens.shape[1]
    ahead = torch.ones(length, length).triu(1).bool()
    for layer in range(spec.num_layers):
        of = {name.removeprefix(f"layers.{layer}."): weight for name, weight in weights.items()
              if name.startswith(f"layers.{layer}.")}  # fmt: skip
        normed = _norm(x, of["attention_norm.weight"])
        q, k, v = ((normed @ of[f"attention.{name}"].T).view(*x.shape[:2], -1, width).transpose(1, 2) for name in "qkv")
        k, v = (each.repeat_interleave(heads // groups, 1) for each in (_turn(k), v))
        scores = (_turn(q) @ k.transpose(2, 3) / width**0.5).masked_fill(ahead, -torch.inf).softmax(-1)
        x = x + (scores @ v).transpose(1, 2).flatten(2) @ of["attention.o"].T
        normed = _norm(x, of["feed_forward_norm.weight"])
        inner = F.silu(normed @ of["feed_forward.gate"].T) * (normed @ of["feed_forward.up"].T)
        x = x + inner @ of["feed_forward.down"].T
    return _norm(x, weights["head.norm.weight"]) @ weights["head.projection"].T


def log_probs_of(weights: Weights, spec: ModelSpec, tokens: Tensor) -> Tensor:
    """Log-probability of each token after the first, [n, s]."""
    return forward(weights, spec, tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


@torch.no_grad()
def answer(weights: Weights, spec: ModelSpec, prompts: Tensor, uniform: Tensor) -> tuple[Tensor, list[range]]:
    """Tokens of prompts and answers, and of each row the targets that are its answer, its end at token 0 included."""
    rows, targets, first = [], [], prompts.shape[1]
    for prompt, numbers in zip(prompts, uniform, strict=True):
        tokens = prompt.tolist()
        for number in numbers.tolist():
            reached = forward(weights, spec, torch.tensor([tokens]))[0, -1].softmax(-1).cumsum(-1)
            tokens.append(int((reached < number).sum()))
            if tokens[-1] == 0:
                break
        targets.append(range(first - 1, len(tokens) - 1))
        rows.append(tokens + [0] * (first + len(numbers) - len(tokens)))
    return torch.tensor(rows), targets


def descend(weights: Weights, loss: Tensor, momenta: Weights, rate: float) -> tuple[float, float]:
    """One step of gradient descent with momentum 0.9. Returns the loss and the norm of the gradient."""
    gradients = torch.autograd.grad(loss, list(weights.values()))
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        momenta[name] = 0.9 * momenta[name] + gradient if name in momenta else gradient
        weight.data -= rate * momenta[name]
    return float(loss.detach()), float(sum(gradient.pow(2).sum() for gradient in gradients) ** 0.5)


def mean_steps(steps: list[tuple[float, float]]) -> list[float]:
    return [sum(column) / len(steps) for column in zip(*steps, strict=True)]


def largest_difference(mine: Mapping[str, Tensor], theirs: Weights) -> float:
    """Largest difference of weights whose names are equal."""
    if set(mine) != {f"weights.{name}" for name in theirs}:
        raise ValueError(f"other weights: {set(mine) ^ {f'weights.{name}' for name in theirs}}")
    return max(float((mine[f"weights.{name}"] - weight.detach()).abs().max()) for name, weight in theirs.items())
