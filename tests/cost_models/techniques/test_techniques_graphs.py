"""Graph networks in stages (GNNPipe) and in parts: volumes, bytes and products by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.specs.graph import Graph
from meshwright.planner import api
from meshwright.planner.document.specs import model_of
from meshwright.planner.drivers.given_layout import evaluate_resolved
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from torch import nn

from meshwright.errors import InputError, NoFeasibleLayoutError, UnsupportedError

VERTICES, EDGES, FEATURES, HIDDEN, CLASSES, LAYERS = 232_965, 114_615_892, 602, 256, 41, 16
PADDED = 233_024  # vertices, a multiple of 64


def resolved(technique: Any = None, model: str = "gcnii-reddit", **asked: Any) -> Resolved:
    return resolve(load_request(None, {"model": model, "cluster": "dgx-h100:1", "target": "any",
                                       "technique": technique, **asked}))  # fmt: skip


def problem_of(request: Resolved) -> Problem:
    return request.problem


@pytest.mark.parametrize(("kind", "of_layer"), [
    ("gcnii", [nn.Linear(24, 24, bias=False)]), ("gcn", [nn.Linear(24, 24)]),
    ("graphsage", [nn.Linear(24, 24), nn.Linear(24, 24, bias=False)]),
])  # fmt: skip
def test_parameters_are_those_of_modules(kind: str, of_layer: list[nn.Module]) -> None:
    """As in torch_geometric.nn (GCN2Conv with shared weights, GCNConv, SAGEConv), between two linear layers."""
    spec, _ = read_config({"model_type": kind, "num_layers": 5, "hidden_channels": 24, "in_channels": 10,
                           "out_channels": 3, "num_nodes": 700, "num_edges": 9000}, "m")  # fmt: skip
    ends = [nn.Linear(10, 24), nn.Linear(24, 3)]
    count = [sum(p.numel() for module in modules for p in module.parameters()) for modules in (ends, of_layer)]
    assert total_parameters(spec) == count[0] + 5 * count[1]


def test_products_of_a_step() -> None:
    problem = problem_of(resolved())
    forward = problem.flops[0]
    assert (problem.workload.seq_len, problem.workload.global_batch) == (PADDED, 1)
    assert forward[0] == 2.0 * PADDED * HIDDEN**2
    assert forward[problem.num_kinds] == 2.0 * PADDED * FEATURES * HIDDEN


def test_stages_send_a_fraction_of_what_parts_do() -> None:
    """Per step, both passes, bytes of bf16: parts send the copies of all vertices in each layer, stages all vertices
    between them. 16 layers and 8 parts of vertices dealt at random: 16 x 7 / 7 times as much."""
    problem = problem_of(resolved())
    tables = build(problem, index_keys(Layouts.of([Layout(cp=8, dp=1)]))[0])
    (exchange,) = [each for each in tables.operations[0].exchanges if each.axis == "cp"]
    leaving = float(exchange.num_bytes[0]) * 7 / 8  # of a rank, in a layer and a pass
    parts = 8 * leaving * 2 * LAYERS
    stages = 7 * 2 * PADDED * HIDDEN * 2.0
    copies = 7 * (1 - (7 / 8) ** (EDGES / VERTICES))
    assert parts == pytest.approx(2 * LAYERS * copies * PADDED * HIDDEN * 2, rel=1e-9)
    assert 5 < parts / stages < 20  # of the paper: 8.69 in the mean, up to 22.89
    assert parts / stages == pytest.approx(LAYERS * copies / 7)


def test_copies_are_those_of_a_partitioner_where_they_are_known() -> None:
    graph = Graph(vertices=100, edges=1000, features=8, copies=((8, 2.4),))
    dealt = [3 * (1 - 0.75**10), 2.4, 15 * (1 - (15 / 16) ** 10)]
    assert graph.copies_on(np.array([1, 4, 8, 16])).tolist() == pytest.approx([0.0, *dealt])


def test_sums_read_a_row_for_each_edge() -> None:
    problem = problem_of(resolved())
    tables = build(problem, index_keys(Layouts.of([Layout(pp=8)]))[0])
    (sums,) = [each for each in tables.operations[0].traffic if each.name == "sums over neighbours"]
    share = PADDED / VERTICES
    assert float(sums.forward_bytes[0]) == pytest.approx(share * (EDGES * (2 * HIDDEN + 8) + VERTICES * 2 * HIDDEN))


def test_chunks_fill_stages_and_keep_the_last_step() -> None:
    """A stage of 2 layers has all vertices in 32 chunks of 7,296, and what the last step left of each of them."""
    one, many = (evaluate_resolved(resolved({"gnnpipe": {"chunks": chunks}}), "pp8-gpipe-dp1-mbs1-z0-rnone",
                                   "closed form").best for chunks in (1, 32))  # fmt: skip
    assert one.step_s / many.step_s > 5  # of 8 stages one works at a time
    saved = [each.memory[3].activations_bytes for each in (one, many)]
    whole = saved[0] * 32 * 7296 / PADDED
    assert saved[1] - whole == pytest.approx(2 * 2 * HIDDEN * 32 * 7296, rel=1e-6)


def test_a_plan_keeps_its_graph() -> None:
    plan = api.evaluate(load_request(None, {"model": "gcnii-reddit", "cluster": "dgx-h100:1", "target": "any"}),
                        "cp8r-dp1-mbs1-z1-rnone")  # fmt: skip
    assert model_of(plan.resolved, "plan.json") == load_model("gcnii-reddit")[0]
    assert api.evaluate(load_request(None, plan.request), "cp8r-dp1-mbs1-z1-rnone").best.step_s == plan.best.step_s


@pytest.mark.parametrize(("asked", "text"), [
    ({"seq_len": 512}, "seq_len: its step is the whole graph"),
    ({"global_batch": 4}, "in the chunks of `--technique gnnpipe`"),
    ({"images": "1@64x64"}, "images: it sees none"),
    ({"technique": {"gnnpipe": {"chunks": 90_000}}}, "90000 chunks of the 232,965 vertices"),
    ({"optimizer": "muon"}, "muon is not priced for it"),
])  # fmt: skip
def test_other_steps_are_refused(asked: dict[str, Any], text: str) -> None:
    technique = asked.pop("technique", None)
    with pytest.raises(InputError, match=text):
        resolved(technique, **asked)


def test_targets_and_sequences_are_refused() -> None:
    with pytest.raises((InputError, UnsupportedError), match=r"model\.graph: plans of graph networks are not written"):
        api.plan(load_request(None, {"model": "gcnii-reddit", "cluster": "dgx-h100:1", "target": "megatron"}))
    with pytest.raises(NoFeasibleLayoutError):
        api.plan(load_request(None, {"model": "llama-3.2-1b", "cluster": "dgx-h100:1", "target": "any",
                                     "technique": {"gnnpipe": {}}}))  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), [
    ({"num_nodes": 0}, "num_nodes"), ({"copies": {"8": 9}}, "at most one on each other part"),
    ({"copies": [2]}, "copies per vertex"), ({"num_edges": None}, "num_edges"),
])  # fmt: skip
def test_bad_graphs(changes: dict[str, Any], text: str) -> None:
    fields = {"model_type": "gcn", "num_layers": 2, "hidden_channels": 8, "in_channels": 4, "out_channels": 3,
              "num_nodes": 100, "num_edges": 400}  # fmt: skip
    with pytest.raises(InputError, match=text):
        read_config({**fields, **changes}, "m")


def test_layers_of_sequences_have_no_neighbours() -> None:
    sizes = {"hidden": 64, "layers": 2, "vocab": 100, "max_positions": 64}
    layers = {"mixers": {"g": {"kind": "graph_convolution"}}, "pattern": ["g", "g"]}
    with pytest.raises(InputError, match="`graph_convolution` is no kind of mixer"):
        read_explicit_form({**sizes, **layers}, "own")


def test_the_catalogued_network() -> None:
    spec = load_model("gcnii-reddit")[0]
    assert (spec.num_layers, spec.hidden, spec.vocab) == (LAYERS, HIDDEN, CLASSES)
    ends = (FEATURES + 1) * HIDDEN + (HIDDEN + 1) * CLASSES
    assert total_parameters(spec) == ends + LAYERS * HIDDEN**2
