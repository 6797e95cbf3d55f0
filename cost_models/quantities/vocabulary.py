"""Vocabulary parallelism: embedding and output head are split over all stages of a pipeline.

Each of the p stages holds 1/p of the vocabulary. A micro-batch that leaves the last stage passes S on all stages (its
logits), then T (what is left of its backward pass), beside the layers of others (Yeung et al., arXiv 2411.05288;
github.com/sail-sg/VocabularyParallelism). C0, C1, C2 below are the messages between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .stages import EMBEDDING, EMBEDDING_COPY, Splits

# Beside what a stage keeps of its layers: the input of S and its gradient, of the micro-batch in S and of that in T.
KEPT_MESSAGES = 4


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Embedding and head over all stages of a pipeline."""

    # Between S and the backward pass of the last layer, each hidden behind one more micro-batch in flight. 1: S takes
    # the gradient of its input too, T that of the weights alone. 2: T takes both, and the last layer waits for it.
    barriers: int

    @staticmethod
    def split(splits: Splits) -> Splits:
        """The same layers, with 1/p of embedding and head on each device. A tied head needs no copy."""
        counts, total = splits.counts.copy(), splits.total.copy()
        total[:, EMBEDDING_COPY] = 0.0
        edges = slice(EMBEDDING, None)
        counts[:, :, edges] = (total[:, edges] / splits.devices.sum(axis=1)[:, None])[:, None]
        return replace(splits, counts=counts, total=total)
