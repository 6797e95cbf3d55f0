"""Gradients that a stack sums up on the host, restated by hand."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.rates.rates import Rates
from meshwright.cost_models.specs.workload import Precision, Workload
from meshwright.cost_models.step.optimizer_seconds import optimizer_places_s
from meshwright.cost_models.step.stage_seconds import offloaded_s
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

LLAMA = load_model("llama-3.1-8b")[0]
PARAMETERS, RANKS = total_parameters(LLAMA), 16
CLUSTER = load_cluster("dgx-h100:2")


def priced(layout: str, stack_name: str, precision: Precision = "bf16", **workload: Any) -> tuple[Ledger, Rates]:
    stack = load_stack(stack_name)
    problem = Problem(LLAMA, Workload(seq_len=4096, global_batch=64, precision=precision, **workload), stack, RANKS, 8)
    rates = rates_for(CLUSTER, stack, precision)
    return price_layouts(problem, rates, Layouts.of([parse(layout)]))[0], rates


@pytest.mark.parametrize(("layout", "on_host"), [
    ("dp16-mbs1-z3-rfull-oopt", True), ("dp16-mbs4-z3-rfull-oopt+act", True), ("dp16-mbs1-z3-rfull", False),
    ("dp16-mbs1-z2-rfull-oopt", False),
])  # fmt: skip
def test_deepspeed_sums_offloaded_gradients_on_the_host(layout: str, on_host: bool) -> None:
    """A rank's 16th of the bf16 gradients goes over PCIe twice per micro-batch, of which a GPU keeps none; the update
    takes 4 bytes there and 2 back."""
    ledger, rates = priced(layout, "deepspeed")
    plain, _ = priced(layout, "torch-fsdp")
    mine = PARAMETERS / RANKS
    activations = [float(offloaded_s(of, rates, all_kinds=False)[1, 0, 0]) for of in (ledger, plain)]
    moved = float(offloaded_s(ledger, rates)[1, 0, 0]) - activations[0]
    assert moved == pytest.approx(2 * 2 * mine / rates.pcie_bw_bytes_per_s * on_host, rel=1e-9)
    assert float(offloaded_s(plain, rates)[1, 0, 0]) == pytest.approx(activations[1], rel=1e-12)
    assert DeviceMemory(ledger).states(0)["gradients"][0] == pytest.approx(0 if on_host else 2 * mine, rel=1e-9)
    hosts = optimizer_places_s(ledger, rates)[1][0] - optimizer_places_s(plain, rates)[1][0]
    more = (4 - 4 if on_host else 2 - 4) * mine / rates.pcie_bw_bytes_per_s
    assert hosts == pytest.approx(more, rel=1e-6, abs=1e-9)
