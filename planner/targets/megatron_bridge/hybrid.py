"""Models of Mamba-2 and other layers of one block in Megatron-Bridge: HybridModelProvider.

Its pattern and sizes are those of pretrain_hybrid.py (megatron/hybrid.py). This module holds the parts that only Bridge
has.
Read in Megatron-Bridge 51885cf1, models/hybrid/hybrid_provider.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layer_kinds.mamba2 import Mamba2
from ....cost_models.layouts import SCHEDULES
from ....cost_models.problem import Problem
from ....cost_models.specs.model import ModelSpec
from ...space.rules import Columns, Rule
from ..megatron.hybrid import FIXED, PATTERN, is_hybrid, layers_of
from ..options import Entry, Facts, Settings
from ..setup import Setup

PROVIDER = "HybridModelProvider"
_PATTERN, _CHUNK, _MODULE, _BF16, _DTYPE = (f"model.{name}" for name in (
    "hybrid_layer_pattern", "mamba_chunk_size", "mtp_hybrid_override_pattern", "bf16", "params_dtype"))  # fmt: skip
# Fields that no other class has.
_OWN = (_PATTERN, _CHUNK, "model.hybrid_stack_spec")
# Argument -> its default in this class, and the field that overrides it.
_DEFAULTS: Mapping[str, tuple[Any, str]] = {
    "--spec": (True, "model.hybrid_stack_spec"),
    "--bf16": (True, _BF16),
    "--normalization": ("RMSNorm", "model.normalization"),
    "--position-embedding-type": ("none", "model.position_embedding_type"),
    "--disable-bias-linear": (True, "model.add_bias_linear"),
    "--untie-embeddings-and-output-weights": (True, "model.share_embeddings_and_output_weights"),
    "--attention-dropout": (0.0, "model.attention_dropout"),
    "--hidden-dropout": (0.0, "model.hidden_dropout"),
}


def defaults(settings: Mapping[str, Any]) -> Settings:
    """Arguments of pretrain_hybrid.py for the defaults of the class that no field overrides."""
    if settings.get("model") != PROVIDER:
        return {}
    out = {name: value for name, (value, field) in _DEFAULTS.items() if field not in settings or name == "--spec"}
    if any(name.startswith("mixed_precision") for name in settings):  # it sets the dtypes of the class
        out.pop("--bf16", None)
    return out


def with_modules(settings: Mapping[str, Any]) -> Settings:
    """The pattern with its prediction modules, joined as in the class where their layers have a separate field."""
    pattern, module = settings.get(_PATTERN), settings.get(_MODULE)
    if pattern is None or not module:
        return {}
    return {PATTERN: layers_of(str(pattern)) + f"/{module}" * int(settings.get("model.mtp_num_layers") or 0)}


def _chunks(model: ModelSpec) -> list[int]:
    return [mixer.chunk for mixer in model.mixers if isinstance(mixer, Mamba2)]


def _chunk_write(setup: Setup) -> Settings:
    """The chunk size of a mixer, which pretrain_hybrid.py has no argument for."""
    chunks = _chunks(setup.model)
    return {_CHUNK: chunks[0]} if chunks else {}


def _precision_write(setup: Setup) -> Settings:
    """The dtypes of a model in fp32. No other class trains in bf16 by itself."""
    return {_BF16: False, _DTYPE: "torch.float32"} if is_hybrid(setup.model) and setup.precision == "fp32" else {}


def _chunk_read(settings: Settings, facts: Facts) -> Facts:
    if _CHUNK not in settings or "model.mixers" not in facts:
        return {}
    mixers = facts["model.mixers"].items()
    return {"model.mixers": {name: {**mixer, "chunk": settings[_CHUNK]} for name, mixer in mixers}}


def with_usual_chunks(model: ModelSpec) -> ModelSpec:
    """The model with the chunk size of pretrain_hybrid.py. Bridge accepts any size, equal for all mixers."""
    kinds = (replace(kind, mixer=replace(kind.mixer, chunk=FIXED["chunk"])) if isinstance(kind.mixer, Mamba2) else kind
             for kind in model.kinds)  # fmt: skip
    return replace(model, kinds=tuple(kinds)) if len(set(_chunks(model))) == 1 else model


ENTRIES = (
    Entry(("precision",), (_BF16, _DTYPE), _precision_write, lambda settings, facts: {}),  # `defaults` reads it
    Entry(("model.mixers",), (_CHUNK,), _chunk_write, _chunk_read),
    Entry(("model.pattern",), (_MODULE,), lambda setup: {}, lambda settings, facts: {}),  # `with_modules` reads it
)


def conflicts(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Errors that the class raises when it is finalized or built, and its fields in another class."""
    if (name := settings.get("model")) != PROVIDER:
        return [(field, f"is a field of {PROVIDER}, not of {name}") for field in _OWN if name and field in settings]
    if (pattern := settings.get(_PATTERN)) is None:
        return [("model", f"{PROVIDER} needs {_PATTERN}: which layers are of which kind")]
    layers, counted = settings.get("model.num_layers"), len(layers_of(str(pattern)).replace("|", ""))
    if layers not in (None, counted):
        return [(_PATTERN, f"has {counted} layers, model.num_layers is {layers}: leave one of them out")]
    return []


def _plain_stages(columns: Columns, problem: Problem) -> Mask:
    # HybridModelProvider.provide asserts it.
    return np.asarray((columns["schedule"] != SCHEDULES.index("interleaved")) | (not is_hybrid(problem.model)))


RULE = Rule("megatron-bridge: virtual stages", ("schedule",), _plain_stages,
            f"{PROVIDER} has no virtual stages: plan with vpp 1, or for megatron")  # fmt: skip
