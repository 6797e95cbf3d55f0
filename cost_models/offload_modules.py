"""Modules that send their saved tensors to the host: the values of the layout's field `offload_modules`.

Modules are those of Megatron Core (fine-grained activation offloading): each sends the tensors that autograd saves in
it. A value is a bit mask, and its name joins the names of its modules.
"""

from __future__ import annotations

import numpy as np

from .arrays import Ints
from .cuda_graphs import CUDA_GRAPHS
from .cuda_graphs import modules_of as held_by
from .masks import mask_of, names_of

SENDERS = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")


def mask_of_modules(*names: str) -> int:
    """The mask of modules. Raises InputError for an unknown one."""
    return mask_of(names, SENDERS, "offload")


# Name of every mask, at its place.
OFFLOAD_MODULES = ("none", *("+".join(names_of(mask, SENDERS)) for mask in range(1, 1 << len(SENDERS))))
# Modules whose tensors are saved by experts alone.
OF_EXPERTS = mask_of_modules("expert_fc1", "moe_act")
_SIZES = np.array([mask.bit_count() for mask in range(len(OFFLOAD_MODULES))])


def num_modules(masks: Ints | int) -> Ints:
    """[n] how many modules masks have."""
    return np.asarray(_SIZES[masks])


def _turned_off(graphs: str, is_moe: bool) -> int:
    """The modules that Megatron Core does not offload beside graphs, which end at their inputs
    (core/transformer/transformer_layer.py of d98e8a64, _set_offload_modules)."""
    held = set(held_by(graphs))
    ends_at_norm = bool(held & {"attn", "moe_router"}) if is_moe else len(held & {"attn", "mlp"}) == 1
    return ("attn" in held) * mask_of_modules("attn_norm") | ends_at_norm * mask_of_modules("mlp_norm")


_TURNED_OFF = {is_moe: np.array([_turned_off(name, is_moe) for name in CUDA_GRAPHS]) for is_moe in (False, True)}


def offloaded(masks: Ints, graphs: Ints, is_moe: bool) -> Ints:
    """[n] of these masks, what a layer of experts (`is_moe`), or a dense one, offloads beside graphs of these codes."""
    return np.asarray(masks & ~_TURNED_OFF[is_moe][graphs])
