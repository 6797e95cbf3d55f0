"""Vocabulary parallelism: embedding and output head over all stages of a pipeline (vocabulary.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..quantities.vocabulary import Vocabulary
from ..schedule_kinds import CODE
from .base import Columns, Knob, Knobs, Need, Technique

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger


def _one_f_one_b(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["pp"] > 1) & (x["schedule"] == CODE["1f1b"]))


def _plain_head(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    model = problem.model
    return np.full(len(x["pp"]), model.mtp_layers == 0 and not model.head_transform and model.token_head)


def _plain_embedding(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    model = problem.model
    return np.full(len(x["pp"]), model.tower is None and model.encoder is None and model.diffusion is None)


def _split_loss(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["tp"] == 1) | problem.stack.split_logits)


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    if not knobs["barriers"]:
        return ledger
    return replace(ledger, splits=Vocabulary.split(ledger.splits), vocabulary=Vocabulary(int(knobs["barriers"])))


TECHNIQUE = Technique(
    name="vocabulary-parallel",
    group="pipelines",
    title="Vocabulary parallelism: embedding and output head split over all pipeline stages",
    paper="Yeung et al. 2025, Balancing Pipeline Parallelism with Vocabulary Parallelism, arXiv 2411.05288",
    bibtex="""@inproceedings{yeung2025vocabulary,
  title = {Balancing Pipeline Parallelism with Vocabulary Parallelism},
  author = {Yeung, Man Tsung and Qi, Penghui and Lin, Min and Wan, Xinyi},
  booktitle = {Proceedings of Machine Learning and Systems (MLSys)},
  year = {2025}
}""",
    # One is the default of the paper's implementation (two: --disable-backward-fusion).
    knobs=(Knob("barriers", 1, 0, 2, "messages over all stages that a backward pass waits for: 1 (the paper's Vocab-2) "
                "or 2 (Vocab-1); 0: embedding and head stay on the ends"),),
    neutral={"barriers": 0},
    needs=(Need(("pp", "schedule"), _one_f_one_b, "a pipeline in the 1f1b schedule"),
           Need(("pp",), _plain_head, "a head of tokens without MTP modules or a dense layer beside it"),
           Need(("pp",), _plain_embedding, "a model without a vision tower beside its embedding"),
           Need(("tp",), _split_loss, "a loss whose logits tensor parallelism splits")),
    rewrite=_rewrite,
    caveat="what runs it is sail-sg's fork of Megatron-LM (--enable-vocab-parallel: GPT, embeddings not tied)",
    excludes={"fuyou": "fuyou needs a single stage, vocabulary-parallel several"},
    order=4, fills_by_layers=True,
)  # fmt: skip
