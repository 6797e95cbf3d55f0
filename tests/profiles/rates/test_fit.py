"""The shipped constants are what the fit makes of the shipped tables."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import yaml
from meshwright.cost_models.rates.surfaces import gemm_seconds
from meshwright.profiles.io.folders import MEASURED
from meshwright.profiles.io.registry import gpu_entry
from meshwright.profiles.rates import fit, fit_kernels, tables
from meshwright.profiles.rates.reference_devices import DEVICES, base_peak


def flat(value: Any, path: str = "") -> dict[str, float]:
    if isinstance(value, dict):
        return {k: v for key, entry in value.items() for k, v in flat(entry, f"{path}/{key}").items()}
    return {path: float(value)}


@pytest.fixture(scope="module")
def shipped() -> Any:
    return yaml.safe_load((MEASURED / "fits.yaml").read_text(encoding="utf-8"))


def told_by_rows(fits: Any) -> dict[str, float]:
    """Constants that the rows tell. Where a switch reduces for larger groups, a ring's all-reduce is measured for pairs
    alone: they tell (1 + pair_excess) / efficiency and neither of the two."""
    found = flat(fits)
    for kind, link in fits["links"].items():
        if link["switch_efficiency"]:
            place = f"/links/{kind}/ops/all_reduce"
            found[f"{place}/of a pair"] = (1 + found.pop(f"{place}/pair_excess")) / found.pop(f"{place}/efficiency")
    return found


def test_refit_equals_what_is_shipped(shipped: Any) -> None:
    """Exact on one machine; 1e-4 leaves room for another CPU's last digits at the end of the search."""
    fits, errors = fit.fit_all()
    want, got = told_by_rows({k: v for k, v in shipped.items() if k != "errors"}), told_by_rows(fits)
    assert set(got) == set(want)
    for key, value in want.items():
        assert got[key] == pytest.approx(value, rel=1e-4, abs=1e-12), key
    assert set(errors) == set(shipped["errors"])


def test_fit_recovers_known_constants() -> None:
    """Numbers made by the formula itself come back: the fit has no bias of its own."""
    truth = np.array([0.75, 120.0, 4e-6, 0.9, 0.4, 0.8])
    grid = [(m, n, k) for m in (128, 1024, 4096) for n in (128, 768, 2048, 8192) for k in (128, 512, 4096)]
    times = gemm_seconds(fit_kernels._gemm("a100-sxm-80gb", truth), *np.array(grid).T)
    rows = [
        {"m": str(m), "n": str(n), "k": str(k), "median_us": repr(float(t) * 1e6)}
        for (m, n, k), t in zip(grid, times, strict=True)
    ]
    found, error = fit_kernels.fit_gemm("a100-sxm-80gb", rows)
    assert list(found.values()) == pytest.approx(truth.tolist(), rel=1e-3)
    assert error["median"] < 1e-4


def test_errors_are_recorded() -> None:
    errors = tables.fits()["errors"]
    gemms = {label: e["median"] for label, e in errors.items() if label.startswith("gemm ")}
    assert len(gemms) == len(DEVICES)
    assert max(gemms.values()) < 0.09
    assert sorted(gemms.values())[len(gemms) // 2] < 0.055


def test_rates_do_not_load_scipy() -> None:
    """Planning reads two small files; scipy is for the fit alone."""
    load = "from meshwright.profiles.rates import device_rates, link_rates; link_rates.collective_rates()"
    code = f"import sys; {load}; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_shipped_tables_are_small() -> None:
    assert sum(path.stat().st_size for path in MEASURED.iterdir()) < 1_000_000


def test_reference_devices_restate_the_registry() -> None:
    for name, device in DEVICES.items():
        spec = gpu_entry(name).spec
        assert device.peak_flops_per_s == base_peak(spec)
        assert device.memory_bw_bytes_per_s == pytest.approx(spec.memory_bw_bytes_per_s, rel=1e-3)
