"""Vocabulary parallelism: its order in the simulator, its closed form, its memory, and what it gains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.stages import HEAD, Partition
from meshwright.cost_models.schedules import simulator
from meshwright.cost_models.schedules.orders import F, Schedule
from meshwright.cost_models.schedules.simulator import Costs
from meshwright.cost_models.schedules.vocabulary import Seconds, order_of_passes, vocabulary_1f1b, with_passes
from meshwright.cost_models.step import reserved_memory
from meshwright.planner import api
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.request.load import Request, load_request
from meshwright.planner.request.resolve import resolve

from meshwright.errors import InputError

from ...snapshots import run_here

NAME = "vocabulary-parallel"
FORWARD_S, BACKWARD_S = 1.0, 2.0


def even(p: int, v: float, barriers: int, message_s: float = 0.0, hop_s: float = 0.0) -> Seconds:
    """p equal stages; the vocabulary takes v seconds of each, a third of it the product that makes the logits."""
    s = v * (2 / 3 if barriers == 1 else 1 / 3)
    return Seconds((FORWARD_S,) * p, (BACKWARD_S,) * p, s, v - s, (message_s,) * 3, hop_s)


def simulated(order: Schedule, barriers: int, seconds: Seconds) -> simulator.Timeline:
    p, none = len(seconds.forward), np.zeros(2 * len(seconds.forward))
    hops = (seconds.hop,) * p
    layers = Costs(forward_s=seconds.forward, input_s=seconds.backward, weight_s=(0.0,) * p, forward_hop_s=hops,
                   backward_hop_s=hops, static_bytes=(0.0,) * p, optimizer_s=(0.0,) * p,
                   activation_bytes=(1.0,) * p)  # fmt: skip
    return simulator.simulate(order, with_passes(layers, barriers, seconds, none, none))


@pytest.mark.parametrize("barriers", [1, 2])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_only_layers_fill_the_pipeline(p: int, barriers: int) -> None:
    """m (F + B + V) + (p-1)(F + B): the bubble is that of the layers, and each hop shows once. With one barrier nobody
    waits for the last T. More micro-batches than are scheduled one by one repeat the middle."""
    for v in (0.1, 1.0, 3.0):
        for m in (1, p, 4 * p, 25 * p):
            seconds = even(p, v, barriers, hop_s=0.01)
            found = simulated(vocabulary_1f1b(m, barriers, seconds), barriers, seconds).makespan_s
            expected = m * (FORWARD_S + BACKWARD_S + v) + (p - 1) * (FORWARD_S + BACKWARD_S + 2 * 0.01)

            assert found == pytest.approx(expected - (seconds.t if barriers == 1 else 0.0), abs=0.02 * p)


@pytest.mark.parametrize("barriers", [1, 2])
def test_a_repeated_order_takes_as_long_as_the_whole_one(barriers: int) -> None:
    seconds = even(4, 1.0, barriers, message_s=0.1, hop_s=0.02)
    short = vocabulary_1f1b(120, barriers, seconds)
    whole = order_of_passes(120, barriers, seconds)

    assert short.period
    assert not whole.period
    assert simulated(short, barriers, seconds).makespan_s == pytest.approx(
        simulated(whole, barriers, seconds).makespan_s, rel=2e-3
    )


@pytest.mark.parametrize("barriers", [1, 2])
def test_micro_batches_in_flight(barriers: int) -> None:
    """p + 1 with one barrier, p + 2 with two, on the first stage; one less on each behind it."""
    p, m = 4, 32
    timeline = simulated(vocabulary_1f1b(m, barriers, even(p, 1.0, barriers)), barriers, even(p, 1.0, barriers))

    assert [timeline.peak_bytes[d] for d in range(p)] == [p - d + barriers for d in range(p)]


def test_a_barrier_waits_for_all_stages() -> None:
    """The backward pass of the last stage starts after S of every stage and the message; with two, after every T."""
    for barriers in (1, 2):
        seconds = even(4, 1.0, barriers, message_s=0.25)
        order = vocabulary_1f1b(8, barriers, seconds)
        timeline = simulated(order, barriers, seconds)
        of_vocabulary = (order.chunk >= 4) & (order.chunk < 8)
        waited_for = of_vocabulary & ((order.kind == F) if barriers == 1 else (order.kind != F))
        for j in range(8):
            last = (order.chunk == 3) & (order.kind != F) & (order.micro_batch == j)
            passes = waited_for & (order.micro_batch == j)
            assert passes.sum() == 4
            assert timeline.start_s[last][0] >= timeline.end_s[passes].max() + 0.25 - 1e-9


def staged(layout_id: str, technique: Any = None, **asked: Any) -> Staged:
    request = {"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "global_batch": 64, "target": "any", **asked}
    return Staged.of(resolve(request_of(request, technique)), parse(layout_id), simulate=True)


def request_of(asked: dict[str, Any], technique: Any) -> Request:
    return load_request(None, {**asked, **({"technique": technique} if technique else {})})


@pytest.mark.parametrize("barriers", [1, 2])
@pytest.mark.parametrize("layout_id", ["pp16-dp1-mbs1-z0-rnone", "tp2-pp8-dp1-mbs1-z0-rfull", "pp4-dp4-mbs1-z1-rsel",
                                       "tp8-pp2-dp1-mbs1-z0-rnone"])  # fmt: skip
@pytest.mark.parametrize("global_batch", [8, 64])
def test_the_closed_form_is_the_simulation(layout_id: str, barriers: int, global_batch: int) -> None:
    one = staged(layout_id, f"{NAME}:barriers={barriers}", global_batch=global_batch)

    assert one.is_simulated
    assert one.closed_s == pytest.approx(one.step_s, rel=0.02)
    assert sum(one.terms.values()) == pytest.approx(one.step_s, rel=1e-9)
    held = [sum(float(x[0]) for x in DeviceMemory(one.ledger).buffers(d).values()) for d in range(one.layout.pp)]
    assert one.timeline.peak_bytes[: one.layout.pp] == pytest.approx(held, rel=0.02)


def test_head_and_embedding_are_on_all_stages() -> None:
    """Of the weights of 2 h V a stage holds 2 h V / p, and of the head's last stage (p-1)/p are gone."""
    layout_id, p = "pp16-dp1-mbs1-z0-rnone", 16
    plain, spread = staged(layout_id), staged(layout_id, NAME)
    matrix_bytes = 2.0 * plain.resolved.model.hidden * plain.resolved.model.vocab
    held = [[DeviceMemory(one.ledger).buffers(d)["weights"][0] for d in range(p)] for one in (plain, spread)]

    assert np.sum(held[0]) == pytest.approx(np.sum(held[1]))
    assert held[0][0] - held[1][0] == pytest.approx(matrix_bytes * (1 - 2 / p), rel=1e-3)
    assert held[0][-1] - held[1][-1] == pytest.approx(matrix_bytes * (1 - 2 / p), rel=1e-3)
    assert held[1][7] - held[0][7] == pytest.approx(matrix_bytes * 2 / p, rel=1e-3)


