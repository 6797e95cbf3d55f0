"""MaxText: a YAML for its train.py, on GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import CP_ALGORITHMS, MODULES, RECOMPUTE_MODES
from ....cost_models.masks import mask_of
from ....cost_models.problem import Problem
from ....cost_models.specs.model import Attention, FeedForward, Layer, ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule, only
from ..base import Target, Trainer
from ..documents import read_config
from ..framework_parser import FrameworkParser, sources_in
from ..launch_config import LaunchConfig
from ..launchers.base import Job, comment
from ..option_lists import OptionList
from ..options import Settings
from ..other_layers import other_layers
from ..readers import maxtext as reader
from ..setup import Setup
from ..switch_options import rules_of
from ..unlike import of_one_layer, unlike
from .model import IOTA, LLAMA31
from .options import AXES, BATCH, LENGTH, PACKING, STEPS, STRATEGY, TABLE, on_nodes
from .remat import OF_MODULES

_N = "maxtext"
# MaxText takes a first argument that ends in .yml for its config (configs/pyconfig.py).
MAIN_FILE = "maxtext.yml"
# The variable that names a checkout of MaxText, for `check`.
CHECKOUT = "MAXTEXT_PATH"
# The variable that gives MaxText the number of nodes.
NODES = "NNODES"
# JAX takes 75 % of a GPU when it starts (docs.jax.dev, gpu_memory_allocation), less than most plans need. NVIDIA's
# guide takes up to 90 % (docs.nvidia.com/jax-toolbox, gpu-performance): the rest is for the CUDA context and NCCL. JAX
# refuses the variable under both of its names.
POOL, OLD_POOL, USUAL_POOL = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", 0.9
# Off by default, and without it no message travels beside compute (configs/README.md; set by all of configs/gpu/a3).
_OVERLAPS = "--xla_gpu_enable_latency_hiding_scheduler=true"
# What a plan does not hold and the trainer needs.
_YOURS: Settings = {"run_name": "meshwright", "dataset_type": "synthetic", "steps": 1000, "learning_rate": 3e-4,
                    "enable_checkpointing": False}  # fmt: skip
# One process per node drives all of its GPUs (utils/max_utils.py, initialize_jax_for_gpu).
_MEETING = ('JAX_COORDINATOR_IP="$MASTER_ADDR" JAX_COORDINATOR_PORT="$MASTER_PORT" '
            'NODE_RANK="$NODE_RANK" \\\n  ')  # fmt: skip


def _shares(columns: Columns, problem: Problem) -> Mask:
    # Key/value heads (`kv_heads` of logical_axis_rules) and the vocabulary are in equal parts or on every rank.
    heads = min((attention.kv_heads for attention in problem.model.attentions), default=0)
    return np.asarray((heads % columns["tp"] == 0) & (problem.model.vocab % columns["tp"] == 0))


def _whole_rows(columns: Columns, problem: Problem) -> Mask:
    # utils/sharding.py: an axis that does not divide a dimension leaves it whole.
    ranks = columns["shard"] * columns["cp"]
    return np.asarray((columns["zero"] == 0) | (problem.model.hidden % ranks == 0))


def _shards(columns: Columns, problem: Problem) -> Mask:
    sharing = np.where(columns["zero"] > 0, columns["shard"], 1) * columns["cp"]
    return np.asarray((columns["zero"] > 0) == (sharing > 1))


def _gathers(columns: Columns, problem: Problem) -> Mask:
    known = [CP_ALGORITHMS.index(name) for name in ("allgather", "ring")]
    return np.asarray((columns["cp"] == 1) | np.isin(columns["cp_algorithm"], known))


def _fills_nodes(columns: Columns, problem: Problem) -> Mask:
    """Whether each axis lies in a node or covers whole nodes, as the ranks of a plan do."""
    shard = np.where(columns["zero"] > 0, columns["shard"], 1)
    rows = np.stack([columns["tp"], columns["cp"], shard, columns["dp"] // shard], axis=1)
    found, where = np.unique(rows, axis=0, return_inverse=True)
    return np.array([_fits(row, problem.gpus_per_node) for row in found.tolist()], dtype=bool)[where.reshape(-1)]


def _fits(sizes: list[int], gpus_per_node: int) -> bool:
    left = gpus_per_node
    for inside, over in on_nodes(dict(zip("tcsd", sizes, strict=True)), gpus_per_node).values():
        left //= inside
        if over > 1 and left > 1:
            return False
    return left == 1


def _batches(columns: Columns, problem: Problem) -> Mask:
    """Whether MaxText computes the same micro-batch from the share of a device (types.py: int of a float), and loads
    whole sequences on each."""
    ranks, micro = columns["tp"] * columns["cp"], columns["micro_batch"]
    computed = (problem.num_gpus * (micro / ranks)).astype(np.int64)
    return np.asarray((computed == micro * columns["dp"]) & ((micro < ranks) | (micro % ranks == 0)))


def _policies(columns: Columns, problem: Problem) -> Mask:
    full, selective = (RECOMPUTE_MODES.index(name) for name in ("full", "selective"))
    masks = [mask_of(modules, MODULES, "recompute") for modules in OF_MODULES]
    chosen = (columns["recompute"] == selective) & np.isin(columns["recompute_modules"], masks)
    return np.asarray((columns["recompute"] == full) | chosen)


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes maxtext.yml, and the command that trains it."""
    yours = ("Yours, edit here or give after launch.sh as option=value: run_name, data, steps, learning rate,",
             "checkpoints. Synthetic data are random tokens.")  # fmt: skip
    from ....profiles.io.yaml_syntax import text_of  # slow to load, and needed here only

    several = setup.num_nodes > 1
    start = f'env XLA_FLAGS="$XLA_FLAGS" {_MEETING if several else ""}python3'
    return Job(
        name=f"{setup.model.name}-{_N}", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node,
        files={MAIN_FILE: comment((*header, *yours)) + text_of({**TABLE.write(setup), **_YOURS})},
        command=f'{start} -m maxtext.trainers.pre_train.train "$here/{MAIN_FILE}"',
        environment={**({NODES: str(setup.num_nodes)} if several else {}), POOL: f"{_pool(setup):.2f}", OLD_POOL: None},
        defaults={"XLA_FLAGS": _OVERLAPS},
        notes=setup.model.assumptions, example="steps=100 dataset_type=hf hf_path=...",
    )  # fmt: skip


