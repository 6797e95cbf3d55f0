"""Vision towers of config.json: how large they are beside the language model that is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...cost_models.quantities import vision
from ...cost_models.specs.vision import VisionTower
from ..io.document import LineOf, no_line
from .fields import Fields

_SIDE = 1024  # pixels of the image whose cost is named


def _qwen3_vl(f: Fields) -> VisionTower:
    """Defaults of Qwen3VLVisionConfig (transformers 5.24)."""
    depth = f.count("depth", default=27)
    return VisionTower(
        layers=depth, hidden=f.count("hidden_size", default=1152), heads=f.count("num_heads", default=16),
        inner=f.count("intermediate_size", default=4304), patch=f.count("patch_size", default=16),
        channels=f.count("in_channels", default=3), frames=f.count("temporal_patch_size", default=2),
        merge=f.count("spatial_merge_size", default=2), positions=f.count("num_position_embeddings", default=2304),
        output=f.count("out_hidden_size", default=3584),
        deepstack=len(f.indices("deepstack_visual_indexes", depth) or ()) if f.has("deepstack_visual_indexes") else 3,
    )  # fmt: skip


_TOWERS: Mapping[str, Callable[[Fields], VisionTower]] = {
    name: _qwen3_vl for name in ("qwen3_vl", "qwen3_vl_vision", "qwen3_vl_moe", "qwen3_vl_moe_vision")
}


def read_tower(config: Mapping[str, Any], *, file: str = "", line: LineOf = no_line) -> VisionTower | None:
    """The tower that the `vision_config` of a config.json describes; None for a kind without formulas, or none.

    Raises InputError with all bad fields.
    """
    part = config.get("vision_config")
    if not isinstance(part, Mapping) or (make := _TOWERS.get(str(part.get("model_type")))) is None:
        return None
    fields = Fields(part, file=file, prefix=("vision_config",), line=line)
    tower = make(fields)
    if fields.sound and tower.hidden % tower.heads:
        fields.problem("num_heads", f"{tower.heads} heads do not divide hidden_size {tower.hidden}")
    fields.finish()
    return tower


def in_words(tower: VisionTower) -> str:
    """`576 million parameters; an image of 1,024 x 1,024 pixels is 1,024 tokens and 5.8 TFLOPs forward`."""
    patches = tower.patches(_SIDE, _SIDE)
    size = sum(vision.parameters(tower).values()) / 1e6
    return (f"{size:,.0f} million parameters; an image of {_SIDE:,} x {_SIDE:,} pixels is "
            f"{vision.tokens(tower, patches):,} tokens and {vision.forward_flops(tower, patches) / 1e12:.2g} "
            "TFLOPs forward")  # fmt: skip
