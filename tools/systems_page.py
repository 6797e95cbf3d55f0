"""Write docs/reference/systems.md: published systems, where each is, and its figure beside ours (two minutes)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import yaml
from meshwright.cost_models.techniques.registry import EVERY
from meshwright.planner.studies.systems.base import Check
from meshwright.planner.studies.systems.registry import CHECKS
from meshwright.planner.targets.engines.registry import with_technique
from meshwright.planner.targets.registry import with_techniques

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS, PAGE = ROOT / "tools" / "systems.yaml", ROOT / "docs" / "reference" / "systems.md"
COLUMNS = 6
HEADER = """\
# Published systems

Written by `python tools/systems_page.py` from `tools/systems.yaml` and the checks of `planner/studies/systems/`.
{here} of {systems} systems are in the program with a check, {unreached} are in it and their figure is out of reach,
{outside} are out of scope, {missing} is not here yet. The reason stands in the line of each.
Ours: computed out of prices of layouts; a bold value is outside the range in which the published figure has to be.
Other checks are tests.

| system | arXiv | where | published | ours | check |
|---|---|---|---|---|---|
"""
FOOTER = "\n## Missed\n\n"


def in_program(row: dict[str, str]) -> bool:
    """Whether a system is in the program, with a check."""
    return "not" not in row


def shown(value: float) -> str:
    """Our value as the page states it."""
    return f"{value:.3g}"


def computed(check: Check) -> str:
    """Our value out of prices."""
    return shown(check.value(False))


def written() -> dict[tuple[str, str], str]:
    """Our values in the page as it is, by the technique and the description of a check."""
    values: dict[tuple[str, str], str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        parts = [part.strip() for part in line.split(" | ")]
        if name := re.match("technique `([^`]+)`;", parts[2] if len(parts) == COLUMNS else ""):
            checks = [check for check in CHECKS if check.technique == name[1]]
            ours = parts[4].replace("*", "").split("; ") if checks else []
            values |= {(check.technique, check.of): text for check, text in zip(checks, ours, strict=True)}
    return values


def cells(row: dict[str, str], ours_of: Callable[[Check], str]) -> list[str]:
    """A line of the table. ours_of: our value for a check, as text."""
    where, published, ours = row.get("in", ""), "", ""
    if name := row.get("technique"):
        runs = ", ".join([*with_techniques([name]), *with_technique(name)]) or "no runtime"
        where = f"technique `{name}`; {runs}"
        checks = [check for check in CHECKS if check.technique == name]
        published = "; ".join(f"{check.of}: {check.published}" for check in checks)
        values = [(ours_of(check), check.missed) for check in checks]
        ours = "; ".join(f"**{value}**" if missed else value for value, missed in values)
    where = "; ".join(filter(None, (where, row.get("not", ""))))
    test = f"`{row['check']}`" if "check" in row else "`tests/planner/studies/test_systems.py`" if ours else ""
    return [row["system"], row.get("arxiv", ""), where, published, ours, test]


def page(ours_of: Callable[[Check], str] = computed) -> str:
    """The whole page. ours_of: our value for a check, as text."""
    rows: list[dict[str, str]] = yaml.safe_load(SYSTEMS.read_text(encoding="utf-8"))
    known = {row.get("technique") for row in rows} - {None}
    if absent := known - set(EVERY):
        raise SystemExit(f"{SYSTEMS.name}: no technique {', '.join(sorted(map(str, absent)))}")
    outside = sum(row.get("not", "").startswith("out of scope") for row in rows)
    here, unreached = sum(map(in_program, rows)), sum("in" in row and "not" in row for row in rows)
    head = HEADER.format(systems=len(rows), here=here, unreached=unreached, outside=outside,
                         missing=len(rows) - here - unreached - outside)  # fmt: skip
    lines = "".join(f"| {' | '.join(cells(row, ours_of))} |\n" for row in rows)
    missed = "".join(f"- `{check.technique}`, {check.of}: {check.missed}.\n" for check in CHECKS if check.missed)
    return head + lines + (FOOTER + missed if missed else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
