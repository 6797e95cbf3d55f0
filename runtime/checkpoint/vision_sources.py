"""Maps the weights of a vision tower to the files of Qwen3-VL (transformers 5.24, Qwen3VLVisionModel)."""

from __future__ import annotations

from collections.abc import Callable

from ...cost_models.specs.model import FeedForward, MixtureOfExperts
from ...cost_models.specs.vision import VisionTower
from .sources import CHOICE, Source, Sources, beside_experts, norm, product, rows, tall

_TOWER = "model.visual"


def tower_sources(tower: VisionTower, ours: str) -> Sources:
    """Weights of a tower named `ours`, its mergers included."""
    # The product over a patch is a convolution there, whose strides are its kernel: [hidden, channels, frames, p, p].
    kernel = (tower.hidden, tower.channels, tower.frames, tower.patch, tower.patch)
    out = {
        "patches": Source(f"{_TOWER}.patch_embed.proj.weight", lambda theirs: theirs.flatten(1), lambda _: kernel),
        "patches_bias": Source(f"{_TOWER}.patch_embed.proj.bias"),
        "positions": Source(f"{_TOWER}.pos_embed.weight"),
        **_merger("merger", f"{_TOWER}.merger"),
    }
    for index in range(tower.layers):
        out |= _layer(f"layers.{index}", f"{_TOWER}.blocks.{index}", tower.hidden)
    for index in range(tower.deepstack):
        out |= _merger(f"mergers.{index}", f"{_TOWER}.deepstack_merger_list.{index}")
    return {f"{ours}.{name}": source for name, source in out.items()}


def _layer(ours: str, theirs: str, hidden: int) -> Sources:
    out = {**norm(f"{ours}.attention_norm", f"{theirs}.norm1", True),
           **norm(f"{ours}.feed_forward_norm", f"{theirs}.norm2", True),
           **product(f"{ours}.o", f"{theirs}.attn.proj", True),
           **product(f"{ours}.up", f"{theirs}.mlp.linear_fc1", True),
           **product(f"{ours}.down", f"{theirs}.mlp.linear_fc2", True)}  # fmt: skip
    for index, name in enumerate("qkv"):
        out |= product(f"{ours}.{name}", f"{theirs}.attn.qkv", True, rows(index * hidden, hidden), tall(3 * hidden))
    return out


def _merger(ours: str, theirs: str) -> Sources:
    return {**norm(f"{ours}.norm", f"{theirs}.norm", True), **product(f"{ours}.up", f"{theirs}.linear_fc1", True),
            **product(f"{ours}.down", f"{theirs}.linear_fc2", True)}  # fmt: skip


def columns_of_experts(
    block: FeedForward | MixtureOfExperts, dense: Callable[[FeedForward | MixtureOfExperts], Sources]
) -> Sources:
    """A block of the language model. Experts are one tensor, inputs first, gates before inputs of the activation:
    [experts, hidden, 2 x inner] and [experts, inner, hidden], as the files of Qwen3-VL-30B-A3B have them. transformers
    5.24 reads these and their transposes, and writes the transposes. dense: the sources of a block without experts."""
    if isinstance(block, FeedForward):
        return dense(block)
    inner, joined = block.expert_inner, "mlp.experts.gate_up_proj"
    return {
        "gate": Source(joined, lambda x: x[..., :inner].transpose(1, 2), lambda ours: (ours[0], ours[2], 2 * ours[1])),
        "up": Source(joined, lambda x: x[..., inner:].transpose(1, 2), lambda ours: (ours[0], ours[2], 2 * ours[1])),
        "down": Source("mlp.experts.down_proj", lambda x: x.transpose(1, 2), lambda ours: (ours[0], ours[2], ours[1])),
        **beside_experts(block, "mlp", "shared_expert", "gate", CHOICE),
    }
