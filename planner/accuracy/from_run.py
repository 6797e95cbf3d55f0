"""`meshwright calibrate --from-run`: numbers of the runtime's stack from one or a few of its own runs.

A few runs tell a few numbers: no more than there are runs, each only where it moves their seconds in a way that the
numbers chosen before it do not. What they do not tell stays as it ships, and is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array
from ...errors import InputError
from ...profiles.rates import calibration, constants
from ...profiles.rates.constants import UNIDENTIFIED, Constant, values_at
from ...profiles.stack.load import family_of, load_stack
from ...profiles.stack.stack_file import stack_text
from .calibrate import Calibrated, fact_note
from .fit import SCATTER, Fit, Fitter, fit
from .run_reports import STACK, Run, read_runs
from .summary import error_statistics

# What is left of a number's slopes, in scatters per prior width, from which a run narrows its prior to UNIDENTIFIED.
_LEAST_SLOPE = (UNIDENTIFIED**-2 - 1.0) ** 0.5


def calibrate_runs(reports: Sequence[Path], plans: Sequence[Path]) -> Calibrated:
    """Fit the numbers of the stack `meshwright` that the runs identify, starting at what ships.

    Raises InputError with everything that is wrong in the reports, and where the runs identify nothing.
    """
    runs, base = read_runs(reports, plans), calibration.shipped()
    family = family_of(STACK)[0]
    candidates = constants.of_family(family, base)
    cases, source = [run.case for run in runs], f"fitted to {len(runs)} runs"
    everything = Fitter(cases, candidates, base, source)
    at_start = everything.log_seconds(np.zeros(len(candidates)))
    slopes = everything.derivatives(np.zeros(len(candidates)), at_start)
    told = identified(slopes)
    if not told:
        raise _tells_nothing(candidates, slopes, len(runs))
    before = np.array([run.seconds() for run in runs])
    measured = np.array([run.step_s for run in runs])
    # The fit prices by the closed form: it is to meet what was measured where the plan, which may simulate, does.
    wanted = np.log(measured / before) + at_start
    fitter = Fitter(cases, [candidates[j] for j in told], base, source)
    found = fit(fitter, wanted, np.ones(len(runs)))
    after = np.array([run.seconds(load_stack(STACK, found.calibration)) for run in runs])
    return Calibrated(_document(runs, candidates, found, before, after), _stack_file(found, len(runs)))


def identified(slopes: Array) -> list[int]:
    """[runs, numbers] derivatives of log seconds by prior widths -> the numbers that the runs tell, surest first.

    The most telling one is taken, what it explains is taken out of the others, and so on (a QR with pivots).
    """
    left, out = slopes / SCATTER, list[int]()
    for _ in range(min(slopes.shape)):
        lengths = np.linalg.norm(left, axis=0)
        most = int(np.argmax(lengths))
        if lengths[most] < _LEAST_SLOPE:
            break
        direction = left[:, most] / lengths[most]
        left = left - np.outer(direction, direction @ left)
        out.append(most)
    return out


def _tells_nothing(candidates: Sequence[Constant], slopes: Array, num_runs: int) -> InputError:
    """Numbers that hardly move what the runs measure."""
    moves = np.exp(np.abs(slopes).max(axis=0)) - 1.0
    lines = [f"{each.place[-1]}: its prior width moves a step by {move:.1%}"
             for each, move in zip(candidates, moves, strict=True)]  # fmt: skip
    runs = "the run tells" if num_runs == 1 else f"the {num_runs} runs tell"
    hint = "a step waits for something else, links or its pipeline: run a layout that computes more"
    return InputError("\n".join([f"{runs} no number of the stack", *lines]), hint=hint)


def _document(
    runs: Sequence[Run], candidates: Sequence[Constant], found: Fit, before: NDArray[np.float64],
    after: NDArray[np.float64],
) -> dict[str, Any]:  # fmt: skip
    measured = np.array([run.step_s for run in runs])
    errors = {name: error_statistics((each / measured - 1).tolist())
              for name, each in (("before", before), ("after", after))}  # fmt: skip
    fitted = dict(zip((c.place for c in found.constants), _values(found), strict=True))
    left = [_value(c, c.prior, 0.0, 1.0) for c in candidates if c.place not in fitted]
    return {
        "stack": STACK, "families": [family_of(STACK)[0]],
        "runs": {"used": len(runs), "refused": {}, "reports": [
            {"file": run.file, "layout_id": run.candidate.layout_id, "gpu": run.resolved.cluster.gpu.name,
             "num_gpus": run.resolved.cluster.num_gpus, "num_steps": run.num_steps, "measured_step_s": run.step_s,
             "before_s": float(b), "after_s": float(a),
             "measured_bytes": run.memory and run.memory[0], "predicted_bytes": run.memory and run.memory[1]}
            for run, b, a in zip(runs, before, after, strict=True)
        ]},
        "constants": {"total": len(found.constants)}, "errors": {"all": errors},
        "values": [*fitted.values(), *left], "problems": [],
    }  # fmt: skip


def _values(found: Fit) -> list[dict[str, Any]]:
    values = values_at(found.constants, found.z.tolist())
    low, high = np.array([constant.bounds for constant in found.constants]).reshape(-1, 2).T
    return [
        {**_value(constant, value, float(z), float(spread)), "at_bound": bool(z <= lowest or z >= highest)}
        for constant, value, z, spread, lowest, highest in zip(
            found.constants, values, found.z, found.spread, low, high, strict=True
        )
    ]


def _value(constant: Constant, value: float, z: float, spread: float) -> dict[str, Any]:
    return {"name": f"{STACK} {constant.place[-1]}", "scope": constant.entry.scope, "meaning": constant.entry.meaning,
            "prior": constant.prior, "value": value, "moved_prior_widths": z, "spread_over_prior": spread,
            "identified": spread <= UNIDENTIFIED, "at_bound": False}  # fmt: skip


def _stack_file(found: Fit, num_runs: int) -> str:
    values = values_at(found.constants, found.z.tolist())
    facts = {
        constant.place[-1]: (value, fact_note(constant, float(spread), num_runs))
        for constant, value, spread in zip(found.constants, values, found.spread, strict=True)
    }
    heading = "Written by `meshwright calibrate --from-run`: the stack of the runtime as these runs have it."
    return stack_text({STACK: facts}, heading)
