"""The techniques that a request leaves to the search, and the sets of them that it tries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from ...cost_models.techniques.base import Technique
from ...errors import InputError
from .fields import ALL_TECHNIQUES, parse_techniques


def allowed_techniques(
    allowed: Sequence[str], requested: Collection[str], every: Iterable[str], known: Mapping[str, Technique]
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Technique -> all its knobs, without those that are requested.

    allowed: names with knobs, or `all`, which stands for `every`. known: techniques of the workload. Raises InputError
    for one that is unknown, and for one that is both requested and allowed by name.
    """
    knobs: dict[str, dict[str, float]] = {}
    for text in [text for name in allowed for text in (every if name == ALL_TECHNIQUES else [name])]:
        try:
            knobs |= parse_techniques(text, known)
        except InputError as error:
            raise InputError(f"--allow-technique: {error.message}", hint=error.hint) from None
    if (given := [name for name in knobs if name in requested]) and ALL_TECHNIQUES not in allowed:
        raise InputError(f"{given[0]} is both requested and allowed",
                         hint="`--technique` uses it, `--allow-technique` leaves that to the search")  # fmt: skip
    return {name: chosen for name, chosen in knobs.items() if name not in requested}


def technique_sets(names: Iterable[str], ended: Collection[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The sets of `names`, smaller ones first, without those that contain one of `ended`, which grows meanwhile."""
    ordered = sorted(names)
    level: list[tuple[str, ...]] = [()]
    while level:
        yield from level
        known = {chosen for chosen in level if chosen not in ended}
        larger = ((*chosen, name) for chosen in sorted(known) for name in ordered if not chosen or name > chosen[-1])
        level = [chosen for chosen in larger if known.issuperset(combinations(chosen, len(chosen) - 1))]
