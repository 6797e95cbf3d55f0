"""Parameters, tokens and FLOPs of a vision tower.

Symbols: h hidden, f inner, o output, N patches of an image, b = h merge^2 the width of a block. Counts equal those of
transformers' modules, FLOPs those that torch counts (tests/cost_models/quantities/test_vision.py).
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..specs.vision import VisionTower

IDLE = "idle"  # of `parameters`: behind the output that is used, so that no gradient reaches it
PROJECTOR = ("merger", "deepstack")  # of `parameters`: between the tower and the language model


def parameters(tower: VisionTower) -> dict[str, int]:
    """Elements by part, with biases and norms."""
    h, f = tower.hidden, tower.inner
    norm = (1 + tower.norm_bias) * h
    layer = (3 * h * h + tower.attention_bias * 3 * h) + (h * h + h) + (1 + tower.gated) * (h * f + f) + (f * h + h)
    layer += 2 * norm + (tower.qk_norm + tower.layer_scale) * 2 * h
    counts = {"patches": h * (values_of_patch(tower) + tower.patch_bias), "positions": tower.positions * h,
              "layers": tower.layers * layer}  # fmt: skip
    if tower.merger == "mean":
        return {**counts, "final_norm": norm, "merger": h + h * tower.output}
    if tower.merger == "pooled":
        return {**counts, "merger": _pooled(tower) + tower.hidden * 2 + 2 * tower.output,
                IDLE: tower.idle_layers * layer + tower.idle_head * (norm + _idle_head(tower, norm))}  # fmt: skip
    if tower.merger == "linear":
        return {**counts, "final_norm": norm, "merger": h * tower.output + tower.output}
    block = h * tower.merge**2
    if tower.merger == "adapter":  # norms before and after the layers
        return {**counts, "class": tower.class_tokens * h, "end_norms": 2 * norm, "merger": adapter_products(tower)}
    if tower.merger == "perceptron":
        return {**counts, "class": tower.class_tokens * h, "start_norm": tower.start_norm * norm,
                "merger": sum(_perceptron(tower))}  # fmt: skip
    products = block * block + block + block * tower.output + tower.output
    # The norm of the last merger is over patches, those of the others over blocks.
    return {**counts, "merger": products + norm, "deepstack": tower.deepstack * (products + 2 * block)}


def adapter_products(tower: VisionTower) -> int:
    """Elements of the three products of an adapter."""
    block, a = tower.hidden * tower.merge**2, tower.adapter
    return block * a + a * a + a * tower.output


def _pooled(tower: VisionTower) -> int:
    """Elements of the two products of a pooled projector, whose width is that of the language model. Its biases, and
    the rows that stand between tiles and behind lines of tokens, come on top."""
    return (tower.hidden + tower.output) * tower.output


def _idle_head(tower: VisionTower, norm: int) -> int:
    """Elements of the attention by which one learned query pools the patches, and of the block behind it."""
    h, f = tower.hidden, tower.inner
    return h + 4 * (h * h + h) + norm + 2 * h * f + f + h


def _products_of_layer(tower: VisionTower, rows: int) -> int:
    """FLOPs of the products of a layer on so many patches and class tokens."""
    h, f = tower.hidden, tower.inner
    return 2 * rows * (4 * h * h + (2 + tower.gated) * h * f)


def _idle_flops(tower: VisionTower, patches: int) -> float:
    """FLOPs of the layers and the pooling behind the output that is used."""
    h, f, n = tower.hidden, tower.inner, tower.patches_of_tile
    layer = _products_of_layer(tower, patches) + patches * 4.0 * n * h
    head = patches / n * (2.0 * (2 * h * h + 2 * n * h * h + 2 * h * f) + 4 * n * h) if tower.idle_head else 0.0
    return tower.idle_layers * layer + head


def _perceptron(tower: VisionTower) -> tuple[int, int]:
    """Elements of the two products with the bias of the first, and of the norm and the bias of the second."""
    block, a, bias = tower.hidden * tower.merge**2, tower.adapter, int(tower.projector_bias)
    norm = {"none": 0, "rms": block, "layer": 2 * block}[tower.projector_norm]
    return block * a + bias * a + a * tower.output, norm + bias * tower.output


def tokens(tower: VisionTower, patches: int) -> int:
    """Tokens of the language model that `patches` become."""
    return patches // tower.merge**2


def scaled(tower: VisionTower, height: int, width: int) -> tuple[int, int]:
    """Height and width in pixels to which an image on tiles is scaled: it fills the rows of its tiles or the columns
    (transformers 5.24, Phi4MultimodalImageProcessor.dynamic_preprocess)."""
    rows, columns = (n * tower.window for n in tower.grid(height, width))
    by_width, by_height = columns / width, rows / height
    return (rows, int(width * by_height)) if by_width >= by_height else (int(height * by_width), columns)


def image_tokens(tower: VisionTower, height: int, width: int) -> int:
    """Tokens of the language model that an image becomes. Patches of tiles beyond the scaled image become no tokens. A
    learned row ends each line of tokens, and one stands before the small copy (transformers 5.24,
    Phi4MultimodalImageProcessor)."""
    if not tower.tiles:
        return tokens(tower, tower.patches(height, width))
    of_tiles = (n * tower.window for n in tower.grid(height, width))
    lines, wide = (-(-((n - (n - filled) // tower.patch * tower.patch) // tower.patch) // tower.merge)
                   for n, filled in zip(of_tiles, scaled(tower, height, width), strict=True))  # fmt: skip
    side = tower.window // tower.patch // tower.merge
    return lines * (wide + 1) + 1 + side * (side + 1)


def pairs_in_windows(tower: VisionTower, height: int, width: int) -> int:
    """Pairs of patches of an image that attend to each other in a layer with windows. The last window of a row or a
    column has what is left (transformers 5.24, vision_utils.get_vision_window_index)."""
    if tower.tiles:
        return tower.patches(height, width) * tower.patches_of_tile
    block = tower.patch * tower.merge
    side = tower.window // block  # tokens
    sums = []
    for pixels in tower.resized(height, width):
        full, rest = divmod(pixels // block, side)
        sums.append(full * side**2 + rest**2)
    return sums[0] * sums[1] * tower.merge**4


def image_flops(tower: VisionTower, height: int, width: int) -> float:
    """FLOPs of the forward pass of an image."""
    in_windows = pairs_in_windows(tower, height, width) if tower.window else 0
    return forward_flops(tower, tower.patches(height, width), in_windows, image_tokens(tower, height, width))


def piece_flops(tower: VisionTower, height: int, width: int) -> tuple[float, ...]:
    """FLOPs of the forward pass of an image in the product of its pixels, in each layer, and in all that is behind the
    last one: `image_flops` in all."""
    n = tower.patches(height, width)
    rows, h = n + tower.class_tokens, tower.hidden
    windowed = pairs_in_windows(tower, height, width) if tower.window else 0
    pairs = [windowed if tower.window and layer not in tower.whole else rows * rows for layer in range(tower.layers)]
    pixels = 2.0 * n * h * values_of_patch(tower)
    layers = [_products_of_layer(tower, rows) + 4.0 * h * number for number in pairs]
    return (pixels, *layers, image_flops(tower, height, width) - pixels - sum(layers))


def piece_elements(tower: VisionTower, height: int, width: int) -> tuple[int, ...]:
    """Elements of an image between those pieces: behind the product of its pixels, behind each layer, with the outputs
    that were tapped so far, and as tokens of the language model."""
    made = image_tokens(tower, height, width) * tower.output
    hidden = (tower.patches(height, width) + tower.class_tokens) * tower.hidden
    tapped = [sum(tap <= layer for tap in tower.taps) for layer in range(tower.layers)]
    return (hidden, *(hidden + number * made for number in tapped), made * (1 + tower.deepstack))


def forward_flops(tower: VisionTower, patches: int, in_windows: int = 0, made: int | None = None) -> float:
    """FLOPs of the forward pass of an image of `patches`, all of which attend to each other, or as many pairs as
    `in_windows` in layers with windows, with those of idle parts: products count 2. made: tokens that it becomes, None:
    one for each block of patches."""
    n, h = patches, tower.hidden
    rows = n + tower.class_tokens
    pairs = (tower.layers - tower.windowed) * rows * rows + tower.windowed * in_windows
    products = tower.layers * _products_of_layer(tower, rows)
    block = h * tower.merge**2
    of_token = {"mean": h * tower.output, "linear": h * tower.output, "mlp": block * block + block * tower.output,
                "adapter": adapter_products(tower), "perceptron": (block + tower.output) * tower.adapter,
                "pooled": _pooled(tower)}
    merged = (1 + tower.deepstack) * 2 * (tokens(tower, n) if made is None else made) * of_token[tower.merger]
    idle = _idle_flops(tower, n) if tower.idle_layers or tower.idle_head else 0.0
    return 2.0 * n * h * values_of_patch(tower) + products + 4 * pairs * h + merged + idle


def values_of_patch(tower: VisionTower) -> int:
    """Values that the first product takes of a patch."""
    return tower.channels * tower.frames * tower.patch**2


def replicated(tower: VisionTower) -> dict[str, int]:
    """The elements of `parameters` that every tensor-parallel rank has whole: all, or of a split tower what is beside
    the matrices of layers and projector, and the biases of those whose inputs are split."""
    whole = parameters(tower)
    if not tower.sharded:
        return whole
    h, block = tower.hidden, tower.hidden * tower.merge**2
    layers = tower.layers * (2 * (1 + tower.norm_bias) + 2 + 2 * tower.layer_scale) * h
    if tower.merger == "perceptron":
        return {**whole, "layers": layers, "merger": _perceptron(tower)[1]}
    return {**whole, "layers": layers, "merger": tower.output + 2 * h,
            "deepstack": tower.deepstack * (tower.output + 2 * block)}  # fmt: skip


def ranks(tower: VisionTower, tp: Array, tp_plan: str) -> Array:
    """[key] ranks that tensor parallelism over `tp` splits the tower over."""
    return tp if tower.sharded and tp_plan == "megatron" else np.ones_like(tp)


def heads_of_rank(tower: VisionTower, parts: Array) -> Array:
    """[key] heads of one of `parts` ranks, which may include some that give zeros: Megatron-LM d98e8a64 makes the 25 of
    InternViT-6B into 32 over 8 ranks (examples/multimodal/config.py, nvlm/internvit.py)."""
    each = tower.heads / parts
    return np.asarray(np.ceil(each) if tower.pads_heads else each)


def added_to_rank(tower: VisionTower, parts: Array) -> Array:
    """[key] elements of the heads that are added on each of `parts` ranks, on average."""
    width = (heads_of_rank(tower, parts) - tower.heads / parts) * (tower.hidden // tower.heads)
    each = 4 * tower.hidden + 3 * tower.attention_bias + 2 * tower.qk_norm
    return np.asarray(tower.layers * width * each)
