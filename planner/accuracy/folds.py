"""The folds of cross-validation: runs that a fit must not use before it is judged on others.

Future runs have other models, software and GPUs. A run is therefore predicted by a fit without runs of its source
(repository and file), and without runs of its model family on its GPU generation.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Ints, Mask
from ...profiles.rates.reference_devices import generation
from .row import Case
from .validate import source_of

FOLDS = 5  # of groups


@dataclass(frozen=True, order=True)
class Cell:
    """Runs that are left out together."""

    source: str  # repository and file
    family: str  # of models: `llama`
    generation: str  # of GPUs: `hopper`

    def hides(self, other: Cell) -> bool:
        """Whether a fit that is judged on this cell must not use the other one."""
        alike = (self.family, self.generation) == (other.family, other.generation)
        return alike or self.source == other.source


def cell_of(case: Case) -> Cell:
    """The cell of a run. The family is the word that the name of the model begins with: `llama3-70b` is of `llama`."""
    word = re.match(r"[a-z]+", case.model.name.lower())
    family = word[0] if word else case.model.name
    return Cell(source_of(case.source), family, generation(case.cluster.gpu.arch))


def cells(cases: Sequence[Case]) -> Iterator[tuple[Mask, Mask]]:
    """Each cell as (its runs, the runs that a fit may not see), masks over the cases."""
    of_case = [cell_of(case) for case in cases]
    for cell in sorted(set(of_case)):
        yield np.array([own == cell for own in of_case]), np.array([cell.hides(own) for own in of_case])


def group_of(case: Case) -> str:
    """Runs of one group share model and cluster: none of them may judge a fit that saw another. Sequence length, biases
    or vocabulary do not make another model, nor another network another cluster."""
    model, cluster = case.model, case.cluster
    return f"{model.hidden} x {model.num_layers} on {cluster.num_gpus} {cluster.gpu.name}"


def folds(groups: Sequence[str], number: int = FOLDS) -> Ints:
    """[runs] fold of each: whole groups, the largest first, each to the fold with fewest runs; ties by digest."""
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    order = sorted(members, key=lambda group: (-len(members[group]), hashlib.sha256(group.encode()).hexdigest()))
    sizes, out = [0] * number, np.zeros(len(groups), dtype=np.int64)
    for group in order:
        fold = sizes.index(min(sizes))
        out[members[group]] = fold
        sizes[fold] += len(members[group])
    return out


def parts_of(labels: Ints) -> Iterator[tuple[Mask, Mask]]:
    """Each part of the runs, which the fit that predicts it does not see: the same mask twice."""
    for label in np.unique(labels):
        yield labels == label, labels == label
