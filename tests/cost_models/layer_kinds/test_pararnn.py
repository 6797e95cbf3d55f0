"""ParaRNN: arithmetic counted on cells written out by hand, Newton's method on them, and the claims of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from meshwright.cost_models.layer_kinds.pararnn import KIND, ParaRnn, backward_flops, forward_flops
from meshwright.cost_models.layouts import CP_ALGORITHMS, Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.layer_operations import decoder_layer
from meshwright.cost_models.quantities.operation_builder import Builder
from meshwright.cost_models.quantities.params import layer_parameters
from meshwright.cost_models.quantities.shards import Shard
from meshwright.cost_models.rates.layer_seconds import layer_seconds as price
from meshwright.cost_models.specs.model import Attention, FeedForward, Layer
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner.space.rules import violations
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

from meshwright.errors import InputError

from .test_mixers import operations
from .test_shared_states import layer_seconds, model_of, total

Cell = Literal["gru", "lstm"]
D, HEADS, H = 4096, 32, 4096
RNN = ParaRnn(channels=D, heads=HEADS)
CLUSTER = "dgx-h100:1"


@dataclass(frozen=True)
class Number:
    """A number that counts what is computed with it."""

    value: float
    operations: ClassVar[list[str]] = []

    def _of(self, name: str, value: float) -> Number:
        Number.operations.append(name)
        return Number(value)

    def __add__(self, other: Number) -> Number:
        return self._of("+", self.value + other.value)

    def __mul__(self, other: Number) -> Number:
        return self._of("*", self.value * other.value)

    def __rsub__(self, other: float) -> Number:
        return self._of("-", other - self.value)

    def __sub__(self, other: Number) -> Number:
        return self._of("-", self.value - other.value)

    def sigmoid(self) -> Number:
        return self._of("sigmoid", 1 / (1 + math.exp(-self.value)))

    def tanh(self) -> Number:
        return self._of("tanh", math.tanh(self.value))


Rows = tuple[tuple[Number, ...], ...]
States = tuple[Number, ...]
# Diagonal weights: of GRU update, reset, candidate; of LSTM forget, candidate, output, and peepholes of forget, output.
W = [Number(value) for value in (0.4, -0.3, 0.5, 0.2, -0.4)]


def gru(states: States, x: States) -> tuple[States, Callable[[], Rows]]:
    """States of the next token, and their derivatives by those of this one."""
    (h,) = states
    z, r = (W[0] * h + x[0]).sigmoid(), (W[1] * h + x[1]).sigmoid()
    c = (W[2] * (r * h) + x[2]).tanh()
    kept = 1.0 - z
    out = (kept * h + z * c,)

    def jacobian() -> Rows:
        by_update = (c - h) * (z * (1.0 - z)) * W[0]
        by_candidate = z * (1.0 - c * c) * W[2] * (r + h * (r * (1.0 - r)) * W[1])
        return ((kept + by_update + by_candidate,),)

    return out, jacobian


def lstm(states: States, x: States) -> tuple[States, Callable[[], Rows]]:
    c, h = states
    f = (W[0] * h + W[3] * c + x[0]).sigmoid()
    z = (W[1] * h + x[1]).tanh()
    cell = f * c + (1.0 - f) * z
    o = (W[2] * h + W[4] * cell + x[2]).sigmoid()
    squashed = cell.tanh()
    out = (cell, o * squashed)

    def jacobian() -> Rows:
        by_forget = (c - z) * (f * (1.0 - f))
        c_by_c = by_forget * W[3] + f
        c_by_h = by_forget * W[0] + (1.0 - f) * (1.0 - z * z) * W[1]
        by_output = o * (1.0 - o) * squashed
        by_cell = by_output * W[4] + o * (1.0 - squashed * squashed)
        return ((c_by_c, c_by_h), (by_cell * c_by_c, by_output * W[2] + by_cell * c_by_h))

    return out, jacobian


CELLS: dict[Cell, Callable[[States, States], tuple[States, Callable[[], Rows]]]] = {"gru": gru, "lstm": lstm}


def counted(work: Callable[[], Any]) -> int:
    Number.operations.clear()
    work()
    return len(Number.operations)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_arithmetic_of_a_cell_and_its_jacobian_is_counted(name: Cell) -> None:
    cost = replace(RNN, cell=name).costs
    states, x = (Number(0.3),) * cost.states, (Number(0.1), Number(-0.2), Number(0.4))
    _, jacobian = CELLS[name](states, x)

    assert counted(lambda: CELLS[name](states, x)) == cost.step
    assert counted(jacobian) == cost.jacobian


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_the_jacobians_are_the_derivatives(name: Cell) -> None:
    count = replace(RNN, cell=name).costs.states
    at, x, step = np.linspace(0.3, -0.5, count), (Number(0.1), Number(-0.2), Number(0.4)), 1e-6
    _, jacobian = CELLS[name](tuple(map(Number, at)), x)

    def moved(column: int, by: float) -> np.ndarray:
        shifted = at + by * (np.arange(count) == column)
        return np.array([state.value for state in CELLS[name](tuple(map(Number, shifted)), x)[0]])

    numeric = np.array([(moved(k, step) - moved(k, -step)) / (2 * step) for k in range(count)]).T
    assert np.array([[entry.value for entry in row] for row in jacobian()]) == pytest.approx(numeric, abs=1e-8)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_three_newton_iterations_reach_rounding(name: Cell) -> None:
    """Of the states of 64 tokens at once, from zeros, against token by token, at the rounding of bf16 that trains."""
    tokens, count = 64, replace(RNN, cell=name).costs.states
    inputs = [tuple(map(Number, row)) for row in np.random.default_rng(0).normal(size=(tokens, 3))]
    exact, state = [], (Number(0.0),) * count
    for x in inputs:
        state = CELLS[name](state, x)[0]
        exact.append([part.value for part in state])
    guess, errors = np.zeros((tokens, count)), []
    for _ in range(RNN.iterations):
        before = np.vstack([np.zeros((1, count)), guess[:-1]])
        change = np.zeros(count)
        for token, x in enumerate(inputs):
            out, jacobian = CELLS[name](tuple(map(Number, before[token])), x)
            slope = np.array([[entry.value for entry in row] for row in jacobian()])
            change = slope @ change + np.array([part.value for part in out]) - guess[token]
            guess[token] += change
        errors.append(float(np.abs(guess - np.array(exact)).max()))
    assert errors[0] > 10 * errors[1] > 100 * errors[2]
    assert errors[-1] < 2.0**-8


@pytest.mark.parametrize(("name", "by_hand"), [
    # Cell, Jacobian, residual and update, and combinations of affine maps: (A2 A1, A2 b1 + b2).
    ("gru", lambda steps: 3 * (14 + 17 + 2 + 3 * steps)),
    ("lstm", lambda steps: 3 * (19 + 25 + 4 + (12 + 8) * steps)),
])  # fmt: skip
def test_flops_are_iterations_of_cell_jacobian_and_scan(name: Cell, by_hand: Callable[[float], float]) -> None:
    mixer = replace(RNN, cell=name)
    for tokens in (2**11, 2**17):
        assert forward_flops(mixer, tokens) == by_hand(math.log2(tokens))
        # The backward pass is linear: one scan, where the forward pass has three.
        assert backward_flops(mixer, tokens) < forward_flops(mixer, tokens)


def test_parameters_are_those_of_the_block() -> None:
    width = D // HEADS
    inside = 3 * D * width + 3 * D + 3 * D  # inputs of three gates by heads, diagonals, biases
    by_part = 2 * D * H + D * (4 + 1) + inside + D + D * H
    assert sum(KIND.parameters(RNN, H).values()) == by_part
    assert sum(KIND.parameters(replace(RNN, cell="lstm"), H).values()) == by_part + 2 * D  # two peepholes
    matrices = sum(matrix.elements for matrix in KIND.matrices(RNN, H))
    assert matrices == 2 * D * H + 3 * D * width + D * H


def layer(mixer: ParaRnn = RNN) -> Layer:
    return Layer(attention=None, mixer=mixer, feed_forward=None, num_norms=1)


def slower(mixer: ParaRnn, tokens: int) -> float:
    """Times that token by token takes what Newton's method takes, of a sequence."""
    one, all_at_once = (
        total(layer_seconds(layer(how), tokens, Layout(), CLUSTER)) for how in (replace(mixer, iterations=0), mixer)
    )
    return one / all_at_once


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_the_speed_up_grows_about_as_the_tokens(name: Cell) -> None:
    """Up to 2 K tokens, of a layer that leaves most of a GPU idle: a product that fills it grows as the tokens, too."""
    mixer = ParaRnn(channels=512, heads=8, cell=name)
    ratios = [slower(mixer, tokens) for tokens in (512, 1024, 2048)]

    assert all(1.6 < after / before < 2.0 for before, after in pairwise(ratios)), ratios


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_the_speed_up_of_a_7b_layer_is_within_that_of_the_paper(name: Cell) -> None:
    """665 x at most, and trained at 7B: 4,096 wide, 2 K tokens."""
    assert 100 < slower(replace(RNN, cell=name), 2048) <= 665


