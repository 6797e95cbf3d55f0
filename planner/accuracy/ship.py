"""The calibration that ships: `python -m meshwright.planner.accuracy.ship` fits it to the shipped runs.

Moves every constant of profiles/rates/constants.py from its prior, and writes calibrated.yaml, the predictions of runs
left out, and the intervals; with `--intervals` only the intervals, from the predictions that an earlier fit wrote.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...cost_models.arrays import Array
from ...errors import InputError
from ...profiles.rates import calibration, constants
from ...profiles.rates.calibration import PRIORS, Calibration
from ...profiles.rates.reference_devices import generation
from ...profiles.stack.load import family_of
from ..evaluation import intervals
from . import interval_fit
from .batch_pricing import rates_of
from .calibrate import Used
from .cross_validation import Progress, Runs
from .fit import Fit, Fitter, fit
from .fold_report import LEFT_OUT_FILE
from .folds import cells
from .reserve_fit import reserve_share
from .row import Case
from .runs import Problems, read_cases, shipped_files
from .validate import outcome

# Generation -> the `arch` of the one before or after it, whose efficiencies a GPU borrows as if nobody had measured it.
_NEIGHBOURS = {"ampere": "hopper (sm_90)", "hopper": "ampere (sm_80)", "blackwell": "hopper (sm_90)"}


@dataclass(frozen=True)
class ShippedFit:
    """The fit that ships, and the step seconds of fits that saw nothing like the run (folds.py)."""

    runs: Runs
    fit: Fit
    # [3, runs] seconds: as it is; its software known by the family only; its GPU borrowing efficiencies.
    left_out: Array


def ship(progress: Progress | None = None) -> ShippedFit:
    """The fit to the shipped runs from the bare priors, judged on runs that it did not see."""
    cases = Used.of(list(read_cases(shipped_files(), Problems([])))).cases
    runs, table = Runs.of(cases), constants.constants()
    variants = (cases, [_of_unknown_version(case) for case in cases], [_on_unknown_gpu(case) for case in cases])
    fitters = [Fitter(variant, table, PRIORS, "fitted") for variant in variants]
    full = fit(fitters[0], runs.log_measured, runs.weight(np.ones(len(cases), dtype=bool)))
    around = fitters[0].expansion(full.z, np.log(full.seconds))
    left_out, parts = np.empty((len(fitters), len(cases))), list(cells(cases))
    for number, (part, unseen) in enumerate(parts):
        z = around.least(runs.log_measured, runs.weight(~unseen))
        for row, fitter in zip(left_out, fitters, strict=True):
            row[part] = fitter.part_seconds(z, part)
        if progress is not None:
            progress(number + 1.0, float(len(parts)))
    return ShippedFit(runs, full, left_out)


def _of_unknown_version(case: Case) -> Case:
    """The run on a version of its software that nobody knows."""
    return replace(case, stack_name=case.stack.name)


def _on_unknown_gpu(case: Case) -> Case:
    """The run on a GPU with its datasheet and the efficiencies of another generation; as it is where that has no such
    number format."""
    arch = _NEIGHBOURS.get(generation(case.cluster.gpu.arch))
    if arch is None:
        return case
    groups = tuple(
        replace(group, gpu=replace(group.gpu, name=f"unmeasured {group.gpu.name}", arch=arch))
        for group in case.cluster.groups
    )  # fmt: skip
    strange = replace(case, cluster=replace(case.cluster, groups=groups))
    try:
        rates_of(strange)
    except InputError:
        return case
    return strange


def shipped_text(shipped: ShippedFit, reserve: float) -> str:
    """calibrated.yaml: every constant's value, in the shape of the files that it is laid over. reserve: the share that
    the allocator reserves over tensors (reserve_fit.py)."""
    fitted = shipped.fit
    values = constants.values_at(fitted.constants, fitted.z.tolist())
    nested = Calibration.of({c.place: value for c, value in zip(fitted.constants, values, strict=True)}, "")
    counts = Counter(constant.entry.scope for constant in fitted.constants)
    lines = [
        "# Written by `python -m meshwright.planner.accuracy.ship` from catalogue/published/; do not edit.\n",
        "# Priors: stacks/*.yaml and assumptions.yaml. Meaning of each number: profiles/rates/constants.py.\n",
        f"source: {len(shipped.runs.cases)} published runs\n",
        f"constants: {{{', '.join(f'{scope}: {count}' for scope, count in sorted(counts.items()))}}}\n",
    ]  # fmt: skip
    assumed = {**nested.assumptions, "allocator": {"reserve_share": reserve}}
    for root, block in (("stacks", nested.stacks), ("assumptions", assumed)):
        lines.append(f"{root}:\n")
        for name, facts in sorted(block.items()):
            lines.append(f"  {name}: {flow(facts)}\n")
    return "".join(lines)


def flow(value: Any) -> str:
    """YAML in one line, four significant digits: a fit says no more."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in sorted(value.items())) + "}"
    return repr(float(f"{value:.4g}"))


def left_out_text(shipped: ShippedFit) -> str:
    """left_out.json: id -> the three step seconds of `ShippedFit.left_out`."""
    rows = zip(shipped.runs.cases, shipped.left_out.T, strict=True)
    left_out = {case.id: [float(f"{value:.5g}") for value in values] for case, values in rows}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(values)}" for name, values in left_out.items())
    return f"{{\n{lines}\n}}\n"


def interval_text(left_out: Mapping[str, Sequence[float]]) -> str:
    """intervals.yaml, from the table of left_out.json and the shipped runs."""
    shipped = list(read_cases(shipped_files(), Problems([])))
    runs = Runs.of([case for case in shipped if case.id in left_out])
    regimes = [case.regime for case in runs.cases]
    as_it_is, new, assumed = np.log([left_out[case.id] for case in runs.cases]).T
    narrow = np.array([intervals.is_narrow(case.workload.precision) for case in runs.cases])
    of_narrow = [regime for regime, chosen in zip(regimes, narrow, strict=True) if chosen]
    log_measured = runs.log_measured
    tables = {
        "known": interval_fit.measured_factors(regimes, log_measured - as_it_is),
        "narrow": interval_fit.measured_factors(of_narrow, (log_measured - as_it_is)[narrow]),
        "new": interval_fit.measured_factors(regimes, log_measured - new),
        "assumed": interval_fit.measured_factors(regimes, log_measured - assumed),
    }
    ranking = interval_fit.measured_ranking(runs.cases, as_it_is, log_measured)
    memory = interval_fit.measured_memory([outcome(case) for case in shipped if case.memory_scored])
    versions = sorted({v for case in runs.cases if (v := family_of(case.stack_name)[1])})
    return interval_fit.text(tables, ranking, memory, versions)


def main() -> None:
    """Fits, and writes calibrated.yaml, the predictions of runs left out, and the intervals."""
    if "--intervals" not in sys.argv:
        shipped = ship(lambda done, total: print(f"{done:.0f} of {total:.0f}", flush=True))
        reserve = reserve_share(list(read_cases(shipped_files(), Problems([]))))
        calibration.SHIPPED_FILE.write_text(shipped_text(shipped, reserve), encoding="utf-8")
        LEFT_OUT_FILE.write_text(left_out_text(shipped), encoding="utf-8")
        calibration.shipped.cache_clear()  # the intervals of memory are those of the new reserve
    left_out = json.loads(LEFT_OUT_FILE.read_text(encoding="utf-8"))
    intervals.FILE.write_text(interval_text(left_out), encoding="utf-8")


if __name__ == "__main__":
    main()
