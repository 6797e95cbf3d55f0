"""Refits every efficiency from the tables in `profiles/catalogue/measured/`: `python -m meshwright.profiles.rates.fit`.

Least squares on log time with a soft loss, from fixed starts: the same tables give the same `fits.yaml`. Constants
that no table measures are in `assumptions.yaml`, by hand, each value with its source.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

import yaml

from .fit_kernels import PINNED, backward_over_forward, fit_attention, fit_chart, fit_gemm, training_gemms
from .fit_links import fit_fabric, fit_link
from .reference_devices import DEVICES, V100
from .tables import FITS_FILE, table


def fit_all(only: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Everything that `fits.yaml` holds, or just the named devices and kinds of link, and the errors of each fit."""
    fits: dict[str, Any] = {"gemm": {}, "attention": {}, "links": {}}
    errors: dict[str, dict[str, float]] = {}
    swept = {row["device"] for row in table("collectives_in_node")}
    kinds = sorted({*(device.link for name, device in DEVICES.items() if name in swept), V100.link})
    wanted = set(only) or {*DEVICES, *kinds}
    gemms, attentions = [*table("gemm_bf16"), *table("gemm_fp16")], table("attention_forward_bf16")
    for name in (n for n in DEVICES if n in wanted):
        rows = [row for row in gemms if row["device"] == name]
        fits["gemm"][name], errors[f"gemm {name}"] = fit_gemm(name, rows or training_gemms(name), PINNED.get(name))
        rows = [row for row in attentions if row["device"] == name]
        if rows:
            fits["attention"][name], errors[f"attention {name}"] = fit_attention(name, rows)
    for kind in (k for k in kinds if k in wanted):
        fits["links"][kind], by_op = fit_link(kind)
        errors.update({f"{op} {kind}": error for op, error in by_op.items()})
    if not only:
        _fit_shared(fits, errors)
    return _rounded(fits), errors


def _fit_shared(fits: dict[str, Any], errors: dict[str, dict[str, float]]) -> None:
    """Add the fits of a generation or a fabric rather than of one device."""
    ratios = {name: backward_over_forward(name) for name in ("a100-pcie-80gb", "b200-sxm-180gb")}
    fits["backward_over_forward"] = ratios
    # FlashAttention-2 on H100 runs the same code as on A100; FlashAttention-3's backward is not in the charts.
    fits["charts"] = {}
    for name, kernel in (("a100-sxm-80gb", "flash2"), ("h100-sxm-80gb", "flash2"), ("h100-sxm-80gb", "flash3")):
        tail = fits["attention"][name]["longest_block"]
        label = f"{kernel} {name}"
        fits["charts"][label], errors[f"chart {label}"] = fit_chart(name, kernel, tail, ratios["a100-pcie-80gb"])
    fits["fabric"], errors["ring over NICs"] = fit_fabric(base_s=10e-6, hop_s=10e-6)


def _rounded(value: Any) -> Any:
    """Six significant digits: beyond that the optimiser's last step shows, which differs between CPUs."""
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return float(f"{value:.5e}") if isinstance(value, float) else value


def main() -> int:
    """Fits, prints the table of errors and writes `profiles/catalogue/measured/fits.yaml`."""
    fits, errors = fit_all()
    for label, error in errors.items():
        print(f"{label:34s} {error['rows']:6.0f} rows   median {error['median']:6.1%}   p90 {error['p90']:6.1%}")
    fits["errors"] = {
        label: {"median": round(e["median"], 4), "p90": round(e["p90"], 4), "rows": int(e["rows"])}
        for label, e in errors.items()
    }
    text = io.StringIO()
    text.write("# Written by `python -m meshwright.profiles.rates.fit` from the tables beside it; do not edit.\n")
    yaml.safe_dump(fits, text, sort_keys=True, width=120, default_flow_style=None)
    FITS_FILE.write_text(text.getvalue(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