def test_token_by_token_launches_the_kernels_of_a_cell_for_each() -> None:
    at_once, one = (operations(model_of(layer(mixer)), layer(mixer), tokens=2048)
                    for mixer in (RNN, replace(RNN, iterations=0)))  # fmt: skip
    assert float(np.max(one.kernels - at_once.kernels)) == 2048 * 14


def test_a_recurrence_takes_its_bytes_or_its_arithmetic() -> None:
    """Three 16-bit inputs of gates and a state of 2,048 tokens: 8 bytes and 198 FLOPs of a channel and token."""
    ops = operations(model_of(layer()), layer(), tokens=2048)
    traffic = next(part for part in ops.traffic if part.name == "recurrence")
    elements = 2048 * D
    assert traffic.forward_bytes[0] == 8 * elements
    assert np.asarray(traffic.forward_flops)[0] == 198 * elements
    ops.gemms, ops.exchanges, ops.batched, ops.kernels, ops.traffic = [], [], [], 1.0, [traffic]
    rates = rates_for(load_cluster(CLUSTER), load_stack("megatron-core"), "bf16")
    assert rates.vector_flops_per_s == 67e12
    for change, seconds in (({"vector_flops_per_s": 1e12}, 198 * elements / 1e12),
                            ({"vector_flops_per_s": None}, 8 * elements / rates.memory_bw_bytes_per_s)):  # fmt: skip
        priced = price(ops, replace(rates, host_exponent=1e9, **change), 1)
        assert priced.forward.sum() == pytest.approx(seconds, rel=0.05)


