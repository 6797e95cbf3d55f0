"""Vision towers of config.json: how large they are beside the language model that is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any, Literal

from ...cost_models.quantities import vision
from ...cost_models.specs.vision import VisionTower
from .fields import Fields
from .numerics import read_activation
from .rope import rope_fields

_SIDE = 1024  # pixels of the image whose cost is named, where images keep their size
_TOKENS = "mm_tokens_per_image"
# Least and most pixels of an image in preprocessor_config.json of Qwen2.5-VL-7B-Instruct, as microsoft/fara has them
# (MLM_PROCESSOR_IM_CFG), and of Qwen3-VL-8B-Instruct, in issue 1836 of QwenLM/Qwen3-VL. Qwen2-VL has the former,
# Qwen3.5 the latter.
_OF_QWEN2: Mapping[str, Any] = {"least_pixels": 3136, "most_pixels": 12_845_056}
_OF_QWEN3: Mapping[str, Any] = {"least_pixels": 65_536, "most_pixels": 16_777_216}
# Of an image at most: max_patches of Llama4ImageProcessor, and of GotOcr2ImageProcessor as InternVLProcessor calls it
# (transformers 5.24).
_LLAMA4_CROPS, _INTERNVL_CROPS = 16, 12
_TILES = 36  # of an image at most: dynamic_hd of Phi4MultimodalImageProcessor (transformers 5.24)


def _qwen3_vl(
    f: Fields, whole: Fields, taps: tuple[int, ...] = (8, 16, 24), sections: tuple[int, ...] = (24, 20, 20)
) -> VisionTower:
    """Defaults of Qwen3VLVisionConfig and Qwen3VLTextRotaryEmbedding (transformers 5.24)."""
    depth = f.count("depth", default=27)
    return VisionTower(
        layers=depth, hidden=f.count("hidden_size", default=1152), heads=f.count("num_heads", default=16),
        inner=f.count("intermediate_size", default=4304), patch=f.count("patch_size", default=16),
        channels=f.count("in_channels", default=3), frames=f.count("temporal_patch_size", default=2),
        merge=f.count("spatial_merge_size", default=2), positions=f.count("num_position_embeddings", default=2304),
        output=f.count("out_hidden_size", default=3584), merger="mlp",
        taps=tuple(f.indices("deepstack_visual_indexes", depth) or ()) if f.has("deepstack_visual_indexes") else taps,
        rope_sections=_sections(whole, sections), activation=read_activation(f, "hidden_act") or "gelu_tanh",
        **_OF_QWEN3,
    )  # fmt: skip


def _qwen3_5(f: Fields, whole: Fields) -> VisionTower:
    """The same without outputs of inner layers (Qwen3_5VisionConfig, Qwen3_5TextRotaryEmbedding)."""
    return _qwen3_vl(f, whole, taps=(), sections=(11, 11, 10))


def _qwen2_5(f: Fields, whole: Fields) -> VisionTower:
    """Blocks with a gate and RMS norms, windows in most layers (Qwen2_5_VLVisionConfig)."""
    depth = f.count("depth", default=32)
    given = f.indices("fullatt_block_indexes", depth) if f.has("fullatt_block_indexes") else None
    tower = VisionTower(
        layers=depth, hidden=f.count("hidden_size", default=3584), heads=f.count("num_heads", default=16),
        inner=f.count("intermediate_size", default=3420), output=f.count("out_hidden_size", default=3584),
        **_of_qwen2(f, whole), gated=True, norm_bias=False, window=f.count("window_size", default=112, minimum=0),
        whole=tuple(index for index in (given if given is not None else (7, 15, 23, 31)) if index < depth),
        activation=read_activation(f, "hidden_act") or "silu",
    )  # fmt: skip
    block = tower.patch * tower.merge
    if f.sound and tower.window and tower.window < block:
        f.problem("window_size", f"{tower.window} pixels are less than the {block} of a token")
    return tower


def _qwen2(f: Fields, whole: Fields) -> VisionTower:
    """Blocks as in Qwen3-VL (Qwen2VLVisionConfig), whose `hidden_size` is the width of the language model."""
    hidden = f.count("embed_dim", default=1280)
    return VisionTower(
        layers=f.count("depth", default=32), hidden=hidden, heads=f.count("num_heads", default=16),
        inner=round(hidden * (f.positive("mlp_ratio") or 4)), output=f.count("hidden_size", default=3584),
        **_of_qwen2(f, whole), activation=read_activation(f, "hidden_act") or "quick_gelu",
    )  # fmt: skip


def _of_qwen2(f: Fields, whole: Fields) -> dict[str, Any]:
    """The common part of both: pixels without a bias, rotary positions alone, rotary pairs of the text one section
    after the other."""
    return {
        "patch": f.count("patch_size", default=14), "channels": f.count("in_channels", "in_chans", default=3),
        "frames": f.count("temporal_patch_size", default=2), "merge": f.count("spatial_merge_size", default=2),
        "positions": 0, "merger": "mlp", "patch_bias": False, "rope_sections": _sections(whole, (16, 24, 24)),
        **_OF_QWEN2,
    }  # fmt: skip


def _paligemma(f: Fields, whole: Fields) -> VisionTower:
    """SigLIP without its head, each of whose patches becomes a token."""
    side, patch = f.count("image_size", default=224), f.count("patch_size", default=14)
    output = whole.count("projection_dim", default=2048)
    if f.sound and f.count("projection_dim", default=output) != output:
        f.problem("projection_dim", f"must be the {output} of the whole model")
    return VisionTower(
        layers=f.count("num_hidden_layers", default=12), hidden=f.count("hidden_size", default=768),
        heads=f.count("num_attention_heads", default=12), inner=f.count("intermediate_size", default=3072), patch=patch,
        channels=f.count("num_channels", default=3), frames=1, merge=1, positions=(side // patch) ** 2, output=output,
        merger="linear", side=side,
    )  # fmt: skip


def _sections(whole: Fields, default: tuple[int, ...]) -> tuple[int, ...]:
    """Rotary pairs of the language model by frame, row and column."""
    text = whole.part("text_config")
    part = rope_fields(whole if text is None else text)
    given = None if part is None else part.get("mrope_section")
    if part is None or given is None:
        return default
    if not isinstance(given, list) or len(given) != 3 or not all(type(n) is int and n > 0 for n in given):
        part.problem("mrope_section", f"must be three numbers above 0, is {given!r}")
        return default
    return tuple(given)


def _gemma3(f: Fields, whole: Fields) -> VisionTower:
    """SigLIP without its head, and the projector of Gemma 3: the mean of a square of patches is a token."""
    side, patch, per_image = f.count("image_size"), f.count("patch_size", default=16), whole.count(_TOKENS, default=256)
    wide, tokens = side // patch, isqrt(per_image)
    if f.sound and (tokens**2 != per_image or wide % tokens):
        f.problem("image_size", f"{wide} x {wide} patches of {patch} pixels do not become {per_image} tokens")
    text = whole.part("text_config")
    return VisionTower(
        layers=f.count("num_hidden_layers", default=12), hidden=f.count("hidden_size", default=768),
        heads=f.count("num_attention_heads", default=12), inner=f.count("intermediate_size", default=3072), patch=patch,
        channels=f.count("num_channels", default=3), frames=1, merge=max(1, wide // tokens), positions=wide**2,
        output=text.count("hidden_size", default=2304) if text is not None else 2304, merger="mean", side=side,
    )  # fmt: skip


def _llama4(f: Fields, whole: Fields) -> VisionTower:
    """Tiles of one size: a square of patches side by side goes through the adapter, and becomes a token. Defaults of
    Llama4VisionConfig."""
    side, patch = f.count("image_size", default=448), f.count("patch_size", default=14)
    h, width = f.count("hidden_size", default=768), f.count("intermediate_size", default=5632)
    share, between = f.positive("pixel_shuffle_ratio") or 0.5, f.count("projector_output_dim", default=4096)
    merge = max(round(1 / share), 1)
    if f.sound and (abs(merge * share - 1) > 1e-9 or side // patch % merge or h * merge**2 != width):
        f.problem("pixel_shuffle_ratio",
                  f"{h} x {merge}^2 = {h * merge**2} are not the intermediate_size {width} that the adapter takes")
    for name in ("projector_input_dim", "vision_output_dim"):
        if f.sound and f.count(name, default=between) != between:
            f.problem(name, f"must be the projector_output_dim {between}")
    text = whole.part("text_config")
    output = text.count("hidden_size", default=5120) if text is not None else 5120
    return VisionTower(
        layers=f.count("num_hidden_layers", default=34), hidden=h, heads=f.count("num_attention_heads", default=16),
        inner=width, patch=patch, channels=f.count("num_channels", default=3), frames=1, merge=merge,
        positions=(side // patch) ** 2 + 1, output=output, merger="adapter", side=side, class_tokens=1, adapter=between,
        patch_bias=False, crops=_LLAMA4_CROPS, activation=read_activation(f, "hidden_act") or "gelu",
    )  # fmt: skip


def _internvl(f: Fields, whole: Fields) -> VisionTower:
    """InternViT, and squares of patches side by side through a norm and two products (defaults of InternVLConfig and
    InternVLVisionConfig, transformers 5.24; the table of positions has a row for the class token)."""
    text, qk_norm = whole.part("text_config"), f.flag("use_qk_norm", False)
    output = text.count("hidden_size", default=2048) if text is not None else 2048
    return _perceptron(f, whole, output, VisionTower(
        **_of_vit(f, side=448), norm_bias=f.get("norm_type", "layer_norm") == "layer_norm", layer_scale=True,
        activation=read_activation(f, "hidden_act") or "gelu", attention_bias=f.flag("attention_bias", False),
        qk_norm=qk_norm, merge=_shuffled(whole, 0.5), output=output, pads_heads=whole.flag("pads_heads", False),
        crops=_INTERNVL_CROPS, crop_grid="ratio",
    ))  # fmt: skip


def _clip(f: Fields, whole: Fields) -> VisionTower:
    """CLIP without its last norm and its head in front of a perceptron (CLIPVisionConfig; CLIPViTModel of Megatron-LM
    d98e8a64, whose class token is dropped behind the layers)."""
    output = whole.count("output_size", default=4096)
    return _perceptron(f, whole, output, VisionTower(
        **_of_vit(f, side=224), start_norm=True, patch_bias=False, merge=_shuffled(whole, 1.0), output=output,
        activation=read_activation(f, "hidden_act") or "quick_gelu",
    ))  # fmt: skip


def _of_vit(f: Fields, side: int) -> dict[str, Any]:
    """Sizes of an encoder with a class token and learned positions."""
    size, patch = _square(f, "image_size", side), _square(f, "patch_size", 14)
    if f.sound and size % patch:
        f.problem("image_size", f"{size} pixels are no multiple of the {patch} of a patch")
    hidden = f.count("hidden_size", default=1024)
    return {
        "layers": f.count("num_hidden_layers", default=24), "hidden": hidden,
        "heads": f.count("num_attention_heads", default=16), "inner": f.count("intermediate_size", default=4 * hidden),
        "patch": patch, "channels": f.count("num_channels", default=3), "frames": 1,
        "positions": (size // patch) ** 2 + 1, "class_tokens": 1, "side": size, "merger": "perceptron",
    }  # fmt: skip


def _square(f: Fields, name: str, default: int) -> int:
    """A side in pixels, given as one number or as two equal ones."""
    value = f.get(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1] and type(value[0]) is int and value[0] > 0:
        return int(value[0])
    return f.count(name, default=default)


def _shuffled(whole: Fields, default: float) -> int:
    """Patches of a side that become one token."""
    share = whole.positive("downsample_ratio") or default
    merge = max(round(1 / share), 1)
    if whole.sound and abs(merge * share - 1) > 1e-9:
        whole.problem("downsample_ratio", f"1 / {share:g} is no whole number of patches")
    return merge


_NORMS: Mapping[str, Literal["none", "rms", "layer"]] = {"none": "none", "rms": "rms", "layer": "layer"}


def _perceptron(f: Fields, whole: Fields, output: int, tower: VisionTower) -> VisionTower:
    """The tower with its projector. projector_size (width between its products), projector_norm (none, rms or layer),
    projector_bias and pads_heads are fields of ours; without them it is that of InternVL."""
    norm = str(whole.get("projector_norm") or "layer")
    if norm not in _NORMS:
        whole.problem("projector_norm", f"`{norm}` is none of {', '.join(_NORMS)}")
    patches = (tower.side or 0) // tower.patch
    if f.sound and patches % tower.merge:
        f.problem("image_size", f"{patches} patches of a side are no multiple of the {tower.merge} of a token")
    width, bias = whole.count("projector_size", default=output), whole.flag("projector_bias", True)
    return replace(tower, adapter=width, projector_norm=_NORMS.get(norm, "none"), projector_bias=bias)


def _phi4(f: Fields, whole: Fields) -> VisionTower:
    """SigLIP on tiles and on a small copy of the image, of which the output of an inner layer is used: the layers and
    the head behind are computed all the same (Phi4MultimodalVisionConfig, Phi4MultimodalImageEmbedding)."""
    side, patch = _square(f, "image_size", 448), _square(f, "patch_size", 14)
    depth, hidden = f.count("num_hidden_layers", default=27), f.count("hidden_size", default=1152)
    used = f.get("feature_layer")
    used = -2 if used is None else used
    if type(used) is not int or not -depth <= used <= -1:
        f.problem("feature_layer", f"must be -{depth} to -1, counted from the last layer, is {used!r}")
        used = -1
    if f.sound and (side % patch or side // patch % 2):
        f.problem("image_size", f"{side} pixels are not an even number of patches of {patch}")
    if f.sound and f.count("crop_size", default=side) != side:
        f.problem("crop_size", f"must be the {side} pixels of image_size")
    return VisionTower(
        layers=depth + used + 1, idle_layers=-1 - used, idle_head=True, hidden=hidden,
        heads=f.count("num_attention_heads", default=16), inner=f.count("intermediate_size", default=4304), patch=patch,
        channels=f.count("num_channels", default=3), frames=1, merge=2, positions=(side // patch) ** 2, merger="pooled",
        output=whole.count("hidden_size", default=3072), window=side, tiles=_TILES,
        activation=read_activation(f, "hidden_act") or "gelu_tanh",
    )  # fmt: skip


# model_type of the whole model -> its tower.
_TOWERS: Mapping[str, Callable[[Fields, Fields], VisionTower]] = {
    "qwen3_vl": _qwen3_vl, "qwen3_vl_moe": _qwen3_vl, "qwen3_5": _qwen3_5, "qwen3_5_moe": _qwen3_5, "gemma3": _gemma3,
    "llama4": _llama4, "paligemma": _paligemma, "qwen2_5_vl": _qwen2_5, "qwen2_vl": _qwen2, "internvl": _internvl,
    "clip": _clip, "phi4_multimodal": _phi4,
}  # fmt: skip


def read_tower(whole: Fields) -> VisionTower | None:
    """The tower that a config.json describes; None for a kind without formulas, or none. Bad fields become problems of
    `whole`."""
    make = _TOWERS.get(str(whole.get("model_type")))
    part = whole.part("vision_config") if make is not None else None
    if make is None or part is None:
        return None
    tower = make(part, whole)
    if part.sound and tower.hidden % tower.heads:
        part.problem("hidden_size", f"{tower.hidden} is not a multiple of {tower.heads} heads")
    whole.absorb(part)
    return tower


def in_words(tower: VisionTower) -> str:
    """The size of a tower that is left out."""
    side = tower.side or _SIDE
    size = sum(vision.parameters(tower).values()) / 1e6
    return (f"without its vision tower of {size:,.0f} million parameters (an image of {side:,} x {side:,} pixels is "
            f"{vision.image_tokens(tower, side, side):,} tokens and {vision.image_flops(tower, side, side) / 1e12:.2g} "
            "TFLOPs forward)")  # fmt: skip


def added_by(tower: VisionTower) -> str:
    """The flag that adds a tower to a plan of training."""
    side = tower.side or _SIDE
    return f"`--images 1{'' if tower.side else f'@{side}x{side}'}` adds it"
