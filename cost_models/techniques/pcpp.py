"""PCPP: each GPU denoises a patch of an image, and attends to a part of the others' patches of the pass before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import TP_OVERLAP, Knob, Knobs, PoolNeed, Serves, Technique
from .passes import DENOISES

if TYPE_CHECKING:
    from ..serving.pool import Pool


def _several(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.asarray((pool.tp > 1) & (pool.pp == 1))


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    if not knobs["patches"]:
        return pool
    return replace(pool, methods=replace(pool.methods, patches=True, patch_context=knobs["context"]))


TECHNIQUE = Technique(
    name="pcpp",
    group="serving: images",
    title="PCPP: GPUs denoise patches of an image, each of which sees a part of the others",
    paper="Zhang, Luo and Lu 2024, Partially Conditioned Patch Parallelism for Accelerated Diffusion Model Inference, "
          "arXiv 2412.02962",
    bibtex="""@article{zhang2024pcpp,
  title = {Partially Conditioned Patch Parallelism for Accelerated Diffusion Model Inference},
  author = {Zhang, XiuYu and Luo, Zening and Lu, Michelle E.},
  journal = {arXiv preprint arXiv:2412.02962},
  year = {2024}
}""",
    knobs=(Knob("patches", 1, 0, 1, "of an image, one for each GPU; 0: tensor parallelism instead"),
           Knob("context", 0.3, 0, 1, "share of the other patches that a patch attends to; 1: all of them "
                "(DistriFusion)", whole=False)),
    neutral={"patches": 0},
    trains=False,
    serves=Serves(on_pool=_on_pool, needs=(DENOISES, PoolNeed(_several, "several GPUs (`--fix tp=8`), one stage"))),
    caveat="images may be worse, since patches see the others as they were a pass before, and in part",
    chooses=(TP_OVERLAP,),
)  # fmt: skip
