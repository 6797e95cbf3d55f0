"""Graph networks: a description in the words of PyTorch Geometric -> ModelSpec, by its `model_type`.

Layers, channels and classes as in torch_geometric.nn.models; nodes and edges (directed) of the graph it trains on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...cost_models.layer_kinds.graph_convolution import GraphConvolution
from ...cost_models.specs.graph import Graph
from ...cost_models.specs.model import Layer, ModelSpec
from .fields import Fields

_MAX_LAYERS = 10_000  # as in blocks.py


def _gcn(f: Fields) -> GraphConvolution:
    return GraphConvolution(bias=f.flag("bias", True))


def _graphsage(f: Fields) -> GraphConvolution:
    return GraphConvolution(products=2, bias=f.flag("bias", True))


def _gcnii(f: Fields) -> GraphConvolution:
    return GraphConvolution(bias=False, initial=True)


GRAPHS: Mapping[str, Callable[[Fields], GraphConvolution]] = {"gcn": _gcn, "gcnii": _gcnii, "graphsage": _graphsage}


def graph_network(f: Fields, model_type: str) -> ModelSpec:
    """Layers of one width between a product of the features and one that makes classes."""
    layers, hidden = f.count("num_layers", maximum=_MAX_LAYERS), f.count("hidden_channels")
    graph = Graph(vertices=f.count("num_nodes"), edges=f.count("num_edges"), features=f.count("in_channels"),
                  copies=_copies(f))  # fmt: skip
    layer = Layer(attention=None, feed_forward=None, mixer=GRAPHS[model_type](f), num_norms=0)
    return ModelSpec(
        name="", family=model_type, hidden=hidden, vocab=f.count("out_channels"), kinds=(layer,), pattern=(0,) * layers,
        max_positions=graph.vertices, final_norm=False, head_bias=True, rope_theta=None, activation="relu", graph=graph,
        dropout=f.flag("dropout", True),
    )  # fmt: skip


def _copies(f: Fields) -> tuple[tuple[int, float], ...]:
    """`copies: {8: 2.4}`: copies of a vertex on other parts, by the number of parts of a partitioner."""
    given = f.get("copies")
    if given is None:
        return ()
    pairs: list[tuple[Any, Any]] = list(given.items()) if isinstance(given, Mapping) else [(None, None)]
    for parts, copies in pairs:
        number = int(parts) if str(parts).isdigit() else 0
        good = isinstance(copies, int | float) and not isinstance(copies, bool) and number > 1
        if not good or not 0 <= copies <= number - 1:
            f.problem("copies", "must have copies per vertex by the number of parts, as {8: 2.4}, at most one on each "
                                f"other part, is {given!r}")  # fmt: skip
            return ()
    return tuple(sorted((int(parts), float(copies)) for parts, copies in pairs))