LAYERS, STAGES, HIDDEN, SEQ_LEN = 64, 32, 5120, 2048


def gpt(vocab: int) -> dict[str, Any]:
    """The 21B model of the paper's largest pipeline (section 6, 64 layers on 32 GPUs)."""
    return {"model": {"name": "gpt-21b", "family": "gpt", "layers": LAYERS, "hidden": HIDDEN, "heads": 40,
                      "ffn_hidden": 4 * HIDDEN, "gated_mlp": False, "max_positions": 4096, "vocab": vocab},
            "cluster": "dgx-a100:4", "seq_len": SEQ_LEN, "global_batch": 128}  # fmt: skip


def redistributed_s(even: Staged) -> float:
    """The best with fewer layers beside the head and the others as even as possible, simulated."""
    found = []
    for last in range(LAYERS // STAGES + 1):
        more = (LAYERS - last) % (STAGES - 1)
        sizes = [(LAYERS - last) // (STAGES - 1) + (stage < more) for stage in range(STAGES - 1)]
        found.append(even.split(Partition((*sizes, last))).step_s)
    return min(found)


@pytest.mark.parametrize(("vocab", "head_layers", "least"), [(32_000, 0.49, 1.05), (256_000, 3.9, 1.5)])
def test_it_gains_more_than_redistributed_layers(vocab: int, head_layers: float, least: float) -> None:
    """Yeung et al.: r = 2hV/(24h^2 + 4sh) layers, from which the ideal gains of 1.2 to 1.8 follow; what the fill of the
    pipeline and faster products leave of them is less. The last stage loses (p-1)/p of 2hV bytes, and more."""
    layout_id = f"pp{STAGES}-dp1-mbs1-z0-rnone"
    plain, spread = staged(layout_id, **gpt(vocab)), staged(layout_id, NAME, **gpt(vocab))
    layer, head = plain.ledger.tables.operations[0], plain.ledger.tables.operations[HEAD]
    of_layer = sum(2 * float((g.m * g.n * g.k * g.count)[0]) for g in layer.gemms)
    of_layer += sum(2 * float(core.flops[0]) for core in layer.cores)  # the causal half, twice
    r = sum(2 * float((g.m * g.n * g.k)[0]) for g in head.gemms) / of_layer
    ideal = min(max(k + r, -(-(LAYERS - k) // (STAGES - 1))) for k in range(3)) / ((LAYERS + r) / STAGES)
    gain = redistributed_s(plain) / spread.step_s
    last_bytes = [float(reserved_memory.reserved_bytes(DeviceMemory(one.ledger), one.resolved.rates, STAGES - 1)[0])
                  for one in (plain, spread)]  # fmt: skip

    assert r == pytest.approx(head_layers, rel=0.01)
    assert ideal == pytest.approx({32_000: 1.24, 256_000: 1.84}[vocab], abs=0.01)
    assert least <= gain <= ideal
    assert last_bytes[0] - last_bytes[1] >= 2 * HIDDEN * vocab * (STAGES - 1) / STAGES
    whole = api.evaluate(None, layout_id, technique=NAME, target="any", **gpt(vocab)).best
    assert whole.step_s == pytest.approx(spread.step_s, 0.02)


def test_the_screens(tmp_path: Path) -> None:
    """The plan says who runs it, `explain` sets it beside redistributed layers, `emit` refuses."""
    plan = str(tmp_path / "plan.json")
    asked = ["--model", "llama-3.2-1b", "--cluster", "4xh100-sxm-80gb", "--global-batch", "16", "--target", "any"]
    made = run_here("plan", *asked, "--fix", "pp=4", "--technique", NAME, "-o", plan)
    assert made.code == 0
    assert "sail-sg's fork of Megatron-LM" in made.err
    shown = " ".join(run_here("explain", plan).out.split())
    assert "Embedding and head are over all stages: " in shown
    assert "with layers redistributed (`--stages own`: " in shown
    told = json.loads(run_here("explain", plan, "--json").out)["redistribution"]
    assert told["step_s"] < told["own_step_s"] < told["even_step_s"]
    assert told["last_bytes"] < told["even_last_bytes"]
    refused = run_here("emit", plan, "--to", "megatron")
    assert refused.code == 2
    assert f"no target trains by {NAME} yet" in refused.err
    both = run_here("plan", *asked, "--technique", NAME, "--stages", "own")
    assert both.code == 2


@pytest.mark.parametrize(
    ("layout_id", "model", "message"),
    [
        ("dp16-mbs1-z1-rnone", "llama-3.1-8b", "a pipeline in the 1f1b schedule"),
        ("pp4-vpp2-dp4-mbs1-z1-rnone", "llama-3.1-8b", "a pipeline in the 1f1b schedule"),
        ("pp4-zbv-vpp2-dp4-mbs1-z1-rnone", "llama-3.1-8b", "a pipeline in the 1f1b schedule"),
        ("tp8-pp2-dp1-mbs1-z0-rnone", "deepseek-v3", "a head of tokens without MTP modules or a dense layer beside it"),
    ],
)
def test_where_it_cannot_apply(layout_id: str, model: str, message: str) -> None:
    asked: dict[str, Any] = {"model": model, "cluster": "dgx-h100:2", "global_batch": 64, "technique": NAME}
    with pytest.raises(InputError, match=f"{NAME} needs {message}"):
        api.evaluate(None, layout_id, **asked)
