"""Scans in chunks give what their recurrence gives token by token, and so do their gradients."""

from __future__ import annotations

import pytest
import torch
from meshwright.runtime.model import chunked_scan
from meshwright.runtime.model.chunked_scan import convolved, in_blocks, scan
from torch import Tensor

B, N, KEY_HEADS, HEADS, KEY, VALUE = 2, 23, 2, 4, 5, 3


def inputs(delta: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    made = {
        "queries": torch.randn(B, N, KEY_HEADS, KEY), "keys": torch.randn(B, N, KEY_HEADS, KEY),
        "values": torch.randn(B, N, HEADS, VALUE), "decay": -torch.rand(B, N, HEADS),
        "state": torch.randn(B, HEADS, KEY, VALUE),
    }  # fmt: skip
    if delta:
        made["keys"] = torch.nn.functional.normalize(made["keys"], dim=-1)
        made["write"] = torch.rand(B, N, HEADS)
    return {name: x.double().requires_grad_() for name, x in made.items()}


def token_by_token(
    queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, state: Tensor, write: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """S' = e^decay S; with the delta rule v := write (v - k S'); S = S' + k v; out = q S (arXiv 2412.06464, eq. 10)."""
    outs = []
    q, k = (x.repeat_interleave(HEADS // KEY_HEADS, dim=2) for x in (queries, keys))
    for t in range(N):
        state = state * decay[:, t].exp()[..., None, None]
        value = values[:, t]
        if write is not None:
            value = write[:, t, :, None] * (value - torch.einsum("bhk,bhkv->bhv", k[:, t], state))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], value)
        outs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outs, dim=1), state


@pytest.mark.parametrize("chunk", [1, 4, 7, 23, 64])
@pytest.mark.parametrize("delta", [False, True])
def test_a_scan_is_its_recurrence(delta: bool, chunk: int) -> None:
    """Chunks that divide the tokens and chunks that do not."""
    given = inputs(delta)
    ours, wanted = scan(**given, chunk=chunk), token_by_token(**given)
    for one, other in zip(ours, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-11)
    weights = [torch.randn_like(x) for x in wanted]
    found, expected = (torch.autograd.grad([*pair], [*given.values()], weights) for pair in (ours, wanted))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("delta", [False, True])
def test_blocks_pass_on_their_states(delta: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(delta)
    state, names = given.pop("state"), list(given)

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        return scan(**dict(zip(names, tensors, strict=False)), state=tensors[-1], chunk=4)

    whole = scan(**given, state=state, chunk=4)[0]
    monkeypatch.setattr(chunked_scan, "BLOCK", 8)
    blocks = in_blocks(step, [state], [*given.values()], 4)
    assert torch.allclose(blocks, whole, rtol=1e-12, atol=1e-12)
    leaves = [*given.values(), state]
    for one, other in zip(*(torch.autograd.grad(out.square().sum(), leaves) for out in (blocks, whole)), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-10)


def test_a_convolution_sees_the_tokens_of_the_block_before() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(B, N, 6).double(), torch.randn(6, 4).double(), torch.randn(6).double()
    padded = torch.nn.functional.pad(x.transpose(1, 2), (3, 0))
    wanted = torch.nn.functional.silu(torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=6))
    first, last = convolved(x[:, :2], x.new_zeros(B, 3, 6), weight, bias)  # fewer than the kernel has
    second, _ = convolved(x[:, 2:], last, weight, bias)
    assert torch.allclose(torch.cat([first, second], dim=1), wanted.transpose(1, 2), rtol=1e-12)
