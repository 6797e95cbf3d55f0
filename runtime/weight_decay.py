"""Weight decay that leaves some parameters out: AdamW's decoupled decay (arXiv 1711.05101) on slices of flat buffers.

A unit holds decayed and undecayed parameters in one buffer. The optimizer then has no decay of its own, and decayed
slices are scaled before its step, as torch's AdamW does first. No torch here, but tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ..errors import InputError

KINDS = ("norms", "biases", "embeddings")


class Buffer(Protocol):
    """A flat tensor."""

    def __getitem__(self, index: slice) -> Buffer: ...

    def mul_(self, factor: float) -> object: ...


def excluded_kinds(text: str) -> frozenset[str]:
    """The kinds in a list such as `norms,biases`. Raises InputError for others."""
    kinds = [kind for kind in text.split(",") if kind]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise InputError(f"--no-decay `{unknown[0]}` is none of {', '.join(KINDS)}", hint="`--no-decay norms,biases`")
    return frozenset(kinds)


def kind_of(name: str, num_dims: int) -> str | None:
    """The kind of a parameter that may be left out, by its full name and the dims of the whole; None: a matrix.

    Vectors that are no biases count as norms: sinks, and the steps and decays of mixers.
    """
    last = name.rpartition(".")[2]
    if last == "bias" or last.endswith("_bias"):
        return "biases"
    if name.startswith("embedding.") and last in ("tokens", "positions"):
        return "embeddings"
    return "norms" if num_dims == 1 else None


def merged(ranges: Iterable[tuple[int, int]]) -> list[slice]:
    """Slices of ranges in ascending order, of which neighbours become one and empty ones none."""
    out: list[slice] = []
    for start, stop in ranges:
        if start >= stop:
            continue
        if out and out[-1].stop == start:
            start = out.pop().start
        out.append(slice(start, stop))
    return out


def decayed_slices(
    parameters: Iterable[tuple[str, int, int]], first: int, number: int, excluded: frozenset[str]
) -> list[slice]:
    """Slices of the elements first to first + number - 1 of a unit that belong to decayed parameters.

    parameters: full name, dims of the whole, and elements of each one in the unit, in its order.
    """
    begin, ranges = 0, []
    for name, num_dims, elements in parameters:
        if kind_of(name, num_dims) not in excluded:
            ranges.append((max(begin - first, 0), min(begin + elements - first, number)))
        begin += elements
    return merged(ranges)


def decay_(buffers: Sequence[tuple[Buffer, Sequence[slice]]], factor: float) -> None:
    """Multiplies the slices of every buffer by a factor."""
    for buffer, slices in buffers:
        for part in slices:
            buffer[part].mul_(factor)
