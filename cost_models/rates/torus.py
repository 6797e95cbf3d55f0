"""The share of a torus that a group of ranks can use: links of the axes of the group (Scaling Book, `tpus`).

Ranks fill a torus axis by axis, the first axis first. Along an axis that is closed to a ring, and that a group covers
as a whole, a chip sends both ways at once; along the rest of an axis the ends of a line have one link only. A group
that steps over ranks of an axis shares its links with the groups in between.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..arrays import Array, Ints
from ..specs.cluster import NetworkLevel


def is_ring(length: int, num_axes: int) -> bool:
    """Whether an axis is a ring: in a 3D torus for multiples of 4 chips, in a 2D torus for all 16 chips of a pod."""
    return length % 4 == 0 if num_axes == 3 else length == 16


def link_share(level: NetworkLevel, size: Ints, stride: Ints) -> Array | float:
    """[n] share of a chip's links that groups of `size` ranks, `stride` apart, use; 1 where the level has no axes."""
    if not level.torus:
        return 1.0
    links = np.zeros(size.shape)
    for length, members, shared in _along(level, size, stride):
        closed = (members >= length) & is_ring(length, len(level.torus))
        links += np.where(members > 1, np.where(closed, 2.0, 1.0) / shared, 0.0)
    return np.asarray(np.where(links > 0, links, 1.0) / (2.0 * len(level.torus)))


def exchange_slope(level: NetworkLevel, size: Ints, stride: Ints) -> Array:
    """[n] seconds per byte that a rank sends to all others of its group, each its own part, over all axes at once.

    Half of what the m ranks of an axis send crosses its middle: V m/4 per link of a line, V m/8 of a ring.
    """
    link = level.bw_bytes_per_s / (2.0 * len(level.torus))
    slope = np.zeros(size.shape)
    for length, members, shared in _along(level, size, stride):
        ends = np.where((members >= length) & is_ring(length, len(level.torus)), 8.0, 4.0)
        slope = np.maximum(slope, np.where(members > 1, members * shared / ends / link, 0.0))
    return slope


def steps(level: NetworkLevel, size: Ints, stride: Ints) -> Array:
    """[n] messages that follow each other in a collective, axis by axis: around half of a ring, along a whole line."""
    total = np.zeros(size.shape)
    for length, members, _ in _along(level, size, stride):
        closed = (members >= length) & is_ring(length, len(level.torus))
        total += np.ceil((members - 1.0) / np.where(closed, 2.0, 1.0))
    return total


def _along(level: NetworkLevel, size: Ints, stride: Ints) -> Iterator[tuple[int, Array, Array]]:
    """(length, members of the group, groups that share its links) of every axis."""
    below = level.size / float(np.prod(level.torus))  # devices of a chip
    for length in level.torus:
        first = np.maximum(stride, below)
        members = np.clip(np.minimum(size * stride, below * length) / first, 1.0, length)
        yield length, members, np.where(members > 1, first / below, 1.0)
        below *= length
