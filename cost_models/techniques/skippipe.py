"""SkipPipe: each micro-batch passes only some stages of a pipeline, and every stage serves as many fewer of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..schedule_kinds import CODE
from .base import Columns, Knob, Knobs, Need, Technique

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger


def _one_f_one_b(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["pp"] > 2) & (x["schedule"] == CODE["1f1b"]))


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    if not knobs["skipped"]:
        return ledger
    pp = ledger.layouts["pp"].astype(np.float64)
    path = np.maximum(np.ceil((1 - knobs["skipped"]) * pp - 1e-9), 2.0)
    return replace(ledger, repeats=ledger.repeats * path / pp, path=path)


TECHNIQUE = Technique(
    name="skippipe",
    group="pipelines",
    title="SkipPipe: micro-batches skip some stages, in an order without collisions",
    paper="Blagoev et al. 2025, SkipPipe: Partial and Reordered Pipelining Framework for Training LLMs in "
          "Heterogeneous Networks, arXiv 2502.19913",
    bibtex="""@article{blagoev2025skippipe,
  title = {SkipPipe: Partial and Reordered Pipelining Framework for Training LLMs in Heterogeneous Networks},
  author = {Blagoev, Nikolay and Chen, Lydia Yiyu and Ersoy, Oguzhan},
  journal = {arXiv preprint arXiv:2502.19913},
  year = {2025}
}""",
    knobs=(Knob("skipped", 0.25, 0, 0.75, "share of the stages that a micro-batch skips", whole=False),),
    neutral={"skipped": 0},
    needs=(Need(("pp", "schedule"), _one_f_one_b, "a pipeline of three stages or more in the 1f1b schedule"),),
    rewrite=_rewrite,
    least_work=lambda knobs: 1 - knobs["skipped"], only_costs=True,
    caveat="the loss after as many tokens is worse: the paper skips 25 to 33 % of the stages; that an order without "
           "collisions exists is assumed",
    excludes={"vocabulary-parallel": "its passes run on all stages at once, and micro-batches of skippipe do not",
              "gnnpipe": "gnnpipe fills its pipeline by gpipe, skippipe by 1f1b",
              "fuyou": "fuyou needs a single stage, skippipe several"},
)  # fmt: skip
