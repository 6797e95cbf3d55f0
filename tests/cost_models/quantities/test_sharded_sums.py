"""Gradients of sharded weights under accelerate: reduced in bf16, whole between micro-batches or scattered after each.

The bytes were seen in torch 2.13 on two gloo ranks: after a backward pass with set_requires_gradient_sync(False) a rank
has the whole bf16 gradient, after one with it a fp32 shard.
"""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner import api
from meshwright.planner.document.candidate import Candidate

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
