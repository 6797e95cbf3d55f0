"""The images or videos of a request, as the tokens of a diffusion transformer."""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.specs.diffusion import Diffusion
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.workload import Images, Workload
from ...errors import InputError
from .fields import nearest_power
from .model_changes import check_without_tokens
from .schema import DEFAULT_TOKENS_PER_STEP, ImagesRequest, Request, WorkloadRequest

_IMAGE, _VIDEO = "1@1024x1024", "1@480x832x81"


def workload_of_latents(model: ModelSpec, diffusion: Diffusion, request: Request) -> Workload:
    """The workload of a model that denoises one image or video per sequence, whose tokens follow from its size.

    Without global_batch the power of two of sequences that is nearest to 4M tokens. Raises InputError for a size that
    is missing or that does not fit, and for what is not priced.
    """
    work = request.workload
    _check_priced(model, work)
    images = _sized(model, diffusion, work.images)
    latents = diffusion.tokens(images.height, images.width, images.num_frames)
    tokens = latents + diffusion.joins_text * diffusion.text_tokens
    if tokens > model.max_positions:
        raise InputError(f"images: {tokens:,} tokens are more than the {model.max_positions:,} that are planned",
                         hint="fewer frames, or fewer pixels")  # fmt: skip
    batch = work.global_batch or nearest_power(DEFAULT_TOKENS_PER_STEP / tokens)
    sized = work.model_copy(update={"seq_len": tokens, "global_batch": batch})
    workload = request.model_copy(update={"workload": sized}).to_workload()
    text = None if diffusion.joins_text else diffusion.text_tokens or None
    return replace(workload, images=images, source_len=text)


def _check_priced(model: ModelSpec, work: WorkloadRequest) -> None:
    check_without_tokens(f"{model.name}, a diffusion transformer", work, {
        "seq_len: it follows from the size of its images": work.seq_len is not None,
        "source_len: its text has a length of its own": work.source_len is not None,
        "lengths are not priced for it": bool(work.lengths),
    })  # fmt: skip


def _sized(model: ModelSpec, diffusion: Diffusion, asked: ImagesRequest | None) -> Images:
    """One image or video with all of its sizes."""
    example = _VIDEO if diffusion.frames else _IMAGE
    meaning = "height x width x frames" if diffusion.frames else "height x width in pixels"
    hint = f"`--images {example}`: {meaning}"
    if asked is None or asked.height is None or asked.width is None:
        raise InputError(f"images: {model.name} denoises images of any size, and none is given", hint=hint)
    if asked.per_sequence != 1:
        raise InputError(f"images: {asked.per_sequence} per sequence, and {model.name} denoises one", hint=hint)
    if diffusion.frames and asked.num_frames is None:
        raise InputError(f"images: {model.name} denoises videos, and no number of frames is given", hint=hint)
    frames = asked.num_frames or 1
    wrong = [f"{name} {size} is no multiple of the {diffusion.side} pixels of a token"
             for name, size in (("height", asked.height), ("width", asked.width)) if size % diffusion.side]  # fmt: skip
    if frames > 1 and not diffusion.frames:
        wrong.append(f"{frames} frames, and {model.name} denoises images")
    if diffusion.frames and (frames - 1) % diffusion.frames:
        wrong.append(f"{frames} frames are not 1 and a multiple of {diffusion.frames}")
    if wrong:
        raise InputError(f"images: {'; '.join(wrong)}", hint=hint)
    return Images(per_sequence=1, height=asked.height, width=asked.width, num_frames=frames)
