"""Bytes that CUDA graphs keep beside what the same kernels need when they are launched one by one.

Graphs of layers (TransformerEngine, pytorch/graph.py, make_graphed_callables; Megatron-LM, core/transformer/
cuda_graphs.py, TECudaGraphHelper) are captured per layer and micro-batch in the order of the pipeline, into one pool of
memory. Inside the pool, a later graph takes what an earlier one freed, so activations take as many bytes as without
graphs: those of the micro-batches in flight. Beside them:

- Nothing outside a graph can use the pool (torch, notes on CUDA, graph memory management). The buffers of its kernels
  stay while a loss is taken or experts run, which work on other memory.
- A graph reads its input where it was captured. The output of the graph of a whole layer is copied into the input of
  the next one, and both stay until the backward pass; eager layers share one tensor. A graph of the router also holds
  the output of the shared experts, which an eager layer adds up and frees, and returns the normed tokens, which then no
  recomputation frees (cuda_graphs.returns_normed_tokens).
- The gradients of a graph's outputs are copied into buffers of its own, one set for all graphs (_reuse_graph_input_
  output_buffers, TransformerEngine 2.7).

A graph of the whole iteration (Megatron-LM, core/full_cuda_graph.py, FullCudaGraphWrapper) holds all that an iteration
allocates, in one pool that is reused in the order of the iteration, as without a graph. It keeps the tokens of all
micro-batches of a step (StaticBufferLoader).

Assumed: frees inside a capture are reused as they are without one (no tensor is held for another stream:
TORCH_NCCL_AVOID_RECORD_STREAMS, the default since torch 2.8). Not counted: the graphs' own nodes; what a captured layer
recomputes, while other kernels run; activations of one micro-batch that the pool keeps in the backward pass of the
embedding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Array
from ..cuda_graphs import IS_ITERATION
from .stages import EMBEDDING, HEAD

if TYPE_CHECKING:
    from .ledger import Ledger

# Of a token in a batch of Megatron Core's GPTDataset: token, label and position in 8 bytes each, mask of the loss in 4
# (core/datasets/gpt_dataset.py), without an attention mask.
TOKEN_BYTES = 28.0


def graph_bytes(ledger: Ledger, j: int, num_moments: int, in_layer: int) -> Array:
    """[moment, n] bytes that graphs keep on the device of profile j, beside activations (Tables.graph_output).
    in_layer: the moment at which the workspace of a layer is counted."""
    n, codes = len(ledger.layouts), ledger.layouts["cuda_graphs"]
    if not codes.any():
        return np.zeros((num_moments, n))
    inside, outside, gradients = (rows[:, ledger.key] for rows in ledger.tables.graph_workspace)
    pool, beside = ledger.largest(j, inside), ledger.largest(j, outside)
    kept = np.tile(pool, (num_moments, 1))
    kept[in_layer] = np.maximum(pool + beside - ledger.largest(j, np.maximum(inside, outside)), 0.0)
    return np.asarray(kept + ledger.largest(j, gradients) + _tokens(ledger, j))


def _tokens(ledger: Ledger, j: int) -> Array:
    """[n] bytes of the tokens of a step that a graph of the iteration reads on the device of profile j: first and last
    stages take some."""
    extra, none = ledger.splits.counts.shape[2], np.zeros(len(ledger.layouts))
    takes = sum(ledger.counts[j].get(extra + edge, none) for edge in (EMBEDDING, HEAD)) > 0
    workload = ledger.problem.workload
    tokens = workload.seq_len * workload.global_batch / ledger.layouts["dp"]
    return np.where(IS_ITERATION[ledger.layouts["cuda_graphs"]] & takes, TOKEN_BYTES * tokens, 0.0)
