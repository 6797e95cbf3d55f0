"""Maps the weights of one attention or feed-forward block to the files of Hugging Face, by their layout there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ...cost_models.specs.model import Attention, FeedForward, MixtureOfExperts
from ..model.experts import CHOICE_BIAS

Shape = tuple[int, ...]
Take = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Source:
    """A weight of theirs, and the function that takes ours from it. `take` moves elements and computes nothing."""

    name: str  # in their files; `*` stands for the number of an expert, the first dim of our weight
    take: Take = lambda theirs: theirs  # of one expert if the name has a `*`
    whole: Callable[[Shape], Shape] = lambda ours: ours  # shape of our part -> shape of their tensor

    @property
    def per_expert(self) -> bool:
        return "*" in self.name

    @property
    def inputs_first(self) -> bool:
        """Whether their weight of a product is [in, out], as that of Conv1D in transformers."""
        return self.whole((1, 2))[-1] != 2

    def of_expert(self, index: int) -> str:
        """The name of the tensor of one expert."""
        return self.name.replace("*", str(index))


Sources = dict[str, Source]


def put(source: Source, ours: Tensor, theirs: Tensor) -> None:
    """The inverse of `source.take`: copies the elements of ours to their places in theirs, bit by bit."""
    there = source.take(theirs)
    if there.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr():  # a view, which is written through
        there.copy_(ours)
        return
    # `take` permutes elements here. Applied to the index of every element it returns the places that ours come from.
    places = source.take(torch.arange(theirs.numel()).view(theirs.shape))
    theirs.view(-1)[places.flatten()] = ours.flatten()


def tall(rows: int) -> Callable[[Shape], Shape]:
    """The shape of a tensor with this many rows, as wide as our part."""
    return lambda ours: (rows, *ours[1:])


def _turned(ours: Shape) -> Shape:
    """Our shape with the last two dims swapped; the shape of a bias stays."""
    return ours if len(ours) < 2 else (*ours[:-2], ours[-1], ours[-2])


def norm(ours: str, theirs: str, bias: bool) -> Sources:
    return {f"{ours}.{part}": Source(f"{theirs}.{part}") for part in ("weight", "bias")[: 1 + bias]}


def product(
    ours: str, theirs: str, bias: bool, take: Take = lambda rows: rows,
    whole: Callable[[Shape], Shape] = lambda ours: ours,
) -> Sources:  # fmt: skip
    """A weight [out, in] and its bias [out]. take, whole: those of a Source, for both."""
    parts = ((ours, "weight"), (f"{ours}_bias", "bias"))[: 1 + bias]
    return {name: Source(f"{theirs}.{part}", take, whole) for name, part in parts}


def rows(first: int, number: int) -> Take:
    return lambda theirs: theirs[first : first + number]


def halved(sources: Sources, attention: Attention, turned: int) -> Sources:
    """`sources` with the rotary elements of queries and keys reordered to halves."""

    def moved(take: Take, heads: int, theirs: Tensor) -> Tensor:
        ours = take(theirs)
        rows = ours.view(heads, attention.head_dim, *ours.shape[1:])
        return torch.cat([rows[:, :turned][:, _in_halves(turned)], rows[:, turned:]], dim=1).flatten(0, 1)

    out = dict(sources)
    for name, heads in (("q", attention.heads), ("k", attention.kv_heads)):
        for part in {name, f"{name}_bias"} & set(out):
            out[part] = replace(out[part], take=partial(moved, out[part].take, heads))
    return out


def _in_halves(turned: int) -> Tensor:
    """Permutation of the rotary elements of a head, from adjacent pairs to halves."""
    return torch.arange(turned).view(-1, 2).t().flatten()


# ---------------------------------------------------------------------------------------------------- attention
def separate(attention: Attention, module: str = "self_attn", output: str = "o_proj") -> Sources:
    """Separate projections for queries, keys and values."""
    out: Sources = {}
    for name in "qkv":
        out |= product(name, f"{module}.{name}_proj", attention.qkv_bias)
    out |= product("o", f"{module}.{output}", attention.output_bias)
    if attention.norm_parameters:
        out |= {**norm("q_norm", f"{module}.q_norm", False), **norm("k_norm", f"{module}.k_norm", False)}
    if attention.sink_parameters:
        out["sinks"] = Source(f"{module}.sinks")
    return out


def joined(attention: Attention) -> Sources:
    """Phi-3: queries, keys and values stacked by rows."""
    q, k = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    out = product("o", "self_attn.o_proj", attention.output_bias)
    for name, first, number in (("q", 0, q), ("k", q, k), ("v", q + k, k)):
        out |= product(name, "self_attn.qkv_proj", attention.qkv_bias, rows(first, number),
                       tall(q + 2 * k))  # fmt: skip
    return out


def transposed(attention: Attention) -> Sources:
    """GPT-2: one projection [in, 3 x out]."""
    width = attention.heads * attention.head_dim
    out = product("o", "attn.c_proj", attention.output_bias, torch.t, _turned)
    for index, name in enumerate("qkv"):
        out |= product(name, "attn.c_attn", attention.qkv_bias, partial(_columns, index * width, width),
                       lambda ours: _turned((3 * ours[0], *ours[1:])))  # fmt: skip
    return out


def _columns(first: int, number: int, theirs: Tensor) -> Tensor:
    return theirs.t()[first : first + number]


def by_group(attention: Attention, module: str) -> Sources:
    """Falcon, GPT-NeoX: per group of heads its queries, key and value."""
    shared = attention.heads // attention.kv_heads

    def take(which: slice, theirs: Tensor) -> Tensor:
        groups = theirs.view(attention.kv_heads, shared + 2, attention.head_dim, *theirs.shape[1:])
        return groups[:, which].flatten(0, 2)

    out = product("o", f"{module}.dense", attention.output_bias)
    for name, which in (("q", slice(0, shared)), ("k", slice(shared, shared + 1)), ("v", slice(shared + 1, None))):
        out |= product(name, f"{module}.query_key_value", attention.qkv_bias, partial(take, which),
                       tall(attention.kv_heads * (shared + 2) * attention.head_dim))  # fmt: skip
    return out


def latent(attention: Attention) -> Sources:
    """DeepSeek: rotary pairs are adjacent; each head has its keys and values stacked by rows."""
    heads, rope, rank = attention.heads, attention.rope_head_dim, attention.kv_lora_rank or 0
    nope = attention.head_dim - rope

    def query(theirs: Tensor) -> Tensor:
        rows = theirs.view(heads, attention.head_dim, -1)
        return torch.cat([rows[:, :nope], rows[:, nope:][:, _in_halves(rope)]], dim=1).flatten(0, 1)

    def compressed(theirs: Tensor) -> Tensor:
        return torch.cat([theirs[:rank], theirs[rank:][_in_halves(rope)]])

    def unfolded(which: slice, theirs: Tensor) -> Tensor:
        return theirs.view(heads, -1, *theirs.shape[1:])[:, which].flatten(0, 1)

    out = product("o", "self_attn.o_proj", attention.output_bias)
    if attention.q_lora_rank is None:
        out["q"] = Source("self_attn.q_proj.weight", query)
    else:
        out |= product("q_down", "self_attn.q_a_proj", attention.qkv_bias)
        out |= norm("q_norm", "self_attn.q_a_layernorm", False)
        out["q_up"] = Source("self_attn.q_b_proj.weight", query)
    out |= product("kv_down", "self_attn.kv_a_proj_with_mqa", attention.qkv_bias, compressed)
    out |= norm("kv_norm", "self_attn.kv_a_layernorm", False)
    rows = tall(heads * (nope + attention.value_head_dim))
    for name, which in (("k_up", slice(0, nope)), ("v_up", slice(nope, None))):
        out[name] = Source("self_attn.kv_b_proj.weight", partial(unfolded, which), rows)
    return out


# ------------------------------------------------------------------------------------------ feed-forward blocks
# The bias of expert choice in most families. Its name has the prefix of the block of experts.
CHOICE = Source("gate.e_score_correction_bias")
_PRODUCTS = ("gate_proj", "up_proj", "down_proj")
MIXTRAL_PRODUCTS = ("w1", "w3", "w2")


def gated(
    block: FeedForward | MixtureOfExperts, module: str = "mlp", shared: str = "shared_experts", router: str = "gate",
    products: tuple[str, str, str] = _PRODUCTS, choice: Source = CHOICE,
) -> Sources:  # fmt: skip
    """Three projections, per expert in a block of experts. A dense block is always `mlp`.

    products: names of gate, input and output of an expert. choice: the bias of expert choice.
    """
    if isinstance(block, FeedForward):
        out: Sources = {}
        for name in ("gate", "up", "down"):
            out |= product(name, f"mlp.{name}_proj", block.bias)
        return out
    out = {name: Source(f"{module}.experts.*.{theirs}.weight")
           for name, theirs in zip(("gate", "up", "down"), products, strict=True)}  # fmt: skip
    return out | beside_experts(block, module, shared, router, choice)


def beside_experts(
    block: MixtureOfExperts, module: str, shared: str, router: str, choice: Source, *, gate: bool = True
) -> Sources:
    """Router, shared experts and the gate of their output. gate: whether shared experts have a gated activation."""
    out = {"router": Source(f"{module}.{router}.weight")}
    if block.choice_bias:
        out[CHOICE_BIAS] = replace(choice, name=f"{module}.{choice.name}")
    if block.shared_inner:
        products = ("gate", "up", "down") if gate else ("up", "down")
        out |= {f"shared.{name}": Source(f"{module}.{shared}.{name}_proj.weight") for name in products}
    if block.shared_gate:
        out["shared_gate"] = Source(f"{module}.{shared}_gate.weight")
    return out


def stacked(block: FeedForward | MixtureOfExperts) -> Sources:
    """GraniteMoe: all experts in one tensor, gate and input stacked, [experts, 2 x inner, hidden]."""
    if isinstance(block, FeedForward):
        raise TypeError("GraniteMoe has no dense layers")
    inner, module = block.expert_inner, "block_sparse_moe"

    def whole(ours: Shape) -> Shape:
        return ours[0], 2 * inner, ours[2]

    return {"gate": Source(f"{module}.input_linear.weight", lambda x: x[:, :inner], whole),
            "up": Source(f"{module}.input_linear.weight", lambda x: x[:, inner:], whole),
            "down": Source(f"{module}.output_linear.weight"),
            "router": Source(f"{module}.router.layer.weight")}  # fmt: skip


def gate_above_input(block: FeedForward | MixtureOfExperts) -> Sources:
    """Phi-3: gate and input stacked by rows."""
    if not isinstance(block, FeedForward):
        raise TypeError("Phi-3 has no experts")
    theirs, whole = "mlp.gate_up_proj.weight", tall(2 * block.inner)
    return {"gate": Source(theirs, rows(0, block.inner), whole),
            "up": Source(theirs, rows(block.inner, block.inner), whole),
            "down": Source("mlp.down_proj.weight")}  # fmt: skip


def alternating(block: FeedForward | MixtureOfExperts) -> Sources:
    """gpt-oss: gate and input interleaved, [experts, hidden, 2 x inner]."""
    out = {"router": Source("mlp.router.weight"), "router_bias": Source("mlp.router.bias"),
           "down": Source("mlp.experts.down_proj", lambda x: x.transpose(1, 2), _turned),
           "down_bias": Source("mlp.experts.down_proj_bias")}  # fmt: skip
    for name, every in (("gate", slice(0, None, 2)), ("up", slice(1, None, 2))):
        take = partial(_experts_rows, every)
        out[name] = Source("mlp.experts.gate_up_proj", take, lambda ours: _turned((ours[0], 2 * ours[1], ours[2])))
        out[f"{name}_bias"] = Source("mlp.experts.gate_up_proj_bias", take, lambda ours: (ours[0], 2 * ours[1]))
    return out


def _experts_rows(which: slice, theirs: Tensor) -> Tensor:
    """Selects outputs of all experts: [experts, in, out] -> [experts, out, in], or [experts, out]."""
    chosen = theirs[..., which]
    return chosen if chosen.dim() == 2 else chosen.transpose(1, 2)


def plain(
    up: str, down: str, block: FeedForward | MixtureOfExperts, take: Take = lambda rows: rows,
    whole: Callable[[Shape], Shape] = lambda ours: ours,
) -> Sources:  # fmt: skip
    """Two products."""
    if not isinstance(block, FeedForward):
        raise TypeError("a block of two products has no experts")
    return {**product("up", up, block.bias, take, whole), **product("down", down, block.bias, take, whole)}


def columns_first(up: str, down: str, block: FeedForward | MixtureOfExperts) -> Sources:
    """GPT-2: two projections [in, out]."""
    return plain(up, down, block, torch.t, _turned)
