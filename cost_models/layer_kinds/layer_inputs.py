"""Embeddings of each layer (Gemma 3n): a vector of a token for every layer, which is gated by the layer's output.

A table and a product of the first embedding, which is normed, give p elements for each of the L layers of a token:
their sum is kept for all layers. A layer multiplies its own by GELU of a product of its output; a product of that,
normed, is added to the residual stream. The counts of passes are those of transformers 5.24 (Gemma3nTextModel,
Gemma3nTextDecoderLayer): backward, the gradient of a layer's part is a tensor of all L parts. Tensor parallelism has
all weights whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..arrays import Array
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, MemoryTraffic, Saved
from ..specs.layer_inputs import LayerInputs
from ..specs.model import ModelSpec


def layer_parameters(model: ModelSpec) -> dict[str, int]:
    """Elements of both products of a layer, and of its norm."""
    inputs, h = model.layer_inputs, model.hidden
    return {} if inputs is None else {"layer_input": 2 * h * inputs.width + h}


def matrices(model: ModelSpec) -> Iterator[Matrix]:
    """The matrices of a layer that Muon orthogonalises: both products."""
    if model.layer_inputs is not None:
        yield Matrix(((model.layer_inputs.width, model.hidden),), split=False)
        yield Matrix(((model.hidden, model.layer_inputs.width),), split=False)


def embedding_parameters(model: ModelSpec) -> int:
    """Elements of the table, of the product of the embedding, and of its norm."""
    inputs, layers = model.layer_inputs, model.num_layers
    return 0 if inputs is None else layers * inputs.width * (inputs.rows + model.hidden) + inputs.width


def _sizes(builder: Builder) -> tuple[LayerInputs | None, int, float, Array]:
    """Sizes of the inputs, width of the model, bytes per element, tokens of a rank [key]."""
    model = builder.model
    return model.layer_inputs, model.hidden, builder.activation_bytes, builder.shard.sp_tokens


def add_layer_input(builder: Builder, ops: LayerOperations) -> None:
    """Adds the products and the gate behind the blocks of a layer."""
    inputs, h, w, tokens = _sizes(builder)
    if inputs is None:
        return
    p = inputs.width
    builder.add_gemm(ops, "gate of the layer's input", tokens, float(p), float(h), wide=True)
    builder.add_gemm(ops, "product of the layer's input", tokens, float(h), float(p), wide=True)
    steps = 4.0 * h * tokens * builder.norms_in_steps
    ops.saved.append(Saved("gated layer input", w * (2 * h + 3 * p) * tokens + steps))
    ops.wgrad_stash.append(2 * w * (h + p) * tokens)
    ops.traffic.append(builder.norm_traffic("norm of the layer's input", h * tokens))
    # GELU 2 and product 3; backward: two products 3 each, GELU 3; the gradient of all parts made 1 and added 3.
    whole = 4 * p * builder.model.num_layers
    ops.traffic.append(MemoryTraffic("layer input", 5 * p * w * tokens, (9 * p + whole) * w * tokens, fusable=False))
    ops.kernels = ops.kernels + 5.0


def add_inputs(builder: Builder, ops: LayerOperations) -> None:
    """Adds the inputs of all layers to the embedding."""
    inputs, h, w, tokens = _sizes(builder)
    if inputs is None:
        return
    width = float(inputs.width * builder.model.num_layers)
    builder.add_gemm(ops, "inputs of layers", tokens, width, float(h), wide=True)
    moved = w * width * tokens
    steps = 4.0 * width * tokens * builder.norms_in_steps
    kept = 0.0 if builder.model.alternates else w * h * tokens  # the embedding, which products of streams keep, too
    ops.saved.append(Saved("inputs of layers", 2 * moved + kept + steps))
    # Rows 2, scaled 2; product scaled 2; sum 3, scaled 2. Backward: the same without the sum, and rows added 2.
    ops.traffic.append(MemoryTraffic("inputs of layers", 11 * moved, 10 * moved, fusable=False))
    ops.traffic.append(builder.norm_traffic("norm of inputs of layers", width * tokens))
    ops.kernels = ops.kernels + 9.0
