"""Values fitted to whole training runs, laid over the priors of stacks/*.yaml and measured/assumptions.yaml.

The priors stay where they are; a calibration only names the numbers that a fit moved, in the shape of the files that
hold them. `meshwright calibrate` makes one; the one that ships is measured/calibrated.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ...cost_models.specs.cluster import GpuSpec
from ..io.folders import MEASURED
from .reference_devices import generation

SHIPPED_FILE = MEASURED / "calibrated.yaml"
OTHER_FILE = MEASURED / "calibrated_other.yaml"  # of hardware that is not NVIDIA's
ConstantPath = tuple[str, ...]  # ("stacks", family or version, field) or ("assumptions", block, ..., key)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Fitted values. Compared by identity, so that results computed from one can be cached with it."""

    stacks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # family or version -> field -> value
    assumptions: Mapping[str, Any] = field(default_factory=dict)  # nested as assumptions.yaml is
    source: str = ""  # of the values, for reports

    @classmethod
    def of(cls, values: Mapping[ConstantPath, float], source: str) -> Calibration:
        """The calibration that has these values at their places."""
        nested: dict[str, Any] = {"stacks": {}, "assumptions": {}}
        for place, value in values.items():
            holder = nested
            for part in place[:-1]:
                holder = holder.setdefault(part, {})
            holder[place[-1]] = value
        return cls(nested["stacks"], nested["assumptions"], source)


    def part(self, *blocks: str) -> str:
        """The fitted values of some blocks of assumptions, as canonical text: a key for what depends on them alone."""
        return json.dumps({name: self.assumptions[name] for name in blocks if name in self.assumptions}, sort_keys=True)


PRIORS = Calibration()


@cache
def shipped() -> Calibration:
    """The calibration that comes with meshwright; the bare priors where there is no file."""
    base = of_runs()
    if not OTHER_FILE.is_file():
        return base
    return replace(base, assumptions=overlaid(base.assumptions, load_yaml(OTHER_FILE)["assumptions"]))


def of_runs() -> Calibration:
    """The same without what runs on other hardware fitted."""
    if not SHIPPED_FILE.is_file():
        return PRIORS
    data = load_yaml(SHIPPED_FILE)
    return Calibration(data.get("stacks", {}), data.get("assumptions", {}), f"fitted: {data['source']}")


def fitted_formats(gpu: GpuSpec, fitted: Calibration | None = None) -> tuple[str, ...]:
    """Number formats whose products have a scalar fitted to runs on the generation of a device that no table measures.
    """
    known, of = (fitted or shipped()).assumptions, generation(gpu.arch)
    blocks = {"fp8": "fp8_factor", "fp4": "fp4_factor"}
    return tuple(dtype for dtype in gpu.peak_flops_per_s if of in known.get(blocks.get(dtype, "training_factor"), {}))


def load_yaml(path: Path) -> Any:
    """One of our own files: a plain reader serves."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def prior_assumptions() -> Mapping[str, Any]:
    """assumptions.yaml as it is written."""
    loaded: Mapping[str, Any] = load_yaml(MEASURED / "assumptions.yaml")
    return loaded


def assumptions(fitted: str) -> Mapping[str, Any]:
    """assumptions.yaml with fitted values (`Calibration.part`) in their places."""
    return overlaid(prior_assumptions(), json.loads(fitted))


def entry_of(block: Mapping[str, Any], *names: str) -> Any:
    """The first of `names` that a block of assumptions holds, else its default."""
    return next((block[name] for name in names if name in block), block["default"])


def value_of(block: Mapping[str, Any], key: str, *names: str) -> float:
    """The value of `key` under the first of `names` that has it, else of the block's default: a calibration may know
    one number of a device whose others are borrowed."""
    return float(next(block[name][key] for name in (*names, "default") if key in block.get(name, ())))


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> Mapping[str, Any]:
    """`below` with every leaf of `above` in its place; nothing is changed in place."""
    if not above:
        return below
    merged = dict(below)
    for key, value in above.items():
        merged[key] = overlaid(merged.get(key, {}), value) if isinstance(value, Mapping) else value
    return merged
