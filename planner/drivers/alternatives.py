"""The layouts that a plan lists beside its choice: different answers, each with its reason.

They come from the best layouts of the families that the search lists, as far as they are nearer to the fastest than the
model tells apart (`ranking_lead` of `evaluation/intervals.py`), so no search is made for them: the fastest; that which
needs least memory; the simplest, as `preference.py` has it; that whose mesh is nearest to one of a published run of the
model. Where one layout is several of these, the next best of the families follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...cost_models.layouts import Layouts
from ..accuracy.recipes import PublishedMesh, published_meshes
from ..document.candidate import Merit
from ..evaluation import intervals
from ..request.resolve import Resolved
from ..search.pricing import price_layouts
from .preference import complexity
from .simulated_order import Row

FAMILIES = 12  # whose best layouts are compared


@dataclass
class Listed:
    """A layout of the list."""

    row: Row
    merits: list[Merit] = field(default_factory=list)  # what it is best at
    near: PublishedMesh | None = None  # the published mesh that it is nearest to of all, if that is one of its merits

    @property
    def near_run(self) -> str | None:
        """`tp4 pp8 (256 gb200_nvl72, bridge26.06-...)`."""
        mesh = self.near
        return None if mesh is None else f"{mesh.text} ({mesh.num_gpus} x {mesh.gpu}, {mesh.run})"


def listed_rows(resolved: Resolved, choice: Row, rows: Sequence[Row]) -> list[Listed]:
    """As many layouts as the request lists: `choice`, then those with a merit, then the fastest of the rest. rows: the
    best of each family, fastest first."""
    by_id = {row[1]: Listed(row) for row in (choice, *rows)}
    best = _best(resolved, [listed.row for listed in by_id.values()])
    for merit, (row, near) in best.items():
        by_id[row[1]].merits.append(merit)
        by_id[row[1]].near = by_id[row[1]].near or near
    with_merit = [by_id[row[1]] for row, _ in best.values()]
    order = dict.fromkeys(listed.row[1] for listed in (by_id[choice[1]], *with_merit, *by_id.values()))
    return [by_id[name] for name in order][: resolved.request.top]


def _best(resolved: Resolved, rows: Sequence[Row]) -> dict[Merit, tuple[Row, PublishedMesh | None]]:
    """The best layout by each merit, and the published mesh that it is nearest to."""
    limit_s = min(row[0] for row in rows) * (1 + intervals.ranking_lead())
    near = [row for row in rows if row[0] <= limit_s]
    _, estimate = price_layouts(resolved.problem, resolved.rates, Layouts.of([row[2] for row in near]))
    needed = dict(zip((row[1] for row in near), estimate.device_bytes.tolist(), strict=True))
    best: dict[Merit, tuple[Row, PublishedMesh | None]] = {
        "fastest": (min(near, key=lambda row: row[:2]), None),
        "roomiest": (min(near, key=lambda row: (needed[row[1]], *row[:2])), None),
        "simplest": (min(near, key=lambda row: (complexity(row[2]), *row[:2])), None),
    }
    if meshes := published_meshes(resolved.model):
        pairs = [(mesh.distance(row[2]), *row[:2], row, mesh) for row in near for mesh in meshes]
        *_, row, mesh = min(pairs, key=lambda pair: pair[:3])
        best["published"] = (row, mesh)
    return best
