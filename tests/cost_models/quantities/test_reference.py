"""A frozen reference beside the model that learns: a forward pass more, and its weights; restated for Llama-3.2-1B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.flops import model_flops
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.rates.kernel_seconds import kernel_seconds
from meshwright.cost_models.specs.workload import Lora, Workload
from meshwright.cost_models.step.sharded_states import when
from meshwright.cost_models.step.stage_seconds import stage_seconds
from meshwright.cost_models.step.store_seconds import pass_s
from meshwright.cost_models.techniques.registry import applied
from meshwright.planner import api
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

from meshwright.errors import InputError, UnsupportedError

H, V, SEQ = 2048, 128256, 4096
PARAMETERS = 1_235_814_400  # of the model card; embedding and head are one
ADAPTERS = Lora(rank=8, targets=("q", "v"))
CLUSTER = load_cluster("dgx-h100:1")


def ledger(layout_id: str, stack: str = "generic", **fields: Any) -> Ledger:
    spec, layout = load_stack(stack), parse(layout_id)
    work = Workload(seq_len=SEQ, global_batch=64, **fields)
    if work.lora:
        work = replace(work, trains_layers=0)
    problem = Problem(load_model("llama-3.2-1b")[0], work, spec, 8, 8)
    return price_layouts(problem, rates_for(CLUSTER, spec, "bf16"), Layouts.of([layout]))[0]


def more(name: str, layout_id: str, stack: str = "generic", **fields: Any) -> float:
    """Bytes of a buffer that the reference adds."""
    with_it, without = (DeviceMemory(ledger(layout_id, stack, reference=on, **fields)).buffers(0)[name][0]
                        for on in (True, False))  # fmt: skip
    return float(with_it - without)


def test_a_step_has_a_third_more_operations() -> None:
    with_it, without = (ledger("dp8-mbs1-z0-rnone", reference=on).problem for on in (True, False))
    assert np.array_equal(with_it.flops, without.flops * [[2], [1]])
    assert model_flops(with_it) == pytest.approx(4 / 3 * model_flops(without), rel=0.01)
    tokens = 64 * SEQ
    assert model_flops(with_it) > 8 * tokens * PARAMETERS


@pytest.mark.parametrize(("zero", "ranks"), [(0, 1), (1, 1), (2, 1), (3, 8)])
def test_its_weights_lie_as_those_that_train(zero: int, ranks: int) -> None:
    layout = f"dp8-mbs1-z{zero}-rnone"
    assert more("weights", layout) == pytest.approx(2 * PARAMETERS / ranks, rel=1e-6)
    assert more("gradients", layout) == more("optimizer", layout) == 0
    assert more("weights", layout, lora=ADAPTERS) == 0


def test_its_logits_lie_beside_the_loss() -> None:
    assert more("logits", "dp8-mbs1-z0-rfull") == 2 * SEQ * V
    assert more("logits", "dp8-mbs1-z0-rfull", lora=ADAPTERS) == 2 * SEQ * V
    assert more("activations", "dp8-mbs1-z0-rfull") == 0


def test_its_pass_is_never_recomputed() -> None:
    rates = rates_for(CLUSTER, load_stack("generic"), "bf16")
    full = [ledger("dp8-mbs1-z0-rfull", reference=on) for on in (True, False)]
    kernels = [kernel_seconds(one.tables, rates) for one in full]
    assert np.array_equal(kernels[0].forward_s, 2 * kernels[1].forward_s)
    assert np.array_equal(kernels[0].backward_s, kernels[1].backward_s)
    assert np.allclose(kernels[0].recompute_s(2, 0), kernels[1].recompute_s(2, 0), rtol=1e-12, atol=0)
    steps = [stage_seconds(one, rates) for one in full]
    assert float(steps[0].backward[0, 0]) == pytest.approx(float(steps[1].backward[0, 0]), rel=1e-12)


@pytest.mark.parametrize(
    ("layout", "stack", "fields", "gathers"),
    [("dp8-mbs1-z3-rnone", "generic", {}, 2), ("dp8-mbs1-z3-rnone", "generic", {"lora": ADAPTERS}, 2),
     ("dp8-mbs1-z2-rnone", "generic", {}, 0), ("dp8-mbs1-z2-rnone", "torch-fsdp", {}, 2),
     ("dp8-mbs1-z2-rnone", "torch-fsdp", {"lora": ADAPTERS}, 1)],
)  # fmt: skip
def test_sharded_weights_are_gathered_for_it(layout: str, stack: str, fields: dict[str, Any], gathers: int) -> None:
    """Beside adapters FSDP2 has the weights of the base still whole in stage 2."""
    of = ledger(layout, stack, reference=True, **fields)
    forward, again, _ = when(of, np.array([0]), of.layouts["zero"] == 3)
    assert (forward[0], again[0]) == (gathers, layout.endswith("z3-rnone"))


def test_weights_on_drives_are_fetched_for_both_passes() -> None:
    """2 P / 8 bytes at 5 GB/s a GPU, once more for the forward pass of every micro-batch."""
    techniques = applied({"zero-infinity": {"optimizer": 0, "gb_per_s": 5.0}})
    rates = rates_for(CLUSTER, load_stack("generic"), "bf16")
    pair = [ledger("dp8-mbs1-z3-rnone", reference=on, techniques=techniques) for on in (True, False)]
    forward = [float(pass_s(one, rates)[0, 0, 0]) for one in pair]
    assert forward[1] == pytest.approx(2 * PARAMETERS / 8 / 5e9, rel=1e-6)
    assert forward[0] == 2 * forward[1]
    assert [float(DeviceMemory(one).buffers(0)["weights"][0]) for one in pair] == [0, 0]


def test_no_pipeline_has_it() -> None:
    request: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "dgx-h100:1", "target": "any", "seq_len": SEQ,
                               "global_batch": 64, "reference": True}  # fmt: skip
    plan = api.plan(None, **request)
    assert {it.layout["pp"] for it in plan.candidates} == {1}
    with pytest.raises(InputError, match="pp 2"):
        api.evaluate(None, "pp2-dp4-mbs1-z1-rnone", **request)
    with pytest.raises(UnsupportedError, match="frozen copy of the model"):
        api.plan(None, **{**request, "target": "megatron"})