def test_memory_grows_as_the_tokens_and_keeps_no_jacobian() -> None:
    short, long = (operations(model_of(layer()), layer(), tokens=tokens) for tokens in (4096, 8192))
    kept = [sum(float(part.num_bytes[0]) for part in ops.saved) for ops in (short, long)]
    assert kept[1] == 2 * kept[0]
    # Input and output of the norm; x and gate; convolved; inputs of gates; states; what the last product takes.
    assert kept[0] == 2 * 4096 * (2 * H + D * (2 + 1 + 3 + 1 + 1))


def test_ranks_split_heads_and_tokens() -> None:
    layouts = [Layout(), Layout(tp=8, sequence_parallel=1), Layout(cp=4)]
    ops = operations(model_of(layer()), layer(), *layouts)
    flops = np.sum([2 * g.m * g.n * g.k * g.count for g in ops.gemms], axis=0)
    assert flops / flops[0] == pytest.approx([1, 1 / 8, 1 / 4], rel=1e-12)
    assert {exchange.op for exchange in ops.exchanges if exchange.axis == "cp"} == {"all_to_all"}
    assert float(np.asarray(layer_parameters(model_of(layer()), layer())["mixer_cell"])) == 3 * D * D // HEADS


@pytest.mark.parametrize(("context", "op", "elements"), [
    ("scan", "all_scan", (1, 2)), ("gather", "all_gather", (2, 6)),
])  # fmt: skip
def test_ranks_that_keep_their_tokens_pass_on_states_in_every_iteration(
    context: Literal["scan", "gather"], op: str, elements: tuple[int, int]
) -> None:
    """A scan passes d states of a GRU, 2 d of an LSTM; a gather their affine maps, of all ranks. Once backward."""
    names: tuple[Cell, Cell] = ("gru", "lstm")
    for name, number in zip(names, elements, strict=True):
        kind = layer(replace(RNN, cell=name))
        stack = replace(load_stack("megatron-core"), mixer_context=context)
        for tokens in (2**13, 2**17):
            workload = Workload(seq_len=tokens, global_batch=64)
            shard = Shard.of(Layouts.of([Layout(cp=8)]), model_of(kind), workload)
            ops = decoder_layer(Builder(model_of(kind), workload, stack, shard), kind)
            sent = next(exchange for exchange in ops.exchanges if exchange.op == op)
            assert float(sent.num_bytes[0]) == 4 * D * number * (8 if context == "gather" else 1)
            assert (sent.forward_calls, sent.backward_calls) == (3, 1)


