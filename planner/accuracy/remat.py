"""Rematerialisation policies of MaxText as fields of a layout: which tensors are kept, on the device or on the host.

A policy names the tensors that it keeps (MaxText, get_remat_policy of its decoder); the input of a layer is kept
by all. Everything else is computed again, up to the last tensor that a gradient needs.
"""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.layouts import OFFLOADS, RECOMPUTE_MODES, Layout, module_mask
from ...cost_models.offload_modules import mask_of_modules
from ..targets.maxtext.remat import POLICIES, QKV, modules_again
from .host_tensors import BLOCK_OUTPUT
from .row import RowReader

_INPUT = "decoder_layer_input"


def is_remat(row: RowReader) -> bool:
    """Whether the row states a policy of MaxText."""
    return row.get("layout", "recompute", "policy") is not None


def sends_outputs(row: RowReader) -> bool:
    """Whether the policy keeps outputs of feed-forward blocks on the host."""
    if not is_remat(row):
        return False
    name = row.text("layout", "recompute", "policy")
    host = _names(row, "host_offloaded") if name == "custom" else POLICIES.get(name, POLICIES["full"])[1]
    return BLOCK_OUTPUT in host


def with_policy(row: RowReader, layout: Layout) -> Layout:
    """`layout` with what the policy of the row computes again and sends to the host."""
    name = row.text("layout", "recompute", "policy")
    if name == "custom":
        kept, host = (_names(row, key) for key in ("kept_on_device", "host_offloaded"))
    elif name in POLICIES:
        kept, host = POLICIES[name]
    else:
        row.fail(("layout", "recompute", "policy"), f"`{name}` is none of {', '.join(POLICIES)}, custom")
        return layout
    return _offloaded(_recomputed(layout, kept | host), host)


def _names(row: RowReader, key: str) -> frozenset[str]:
    path = ("layout", "recompute", key)
    listed = row.get(*path) or []
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        row.fail(path, "must be a list of names of tensors")
        return frozenset()
    return frozenset(listed)


def _recomputed(layout: Layout, saved: frozenset[str]) -> Layout:
    """The recomputation of a policy: the whole layer unless it keeps the attention projections, which are first."""
    if (modules := modules_again(saved)) is None:
        return replace(layout, recompute=RECOMPUTE_MODES.index("full"))
    mode = RECOMPUTE_MODES.index("selective")
    return replace(layout, recompute=mode, recompute_modules=module_mask(modules))


def _offloaded(layout: Layout, host: frozenset[str]) -> Layout:
    """A layer that runs again as a whole keeps its input alone. Else tensors go by the module that keeps as much: the
    output of the last projection has as many elements as what that takes."""
    if layout.recompute == RECOMPUTE_MODES.index("full"):
        return replace(layout, offload=OFFLOADS.index("act")) if _INPUT in host else layout
    sent = {"qkv_linear": _INPUT in host, "core_attn": host >= QKV, "attn_proj": bool(host & {"out_proj", "context"})}
    return replace(layout, offload_modules=mask_of_modules(*(name for name, goes in sent.items() if goes)))
