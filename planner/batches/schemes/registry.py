"""Every published scheme, by name. A new one is a file beside this one and a line here."""

from __future__ import annotations

from . import bytescale, chunkflow, flexsp, hydraulis, megatron_dynamic, megatron_hybrid, wlb, zeppelin
from .base import Scheme

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        megatron_hybrid.SCHEME,
        megatron_dynamic.SCHEME,
        flexsp.SCHEME,
        bytescale.SCHEME,
        zeppelin.SCHEME,
        wlb.SCHEME,
        chunkflow.SCHEME,
        hydraulis.SCHEME,
    )
}
