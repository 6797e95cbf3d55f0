"""The shipped tables of measurements, and what `meshwright.profiles.rates.fit` made of them."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...cost_models.arrays import Array
from ..io.folders import MEASURED
from .calibration import load_yaml

TABLES_SOURCE = "aiconfigurator tables (Apache-2.0)"
FITS_FILE = MEASURED / "fits.yaml"


def table(name: str) -> list[dict[str, str]]:
    """The rows of `profiles/catalogue/measured/<name>.csv.gz`."""
    with gzip.open(MEASURED / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def columns(rows: Sequence[dict[str, str]], *names: str) -> list[Array]:
    """The numbers of some columns of a table, each [rows]."""
    return [np.array([float(row[name]) for row in rows]) for name in names]


@cache
def fits() -> Mapping[str, Any]:
    """`fits.yaml`: the numbers of each device (`gemm`, `attention`), kernel (`charts`) and kind of link (`links`), and
    the `errors` of each fit by its label."""
    loaded: Mapping[str, Any] = load_yaml(FITS_FILE)
    return loaded
