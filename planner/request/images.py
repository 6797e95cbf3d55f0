"""Images of a request, held against the vision tower of its model."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any

from ...cost_models.quantities import vision
from ...cost_models.serving.seen_images import SeenImages
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.vision import VisionTower
from ...cost_models.specs.workload import Images, Workload
from ...errors import InputError
from .schema import ImagesRequest, WorkloadRequest
from .serving import ServeWorkload

_EXAMPLE = "1024x1024"
# Pixels of a side of an image that is scaled to tiles (transformers 5.24, Phi4MultimodalImageProcessor).
_LEAST_SCALED = 10
# Longest ratio of the sides of an image that keeps about its own size (transformers 5.24, smart_resize).
_LARGEST_RATIO = 200


def with_images(model: ModelSpec, workload: Workload, work: WorkloadRequest) -> tuple[ModelSpec, Workload]:
    """Model and workload as the request trains them: with the images that it sees, if there are some.

    Raises InputError for images that the model does not take, that have no size, or that do not fit a sequence.
    """
    if work.images is None:
        hint = f"`--images 1@{_EXAMPLE}`, or leave it out: without images the text model is planned"
        if work.freeze_tower:
            raise InputError("freeze_tower: the request has no images, so there is no tower to freeze", hint=hint)
        if work.freeze_language:
            text = "freeze_language: the request has no images, so there is nothing that would train"
            raise InputError(text, hint=hint)
        return model, workload
    if model.tower is None:
        raise InputError(f"images: no vision tower of {model.name} is described", hint="leave out `--images`: its text "
                         "model is planned; towers with formulas: docs/guides/multimodal.md")  # fmt: skip
    _check_priced(work)
    images = _sized(work.images, model.tower, model.name)
    _check_tokens(images, model.tower, workload.seq_len, work.images.per_sequence)
    return model, replace(workload, images=images, freeze_tower=work.freeze_tower, freeze_language=work.freeze_language)


def served_images(model: ModelSpec, asked: Any, prompt: float) -> SeenImages | None:
    """The images of every request to serve, whose prompts have so many tokens, mean, those of the images among them.

    Raises InputError as `with_images`.
    """
    if asked is None:
        return None
    if model.tower is None:
        raise InputError(f"images: no vision tower of {model.name} is described",
                         hint="leave out `--images`, or name a model that sees: docs/guides/multimodal.md")  # fmt: skip
    request = ImagesRequest.model_validate(asked)
    images = _sized(request, model.tower, model.name)
    total = _tokens(images, model.tower)
    if total >= prompt:
        text = (f"{request.per_sequence} x {total // request.per_sequence:,} tokens = {total:,}, and a prompt has "
                f"{prompt:,.5g} with its text")  # fmt: skip
        raise InputError(f"images: {text}", hint=f"`--input {total + 1}` or more")
    return SeenImages.of(model.tower, images, prompt)


def _check_priced(work: WorkloadRequest) -> None:
    reasons = {
        "optimizer muon: the matrices of a vision tower are not priced with it": work.optimizer == "muon",
        "max_len: documents with images are not planned with degrees of their own": work.max_len is not None,
        "freeze_language: adapters and --train-layers train a part of the language model, and nothing before it":
            work.freeze_language and (work.train.lora is not None or work.train.last_layers is not None),
    }
    for reason, applies in reasons.items():
        if applies:
            raise InputError(reason, hint="leave out one of the two")


def _sized(images: ImagesRequest, tower: VisionTower, name: str) -> Images:
    """The images as the tower sees them."""
    if images.num_frames is not None:
        raise InputError(f"images: frames of videos are not described for {name}, whose rate is not given",
                         hint="`--images N@HxW` with an image for each pair of frames")  # fmt: skip
    height, width = images.height or tower.side, images.width or tower.side
    if height is None or width is None:
        raise InputError(f"images: {name} takes images of any size, and none is given",
                         hint=f"`--images {images.per_sequence}@{_EXAMPLE}`: height x width in pixels")  # fmt: skip
    if tower.least_pixels and max(height, width) > _LARGEST_RATIO * min(height, width):
        raise InputError(f"images: {height} x {width} pixels are longer than {_LARGEST_RATIO} times their width, which "
                         f"the processor of {name} refuses",
                         hint=f"a longer side of {_LARGEST_RATIO * min(height, width)} pixels or less")  # fmt: skip
    if tower.tiles:
        _check_tiles(tower, height, width)
    seen = images.per_sequence * tower.crops_of(height, width)
    return Images(per_sequence=seen, height=tower.side or height, width=tower.side or width)


def _check_tiles(tower: VisionTower, height: int, width: int) -> None:
    rows, columns = tower.grid(height, width)
    tiles = f"{rows} x {columns} tiles of {tower.window} pixels"
    if rows * columns > tower.tiles:
        side = isqrt(tower.tiles) * tower.window
        text = f"{height} x {width} pixels are {tiles}, more than {tower.tiles}"
        raise InputError(f"images: {text}", hint=f"the size that they are scaled to, such as {side}x{side}")
    scaled = vision.scaled(tower, height, width)
    if min(scaled) < _LEAST_SCALED:
        text = f"{height} x {width} pixels on {tiles} are scaled to {scaled[0]} x {scaled[1]}, and a side below " \
               f"{_LEAST_SCALED} is refused by the processor of the model"  # fmt: skip
        least = -(-_LEAST_SCALED * max(height, width) // max(scaled))
        raise InputError(f"images: {text}", hint=f"a shorter side of {least} pixels or more")


def _tokens(images: Images, tower: VisionTower) -> int:
    """Tokens of a sequence that come from its images."""
    return images.per_sequence * vision.image_tokens(tower, images.height, images.width)


def _check_tokens(images: Images, tower: VisionTower, seq_len: int, number: int) -> None:
    """number: of images, before they are cut to crops."""
    total = _tokens(images, tower)
    if total > seq_len:
        of_one = total // number
        fit = seq_len // of_one
        fewer = f"at most {fit} such images fit, or " if fit else ""
        text = f"{number} x {of_one:,} tokens = {total:,} are more than the {seq_len:,} of a sequence"
        raise InputError(f"images: {text}", hint=f"{fewer}`--seq-len {total}`")


def assumed_of_images(work: ServeWorkload, tower: VisionTower | None) -> tuple[str, ...]:
    """Sentences on the images of requests that serve, which no field of the request states."""
    if work.images is None or tower is None:
        return ()
    found = "; as large a share of them as of the tokens is found in the cache" if work.prefix_hit else ""
    return (f"{_seen(ImagesRequest.model_validate(work.images), tower)}; a prompt has images in proportion to its "
            f"tokens, and they come at the size that the tower takes{found}",)  # fmt: skip


def _seen(asked: ImagesRequest, tower: VisionTower) -> str:
    """`an image of 1,024 x 1,024 pixels is scaled to 1,036 x 1,036 and has 1,369 tokens`."""
    height, width = asked.height or tower.side or 0, asked.width or tower.side or 0
    crops, (tall, wide) = tower.crops_of(height, width), tower.resized(height, width)
    tokens = crops * vision.image_tokens(tower, tower.side or height, tower.side or width)
    cut = f"cut to {crops - 1} crops of {tall:,} x {wide:,} beside a small copy" if crops > 1 else ""
    scaled = f"scaled to {tall:,} x {wide:,}" if (tall, wide) != (height, width) and not tower.tiles else ""
    changed = f"is {cut or scaled} and " if cut or scaled else ""
    return f"an image of {height:,} x {width:,} pixels {changed}has {tokens:,} tokens"