def _pool(setup: Setup) -> float:
    """The share of a GPU's memory that JAX takes when it starts: the usual one, or more where a plan without headroom
    needs it."""
    needed = max(stage.reserved_bytes for stage in setup.candidate.memory) / setup.gpu_memory_bytes
    return max(USUAL_POOL, ceil(100 * needed) / 100)


def _built(model: ModelSpec) -> ModelSpec:
    """The model that the options describe: one kind of layer of Llama, with biases of queries, keys and values or with
    norms of queries and keys."""
    attention, block = model.kinds[0].transformer_blocks
    normed = 2 * attention.head_dim if attention.norm_parameters else 0
    layer = Layer(
        attention=Attention(heads=attention.heads, kv_heads=attention.kv_heads, head_dim=attention.head_dim,
                            value_head_dim=attention.head_dim, qkv_bias=attention.qkv_bias and not normed,
                            norm_parameters=normed),
        feed_forward=FeedForward(inner=getattr(block, "inner", 0)),
    )  # fmt: skip
    return of_one_layer(model, layer, LLAMA31 if model.trained_scaling == LLAMA31 else None)


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that MaxText is not written for."""
    if other := other_layers(model, "MaxText"):
        return other
    reasons = {
        "model.rope_theta: it has rotary positions only": model.rope_theta is None,
        "model.kinds: it has layers of one kind only": len(model.kinds) > 1,
        "model.kinds: mixtures of experts are not planned for it": model.is_moe,
        "model.kinds: latent attention is not planned for it":
            any(attention.is_mla for attention in model.attentions),
        f"workload.optimizer: it has no {workload.optimizer}": workload.optimizer != "adamw",
        "workload.lora: no adapters": workload.lora is not None,
        "workload.trains_layers: it trains all layers": workload.trains_layers is not None,
    }  # fmt: skip
    given = [text for text, applies in reasons.items() if applies]
    plain = replace(model, rope_scaling=model.trained_scaling)
    return given or unlike(plain, _built(model), workload, "its blocks of Llama and Qwen have no option for it")


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Numbers that are none, and packed sequences that its attention refuses."""
    least = {**dict.fromkeys((*AXES, STEPS, LENGTH), 1), "ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}
    out = [(name, f"`{settings[name]}` is not 1 or more") for name, lowest in least.items()
           if settings.get(name, 1) < lowest or settings.get(name) == 0]  # fmt: skip
    if settings.get(BATCH, 1) <= 0:
        out.append((BATCH, f"`{settings[BATCH]}` is not more than 0"))
    shared = settings.get("ici_context_parallelism", 1) * settings.get("dcn_context_parallelism", 1)
    if shared > 1 and settings.get(PACKING) and settings.get(STRATEGY, "all_gather") != "ring":
        out.append((PACKING, "only ring attention takes packed sequences with context parallelism"))
    if settings.get(IOTA):
        out.append((IOTA, "rows of the table are then a matrix product, which no plan prices"))
    over = prod(settings.get(name, 1) for name in AXES if name.startswith("dcn"))
    if environment.get(NODES, str(over)) != str(over):
        out.append((NODES, f"{environment[NODES]}, but the axes over nodes (dcn) make {over}"))
    return out


def _parser_case(files: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    layout = setup.layout
    return {"config": files[MAIN_FILE], "world": layout.num_gpus, "nodes": setup.num_nodes,
            "micro_batch": layout.micro_batch * layout.dp, "batch": setup.workload.global_batch}  # fmt: skip


CONFIG = LaunchConfig(
    main_file=MAIN_FILE,
    read=read_config,
    table=lambda options: TABLE,
    conflicts=conflicts,
    prices={
        **reader.READER.reading.changes,
        r"cast_logits_to_fp32|logits_dot_in_fp32|float32_\w+|fused_\w+|matmul_precision|grad_dtype":
            "what a step computes, and in which type",
        r"rope_\w+|partial_rotary_factor|mlp_bias|\w+_layer_step|sliding_window_size|(beta_)?(fast|slow)|mscale|"
        r"(global|local)_(head_dim|num_kv_heads|rope_\w+)|compressed_rope_max_timescale|"
        r"original_max_position_embeddings|(gdn|indexer|moba|mlp_activations_limit|o_(groups|lora))(_\w+)?|"
        r"chunk_attn_window_size|hidden_size_per_layer_input|nope_layer_interval|norm_topk_prob|v_norm_with_scale|"
        r"qk_norm_with_scale|use_qk_norm_in_gdn|moe_expert_input_dim|padded_base_moe_mlp_dim|"
        r"use_qk_clip|enable_dropout": "the model",
        r"attention_out|context|decoder_layer_input|(key|value|query|qkv|kv|out|query_wa|kv_wa)_proj|mla_(q|kv)|"
        r"(moe_)?mlpw(i(_[01])?|o)|set_remat_policy_on_\w+|scan_layers_per_stage|scan_pipeline_\w+|force_unroll":
            "what the backward pass computes again",
        r"context_parallel_(load_balance|reorder_strategy)|(ulysses_)?context_sharding|shard_mode|"
        r"expansion_factor_real_data": "how ranks share sequences",
        r"(dense|moe)_fsdp_use_two_stage_all_gather|shard_exp_on_fsdp|sharding_strategy|pipeline_fsdp_ag_\w+|"
        r"pipeline_delay_activation_forwarding|allow_split_physical_axes|subslice_shape|te_comm_gemm_overlap|"
        r"compile_xla_flags|moe_(chunk_barrier|dispatch_no_expert_sharding)|num_moe_\w+_chunks|batch_split_factor|"
        r"num_communication_overlapping_steps|vocab_tiling_ag_once": "other messages",
        r"megablox|use_(gmm_v2|tokamax_\w+|ragged_\w+|jax_splash|custom_sort_vjp|max_logit_estimate)|merge_gating_gmm|"
        r"ragged_buffer_factor|prefuse_moe_weights|use_random_routing|record_internal_nn_metrics": "other kernels",
        r"global_rampup_samples|per_device_batch_size_(start|increment)|use_tunix_gradient_accumulation": "the batch",
        r"dpo|use_grpo|training_objective|trainable_parameters_mask|lora(\..*)?": "another training",
        r"use_(qwix|manual)_quantization|quant_cfg_path|quantization_local_shard_count|replicate_quant_scale":
            "another precision",
    },
    parser=FrameworkParser(script=Path(__file__).with_name("parser.py"), case=_parser_case,
                           modules=("jax", "flax", "omegaconf", "pathwaysutils"),
                           source=sources_in(CHECKOUT, "maxtext")),
)  # fmt: skip
TARGET = Target(
    _N,
    "MaxText on GPUs (YAML of train.py)",
    "maxtext-gpu",
    "MaxText e591f30c (2026-08-22), src/maxtext/configs/, layers/, utils/ and trainers/pre_train/train.py",
    rules=(
        Rule(f"{_N}: tp", ("tp",), _shares,
             "tp {tp} does not divide the {kv_heads} key/value heads and the vocabulary"),
        Rule(f"{_N}: cp_algorithm", ("cp", "cp_algorithm"), _gathers,
             "on GPUs it has all_gather and ring, no {algorithm}"),
        only(_N, "pp", (1,), "its pipeline splits table and head over all stages, which no plan prices (pp {pp})"),
        only(_N, "ep", (1,), "mixtures of experts are not planned for MaxText (ep {ep})"),
        only(_N, "etp", (1,), "mixtures of experts are not planned for MaxText (etp {etp})"),
        only(_N, "zero", (0, 3), "it shards weights, gradients and states together (fsdp), or none of them"),
        Rule(f"{_N}: shards", ("cp", "zero", "shard"), _shards,
             "ranks of fsdp and cp share weights (`embed` of logical_axis_rules): z3 with more than one, else z0"),
        Rule(f"{_N}: rows", ("zero", "shard", "cp"), _whole_rows,
             "shards x cp does not divide the hidden size, which leaves weights whole"),
        Rule(f"{_N}: nodes", ("tp", "cp", "dp", "shard", "zero"), _fills_nodes,
             "tp {tp}, cp {cp}, shards and replicas do not fill nodes one after the other"),
        Rule(f"{_N}: sequences", ("tp", "cp", "dp", "micro_batch"), _batches,
             "per_device_batch_size: a micro-batch of {micro_batch} is no whole share of tp {tp} x cp {cp} ranks"),
        Rule(f"{_N}: recompute", ("recompute", "recompute_modules"), _policies,
             "its policies recompute whole layers, or norms and activations, perhaps with attention or mlp"),
        only(_N, "recompute_layers", (0,), "its policies hold for all layers"),
        only(_N, "offload", ("none",), "states on the host are not planned for GPUs"),
        only(_N, "precision", ("bf16",), "{precision_name} is not planned: its attention kernel takes no fp32, it "
             "scales no loss for fp16, and its quantisation is not priced"),
        *rules_of(_N),
    ),
    trainer=Trainer(framework="MaxText", config=CONFIG, job=job, cannot_build=cannot),
)  # fmt: skip
