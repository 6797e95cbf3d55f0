"""The layouts that accelerate runs: FSDP2 with parallelism_config, for its own scripts and for tools built on it.

accelerate 16cb6eb8 (2026-07-24), src/accelerate/parallelism_config.py and commands/launch.py.
"""

from __future__ import annotations

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.problem import Problem
from ...space.rules import Columns, Rule, only
from ..other_layers import whole_heads, whole_mixers, whole_sequences
from ..switch_options import rules_of

_N = "accelerate"


def _whole_activations(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["tp"] == 1) | (columns["sequence_parallel"] == 0))


def _sharded(columns: Columns, problem: Problem) -> Mask:
    # FSDP2 crashes on a mesh with tp alone (accelerate 3798), and cp ranks always shard parameters.
    return np.asarray((columns["zero"] > 0) | ((columns["tp"] == 1) & (columns["cp"] == 1)))


def _someone_to_shard_over(columns: Columns, problem: Problem) -> Mask:
    # FSDP2 needs a mesh axis of its own, dp_shard or cp above 1; ParallelismConfig refuses replicas of tp or cp alone.
    alone = (columns["shard"] == 1) & ((columns["cp"] == 1) | (columns["dp"] > 1))
    return np.asarray((columns["zero"] == 0) | ~alone)


RULES: tuple[Rule, ...] = (
    only(_N, "pp", (1,), "accelerate has no pipeline (pp {pp})"),
    only(_N, "ep", (1,), "accelerate has no expert parallelism (ep {ep})"),
    only(_N, "etp", (1,), "accelerate has no expert-tensor parallelism (etp {etp})"),
    only(_N, "cp_algorithm", ("ring", "allgather"), "accelerate's context parallelism has no {algorithm}"),
    whole_heads(_N, "accelerate"),
    whole_mixers(_N, "accelerate"),
    whole_sequences(_N, "accelerate"),
    Rule(f"{_N}: sequence_parallel", ("tp", "sequence_parallel"), _whole_activations,
         "the tensor-parallel plans of transformers keep activations whole: no sequence parallelism with tp {tp}"),
    Rule(f"{_N}: replicas", ("tp", "cp", "zero"), _sharded,
         "without sharding (z0) accelerate runs plain data parallelism only, not tp {tp} or cp {cp}"),
    Rule(f"{_N}: shards", ("cp", "dp", "zero", "shard"), _someone_to_shard_over,
         "FSDP2 needs data-parallel ranks to shard over: shard {shard} of dp {dp} with tp {tp}, cp {cp}"),
    only(_N, "zero", (0, 2, 3), "FSDP2 shards gradients and weights; optimizer alone (z1) is not an option"),
    only(_N, "recompute", ("none", "full"), "fsdp_activation_checkpointing is all layers or none"),
    only(_N, "recompute_layers", (0,), "fsdp_activation_checkpointing is all layers or none"),
    only(_N, "offload", ("none",), "fsdp_offload_params moves the weights, too: plan with `--technique cpu-offload`"),
    only(_N, "precision", ("bf16", "fp16", "fp32"), "its fp8 recipes are not in the YAML"),
    *rules_of(_N),
)
