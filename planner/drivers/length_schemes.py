"""Published schemes for documents of mixed lengths beside a plan, on its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import InputError, MeshwrightError, UnknownNameError
from ..batches.schemes.base import Planned, Scheme, Subject
from ..batches.schemes.registry import SCHEMES
from ..document.lengths_plan import RefusedSchemePart, SchemePart
from .mixed_lengths import MixedLengthsPlan
from .watch import Progress

ALL = "all"


def schemes_of(names: Sequence[str]) -> list[Scheme]:
    """The schemes that are meant, `all` for every one. Raises InputError for an empty, unknown or repeated name."""
    for name in names:
        if not name:
            raise InputError("--lengths-scheme: a name is empty", hint="give names, or `all`")
        if name not in (*SCHEMES, ALL):
            raise UnknownNameError("scheme", name, (*SCHEMES, ALL), where="--lengths-scheme")
        if names.count(name) > 1:
            raise InputError(f"--lengths-scheme: `{name}` is there twice", hint="give each scheme once, or `all`")
    return [scheme for name, scheme in SCHEMES.items() if name in names or ALL in names]


def with_schemes(plan: MixedLengthsPlan, schemes: Sequence[Scheme], progress: Progress | None) -> MixedLengthsPlan:
    """The plan with these schemes beside its own. One that cannot train its batches has the reason."""
    subject = Subject(plan.resolved, plan.batches, max(length for length, _ in plan.resolved.workload.lengths))
    parts, refused = list[SchemePart](), list[RefusedSchemePart]()
    for number, scheme in enumerate(schemes):
        if progress is not None:
            progress(number, len(schemes), f"planning {scheme.name}")
        try:
            parts.append(_part(scheme, scheme.plan(subject)))
        except MeshwrightError as error:
            refused.append(RefusedSchemePart(name=scheme.name, rule=scheme.rule, reason=error.message))
    return replace(plan, schemes=tuple(parts), refused_schemes=tuple(refused))


def _part(scheme: Scheme, planned: Planned) -> SchemePart:
    policy = planned.policy
    return SchemePart(
        name=scheme.name, source=scheme.source, basis=scheme.basis, rule=scheme.rule, layout=planned.layout,
        mean_s=policy.mean_s, p95_s=policy.p95_s, degrees=policy.degrees, mean_micro_batches=policy.mean_micro_batches,
    )  # fmt: skip
