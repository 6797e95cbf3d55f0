"""What `meshwright calibrate` tells of a study: errors before and after, on runs left out, and of every constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...profiles.rates.constants import UNIDENTIFIED, values_at
from .cross_validation import Study
from .summary import REFUSED_ERROR, error_statistics

_STAGES = ("before", "after", "across_groups", "across_sources")


def report(found: Study, refused: Mapping[str, str]) -> dict[str, Any]:
    """runs, constants, errors and values of the JSON form. Refused runs count in every error as 100 % off."""
    return {
        "runs": {"used": len(found.runs.cases), "refused": dict(refused), "groups": len(set(found.runs.groups)),
                 "sources": len(set(found.runs.sources)), "left_out_by": found.left_out_by},
        "constants": {"total": len(found.fit.constants),
                      **Counter(constant.entry.scope for constant in found.fit.constants)},
        "errors": _errors(found, len(refused)),
        "values": _values(found),
    }  # fmt: skip


def _errors(found: Study, refused: int) -> dict[str, dict[str, Any]]:
    """Set of runs -> stage -> statistics of the signed errors."""
    cases = found.runs.cases
    everything = np.ones(len(cases), dtype=bool)
    experts = np.array([case.model.is_moe for case in cases])
    sets: dict[str, NDArray[np.bool_]] = {"all": everything, "core": np.array([case.core for case in cases])}
    sets |= {"dense": ~experts, "experts": experts}
    for family in sorted({case.stack.name for case in cases}):
        sets[family] = np.array([case.stack.name == family for case in cases])
    measured = np.exp(found.runs.log_measured)
    out: dict[str, dict[str, Any]] = {}
    for name, chosen in sets.items():
        extra = [-REFUSED_ERROR] * refused if name == "all" else []
        if chosen.any() and (name in ("all", "core") or not chosen.all()):
            out[name] = {
                stage: error_statistics([*(getattr(found, stage)[chosen] / measured[chosen] - 1).tolist(), *extra])
                for stage in _STAGES
            }
    return out


def _values(found: Study) -> list[dict[str, Any]]:
    """One item per constant. error_without: mean absolute error of all runs with it held at its prior."""
    fitted, measured = found.fit, np.exp(found.runs.log_measured)
    values = values_at(fitted.constants, fitted.z.tolist())
    low, high = np.array([constant.bounds for constant in fitted.constants]).reshape(-1, 2).T
    return [
        {
            "name": constant.name, "scope": constant.entry.scope, "meaning": constant.entry.meaning,
            "prior": constant.prior, "value": value, "moved_prior_widths": float(z), "spread_over_prior": float(spread),
            "identified": bool(spread <= UNIDENTIFIED), "at_bound": bool(z <= lowest or z >= highest),
            "error_without": float(np.mean(np.abs(without / measured - 1))),
        }
        for constant, value, z, spread, without, lowest, highest in zip(
            fitted.constants, values, fitted.z, fitted.spread, found.frozen, low, high, strict=True
        )
    ]  # fmt: skip
