"""Write docs/reference/constants.md: the numbers of assumptions.yaml by what they are worth (2 min)."""

from __future__ import annotations

from pathlib import Path

from meshwright.planner.accuracy.runs import Problems, read_cases, shipped_files
from meshwright.planner.accuracy.sensitivity import Effect, effects

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "constants.md"
LEAST = 5e-5  # change of the mean error below which numbers are only counted
HEADER = """\
# Numbers set by hand

Written by `python tools/constants_table.py`. Every number of `profiles/catalogue/measured/assumptions.yaml`, moved
by a fifth with all others held: the mean error of step time of the {runs} core runs, which is {error:.2f} % as shipped.
`fitted`: a calibration that ships has it (`calibrated.yaml` and `calibrated_other.yaml` in the same folder). Where a
number comes from is written beside it in the file. runs: those whose time moves by more than 0.1 %.

| number | value | fitted | runs | -20 % | +20 % |
|---|---|---|---|---|---|
"""
FOOTER = """
The other {rest} numbers move the error by less than {least:g} %: most are of devices and links that no core run has.
"""


def page(error: float, found: list[Effect], runs: int) -> str:
    """The page, from the effects of all numbers."""
    shown = [effect for effect in found if effect.size(error) >= LEAST]
    rows = [
        f"| {effect.name} | {effect.value:.4g} | {'yes' if effect.fitted else ''} | {effect.runs} "
        f"| {100 * effect.below:.2f} | {100 * effect.above:.2f} |\n" for effect in shown
    ]  # fmt: skip
    footer = FOOTER.format(rest=len(found) - len(shown), least=100 * LEAST)
    return HEADER.format(runs=runs, error=100 * error) + "".join(rows) + footer


def main() -> None:
    cases = [case for case in read_cases(shipped_files(), Problems([]))
             if case.core and case.scored and case.measured.step_s]  # fmt: skip
    error, found = effects(cases, lambda done, total: print(f"{done:.0f} of {total:.0f}", flush=True))
    PAGE.write_text(page(error, found, len(cases)), encoding="utf-8")


if __name__ == "__main__":
    main()
