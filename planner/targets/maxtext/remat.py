"""Rematerialisation policies of MaxText: the tensors that each keeps, and the modules that it computes again.

MaxText e591f30c (2026-08-22), src/maxtext/layers/nnx_decoders.py, get_remat_policy. All policies keep the input of a
layer; `none` keeps nothing else either.
"""

from __future__ import annotations

from collections.abc import Mapping

QKV = frozenset(("query_proj", "key_proj", "value_proj"))
_UP = frozenset(("mlpwi_0", "mlpwi_1", "mlpwi"))
_DOTS = QKV | _UP | {"out_proj", "mlpwo"}
# Policy -> (tensors kept on the device, tensors kept on the host).
POLICIES: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "full": (frozenset(), frozenset()),
    "none": (frozenset(), frozenset()),
    "minimal_with_context": (_DOTS | {"context"}, frozenset()),
    "minimal": (_DOTS, frozenset()),
    "minimal_flash": (_DOTS | {"context"}, frozenset()),
    "save_dot_with_context_except_mlp": (QKV | {"context", "out_proj"}, frozenset()),
    "save_dot_except_mlp": (QKV | {"out_proj"}, frozenset()),
    "save_dot_except_mlpwi": (QKV | {"out_proj", "mlpwo"}, frozenset()),
    "save_qkv_proj": (QKV, frozenset()),
    "save_out_proj": (frozenset(("out_proj",)), frozenset()),
    "qkv_proj_offloaded": (frozenset(), QKV),
    "minimal_offloaded": (frozenset(), _DOTS),
}


def modules_again(kept: frozenset[str]) -> tuple[str, ...] | None:
    """The modules of a layer that are computed again beside kept tensors. None: the whole layer, where the projections
    of its attention, which are first, are not kept."""
    if not (kept >= QKV or "qkv_proj" in kept):
        return None
    modules = ["norm", "act"]
    modules += [] if "context" in kept else ["attn"]
    modules += [] if kept >= {"mlpwi_0", "mlpwi_1"} or "mlpwi" in kept else ["mlp", "moe", "shared"]
    return tuple(modules)


# Module sets of dense layers that a plan can ask for -> the policy that computes them again.
OF_MODULES: Mapping[frozenset[str], str] = {
    frozenset(modules) - {"moe", "shared"}: name
    for name in ("minimal_with_context", "minimal", "save_dot_with_context_except_mlp", "save_dot_except_mlp")
    if (modules := modules_again(POLICIES[name][0])) is not None
}
