"""The layers of the explicit form where they have other blocks than attention and a feed-forward one.

`mixers`: a name of the user's -> {kind, and the sizes of that kind}. `pattern`: one entry per layer, its blocks joined
by `+`: `attention`, a name of `mixers`, `mlp`, `experts`; `mamba+mlp` has two blocks, `mlp` one. `mtp_pattern`:
the same of a prediction module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, get_args, get_type_hints

from ...cost_models.layer_kinds import registry
from ...cost_models.layer_kinds.base import least
from ...cost_models.layer_kinds.graph_convolution import GraphConvolution
from ...cost_models.specs.model import Attention, FeedForward, Layer, Mixer, MixtureOfExperts
from ...errors import did_you_mean, nearest
from .fields import Fields

# Sizes of mixers of which the first divides the second.
_SHARED = (("groups", "heads"), ("key_heads", "value_heads"), ("output_groups", "heads"), ("heads", "channels"))
_BLOCKS = ("attention", "mlp", "experts")
# Kinds that mix sequences: the neighbours of a graph are those of a graph network (families_graph.py).
BY_NAME = {name: kind for name, kind in registry.BY_NAME.items() if kind.spec is not GraphConvolution}
Blocks = Mapping[str, Attention | Mixer | FeedForward | MixtureOfExperts]


def read_mixers(f: Fields) -> dict[str, Mixer]:
    """The mixers of `mixers` by name."""
    part = f.part("mixers")
    if part is None:
        return {}
    found: dict[str, Mixer] = {}
    for name in part.data:
        sizes = part.part(name)
        if name in _BLOCKS or "+" in str(name):
            part.problem(str(name), "is the name of a block already" if name in _BLOCKS else "a name holds no +")
        if sizes is None:
            continue
        mixer = _mixer(sizes)
        part.absorb(sizes)
        if mixer is not None:
            found[str(name)] = mixer
    f.absorb(part)
    return found


def _mixer(sizes: Fields) -> Mixer | None:
    """A mixer by its `kind`: its other fields are those of the kind's class."""
    kind = sizes.get("kind")
    if kind not in BY_NAME:
        missing = "is missing" if kind is None else f"`{kind}` is no kind of mixer"
        guess = did_you_mean(nearest(str(kind), BY_NAME)) if kind is not None else ""
        sizes.problem("kind", f"{missing}; known are {', '.join(BY_NAME)}", guess)
        return None
    spec = BY_NAME[kind].spec
    values: dict[str, int | bool | str] = {}
    types = get_type_hints(spec)
    for field in fields(spec):
        if words := get_args(types[field.name]):
            values[field.name] = _word(sizes, field.name, words, field.default)
        elif field.type == "bool":
            values[field.name] = sizes.flag(field.name, field.default is True)
        elif field.default is MISSING:
            values[field.name] = sizes.count(field.name)
        else:
            values[field.name] = sizes.count(field.name, default=field.default, minimum=least(field))
    sizes.reject_unknown()
    for few, many in _SHARED:
        if sizes.sound and few in values and many in values and int(values[many]) % int(values[few]):
            sizes.problem(few, f"{values[few]} {few} do not divide {values[many]} {many}")
    return spec(**values) if sizes.sound else None


def _word(sizes: Fields, name: str, words: tuple[str, ...], default: Any) -> str:
    word = sizes.get(name)
    if word is not None and word not in words:
        sizes.problem(name, f"`{word}` is none of {', '.join(words)}", did_you_mean(nearest(str(word), words)))
    return str(default if word is None else word)


def read_pattern(f: Fields, num_layers: int, blocks: Blocks, layer: Layer) -> list[Layer]:
    """The layers of `pattern`. blocks: what its words mean. layer: norms of all."""
    words, layers = f.get("pattern"), read_layers(f, "pattern", blocks, layer)
    if not isinstance(words, list) or not words:
        return layers
    if len(words) != num_layers:
        f.problem("pattern", f"has {len(words)} entries for {num_layers} layers")
    used = {part for word in map(str, words) for part in word.split("+")}
    for name in blocks.keys() - used - set(_BLOCKS):
        f.problem("mixers", f"{name} is in no layer of `pattern`")
    return layers


def read_layers(f: Fields, field: str, blocks: Blocks, layer: Layer) -> list[Layer]:
    """The layers of `field`: a pattern of any length."""
    words = f.get(field)
    if not isinstance(words, list) or not words:
        f.problem(field, f"must be a list with one entry per layer, is {words!r}",
                  "such as [mamba+mlp, attention+mlp]")  # fmt: skip
        return [layer]
    kinds = {word: _layer(f, field, word, blocks, layer) for word in dict.fromkeys(map(str, words))}
    return [kinds[str(word)] for word in words]


def _layer(f: Fields, field: str, word: str, blocks: Blocks, layer: Layer) -> Layer:
    """A layer of the blocks in `word`."""
    made = replace(layer, attention=None, feed_forward=None, mixer=None)
    parts = word.split("+")
    for part in parts:
        block = blocks.get(part)
        if isinstance(block, Attention):
            made = replace(made, attention=block)
        elif isinstance(block, Mixer):
            made = replace(made, mixer=block)
        elif block is not None:
            made = replace(made, feed_forward=block)
        else:
            needed = {"experts": "needs `moe`", "mlp": "needs `ffn_hidden`", "attention": "needs `heads`"}
            text = needed.get(part, f"is no block; known are {', '.join((*_BLOCKS, *(blocks.keys() - set(_BLOCKS))))}")
            f.problem(field, f"`{part}` of `{word}` {text}")
    if len(set(parts)) < len(parts) or {"mlp", "experts"} <= set(parts) or _mixers(parts, blocks) > 1:
        f.problem(field, f"`{word}` has more than one block of a sort: attention, a mixer, mlp or experts")
    both = made.mixes and made.feed_forward is not None
    return made if both else replace(made, num_norms=min(made.num_norms, 1))


def _mixers(parts: list[str], blocks: Blocks) -> int:
    return sum(isinstance(blocks.get(part), Mixer) for part in parts)
