"""ChunkFlow: chunks of equal size out of documents of unlike lengths, for pipelines.

Yuan et al., arXiv:2503.02356. Short documents are packed into chunks, and long ones are cut into chunks of ChunkSize
tokens that depend on each other: each attends to the keys of those before. Forward passes of such chunks run in order
and keep their keys; backward passes run in reverse. Only the last K of them keep activations, the others run forward
once more. A stage then holds activations of K + pp - 1 chunks, and the keys of one document.

Chunks are micro-batches of a pipeline (their state-aware 1F1B). Its bubble is that of the longest chunk, as in the
other pipelines here: idle time where a backward pass waits for the last forward pass of its document is left out. A
document stays on one pipeline. The rule here is simplified: it follows summaries of the paper, which has no public
code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....cost_models.arrays import Array
from ....cost_models.quantities.element_bytes import activation_bytes
from ....cost_models.specs.model import ModelSpec
from ....errors import NoFeasibleLayoutError
from ..batch_plan import descending
from ..ledger_costs import token_bytes
from ..one_degree import best_fit
from ..policy import Step
from .base import Scheme, SchemeStep, Subject, words_of
from .pipelines import Shape

_KEPT = (1, 2, 4, 8, 16)  # K that are tried, assumed
_FEWEST = 256  # tokens of a chunk, assumed


@dataclass(frozen=True, eq=False)
class Chunks:
    """A pipeline with its sizes."""

    shape: Shape
    size: int  # tokens of a chunk
    kept: int  # K

    def seconds(self, start: Array, end: Array) -> Array:
        """[n] seconds of the tokens from `start` to `end` of documents, on a stage."""
        costs = self.shape.costs
        linear_s = costs.token_s[0, 0]

        def attention_s(length: Array) -> Array:
            return np.asarray(length * (np.interp(length, costs.grid, costs.token_s[:, 0]) - linear_s))

        return np.asarray(linear_s * (end - start) + attention_s(end) - attention_s(start))

    @property
    def forward(self) -> float:
        """Share of a forward pass in the seconds of a chunk. A backward pass takes twice as long, and full
        recomputation another forward pass; selective recomputation repeats little."""
        return 1 / 4 if self.shape.family.recompute == "full" else 1 / 3

    def of_document(self, length: float) -> list[float]:
        """Seconds of the chunks of a long document, with the forward passes that run again."""
        start = np.arange(0.0, length, self.size)
        chunks_s = self.seconds(start, np.minimum(start + self.size, length))
        chunks_s[: -self.kept] *= 1 + self.forward
        return list(chunks_s + self.shape.costs.micro_batch_s)

    def step(self, lengths: Array) -> SchemeStep:
        """A step of a batch: whatever takes longest goes first, to the pipeline with the least work."""
        short, ordered = lengths <= self.size, lengths[descending(lengths)]
        work = [self.of_document(length) for length in ordered[ordered > self.size].tolist()]
        alone = lengths[short]
        alone_s = self.seconds(np.zeros(len(alone)), alone)
        work += [[self.shape.costs.micro_batch_s + float(alone_s[pack].sum())]
                 for pack in (best_fit(alone, self.size) if len(alone) else ())]  # fmt: skip
        pipelines: list[list[float]] = [[] for _ in range(self.shape.costs.num_ranks)]
        loads = np.zeros(len(pipelines))
        for chunks_s in sorted(work, key=sum, reverse=True):
            at = int(loads.argmin())
            pipelines[at] += chunks_s
            loads[at] += sum(chunks_s)
        step_s = max(self.shape.step_s(chunks_s) for chunks_s in pipelines)
        return SchemeStep(step_s, (1,), float(np.mean([len(chunks_s) for chunks_s in pipelines])))


def key_values(model: ModelSpec) -> int:
    """Numbers in the keys and values of a token, in all layers."""
    attentions = (model.kinds[kind].attention for kind in model.pattern)
    return sum(attention.kv_heads * (attention.head_dim + attention.value_head_dim)
               for attention in attentions if attention is not None)  # fmt: skip


def chunks_that_fit(shape: Shape, key_share: float, longest: int) -> Iterator[Chunks]:
    """A size of chunks for each K. key_share: bytes of the keys of a token over those of its activations."""
    pp = shape.family.pp
    room = pp * shape.costs.rank_tokens - key_share * longest  # pp micro-batches of `rank_tokens` fit
    for kept in _KEPT:
        size = min(int(room / (kept + pp - 1)), longest)
        if size >= _FEWEST:
            yield Chunks(shape, size, kept)


def _run(subject: Subject) -> tuple[str, Sequence[Step]]:
    priced, problem = subject.priced, subject.priced.problem
    width = key_values(problem.model) * activation_bytes(problem.workload)
    able = [chunks for shape in subject.shapes
            for chunks in chunks_that_fit(shape, width / shape.family.tp / token_bytes(priced, shape.family),
                                          subject.longest)]  # fmt: skip
    if not able:
        raise NoFeasibleLayoutError(f"no pipeline holds the keys of a document of {subject.longest:,} tokens")
    chosen, steps = subject.fastest(able, lambda chunks, batches: [chunks.step(lengths) for lengths in batches])
    return f"{words_of(chosen.shape.family)}, chunks of {chosen.size:,} tokens, {chosen.kept} kept", steps


SCHEME = Scheme(name="chunkflow", source="arXiv:2503.02356", basis="summary", rule="chunks in pipelines", run=_run)
