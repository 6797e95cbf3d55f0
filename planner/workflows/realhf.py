"""ReaLHF as it ran when its weak scaling was measured: facts of its source, openpsi-project/ReaLHF.

The script that read its logs (auto_ppo_parselog, deleted in b1b6b74b) names runs of 7 to 13 April 2024; 5469ca4f is
of 11 April. There generation launches every kernel of every token (the use of CUDA graphs is commented out in
flash_generate) and sums over tensor parallelism by NCCL. Training is DeepSpeed's with ZeRO 2, under stages ZeRO 1
(make_train_backend_config), its reductions overlap (deepspeed_utils), whole layers are recomputed, and a stage
trains on two, scores and generates in one micro-batch for each stage (ppo_flash_interface). Its search keeps tensor
and data parallelism of every call within a node, and gives every stage two micro-batches of a sequence or more to
train on (find_parallel_strategies, enumerate_rpc_executions). The nodes are those of its cluster QH (AutoPPO
experiments), which are of type a800 (QHClusterSpec); its search counts with 170 GB/s in them and 20 GB/s between them
(comm_stats), which are links of the A800 too. The later paper (arXiv 2406.14088) has H100.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...cost_models.arrays import Mask
from ...cost_models.layouts import RECOMPUTE_MODES
from ...cost_models.problem import Problem
from ...cost_models.specs.model import FeedForward, ModelSpec
from ...profiles.stack.engines import Engine
from ...profiles.stack.load import load_stack
from ...profiles.stack.post_training import PostTrainingConstants
from ..serving.instance import InstanceLayout
from ..space.rules import Columns, Rule
from .problem import Fixed
from .software import Software

GPU = "a800-sxm-80gb"
_NODE = 8  # GPUs
_TRAINING_PARTS, _SCORING_PARTS = 2, 1  # micro-batches of a stage
# Launches of the host, counted in 5469ca4f. A layer that decodes (attn, mlp, flash_mqat_base) has, without sums,
# 16 of two norms in plain torch, 3 of queries, keys and values, 1 of attention, 1 of its projection, 5 of the MLP, 2 of
# residuals, 1 of the lengths. The next tokens (genstep, logits_warper; multinomial and the checks of Categorical in
# torch/distributions) have 3 of the logits, 14 of top-k and top-p, 5 of the distribution, 13 of the sample, 8 of its
# log-probability, 9 of what has ended.
_LAYER_LAUNCHES, _TOKEN_LAUNCHES = 29.0, 52.0
# A split layer has two sums more, and its projections are autograd functions in Python: benchmarks/split_layer_host.py
# measured that these and the way to a sum, without NCCL, take as long on the host as so many launches (14.3 to 16.9).
_SUMS, _IN_PYTHON = 2.0, 15.6
# A launch of the Megatron-LM of 2022 is of its layers, which were split: the Python between launches is in it.
_OF_LAUNCH = (_LAYER_LAUNCHES + _SUMS) / (_LAYER_LAUNCHES + _SUMS + _IN_PYTHON)
# Its search takes a call whose estimated bytes are below these (enumerate_rpc_executions, GPU_MEM_CAP).
_GPU_BYTES = 80.0 * 2**30
_ONE = {"vpp": 1, "cp": 1}
_NONE = ("recompute_layers", "offload", "offload_layers", "offload_modules")

# The seconds of a step beyond its parts were measured of NeMo-RL alone. Those of ReaLHF are not known: its parts count
# as they are.
PARTS_ALONE = PostTrainingConstants(training=1.0, copies=1.0, iteration_s=0.0, step_s=0.0)


def software(sequences: int, tokens: int, updates: int) -> Software:
    """Software with an engine that generates so many sequences of so many tokens at once, prompts first, and a trainer
    that updates the weights so many times by them."""
    engine = Engine(
        name="realhf", chunk_tokens=16384, max_sequences=sequences, mixes_prompts=False, decodes_first=True,
        reserved_output=1.0, layer_kernels=_LAYER_LAUNCHES, split_kernels=_SUMS + _IN_PYTHON,
        token_kernels=_TOKEN_LAUNCHES,
        kernel_s=_OF_LAUNCH * load_stack("megatron-lm").host_s_per_kernel,  # whose layers its are
    )  # fmt: skip

    def generates(model: ModelSpec, layout: InstanceLayout, number: float) -> bool:
        return layout.tp * number <= _NODE and _estimated(model, layout, sequences * tokens / number) < _GPU_BYTES

    return Software(engine=engine, training_rules=_training_rules(sequences // updates), scoring_rules=(_IN_A_NODE,),
                    scoring_parts=_SCORING_PARTS, generates=generates)  # fmt: skip


def one_layout(gpus: int) -> Fixed:
    """Its heuristic (`pipe_model`, in April `model_pipe`): tensor parallelism within nodes, a stage for each node, no
    data parallelism; the same for all calls."""
    tp = min(gpus, _NODE)
    return {"train": {"tp": tp, "pp": gpus // tp, "cp": 1}, "infer": {"tp": tp, "pp": gpus // tp},
            "generate": {"tp": tp, "pp": gpus // tp, "ep": 1, "attention_dp": 1}}  # fmt: skip


def _estimated(model: ModelSpec, layout: InstanceLayout, tokens: float) -> float:
    """Bytes of a GPU of an instance that generates so many tokens at once, by the estimate of its search
    (estimate_rpc_memory): weights twice, and as many heads of keys and values as of queries."""
    hidden, block = model.hidden, model.feed_forwards[0]
    inner = block.inner if isinstance(block, FeedForward) else 0
    of_layer = 3 * hidden * inner + 4 * hidden**2
    parameters = 3 * model.vocab * hidden + of_layer * model.num_layers
    return 4.0 * (parameters + tokens * hidden * model.num_layers) / (layout.tp * layout.pp)


def _rule(name: str, fields: tuple[str, ...], allows: Callable[[Columns, Problem], Mask]) -> Rule:
    return Rule(f"realhf: {name}", fields, allows, f"ReaLHF: {name}")


_IN_A_NODE = _rule("a node", ("tp", "dp"), lambda x, _: x["tp"] * x["dp"] <= _NODE)


def _training_rules(sequences: int) -> tuple[Rule, ...]:
    """Rules of training on so many sequences at once."""
    full = RECOMPUTE_MODES.index("full")

    def micro_batches(x: Columns, problem: Problem) -> Mask:
        each = problem.workload.global_batch // x["dp"]
        parts = np.where(x["pp"] > 1, _TRAINING_PARTS * x["pp"], 1)
        return np.asarray(x["micro_batch"] == np.maximum(each // parts, 1))

    return (
        *(_rule(f"{name} {value}", (name,), lambda x, _, name=name, value=value: x[name] == value)  # type: ignore[misc]
          for name, value in {**_ONE, **dict.fromkeys(_NONE, 0), "recompute": full}.items()),
        _rule("ZeRO", ("zero", "pp"), lambda x, _: x["zero"] <= np.where(x["pp"] > 1, 1, 2)),
        _IN_A_NODE,
        _rule("a sequence in every micro-batch", ("pp", "dp"),
              lambda x, _: _TRAINING_PARTS * x["pp"] * x["dp"] <= sequences),
        _rule("micro-batches", ("pp", "dp", "micro_batch"), micro_batches),
    )  # fmt: skip
