"""Mixtures of experts in the explicit form of a model."""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.specs.model import MixtureOfExperts
from .fields import Fields

_BRANCH_NORMS = 3  # of the outputs of shared and of routed experts, and of the input of the latter


def chosen_layers(f: Fields, name: str, num_layers: int) -> list[int] | int:
    """A field that holds a number of layers, or lists their indices."""
    if isinstance(f.get(name), list):
        return f.indices(name, num_layers) or []
    return f.count(name, default=num_layers, minimum=0, maximum=num_layers)


def read_experts(f: Fields, num_layers: int) -> dict[int, MixtureOfExperts]:
    """Layer -> its experts, by the fields of `moe`.

    Needed: experts (a number, or a list with one for each layer that has experts), topk, expert_ffn. Optional: shared
    and shared_ffn, moe_layers (how many, or which; a number means the last ones: the first stay dense, as in DeepSeek),
    shared_gate, residual (the shared block is weighed against the routed ones), router_bias, router_factors,
    branch_norms, choice_bias, expert_bias (of shared ones, too), groups, top_groups (groups), router_scores (softmax or
    sigmoid), router_normalised (true), router_scale (1), latent.
    """
    moe = f.part("moe")
    if moe is None:
        return {}
    counts = _numbers(moe)
    block = _block(f, moe, min(counts))
    chosen = chosen_layers(moe, "moe_layers", num_layers)
    layers = list(range(num_layers - chosen, num_layers) if isinstance(chosen, int) else chosen)
    if len(counts) not in (1, len(layers)):
        moe.problem("experts", f"lists {len(counts)} numbers for {len(layers)} layers with experts",
                    "one number for each of them, or one for all")  # fmt: skip
    _check(f, moe, block, counts)
    moe.reject_unknown()
    f.absorb(moe)
    numbers = counts * len(layers) if len(counts) == 1 else counts
    return {layer: replace(block, experts=number) for layer, number in zip(layers, numbers, strict=False)}


def _block(f: Fields, moe: Fields, experts: int) -> MixtureOfExperts:
    inner = moe.count("expert_ffn")
    shared = moe.count("shared", default=0, minimum=0)
    groups, scores = moe.count("groups", default=1), moe.get("router_scores")
    if scores not in (None, "softmax", "sigmoid"):
        moe.problem("router_scores", f"`{scores}` is neither softmax nor sigmoid")
    return MixtureOfExperts(
        experts=experts,
        top_k=moe.count("topk"),
        expert_inner=inner,
        gated=f.flag("gated_mlp", True),
        expert_bias=moe.flag("expert_bias", False),
        router_bias=moe.flag("router_bias", False),
        router_factors=moe.flag("router_factors", False),
        branch_norms=moe.flag("branch_norms", False),
        choice_bias=moe.flag("choice_bias", False),
        shared_inner=moe.count("shared_ffn", default=shared * inner, minimum=0),
        latent=moe.optional_count("latent"),
        shared_gate=moe.flag("shared_gate", False),
        residual=moe.flag("residual", False),
        groups=groups,
        top_groups=moe.count("top_groups", default=groups),
        router_scores="sigmoid" if scores == "sigmoid" else "softmax",
        router_normalised=moe.flag("router_normalised", True),
        router_scale=moe.number("router_scale", 1.0),
    )


def _numbers(moe: Fields) -> list[int]:
    """Routed experts of the layers that have them: one number for all, or one for each."""
    value = moe.get("experts")
    if not isinstance(value, list):
        return [moe.count("experts")]
    if not value or any(isinstance(number, bool) or not isinstance(number, int) or number < 1 for number in value):
        moe.problem("experts", f"must be a number of 1 or more, or a list of such, is {value!r}")
        return [1]
    return value


def _check(f: Fields, moe: Fields, block: MixtureOfExperts, counts: list[int]) -> None:
    groups = block.groups
    if moe.sound and block.top_k > block.experts:
        moe.problem("topk", f"{block.top_k} experts per token, but there are only {block.experts}")
    if moe.sound and (any(number % groups for number in counts) or block.top_groups > groups):
        listed = ", ".join(map(str, dict.fromkeys(counts)))
        moe.problem("groups", f"{groups} groups, {block.top_groups} of them per token, of {listed} experts")
    if moe.sound and block.residual and not block.shared_inner:
        moe.problem("residual", "weighs a shared block against the routed ones, and there is none", "give shared_ffn")
    norms = f.count("num_norms", default=2, minimum=0)
    if moe.sound and block.branch_norms and not (norms > _BRANCH_NORMS and block.shared_inner):
        moe.problem("branch_norms", f"needs shared experts and {_BRANCH_NORMS} norms beside those of the blocks, "
                    f"num_norms is {norms}")  # fmt: skip
