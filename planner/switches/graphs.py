"""The switch of CUDA graphs: the kernels that are replayed instead of launched one by one."""

from __future__ import annotations

from ...cost_models.cuda_graphs import CUDA_GRAPHS as VALUES
from ...cost_models.cuda_graphs import modules_of
from ...cost_models.layer_kinds.mamba2 import Mamba2
from .base import Options, Situation, Switch
from .megatron import of_megatron

_IMPL, _MODULES, _SCOPE = "--cuda-graph-impl", "--cuda-graph-modules", "--cuda-graph-scope"
# Random numbers in a graph come from TransformerEngine. A graph of an iteration cannot wait for a NaN check.
_RNG, _UNCHECKED = "--te-rng-tracker", "--no-check-for-nan-in-loss-and-grad"


def _options(value: str, implementation: str, names: str) -> Options:
    """Graphs of layers or of named modules (user guide of Megatron-LM, cuda_graph)."""
    if value == "none":
        return {}
    if value == "full_iteration":
        whole = {_IMPL: value} if names == _MODULES else {_IMPL: "local", _SCOPE: [value]}
        return {**whole, _RNG: True, _UNCHECKED: True}
    modules = list(modules_of(value))
    return {_IMPL: implementation, **({names: modules} if modules else {}), _RNG: True}


def _choices(situation: Situation) -> tuple[str, ...]:
    """The preferred graphs: all modules of a dense model, and the modules with fixed shapes of a mixture of experts.

    All modules have fixed shapes where HybridEP stashes in pages. Token preprocessing has none where the all-to-all
    drops tokens (core/transformer/transformer_config.py).
    """
    model = situation.problem.model
    if not model.is_moe:
        return ("none", "full_iteration")
    mamba = any(isinstance(mixer, Mamba2) for mixer in model.mixers)
    mixing = "+".join(("attn",) * bool(model.attentions) + ("mamba",) * mamba)
    if model.capacity_factor is not None:
        return ("none", f"{mixing}+moe_router".strip("+"))
    return ("none", f"{mixing}+moe_router+moe_preprocess".strip("+"), "full_iteration")


# `--cuda-graph-scope` until 0.17. Megatron's own graphs (`local`) hold the same modules and are read but not written.
_SPELLINGS = tuple(
    {value: _options(value, implementation, names) for value in VALUES}
    for implementation in ("transformer_engine", "local") for names in (_MODULES, _SCOPE)
)  # fmt: skip
CUDA_GRAPHS = Switch(
    name="cuda_graphs",
    meaning="kernels of modules, layers or of the whole iteration are replayed as a CUDA graph",
    values=VALUES,
    axis=True,
    source="FIDELITY 5 (launches); cost_models/cuda_graphs.py",
    options=of_megatron(*_SPELLINGS, nemo=("none",)),
    companions=frozenset({_RNG, _UNCHECKED}),
    needs={"full_iteration": {"moe_dispatcher": ("hybridep",), "moe_paged_stash": ("on",)}},
    choices=_choices,
)
