"""StreamDiffusion: a pass denoises several frames of a stream, each at another step, with less guidance."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import Knob, Knobs, PoolNeed, Serves, Technique
from .passes import DENOISES

if TYPE_CHECKING:
    from ..serving.pool import Pool


def _has_the_steps(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.full(pool.tp.shape, knobs["frames"] <= pool.methods.passes)


def _steps(pool: Pool, knobs: Knobs) -> str:
    steps = pool.methods.passes
    return (f"{knobs['frames']:g} frames in a pass, each at another step, and a frame has {steps:g} steps "
            f"(`streamdiffusion:frames={steps:g}` or fewer)")  # fmt: skip


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    """A pass over `frames` gives as many times the tokens. Without its condition a frame is computed in a share of its
    passes. A frame that is like the one before takes no pass; the others take as long as without such frames."""
    methods, frames = pool.methods, knobs["frames"]
    copies = 1.0 + (methods.copies - 1.0) * knobs["guidance"]
    shared = replace(methods, copies=copies * frames, frames=frames, skipped=knobs["similar"])
    return replace(pool, step_tokens=pool.step_tokens * frames, methods=shared)


TECHNIQUE = Technique(
    name="streamdiffusion",
    group="serving: images",
    title="StreamDiffusion: a pass denoises several frames of a stream, each at another step",
    paper="Kodaira et al. 2023, StreamDiffusion: A Pipeline-level Solution for Real-time Interactive Generation, arXiv "
          "2312.12491",
    bibtex="""@article{kodaira2023streamdiffusion,
  title = {StreamDiffusion: A Pipeline-level Solution for Real-time Interactive Generation},
  author = {Kodaira, Akio and Xu, Chenfeng and Hazama, Toshiki and others},
  journal = {arXiv preprint arXiv:2312.12491},
  year = {2023}
}""",
    knobs=(Knob("frames", 4, 1, 64, "of a stream in a pass, as many as steps of a frame at the most"),
           Knob("guidance", 0, 0, 1, "share of the passes of a frame that also run without its condition; 1: "
                "classifier-free guidance, 0: residual guidance", whole=False),
           Knob("similar", 0, 0, 0.99, "share of the frames that are like the one before, and take no pass",
                whole=False)),
    neutral={"frames": 1, "guidance": 1, "similar": 0},
    trains=False,
    serves=Serves(on_pool=_on_pool, needs=(DENOISES, PoolNeed(_has_the_steps, "as many steps as frames", _steps))),
    caveat="a frame waits for as many passes as it has steps, and latencies are of frames that take passes; encoders "
           "and decoders of the images take no time here",
)  # fmt: skip
