"""Sharded states of models that train in part, restated call by call: who gathers for a backward pass, who scatters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.params import head_parameters, table_parameters, total_parameters
from meshwright.cost_models.rates import collectives
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.workload import Lora, Workload
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

LLAMA, CLUSTER = load_model("llama-3.1-8b")[0], load_cluster("dgx-h100:2")
Kind = Literal["zero", "fsdp2"]
RANKS, LAYERS, MICRO_BATCHES = 16, 32, 4
TABLE, HEAD = table_parameters(LLAMA), head_parameters(LLAMA) + LLAMA.hidden  # the final norm is in front of the head
LAYER = (total_parameters(LLAMA) - TABLE - HEAD) // LAYERS
ADAPTERS = 8 * LAYERS * (4096 + 4096 + 4096 + 1024)  # of rank 8, on queries and values


def exposed_s(zero: int, kind: Kind, model: ModelSpec = LLAMA, **workload: Any) -> tuple[float, Any]:
    """Seconds of gathers and scatters of a step without overlap, and the rates."""
    stack = replace(load_stack("generic"), sharded_states=kind, fsdp_overlap=0.0, contention=0.0, gather_copy_bytes=0.0,
                    scatter_copy_bytes=0.0, gradient_bytes=4)  # fmt: skip
    problem = Problem(model, Workload(seq_len=4096, global_batch=RANKS * MICRO_BATCHES, **workload), stack, RANKS, 8)
    rates = rates_for(CLUSTER, stack, "bf16")
    layouts = Layouts.of([Layout(dp=RANKS, shard=RANKS, zero=zero)])
    return float(price_layouts(problem, rates, layouts)[1].terms["fsdp"][0]), rates


def call_s(rates: Any, op: Any, num_bytes: float, calls: int) -> float:
    """Seconds of that many bytes in equal calls."""
    curve = collectives.curve(rates.collectives, rates.levels, op, RANKS, 1)
    return calls * float(collectives.seconds(curve, np.array(num_bytes / calls))[0])


@pytest.mark.parametrize(("kind", "prefetched"), [("zero", 0), ("fsdp2", 1)])
@pytest.mark.parametrize("trained", [1, 5, 31])
def test_layers_before_the_first_that_trains_have_no_backward_gather(kind: Kind, prefetched: int, trained: int) -> None:
    """The head lets gradients through, so that its weights come again. FSDP2 brings one layer more than it needs."""
    exposed, rates = exposed_s(3, kind, trains_layers=trained)
    again = trained + prefetched
    forward = call_s(rates, "all_gather", 2 * (TABLE + HEAD + LAYERS * LAYER), LAYERS)
    backward = call_s(rates, "all_gather", 2 * (HEAD + again * LAYER), again)
    scatter = call_s(rates, "reduce_scatter", 4 * trained * LAYER, trained)
    assert exposed == pytest.approx(MICRO_BATCHES * (forward + backward + scatter), rel=1e-9)


@pytest.mark.parametrize(("kind", "table"), [("zero", 0), ("fsdp2", TABLE)])
def test_frozen_weights_behind_adapters_are_gathered_twice(kind: Kind, table: int) -> None:
    """All layers are needed for the gradients of their inputs. FSDP2 prefetches the embedding, which has none."""
    exposed, rates = exposed_s(3, kind, trains_layers=0, lora=Lora(rank=8, targets=("q", "v")))
    forward = call_s(rates, "all_gather", 2 * (TABLE + HEAD + LAYERS * LAYER), LAYERS)
    backward = call_s(rates, "all_gather", 2 * (table + HEAD + LAYERS * LAYER), LAYERS)
    scatter = call_s(rates, "reduce_scatter", 4 * ADAPTERS, LAYERS)
    assert exposed == pytest.approx(MICRO_BATCHES * (forward + backward + scatter), rel=1e-9)


def test_only_layers_that_train_scatter_in_stage_2() -> None:
    exposed, rates = exposed_s(2, "zero", trains_layers=3)
    scatter = call_s(rates, "reduce_scatter", 4 * 3 * LAYER, 3)
    assert exposed == pytest.approx(MICRO_BATCHES * scatter, rel=1e-9)


def test_experts_take_a_call_for_each_layer_that_has_some() -> None:
    """The first three of 61 layers of DeepSeek-V3 are dense."""
    model = replace(load_model("deepseek-v3")[0], mtp_layers=0)
    exposed, rates = exposed_s(3, "zero", model)
    experts = 58 * 256 * 3 * 7168 * 2048
    dense = total_parameters(model) - experts
    gather, scatter = (call_s(rates, op, size * dense, 61) + call_s(rates, op, size * experts, 58)
                       for op, size in (("all_gather", 2), ("reduce_scatter", 4)))  # fmt: skip
    assert exposed == pytest.approx(MICRO_BATCHES * (2 * gather + scatter), rel=1e-9)
