"""One layout priced where numbers of the hardware differ: every combination of some factors of each."""

from __future__ import annotations

from itertools import product

from ..request.resolve import Resolved
from ..studies.base import Part
from ..studies.knobs import KNOBS
from ..studies.pricing import HeldLayout, price_held

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
# From the inside of a node outwards: a link is never faster than the way out to it.
_PATHS = ("gpu.peak", "gpu.memory.bandwidth", "cluster.links.intra_node.bandwidth",
          "cluster.links.inter_node.bandwidth")  # fmt: skip


class GridKnob(Part):
    """One number of the hardware, in base units of its dimension."""

    path: str
    label: str
    dimension: str
    now: float


class PriceGrid(Part):
    """Exposed seconds by the closed form, of every combination of the factors; the last knob varies fastest."""

    factors: tuple[float, ...]
    knobs: tuple[GridKnob, ...]
    terms: tuple[str, ...]
    seconds: tuple[tuple[float, ...], ...]  # [combination][term]


def price_grid(resolved: Resolved, held: HeldLayout) -> PriceGrid:
    """The layout under all combinations, priced as `what-if` prices it."""
    knobs = [(KNOBS[path], now) for path in _PATHS if (now := KNOBS[path].read(resolved)) is not None]
    variants = []
    for factors in product(FACTORS, repeat=len(knobs)):
        variant = resolved
        for (knob, _), factor in zip(knobs, factors, strict=True):
            variant = knob.scaled(variant, factor)
        variants.append(variant)
    prices = price_held(held, variants)
    terms = tuple(dict.fromkeys(name for price in prices for name in price.terms))
    return PriceGrid(
        factors=FACTORS,
        knobs=tuple(GridKnob(path=k.path, label=k.label, dimension=k.dimension, now=now) for k, now in knobs),
        terms=terms, seconds=tuple(tuple(price.terms.get(name, 0.0) for name in terms) for price in prices),
    )  # fmt: skip
