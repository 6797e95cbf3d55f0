"""Products of experts that fill a GPU together, against a hand-restated formula and an H200."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.quantities.operations import Gemm
from meshwright.cost_models.rates.products import products
from meshwright.cost_models.rates.rates import Rates
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve

from ...snapshots import ROOT

MEASURED = ROOT / "benchmarks" / "kernels_h200" / "other_kernels.jsonl"


@pytest.fixture(scope="module")
def h200() -> Rates:
    """The rates of a benchmark: without the training factor."""
    rates = resolve(load_request(None, {"model": "llama-3.1-8b", "cluster": "dgx-h200:1"})).rates
    surface = replace(rates.gemm, training_factor=1.0)
    return replace(rates, gemm=surface, wide_gemm=surface)


def experts(number: float, tokens: float, n: float, k: float, at_once: bool) -> Gemm:
    m, columns, depth, count = (np.array([value]) for value in (tokens, n, k, number))
    return Gemm("experts", m, columns, depth, count, at_once=at_once, ragged=at_once)


def seconds(gemm: Gemm, rates: Rates) -> tuple[float, float, float]:
    output, dgrad, wgrad = (float(values[0]) for values in next(iter(products([gemm], rates))))
    return output, dgrad, wgrad


def test_ragged_rows_by_hand(h200: Rates) -> None:
    surface, (number, m, n, k) = h200.gemm, (64.0, 200.0, 1536.0, 2048.0)
    best = math.inf
    for rows, columns in surface.tiles:
        tiles = number * (m / rows + 0.5) * math.ceil(n / columns)
        whole = math.ceil(tiles / surface.num_sms) * surface.num_sms
        waves = surface.wave_quantisation * whole + (1 - surface.wave_quantisation) * tiles
        rate = surface.peak_flops_per_s * surface.efficiency
        rate *= surface.small_tile_factor ** math.log2(256 * 128 / (rows * columns))
        best = min(best, waves * 2 * rows * columns * (k + surface.ramp_k) / rate)
    memory = number * 2 * (m * k + k * n + m * n) / (surface.memory_bw_bytes_per_s * surface.memory_efficiency)
    by_hand = surface.fixed_s + (best**4 + memory**4) ** 0.25
    assert seconds(experts(number, m, n, k, True), h200)[0] == pytest.approx(by_hand, rel=1e-9)


def test_one_expert_after_the_other_is_a_sum(h200: Rates) -> None:
    one, many = (seconds(experts(number, 512, 1536, 2048, False), h200) for number in (1, 60))
    assert many == pytest.approx([60 * part for part in one])
    assert all(np.array(seconds(experts(60, 512, 1536, 2048, True), h200)) < many)


def test_grouped_products_of_an_h200(h200: Rates) -> None:
    """60 products of `benchmarks/gpu_kernels.py`, of 8 to 128 experts: one by one they are off by 31 and 25 %."""
    errors: dict[str, list[float]] = {"forward": [], "weight gradient": []}
    for row in map(json.loads, MEASURED.read_text(encoding="utf-8").splitlines()):
        kind, _, which = row["name"].partition(", ")
        if kind == "grouped product":
            shape = row["shape"]
            priced = seconds(experts(shape["experts"], shape["tokens"], shape["n"], shape["k"], True), h200)
            errors[which].append(priced[0 if which == "forward" else 2] / row["quartiles_s"][1] - 1)
    assert {which: len(found) for which, found in errors.items()} == {"forward": 30, "weight gradient": 30}
    assert np.mean(np.abs(errors["forward"])) < 0.12
    assert np.mean(np.abs(errors["weight gradient"])) < 0.16
