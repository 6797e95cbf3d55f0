"""Where the pieces of a vision tower run: on the device of the user, at the edge, or on the instance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array
from .constants import ServingConstants
from .pool import Pool


@dataclass(frozen=True, slots=True)
class Placement:
    """The places of the pieces, columns [n]."""

    device: Array  # pieces on the device of the user
    edge: Array  # at the edge
    before_s: Array  # until the images are at the instance, computation before it and both ways
    left: Array  # share of the FLOPs of the tower that the instance computes


def placement(pool: Pool, constants: ServingConstants) -> Placement:
    """The pieces on each tier, by which an image alone is through the tower first, by FLOPs at the rate of each tier:
    the least over i <= j of the seconds of the first i pieces on the device, those up to j at the edge, the others on
    the instance, and of both ways.
    Layers of the language model are not divided: each such cut sends as many bytes, and the seconds are linear in the
    layers before it, so that one of the ends is as short. Without a way to the user all pieces are on the instance.
    """
    none, images, methods = np.zeros_like(pool.tp), pool.images, pool.methods
    if images is None or not methods.uplink_bytes_per_s:
        return Placement(none, none, none, none + 1.0)
    done = np.concatenate([[0.0], np.cumsum(images.flops)])
    sent = np.array([images.pixels * methods.pixel_bits, *(it * methods.feature_bits for it in images.elements)]) / 8.0
    way_s = sent / methods.uplink_bytes_per_s + methods.link_s
    from_device_s = _seconds(done, methods.device_flops_per_s) + way_s
    first, before_s = np.arange(len(done)), from_device_s
    if methods.edge_flops_per_s:
        at_edge_s = done / methods.edge_flops_per_s
        best = from_device_s - at_edge_s
        first = np.array([int(np.argmin(best[: last + 1])) for last in range(len(done))])
        before_s = best[first] + at_edge_s + sent / methods.backhaul_bytes_per_s + methods.link_s
    rate = pool.flops_per_s * constants.compute_share * pool.tp
    last = np.argmin(before_s[:, None] + (done[-1] - done)[:, None] / rate, axis=0)
    return Placement(first[last].astype(float), (last - first[last]).astype(float), before_s[last],
                     1.0 - done[last] / done[-1])  # fmt: skip


def _seconds(flops: Array, rate: float) -> Array:
    """Infinite for work without a device."""
    return np.asarray(flops / rate if rate else np.where(flops > 0, np.inf, 0.0))


def front_s(pool: Pool, constants: ServingConstants, prompt: Array) -> Array:
    """[n] seconds from the user to the scheduler of a request whose prompt has so many tokens [n]. The host
    prepares the passes of a model that fills in while it begins."""
    seconds = constants.prompt_token_s * prompt + pool.host_s * pool.methods.fills
    return seconds if pool.images is None else np.asarray(seconds + placement(pool, constants).before_s)
