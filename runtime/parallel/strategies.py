"""Layer-wise strategies: one for the embedding, each layer, and the head. No torch here.

A strategy is the layout that uses it for all parts. All strategies of a plan have equal numbers of stages, GPUs and
micro-batches. They split the sequences of a micro-batch over the ranks of a stage in different ways (resharding.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from ...cost_models.layouts import CP_ALGORITHMS, Layout, parse
from ...cost_models.specs.model import ModelSpec
from ...errors import FieldProblem, InputError
from ...planner.document.candidate import Candidate, Chunk
from ...planner.document.layer_plan import LayerPlan, LayerRun, layers_digest

EMBEDDING, HEAD = "embedding", "head"
_UNIFORM = {"pp": "number of stages", "vpp": "number of chunks", "num_gpus": "number of GPUs", "schedule": "schedule",
            "offload": "offload", "precision": "precision"}


def layer_name(index: int) -> str:
    """The name of the part for layer `index`."""
    return f"layers.{index}"


def is_layer(part: str) -> bool:
    """Whether a part is a layer, by its name."""
    return part.startswith("layers.")


def parts_of(layout: Layout) -> int:
    """The number of parts per sequence under a strategy."""
    return layout.tp * layout.cp


@dataclass(frozen=True)
class Strategies:
    """The strategies of embedding, layers and head, in the order of the model."""

    embedding: Layout  # of the embedding
    layers: tuple[Layout, ...]  # one for each layer
    head: Layout  # of the head

    def of(self, part: str) -> Layout:
        """The strategy of a part, by its name."""
        ends = {EMBEDDING: self.embedding, HEAD: self.head}
        return ends[part] if part in ends else self.layers[int(part.partition(".")[2])]

    def of_chunk(self, chunk: Chunk) -> tuple[Layout, ...]:
        """The strategies of the layers of a chunk."""
        return self.layers[chunk.layers[0] : chunk.layers[-1] + 1] if chunk.layers else ()

    @property
    def in_order(self) -> tuple[Layout, ...]:
        return (self.embedding, *self.layers, self.head)

    @property
    def distinct(self) -> tuple[Layout, ...]:
        """Every strategy once."""
        return tuple(dict.fromkeys(self.in_order))

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """(parts before, parts after) of adjacent strategies with different splits, each pair once."""
        pairs = (pair for pair in pairwise(map(parts_of, self.in_order)) if pair[0] != pair[1])
        return tuple(dict.fromkeys(pairs))

    @property
    def runs(self) -> tuple[LayerRun, ...]:
        """Groups adjacent layers with the same strategy."""
        out, start = [], 0
        for strategy, group in groupby(self.layers):
            size = len(list(group))
            out.append(LayerRun(layers=(start, start + size - 1), strategy=str(strategy)))
            start += size
        return tuple(out)

    def __str__(self) -> str:
        layers = ((*run.layers, run.strategy) for run in self.runs)
        runs = [f"layer{'' if a == b else 's'} {a if a == b else f'{a}-{b}'} {strategy}" for a, b, strategy in layers]
        return ", ".join([f"embedding {self.embedding}", *runs, f"head {self.head}"])

    @property
    def digest(self) -> str:
        return layers_digest(str(self.embedding), self.runs, str(self.head))


def strategies_of(
    candidate: Candidate, like: Layout, model: ModelSpec, seq_len: int, name: str
) -> Strategies | None:
    """The strategies of a candidate; None if all parts of the model have its layout. like: the layout of most layers.

    Raises InputError with each damaged field of the file `name`.
    """
    if candidate.layerwise is None:
        return None
    plan, where = candidate.layerwise, f"candidates.{candidate.choice - 1}.layerwise"
    read = _read(plan, where, name)
    problems = [(field, text) for field, strategy in read.items() for text in _problems(strategy, like, seq_len)]
    if model.tied_embeddings and _cut(read[EMBEDDING]) != _cut(read[HEAD]):
        problems.append((HEAD, f"{plan.head}: the head is the embedding, which has {plan.embedding}"))
    following = 0
    for index, run in enumerate(plan.runs):
        if run.layers[0] != following or run.layers[1] < following:
            problems.append((f"runs.{index}.layers", f"must start with layer {following}"))
            break
        following = run.layers[1] + 1
    else:
        if following != model.num_layers:
            problems.append(("runs", f"{following} layers, the model has {model.num_layers}"))
    _raise(problems, where, name)
    layers = [read[f"runs.{index}.strategy"] for index, run in enumerate(plan.runs)
              for _ in range(run.layers[0], run.layers[1] + 1)]  # fmt: skip
    return Strategies(read[EMBEDDING], tuple(layers), read[HEAD])


def _cut(layout: Layout) -> tuple[int, int, int]:
    return layout.tp, layout.cp, layout.zero


def _read(plan: LayerPlan, where: str, name: str) -> dict[str, Layout]:
    ids = {EMBEDDING: plan.embedding, HEAD: plan.head}
    ids |= {f"runs.{index}.strategy": run.strategy for index, run in enumerate(plan.runs)}
    strategies, wrong = dict[str, Layout](), list[tuple[str, str]]()
    for field, text in ids.items():
        try:
            strategies[field] = parse(text)
        except InputError as error:
            wrong.append((field, error.message))
    _raise(wrong, where, name)
    return strategies


def _problems(strategy: Layout, like: Layout, seq_len: int) -> Iterator[str]:
    """Problems of a strategy, compared with that of most layers."""
    for field, what in _UNIFORM.items():
        if getattr(strategy, field) != getattr(like, field):
            yield f"{strategy} has another {what} than {like}"
    if strategy.dp * strategy.micro_batch != like.dp * like.micro_batch:
        yield ", ".join(f"{layout} takes dp {layout.dp} x {layout.micro_batch} sequences at once"
                        for layout in (strategy, like))  # fmt: skip
    if strategy.cp > 1 and (strategy.tp > 1 or CP_ALGORITHMS[strategy.cp_algorithm] != "ulysses"):
        yield f"{strategy} is neither tensor parallelism nor Ulysses alone: between layers, nothing else is resharded"
    if seq_len % parts_of(strategy):
        yield f"{strategy} cuts sequences into {parts_of(strategy)} parts, which do not divide {seq_len} tokens"


def _raise(problems: Sequence[tuple[str, str]], where: str, name: str) -> None:
    if problems:
        hint = "the file was edited; plan again"
        raise InputError.of(
            [FieldProblem(text, file=name, field=f"{where}.{field}", hint=hint) for field, text in problems]
        )
