"""A vision tower: the encoder that turns patches of images and frames into tokens of a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """A pre-norm encoder with biases over the patches of one image or frame pair, and what projects blocks of patches
    to the width of the language model: Qwen2-VL to Qwen3-VL, SigLIP in Gemma 3 and PaliGemma, Llama 4, InternViT,
    SigLIP on tiles in Phi-4-multimodal (transformers 5.24, models/qwen2_vl, qwen2_5_vl, qwen3_vl, gemma3, paligemma,
    llama4, internvl, phi4_multimodal), and the towers of Megatron-LM's LLaVAModel (d98e8a64,
    examples/multimodal/config.py)."""

    layers: int  # whose output is used
    hidden: int  # width
    heads: int
    inner: int  # width of the feed-forward block
    patch: int  # pixels of a side
    channels: int  # of a pixel
    frames: int  # of a patch; an image is repeated
    merge: int  # patches of a side that become one token
    positions: int  # rows of the learned position table, 0: rotary positions alone
    output: int  # width of the language model
    # mlp: the patches of a block side by side, through two products; mean: their mean, through a norm and a product;
    # adapter: a block side by side, through three products without biases (Llama 4); linear: each patch through one
    # product (PaliGemma); perceptron: a block side by side, perhaps through a norm, through two products around GELU
    # (InternVL, LLaVAModel); pooled: their mean, through two products around GELU (Phi-4-multimodal)
    merger: Literal["mlp", "mean", "adapter", "linear", "perceptron", "pooled"]
    taps: tuple[int, ...] = ()  # layers whose output a merger of its own adds to the first layers of the language model
    side: int | None = None  # pixels to which each image is scaled, None: about its own, in whole tokens
    # Height times width of an image that keeps about its own size, 0: no bound. Outside of both it is scaled to them.
    least_pixels: int = 0
    most_pixels: int = 0
    # Rotary pairs of the language model that turn by frame, row and column of a token, interleaved (Qwen3-VL); empty:
    # all turn by its place in the sequence.
    rope_sections: tuple[int, ...] = ()
    # Crops at most that an image larger than `side` is cut to, each seen as an image of its own, beside a small copy of
    # the whole. The grid of crops fits the image with the least change of scale (Llama 4), or has about its ratio
    # (InternVL). 0: images are not cut.
    crops: int = 0
    crop_grid: Literal["scale", "ratio"] = "scale"
    activation: str = "gelu_tanh"  # of its layers; its projector has gelu
    class_tokens: int = 0  # beside the patches of an image, in all layers; they become no token
    adapter: int = 0  # width between the products of an adapter or a perceptron
    projector_norm: Literal["none", "rms", "layer"] = "none"  # of a perceptron, over the block
    projector_bias: bool = True  # of the products of a perceptron
    attention_bias: bool = True  # of queries, keys and values
    qk_norm: bool = False  # RMS norms of queries and keys, over all heads (InternViT-6B)
    layer_scale: bool = False  # a factor per channel behind each block (InternViT)
    start_norm: bool = False  # a norm in front of the first layer (CLIP)
    pads_heads: bool = False  # with heads that give zeros, where tensor parallelism does not divide them
    gated: bool = False  # its feed-forward blocks have a gate
    norm_bias: bool = True  # of its norms
    patch_bias: bool = True  # of the product of pixels
    window: int = 0  # pixels of a side of the windows that its layers attend within, 0: whole images
    whole: tuple[int, ...] = ()  # layers that attend to whole images all the same
    # Tiles at most that an image is scaled to; a small copy of it is one more. The window is the side of a tile, and
    # all layers attend within one. 0: images are not cut.
    tiles: int = 0
    idle_layers: int = 0  # on tiles, behind the output that is used: computed, and without gradients
    idle_head: bool = False  # behind them the last norm and attention pooling, which are idle, too (SigLIP)

    @property
    def deepstack(self) -> int:
        """Layers of the language model that get an output of the tower."""
        return len(self.taps)

    @property
    def sharded(self) -> bool:
        """Whether tensor parallelism splits it. Megatron-Bridge 51885cf1 makes the tower of Qwen3-VL out of layers of
        its own (Qwen3VLVisionModel, TEColumnParallelLinear) and takes those of Gemma 3 and Qwen2.5-VL whole from
        transformers (Gemma3VLModel, Qwen25VLModel); LLaVAModel is made of Megatron's layers."""
        return self.merger == "perceptron" or (self.merger == "mlp" and self.positions > 0)

    @property
    def windowed(self) -> int:
        """Layers that attend within windows."""
        return self.layers - len(self.whole) if self.window else 0

    @property
    def patches_of_tile(self) -> int:
        """Patches that attend to each other where images are cut to tiles."""
        return (self.window // self.patch) ** 2

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles that an image of `height` x `width` pixels is cut to."""
        return -(-height // self.window), -(-width // self.window)

    def crops_of(self, height: int, width: int) -> int:
        """Images of `side` that an image of `height` x `width` pixels becomes, the small copy among them; 1: it is only
        scaled (transformers 5.24: get_best_fit of Llama4ImageProcessor, get_optimal_tiled_canvas of
        GotOcr2ImageProcessor)."""
        if not self.crops or not self.side:
            return 1
        grids = [(rows, columns) for rows in range(1, self.crops + 1) for columns in range(1, self.crops // rows + 1)]
        best = (_by_ratio if self.crop_grid == "ratio" else _by_scale)(grids, self.side, height, width)
        return best[0] * best[1] + 1 if best != (1, 1) else 1

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width in pixels of the patches of an image of `height` x `width` pixels that is not cut to tiles:
        the nearest whole tokens of each side, and the bounds on pixels with about its ratio (smart_resize of
        Qwen2VLImageProcessor, transformers 5.24)."""
        if self.side:
            return self.side, self.side
        token = self.patch * self.merge
        tall, wide = round(height / token) * token, round(width / token) * token
        if self.most_pixels and tall * wide > self.most_pixels:
            shrink = sqrt(height * width / self.most_pixels)
            return max(int(height / shrink / token), 1) * token, max(int(width / shrink / token), 1) * token
        if tall * wide < self.least_pixels:
            grow = sqrt(self.least_pixels / (height * width))
            return ceil(height * grow / token) * token, ceil(width * grow / token) * token
        return tall, wide

    def patches(self, height: int, width: int) -> int:
        """Patches of an image of `height` x `width` pixels, or of its tiles and of the small copy of it."""
        if self.tiles:
            rows, columns = self.grid(height, width)
            return (rows * columns + 1) * self.patches_of_tile
        tall, wide = self.resized(height, width)
        return (tall // self.patch) * (wide // self.patch)


def _by_scale(grids: Sequence[tuple[int, int]], side: int, height: int, width: int) -> tuple[int, int]:
    """The grid on which the image is least enlarged, else least shrunk; the smallest of equal ones."""

    def order(grid: tuple[int, int]) -> tuple[bool, float, int]:
        scale = min(grid[0] * side / height, grid[1] * side / width)
        return scale < 1, abs(scale - 1), grid[0] * grid[1]

    return min(grids, key=order)


def _by_ratio(grids: Sequence[tuple[int, int]], side: int, height: int, width: int) -> tuple[int, int]:
    """The grid whose ratio is nearest to that of the image; of equal ones the largest that has less than twice as many
    pixels as the image."""
    best, nearest = (1, 1), inf
    for grid in sorted(grids, key=lambda it: it[0] * it[1]):
        apart = abs(width / height - grid[1] / grid[0])
        if apart < nearest or (apart == nearest and 2 * height * width > side**2 * grid[0] * grid[1]):
            best, nearest = grid, apart
    return best
