"""Chunked linear recurrences in torch operations, short convolutions, and sequences in blocks.

A head keeps a state of key_dim x value_dim. Per token the state decays and adds the outer product of key and value; a
query reads it. With the delta rule a token first subtracts from the state the value of its key (arXiv 2412.06464).
Tokens of one chunk interact through scores, and with earlier chunks through the state (arXiv 2405.21060, section 6).
Scans are computed in fp32, or in fp64 for fp64 inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..parallel.recompute import whole

# Tokens whose scores and states exist at a time. A block keeps its inputs only.
BLOCK = 1024


def widened(x: Tensor) -> Tensor:
    """Casts a tensor to the dtype of scans."""
    return x if x.dtype == torch.float64 else x.float()


def by_head(x: Tensor, heads: int = -1, width: int = -1) -> Tensor:
    """[..., heads x width] -> [..., heads, width]. One of the two sizes may be left out."""
    return x.reshape(*x.shape[:-1], heads, width)


def in_blocks(
    step: Callable[..., tuple[Tensor, ...]], state: Sequence[Tensor], inputs: Sequence[Tensor], chunk: int
) -> Tensor:
    """Applies `step` to consecutive blocks of tokens: (inputs of a block [b, n, ...], state) -> output, next state.

    Each block keeps its inputs and its state only. Outputs are [b, n, ...].
    """
    outs, tokens = [], max(BLOCK // chunk, 1) * chunk
    for block in zip(*(torch.split(x, tokens, dim=1) for x in inputs), strict=True):
        out, *state = whole(step, *block, *state)
        outs.append(out)
    return torch.cat(outs, dim=1)


def convolved(x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """SiLU of a causal convolution per channel: x [b, n, channels], weight [channels, kernel].

    before: the kernel - 1 tokens before x. Returns the output, and the last kernel - 1 tokens of x.
    """
    joined = torch.cat([before, x], dim=1)
    length, kernel = x.shape[1], weight.shape[1]
    wide, taps = widened(joined), widened(weight)
    out = sum((wide[:, k : k + length] * taps[:, k] for k in range(1, kernel)), wide[:, :length] * taps[:, 0])
    return F.silu(out if bias is None else out + widened(bias)), joined[:, length:]


def scan(
    queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, state: Tensor, chunk: int, write: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output [b, n, heads, value_dim] and the state after it.

    queries, keys: [b, n, key_heads, key_dim], each shared by consecutive heads. values: [b, n, heads, value_dim].
    decay: [b, n, heads], logarithmic. state: [b, heads, key_dim, value_dim]. write: [b, n, heads], the fraction of a
    value that replaces the old value of its key; None without the delta rule.
    """
    (batch, length, heads, _), size = values.shape, min(chunk, values.shape[1])
    shared = heads // keys.shape[2]  # heads with the same keys
    q, k, v = (_chunks(x, size) for x in (queries, keys, values))
    total = _chunks(decay[..., None], size).squeeze(-1).cumsum(-1)  # [chunks, b heads, Q]
    between = (total[..., :, None] - total[..., None, :]).masked_fill(_future(size, total), -torch.inf).exp()
    scores = _of_heads(q @ k.transpose(-1, -2), shared) * between
    read = _of_heads(q, shared) * total.exp()[..., None]
    k_of_heads, forgets = _of_heads(k, shared), total[..., -1:, None].exp()
    left = (k_of_heads * (total[..., -1:] - total).exp()[..., None]).transpose(-1, -2)
    state = state.flatten(0, 1)
    if write is None:
        states, state = _passed_on(left @ v, forgets, state)
    else:
        rate = _chunks(write[..., None], size)
        inverse = _inverse(_of_heads(k @ k.transpose(-1, -2), shared) * between * rate)
        v, taken = inverse @ (v * rate), inverse @ (k_of_heads * rate * total.exp()[..., None])
        v, states, state = _corrected(v, taken, left, forgets, state)
    out = read @ states + scores @ v
    out = out.view(len(out), batch, heads, *out.shape[2:]).permute(1, 0, 3, 2, 4).flatten(1, 2)
    return out[:, :length], state.view(batch, heads, *state.shape[1:])


def _passed_on(made: Tensor, forgets: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The state before each chunk and the final state, from the contributions of the chunks."""
    states = []
    for added, forget in zip(made.unbind(), forgets.unbind(), strict=True):
        states.append(state)
        state = torch.addcmul(added, forget, state)
    return torch.stack(states), state


def _corrected(
    values: Tensor, taken: Tensor, left: Tensor, forgets: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with the delta rule, and the values minus those that the previous state has for their keys."""
    states, fresh = [], []
    for value, take, leave, forget in zip(*(x.unbind() for x in (values, taken, left, forgets)), strict=True):
        states.append(state)
        fresh.append(torch.baddbmm(value, take, state, alpha=-1))
        state = torch.baddbmm(forget * state, leave, fresh[-1])
    return torch.stack(fresh), torch.stack(states), state


def _chunks(x: Tensor, size: int) -> Tensor:
    """[b, n, heads, d] -> [chunks, b heads, size, d]. An incomplete last chunk is padded with tokens without effect."""
    missing = -x.shape[1] % size
    padded = F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x
    chunks = padded.reshape(len(x), -1, size, *x.shape[2:])
    return chunks.permute(1, 0, 3, 2, 4).flatten(1, 2)


def _of_heads(x: Tensor, shared: int) -> Tensor:
    """Repeats a key head's values for each of its heads."""
    return x if shared == 1 else x.repeat_interleave(shared, dim=1)


def _future(size: int, like: Tensor) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool, device=like.device).triu(1)


def _inverse(overlap: Tensor) -> Tensor:
    """The inverse of 1 plus the strictly lower triangle of [..., Q, Q]."""
    unit = torch.eye(overlap.shape[-1], dtype=overlap.dtype, device=overlap.device).expand_as(overlap)
    inverse: Tensor = torch.linalg.solve_triangular(overlap, unit, upper=False, unitriangular=True)
    return inverse
