"""Maps the weights of hybrid models to the files of Hugging Face: mixers and feed-forward blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import accumulate

from torch import Tensor

from ...cost_models.layer_kinds.gated_delta_net import GatedDeltaNet
from ...cost_models.layer_kinds.mamba2 import Mamba2
from ...cost_models.specs.model import Attention, FeedForward, MixtureOfExperts
from .sources import CHOICE, Shape, Source, Sources, beside_experts, plain, product, separate, tall


def mamba2(mixer: Mamba2, module: str = "mixer") -> Sources:
    """Mamba-2: gate, x, B, C and steps stacked by rows."""
    shared = mixer.groups * mixer.state
    convolved = {"x": mixer.inner, "b": shared, "c": shared}
    out = _below(f"{module}.in_proj", {"gate": mixer.inner, **convolved, "step": mixer.heads}, bias=mixer.in_bias)
    out |= _convolution(f"{module}.conv1d", convolved, bias=mixer.conv_bias)
    out |= {"decay": Source(f"{module}.A_log"), "step_start": Source(f"{module}.dt_bias"),
            "skip": Source(f"{module}.D"), "out": Source(f"{module}.out_proj.weight")}  # fmt: skip
    if mixer.gated_norm:
        out["norm"] = Source(f"{module}.norm.weight")
    if mixer.out_bias:
        out["out_bias"] = Source(f"{module}.out_proj.bias")
    return out


def gated_delta_net(mixer: GatedDeltaNet, module: str = "linear_attn") -> Sources:
    """Gated DeltaNet: per key head its query, key, values and gates, and per value head two scalars."""
    shared = mixer.value_heads // mixer.key_heads
    widths = {"q": mixer.key_head_dim, "k": mixer.key_head_dim, "v": shared * mixer.value_head_dim,
              "gate": shared * mixer.value_head_dim}  # fmt: skip
    out = _below(f"{module}.in_proj_qkvz", widths, heads=mixer.key_heads)
    out |= _below(f"{module}.in_proj_ba", {"write": shared, "step": shared}, heads=mixer.key_heads)
    out |= _convolution(f"{module}.conv1d", {"q": mixer.keys, "k": mixer.keys, "v": mixer.values}, bias=False)
    return out | {"decay": Source(f"{module}.A_log"), "step_start": Source(f"{module}.dt_bias"),
                  "norm": Source(f"{module}.norm.weight"), "out": Source(f"{module}.out_proj.weight")}  # fmt: skip


def _below(theirs: str, widths: Mapping[str, int], *, heads: int = 1, bias: bool = False) -> Sources:
    """Projections stacked by rows within each head."""
    out: Sources = {}
    whole = tall(heads * sum(widths.values()))
    for (name, width), end in zip(widths.items(), accumulate(widths.values()), strict=True):
        out |= product(name, theirs, bias, partial(_rows_of_heads, heads, end - width, end), whole)
    return out


def _rows_of_heads(heads: int, first: int, end: int, theirs: Tensor) -> Tensor:
    return theirs.reshape(heads, -1, *theirs.shape[1:])[:, first:end].flatten(0, 1)


def _convolution(theirs: str, widths: Mapping[str, int], *, bias: bool) -> Sources:
    """A convolution weight, which they store as [channels, 1, kernel]."""
    out = {}
    for name, source in _below(theirs, widths, bias=bias).items():
        ours = f"{name.removesuffix('_bias')}_conv{'_bias' * name.endswith('_bias')}"
        out[ours] = source if name.endswith("_bias") else Source(
            source.name, partial(_squeezed, source), partial(_with_channel, source))
    return out


def _squeezed(source: Source, theirs: Tensor) -> Tensor:
    return source.take(theirs.squeeze(1))


def _with_channel(source: Source, ours: Shape) -> Shape:
    channels, kernel = source.whole(ours)
    return channels, 1, kernel


def gated_queries(attention: Attention) -> Sources:
    """Qwen3-Next: per head its query and its output gate."""

    def take(which: int, theirs: Tensor) -> Tensor:
        return theirs.view(attention.heads, 2, attention.head_dim, *theirs.shape[1:])[:, which].flatten(0, 1)

    out = separate(attention)
    for which, name in enumerate(("q", "gate")):
        out |= product(name, "self_attn.q_proj", attention.qkv_bias, partial(take, which),
                       tall(2 * attention.heads * attention.head_dim))  # fmt: skip
    return out


def blocks_of_nemotron(block: FeedForward | MixtureOfExperts) -> Sources:
    """Nemotron-H: no gates, also in experts."""
    if isinstance(block, FeedForward):
        return plain("mixer.up_proj", "mixer.down_proj", block)
    out = {name: Source(f"mixer.experts.*.{name}_proj.weight") for name in ("up", "down")}
    return out | beside_experts(block, "mixer", "shared_experts", "gate", CHOICE, gate=False)