def test_a_ring_of_keys_passes_on_two_states() -> None:
    """A rank has a chunk from each end of a sequence, as beside other mixers."""
    attends = Layer(attention=Attention(heads=32, kv_heads=8, head_dim=128, value_head_dim=128), feed_forward=None)
    model = replace(model_of(layer()), kinds=(layer(), attends), pattern=(0, 1))
    stack = replace(load_stack("megatron-core"), mixer_context="scan")
    workload = Workload(seq_len=8192, global_batch=64)
    layouts = [Layout(cp=8, cp_algorithm=CP_ALGORITHMS.index(name)) for name in ("ring", "ulysses")]
    ops = decoder_layer(Builder(model, workload, stack, Shard.of(Layouts.of(layouts), model, workload)), layer())
    states = next(exchange for exchange in ops.exchanges if exchange.op == "all_scan")
    assert states.num_bytes.tolist() == [2 * 4 * D, 4 * D]


def test_heads_bound_the_ranks_that_swap_tokens_for_heads() -> None:
    problem = Problem(model_of(layer()), Workload(seq_len=8192, global_batch=64), load_stack("megatron-core"), 64, 8)
    broken, kept = (violations(Layout(tp=8, cp=cp, sequence_parallel=1), problem) for cp in (8, 4))
    assert any("32 heads of the recurrent cell" in text for text in broken)
    assert not any("recurrent cell" in text for text in kept)


def own(**sizes: Any) -> dict[str, Any]:
    return {"hidden": 64, "layers": 2, "vocab": 100, "max_positions": 256, "ffn_hidden": 128,
            "mixers": {"rnn": {"kind": "pararnn", "channels": 64, "heads": 4, **sizes}},
            "pattern": ["rnn+mlp", "rnn+mlp"]}  # fmt: skip


def test_a_model_of_ones_own_has_it() -> None:
    spec, _ = read_explicit_form(own(cell="lstm", iterations=4), "own")
    assert spec.kinds == (Layer(attention=None, feed_forward=FeedForward(inner=128), num_norms=2,
                                mixer=ParaRnn(channels=64, heads=4, cell="lstm", iterations=4)),)  # fmt: skip


@pytest.mark.parametrize(("sizes", "words"), [
    ({"cell": "ltsm"}, "`ltsm` is none of gru, lstm"),
    ({"heads": 5}, "5 heads do not divide 64 channels"),
    ({"iterations": -1}, "must be 0 or more"),
    ({"newton": 3}, "unknown field"),
])  # fmt: skip
def test_bad_sizes_are_named(sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_explicit_form(own(**sizes), "own")
    assert words in caught.value.message
    assert f"mixers.rnn.{next(iter(sizes))}" in caught.value.message
