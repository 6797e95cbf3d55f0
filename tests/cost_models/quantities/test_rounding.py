"""Quantisation-aware training: kernels and elements as torch runs the statements of DeepSpeed's quantizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.operations import MemoryTraffic
from meshwright.cost_models.specs.workload import Rounding, Workload
from meshwright.cost_models.step.rounding_seconds import rounded_weights_s
from meshwright.planner import api
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.errors import InputError, UnsupportedError

H, F, SEQ = 768, 3072, 1024  # gpt2
N, GROUPS = 4096, 4
Statement = Callable[[torch.Tensor], torch.Tensor]


class Moved(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Elements of whole tensors that kernels read and write."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__.split(".")[0] not in ("view", "_unsafe_view", "reshape", "detach"):
            tensors = [it for it in (*args, out) if isinstance(it, torch.Tensor)]
            self.elements += sum(it.numel() for it in tensors if it.numel() == N)
        return out


def symmetric(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(GROUPS, -1)
    scale = 2 * torch.amax(torch.abs(rows), dim=-1).view(GROUPS, -1) / 256
    return (rows / scale).round().clamp(-128, 127) * scale


def asymmetric(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(GROUPS, -1)
    low, high = rows.amin(dim=-1, keepdim=True), rows.amax(dim=-1, keepdim=True)
    scale = (high - low) / 256
    zero = (low / scale).round() * scale
    return ((rows - zero) / scale).round().clamp(0, 255) * scale + zero


def static_symmetric(x: torch.Tensor) -> torch.Tensor:
    scale = 2 * torch.max(x.min().abs(), x.max()).view(-1) / 256
    return (x / scale).round().clamp(-128, 127) * scale


def static_asymmetric(x: torch.Tensor) -> torch.Tensor:
    low, high = x.min(), x.max()
    scale = (high - low) / 256
    zero = (low / scale).round() * scale
    return ((x - zero) / scale).round().clamp(0, 255) * scale + zero


def moved_by(statement: Statement) -> float:
    """Times that an element is read or written."""
    given = torch.randn(N)
    with Moved() as moved:  # type: ignore[no-untyped-call]
        statement(given)
    return float(moved.elements / N)


def ledger(rounding: Rounding | None, layout: str = "dp8-mbs2-z0-rnone") -> Ledger:
    stack = load_stack("deepspeed")
    work = Workload(seq_len=SEQ, global_batch=64, rounding=rounding)
    problem = Problem(load_model("gpt2")[0], work, stack, 8, 8)
    rates = rates_for(load_cluster("dgx-h100:1"), stack, "bf16")
    return price_layouts(problem, rates, Layouts.of([parse(layout)]))[0]


def traffic(of: Ledger, name: str) -> list[MemoryTraffic]:
    return [moved for moved in of.tables.operations[0].traffic if moved.name == name]


@pytest.mark.parametrize(("inputs", "is_symmetric", "statement"), [
    ("dynamic", True, symmetric), ("dynamic", False, asymmetric), ("static", True, static_symmetric),
    ("static", False, static_asymmetric),
])  # fmt: skip
def test_elements_are_those_that_torch_moves(inputs: Any, is_symmetric: bool, statement: Statement) -> None:
    """The inputs of the four products of a layer: of both norms, of attention and of the activation."""
    of = ledger(Rounding(inputs=inputs, symmetric_inputs=is_symmetric))
    found = sum(float(it.forward_bytes[0]) for it in traffic(of, "rounded inputs"))
    elements = 2 * SEQ * (H + H + H + F)
    assert found == moved_by(statement) * 2 * elements
    assert sum(float(it.backward_bytes[0]) for it in traffic(of, "rounded inputs")) == 2 * 2 * elements


def test_weights_in_every_forward_pass_are_kept_for_the_backward_pass() -> None:
    weights = 12 * H * H
    with_it, without = ledger(Rounding(weights="forward")), ledger(None)
    found = sum(float(it.forward_bytes[0]) for it in traffic(with_it, "rounded weights"))
    assert found == moved_by(symmetric) * 2 * weights
    kept = [float(DeviceMemory(of).buffers(0)["activations"][0]) for of in (with_it, without)]
    assert kept[0] - kept[1] == 12 * 2 * weights
    full = [ledger(rounding, "dp8-mbs2-z0-rfull") for rounding in (Rounding(weights="forward"), None)]
    assert len({float(DeviceMemory(of).buffers(0)["activations"][0]) for of in full}) == 1


def test_weights_once_a_step() -> None:
    """quantize_highbit of runtime/quantize: two ranges, a quotient, a sum, rounding, clamping, a product."""
    of, rates = ledger(Rounding(weights="step")), rates_for(load_cluster("dgx-h100:1"), load_stack("deepspeed"), "bf16")
    layers = 12 * (12 * H * H + 13 * H)
    assert rounded_weights_s(of, rates)[0] == pytest.approx(12 * 2 * layers / rates.bandwidth("rounded weights")[0])
    assert not traffic(of, "rounded weights")
    assert rounded_weights_s(ledger(Rounding(weights="forward")), rates)[0] == 0


ASKED: dict[str, Any] = {"model": "gpt2", "cluster": "dgx-h100:1", "seq_len": SEQ, "global_batch": 64, "target": "any"}


def test_a_plan_has_its_price_and_no_target_writes_it() -> None:
    plain = api.plan(None, **ASKED).best.step_s
    rounded = api.plan(None, **ASKED, rounding={"weights": "forward", "inputs": "dynamic"}).best.step_s
    assert rounded > 1.05 * plain
    with pytest.raises(UnsupportedError, match="round weights or inputs"):
        api.plan(None, **{**ASKED, "target": "deepspeed", "rounding": {"weights": "step"}})
    for wrong in ({"weights": "sometimes"}, {"bits": 8}):
        with pytest.raises(InputError, match="rounding"):
            api.plan(None, **ASKED, rounding=wrong)
