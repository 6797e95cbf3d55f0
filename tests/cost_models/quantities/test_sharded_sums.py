"""Gradients of sharded weights under accelerate: reduced in bf16, whole between micro-batches or scattered after each.

The bytes were seen in torch 2.13 on two gloo ranks: after a backward pass with set_requires_gradient_sync(False) a rank
has the whole bf16 gradient, after one with it a fp32 shard.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.specs.workload import Workload
from meshwright.cost_models.techniques.registry import applied
from meshwright.planner import api
from meshwright.planner.document.candidate import Candidate
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

PARAMETERS = 8_030_261_248  # Llama 3.1 8B


def priced(micro_batch: int, **asked: Any) -> Candidate:
    """64 sequences on 16 ranks."""
    request = {"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "seq_len": 2048, "global_batch": 64, **asked}
    return api.evaluate(None, f"dp16-mbs{micro_batch}-z3-rfull", **request).best


def shown(candidate: Candidate, name: str) -> float:
    return sum(term.seconds for term in candidate.terms if term.name == name)


def test_gradients_between_micro_batches() -> None:
    """2 bytes of every parameter where four micro-batches are not synchronised, 4 of a shard else."""
    whole, single = (priced(size, target="any", stack="accelerate") for size in (1, 4))
    synchronised = priced(1, target="accelerate")

    assert whole.memory[0].gradients_bytes == pytest.approx(2 * PARAMETERS)
    assert single.memory[0].gradients_bytes == pytest.approx(4 * PARAMETERS / 16)
    assert synchronised.memory[0].gradients_bytes == pytest.approx(4 * PARAMETERS / 16)
    assert shown(whole, "gather and scatter, exposed") < shown(synchronised, "gather and scatter, exposed")


def test_half_as_much_is_scattered_as_in_fp32() -> None:
    bf16, fp32 = (priced(4, target="any", stack=stack) for stack in ("accelerate", "torch-fsdp"))
    assert shown(bf16, "gather and scatter, exposed") < shown(fp32, "gather and scatter, exposed")


def sent(technique: Any, layout: str, sum_bytes: int, **changed: Any) -> tuple[Any, Any]:
    """Terms of a step of Llama 3.1 8B in fp32 gradients that are reduced in so many bytes, and the rates."""
    from_file = load_stack("torch-fsdp")
    stack = replace(from_file, sharded_sum_bytes=sum_bytes, fsdp_overlap=0.0, dp_overlap=0.0, contention=0.0, **changed)
    work = Workload(seq_len=2048, global_batch=16, techniques=applied(technique))
    cluster = load_cluster("dgx-h100:2")
    rates = rates_for(cluster, stack, "bf16")
    problem = Problem(load_model("llama-3.1-8b")[0], work, stack, 16, 8)
    return price_layouts(problem, rates, Layouts.of([parse(layout)]))[1].terms, rates


@pytest.mark.parametrize(
    "technique", [{"1-bit-adam": {"warmup": 0.0}}, {"diloco": {"delay": 0}}, {"co2": {"late": 0, "period": 8}}]
)
def test_copies_exchange_the_bits_of_their_technique(technique: Any) -> None:
    """A sign or a difference is as long whatever the dtype in which gradients are summed within shard groups."""
    narrow, wide = (sent(technique, "dp16-sh8-mbs1-z3-rfull", size)[0]["dp"] for size in (2, 4))
    assert narrow[0] == wide[0] > 0
    plain = [sent({}, "dp16-sh8-mbs1-z3-rfull", size)[0]["dp"] for size in (2, 4)]
    assert plain[0][0] < plain[1][0]


def test_gradients_of_four_bits_come_from_what_is_reduced() -> None:
    """The wire has four bits either way; gradients are read in 2 bytes or in 4, encoded, and copied before the send."""
    ways = [sent({"zero++": {"secondary": 1, "weight_bits": 16}}, "dp16-mbs1-z3-rfull", size) for size in (2, 4)]
    read = 2 * PARAMETERS / ways[0][1].memory_bw_bytes_per_s
    assert ways[1][0]["fsdp"][0] - ways[0][0]["fsdp"][0] == pytest.approx(read, rel=1e-6)
