"""Partitions of the layers in a plan: the even one of a layout, the one form of any other, and the ids they make."""

from __future__ import annotations

import hashlib
import json

from ...cost_models.layouts import RECOMPUTE_MODES, Layout
from ...cost_models.quantities.even_stages import chunk_sizes
from ...cost_models.quantities.stages import Partition, devices_of, recomputed_by_layout


def stages_by_layout(layout: Layout, num_layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Layers of each chunk, as even as possible, and how many of them are fully recomputed."""
    sizes = tuple(chunk_sizes(num_layers, len(devices_of(layout))))
    return sizes, recomputed_chunks(layout, sizes)


def recomputed_chunks(layout: Layout, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """How many layers of each chunk are fully recomputed, as the layout says."""
    full = RECOMPUTE_MODES[layout.recompute] == "full"
    return tuple(recomputed_by_layout(sizes, devices_of(layout), (layout.recompute_layers or sum(sizes)) * full))


def custom_partition(layout: Layout, partition: Partition) -> Partition | None:
    """`partition` in its one form: None where it is that of the layout, `recomputed` only where stages differ in it."""
    sizes, recomputed = stages_by_layout(layout, sum(partition.sizes))
    full = RECOMPUTE_MODES[layout.recompute] == "full"
    if partition.sizes == sizes and (partition.recomputed in (None, recomputed) or not full):
        return None
    uniform = not full or partition.recomputed == recomputed_chunks(layout, partition.sizes)
    return Partition(partition.sizes, None if uniform else partition.recomputed)


def layout_id(layout: Layout, partition: Partition | None, shares: tuple[int, ...] | None = None) -> str:
    """The id of a layout; with stages of its own, or uneven shares of the micro-batches, it ends in `-x` and 6 digits
    of their digest."""
    if partition is None and shares is None:
        return str(layout)
    content = [partition.sizes, partition.recomputed] if partition else []
    text = json.dumps([*content, shares] if shares else content)
    return f"{layout}-x{hashlib.sha256(text.encode()).hexdigest()[:6]}"
