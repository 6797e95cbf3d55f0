"""Means over a group in few bits per element, in two phases that send what an all-reduce of these bits sends.

Each rank encodes its tensor and sends the i-th part to rank i, which takes the mean of all of them, encodes that, and
sends it to all. A code has one scale per tensor, which travels in a message of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..parallel.comm import Group, Pending


class Code(Protocol):
    """Elements as whole bytes with a common scale."""

    per_byte: int  # elements

    def scale(self, x: Tensor) -> Tensor:
        """[1] the scale of a tensor."""

    def encode(self, x: Tensor, scale: Tensor) -> Tensor:
        """[n / per_byte] uint8 of [n]."""

    def decode(self, codes: Tensor, scale: Tensor) -> Tensor:
        """[..., n] in the dtype of the scale [..., 1], from [..., n / per_byte]."""


class Signs:
    """Signs, times the root of the mean square (1-bit Adam, arXiv 2102.02888, section 4.2)."""

    per_byte = 8

    def scale(self, x: Tensor) -> Tensor:
        return x.square().mean().sqrt().reshape(1)

    def encode(self, x: Tensor, scale: Tensor) -> Tensor:
        bits = (x >= 0).view(-1, 8).to(torch.uint8)
        return (bits << torch.arange(8, dtype=torch.uint8, device=x.device)).sum(1, dtype=torch.uint8)

    def decode(self, codes: Tensor, scale: Tensor) -> Tensor:
        bits = (codes[..., None] >> torch.arange(8, dtype=torch.uint8, device=codes.device)) & 1
        return (bits.flatten(-2).to(scale.dtype) * 2 - 1) * scale


class E3M0:
    """A sign and an exponent of 3 bits: 0, or the largest absolute value times 1, 1/2, ..., 1/64, the nearest one."""

    per_byte = 2
    smallest = 2.0**-6

    def scale(self, x: Tensor) -> Tensor:
        return x.abs().max().reshape(1)

    def encode(self, x: Tensor, scale: Tensor) -> Tensor:
        ratio = x.abs() / scale.clamp(min=torch.finfo(scale.dtype).tiny)
        # From 3/4 of a power of two to 3/2 of it that power is the nearest, below 1/2 of the smallest zero is.
        exponent = torch.floor(torch.log2(ratio * (4 / 3)).clamp(min=-6.0)).clamp(max=0.0)
        digits = torch.where(ratio >= self.smallest / 2, exponent + 7, 0.0).to(torch.uint8)
        pairs = ((x < 0).to(torch.uint8) * 8 + digits).view(-1, 2)
        return pairs[:, 0] + pairs[:, 1] * 16

    def decode(self, codes: Tensor, scale: Tensor) -> Tensor:
        four = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
        digits, sign = (four & 7).to(scale.dtype), 1 - 2 * (four >> 3).to(scale.dtype)
        return torch.where(digits > 0, sign * torch.exp2(digits - 7), 0.0) * scale


@dataclass
class Errors:
    """The errors of encoding on this rank, added to the next tensors that it encodes."""

    sent: Tensor  # [n] of its tensor
    mean: Tensor  # [this rank's part of n] of its part of the mean


def byte_parts(length: int, group: Group, code: Code) -> list[slice]:
    """The part of each rank, of whole bytes but for the last elements."""
    size = -(-length // (group.size * code.per_byte)) * code.per_byte
    return [slice(min(i * size, length), min((i + 1) * size, length)) for i in range(group.size)]


def start_mean(flat: Tensor, out: Tensor, group: Group, scales: Group, code: Code,
               errors: Errors | None = None) -> Iterator[Pending]:  # fmt: skip
    """The collectives that write the mean over the group of `flat` [n] into `out` [n], which may be `flat`.

    scales: the same ranks.
    """
    length, size = len(flat), -(-len(flat) // (group.size * code.per_byte))
    mine = byte_parts(length, group, code)[group.rank]
    x = flat if errors is None else flat + errors.sent
    scale, codes = code.scale(x), _encoded(x, size * group.size, code)
    if errors is not None:
        errors.sent.copy_(x - code.decode(codes, scale)[:length])
    received, every = torch.empty_like(codes), scale.new_empty(group.size)
    yield group.start_all_to_all(received, codes)
    yield scales.start_all_gather(every, scale)
    total = code.decode(received.view(group.size, size), every[:, None]).mean(0)[: mine.stop - mine.start]
    total = total if errors is None else total + errors.mean
    scale = code.scale(total) if len(total) else scale.new_zeros(1)
    codes = _encoded(total, size, code)
    if errors is not None:
        errors.mean.copy_(total - code.decode(codes, scale)[: len(total)])
    whole = codes.new_empty(group.size * size)
    yield group.start_all_gather(whole, codes)
    yield scales.start_all_gather(every, scale)
    out.copy_(code.decode(whole.view(group.size, size), every[:, None]).flatten()[:length])


def _encoded(x: Tensor, num_bytes: int, code: Code) -> Tensor:
    """Bytes of a tensor, with zeros behind it."""
    padded = x.new_zeros(num_bytes * code.per_byte)
    padded[: len(x)] = x
    return code.encode(padded, code.scale(x) if len(x) else x.new_zeros(1))


class LateMean:
    """Collectives of which one after the other runs beside the following steps."""

    def __init__(self, hops: Iterator[Pending]) -> None:
        self.hops, self.pending = hops, next(hops, None)

    def advance(self) -> None:
        """Waits for a collective and starts the next one, if any."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = next(self.hops, None)

    def finish(self) -> None:
        """Waits for all of them."""
        while self.pending is not None:
            self.advance()
