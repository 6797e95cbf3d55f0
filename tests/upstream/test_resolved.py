"""Frameworks train with what the plan states, after their own defaults and validation.

The other tests compare files with the plan by the table that wrote them. Here the framework reads them, and the
expected values are stated again from the plan, in the framework's names.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from typing import Any

import pytest
from meshwright.cost_models.layouts import CP_ALGORITHMS
from meshwright.cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from meshwright.planner.targets.setup import Setup

from ..planner.targets.emit_plans import config_of
from ..table import Row
from .pythons import FOLDER, python_of

if not FOLDER:
    pytest.skip("`make test-upstream` runs these", allow_module_level=True)
from .test_frameworks import HERE, emitted, source

pytestmark = pytest.mark.upstream
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CP_TYPES = {"ring": "p2p", "allgather": "all_gather", "ulysses": "a2a", "ring+ulysses": "a2a+p2p"}


def of_model(model: ModelSpec) -> dict[str, Any]:
    attention, block = model.attentions[0], model.feed_forwards[0]
    dense = [block.inner for block in model.feed_forwards if not isinstance(block, MixtureOfExperts)]
    out: dict[str, Any] = {
        "num_layers": model.num_layers, "hidden_size": model.hidden, "num_attention_heads": attention.heads,
        "layernorm_epsilon": model.norm_epsilon, "tied": model.tied_embeddings,
        "multi_latent_attention": attention.is_mla, "gated_linear_unit": block.gated,
        "attention_dropout": 0.1 if model.dropout else 0.0, "hidden_dropout": 0.1 if model.dropout else 0.0,
        "rotary_percent": model.partial_rotary_factor, "mtp_num_layers": model.mtp_layers or None,
    }  # fmt: skip
    if dense:
        out["ffn_hidden_size"] = dense[0]
    if attention.rotary and model.rope_theta:
        out["rotary_base"] = model.rope_theta
    if attention.is_mla:
        return out | {
            "q_lora_rank": attention.q_lora_rank, "kv_lora_rank": attention.kv_lora_rank,
            "qk_pos_emb_head_dim": attention.rope_head_dim, "v_head_dim": attention.value_head_dim,
            "qk_head_dim": attention.head_dim - attention.rope_head_dim,
        }  # fmt: skip
    return out | {"num_query_groups": attention.kv_heads, "kv_channels": attention.head_dim}


def of_experts(setup: Setup) -> dict[str, Any]:
    layout, switches = setup.layout, setup.switches
    experts = [block for block in setup.model.feed_forwards if isinstance(block, MixtureOfExperts)]
    if not experts:
        return {}
    grouped, dispatcher = experts[0].groups > 1, switches["moe_dispatcher"]
    return {
        "num_moe_experts": experts[0].experts, "moe_router_topk": experts[0].top_k,
        "moe_ffn_hidden_size": experts[0].expert_inner, "moe_grouped_gemm": True,
        "moe_shared_expert_intermediate_size": experts[0].shared_inner or None,
        "moe_router_score_function": experts[0].router_scores,
        "moe_router_enable_expert_bias": experts[0].choice_bias,
        "moe_router_num_groups": experts[0].groups if grouped else None,
        "moe_router_group_topk": experts[0].top_groups if grouped else None,
        "moe_router_topk_scaling_factor": experts[0].router_scale if experts[0].router_scale != 1 else None,
        "moe_aux_loss_coeff": setup.model.moe_aux_loss_coeff,
        "expert_model_parallel_size": layout.ep, "expert_tensor_parallel_size": layout.etp,
        "moe_token_dispatcher_type": "flex" if dispatcher in ("deepep", "hybridep") else dispatcher,
        "moe_router_force_load_balancing": switches.get("moe_force_balance") == "on",
        "moe_permute_fusion": switches.get("moe_permute_fusion") == "on",
        "overlap_moe_expert_parallel_comm": bool(layout.ep_overlap),
        "delay_wgrad_compute": bool(layout.ep_overlap) and switches.get("delay_wgrad") == "on",
    }  # fmt: skip


def of_numerics(setup: Setup) -> dict[str, Any]:
    switches, optimizer = setup.switches, setup.workload.optimizer
    half = setup.precision if setup.precision in DTYPES else "bf16"
    moments = "bfloat16" if optimizer == "adamw-bf16" else "float32"
    out: dict[str, Any] = {
        "bf16": half == "bf16", "fp16": half == "fp16", "params_dtype": DTYPES[half],
        "fp8": "hybrid" if setup.precision == "fp8" else None, "exp_avg_dtype": moments, "exp_avg_sq_dtype": moments,
        "optimizer_cpu_offload": "opt" in setup.offload,
        "cross_entropy_loss_fusion": switches.get("cross_entropy") == "fused",
        "gradient_accumulation_fusion": setup.layout.zero < 2, "bias_dropout_fusion": True,
    }  # fmt: skip
    if setup.precision == "fp8":
        recipe = switches["fp8_recipe"]
        gathers = setup.layout.zero > 0 and "opt" not in setup.offload
        out |= {"fp8_recipe": {"current": "tensorwise"}.get(recipe, recipe),
                "fp8_param": gathers and switches.get("fp8_param_gather") != "off"}  # fmt: skip
    if half != "fp32":
        out["accumulate_allreduce_grads_in_fp32"] = switches.get("grad_reduce_dtype") == "fp32"
    if setup.model.feed_forwards[0].gated:  # unfused, it saves more than planned
        out["bias_activation_fusion"] = True
    return out


def of_layout(setup: Setup) -> dict[str, Any]:
    layout, switches = setup.layout, setup.switches
    sharded = layout.zero > 0 and setup.workload.optimizer != "muon"
    out: dict[str, Any] = {
        "seq_length": setup.workload.seq_len, "micro_batch_size": layout.micro_batch,
        "global_batch_size": setup.workload.global_batch, "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp, "context_parallel_size": layout.cp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "sequence_parallel": bool(layout.sequence_parallel), "use_distributed_optimizer": sharded,
        "use_megatron_fsdp": layout.zero > 1, "cpu_offloading_num_layers": layout.offload_layers,
        "num_distributed_optimizer_instances": layout.dp // layout.shard if layout.zero else 1,
        "cpu_offloading": layout.offload_layers > 0, "fine_grained_activation_offloading": bool(layout.offload_modules),
        "recompute_granularity": None if setup.recompute == "none" else setup.recompute,
        "tp_comm_overlap": bool(layout.sequence_parallel) and switches.get("tp_comm_overlap") == "on",
    }  # fmt: skip
    if layout.zero > 1:
        out["data_parallel_sharding_strategy"] = {2: "optim_grads", 3: "optim_grads_params"}[layout.zero]
    if layout.cp > 1:
        out["cp_comm_type"] = CP_TYPES[CP_ALGORITHMS[layout.cp_algorithm]]
    if setup.recompute == "full":
        out |= {"recompute_method": "block" if layout.recompute_layers else "uniform",
                "recompute_num_layers": layout.recompute_layers or 1}  # fmt: skip
    if layout.pp > 1:
        out["deallocate_pipeline_outputs"] = True
    if layout.vpp > 1:
        out["microbatch_group_size_per_vp_stage"] = setup.interleaving_group
    if layout.dp > 1:
        out["overlap_grad_reduce"] = switches.get("overlap_grad_reduce") == "on"
        out["overlap_param_gather"] = layout.zero > 0 and switches.get("overlap_param_gather") == "on"
    return out


TITAN_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble",
                   "dualpipe-v": "DualPipeV"}  # fmt: skip


def of_titan_layer(model: ModelSpec, kind: Layer) -> dict[str, Any]:
    attention, block = kind.transformer_blocks
    scaling = model.trained_scaling
    out: dict[str, Any] = {
        "heads": attention.heads,
        "norm_eps": {model.norm_epsilon},
        "rope.theta": model.rope_theta,
        "rope.scaling": {"llama3": "llama"}.get(scaling.kind, scaling.kind) if scaling else "none",
    }
    if scaling is not None and scaling.kind == "llama3":
        out |= {"rope.scaling_factor": scaling.factor, "rope.low_freq_factor": scaling.low_freq_factor,
                "rope.high_freq_factor": scaling.high_freq_factor,
                "rope.original_max_position_embeddings": scaling.original_max_positions}  # fmt: skip
    elif scaling is not None:
        out |= {"rope.rope_factor": scaling.factor, "rope.original_seq_len": scaling.original_max_positions}
    if attention.is_mla:
        out |= {"q_lora_rank": attention.q_lora_rank, "kv_lora_rank": attention.kv_lora_rank,
                "qk_rope_head_dim": attention.rope_head_dim, "v_head_dim": attention.value_head_dim,
                "qk_nope_head_dim": attention.head_dim - attention.rope_head_dim}  # fmt: skip
    else:
        out |= {"kv_heads": attention.kv_heads, "head_dim": attention.head_dim, "qkv_bias": attention.qkv_bias,
                "qk_norm": attention.norm_parameters > 0}  # fmt: skip
    if not isinstance(block, MixtureOfExperts):
        return out | {"inner": block.inner}
    grouped = block.groups > 1
    return out | {
        "experts": block.experts, "expert_inner": block.expert_inner, "top_k": block.top_k,
        "scores": block.router_scores, "normalises": block.router_normalised, "scale": block.router_scale,
        "groups": block.groups if grouped else None, "top_groups": block.top_groups if grouped else None,
        "shared_inner": block.shared_inner, "force_balance": False,
        "bias_rate": 1e-3,  # its default; no flavour has a balancing loss, which `emit` notes
    }  # fmt: skip


def of_titan(setup: Setup) -> dict[str, Any]:
    model, layout = setup.model, setup.layout
    training, parallelism = "training.", "parallelism."
    replicas = layout.dp // layout.shard if layout.zero else layout.dp
    out: dict[str, Any] = {
        "model_spec.model.dim": model.hidden, "model_spec.model.vocab_size": model.vocab,
        "model_spec.model.enable_weight_tying": model.tied_embeddings, "norm_eps": model.norm_epsilon,
        "mtp": model.mtp_layers, "fp8": setup.precision == "fp8", f"{training}seq_len": setup.workload.seq_len,
        f"{training}global_batch_size": setup.workload.global_batch, f"{training}dtype": "float32",
        f"{training}mixed_precision_param": "float32" if setup.precision == "fp32" else "bfloat16",
        f"{training}mixed_precision_reduce": "float32", f"{training}enable_cpu_offload": False,
        "recompute": "FullAC.Config" if setup.recompute == "full" else None,
        f"{parallelism}tensor_parallel_degree": layout.tp, f"{parallelism}pipeline_parallel_degree": layout.pp,
        f"{parallelism}context_parallel_degree": layout.cp, f"{parallelism}expert_parallel_degree": layout.ep,
        f"{parallelism}data_parallel_replicate_degree": replicas,
        f"{parallelism}data_parallel_shard_degree": layout.shard if layout.zero else 1,
        "compile.enable": setup.switches["torch_compile"] == "on",
    }  # fmt: skip
    if layout.zero:
        out[f"{parallelism}fsdp_reshard_after_forward"] = {2: "never", 3: "always"}[layout.zero]
    if layout.tp > 1:
        out[f"{parallelism}enable_sequence_parallel"] = bool(layout.sequence_parallel)
    if layout.pp > 1:
        return out | {f"{parallelism}pipeline_parallel_schedule": TITAN_SCHEDULES[setup.schedule],
                      f"{parallelism}pipeline_parallel_microbatch_size": layout.micro_batch,
                      f"{training}local_batch_size": setup.workload.global_batch // layout.dp}  # fmt: skip
    return out | {f"{training}local_batch_size": layout.micro_batch}


def of_maxtext(setup: Setup) -> dict[str, Any]:
    model, layout = setup.model, setup.layout
    attention = model.attentions[0]
    inner = [block.inner for block in model.feed_forwards if isinstance(block, FeedForward)]
    shards = layout.shard if layout.zero == 3 else 1
    sizes = {"data": layout.dp // shards, "fsdp": shards, "context": layout.cp,
             "tensor_sequence" if layout.sequence_parallel else "tensor": layout.tp}  # fmt: skip
    modules = set(setup.recompute_modules)
    policy = {frozenset(("norm", "act")): "minimal_with_context", frozenset(("norm", "act", "attn")): "minimal",
              frozenset(("norm", "act", "mlp")): "save_dot_with_context_except_mlp",
              frozenset(("norm", "act", "attn", "mlp")): "save_dot_except_mlp"}  # fmt: skip
    out: dict[str, Any] = {
        "axes": {axis: size for axis, size in sizes.items() if size > 1}, "ranks of a node": setup.gpus_per_node,
        "hardware": "gpu", "attention": "cudnn_flash_te", "attention_type": "global", "dtype": "bfloat16",
        "opt_type": "adamw", "quantization": "", "scan_layers": True, "shard_optimizer_over_data": False,
        "remat_policy": "full" if setup.recompute == "full" else policy[frozenset(modules)],
        "optimizer_memory_host_offload": False, "max_target_length": setup.workload.seq_len,
        "micro_batch_size_to_train_on": layout.micro_batch * layout.dp,
        "global_batch_size_to_train_on": setup.workload.global_batch, "emb_dim": model.hidden,
        "num_decoder_layers": model.num_layers, "num_query_heads": attention.heads,
        "num_kv_heads": attention.kv_heads, "head_dim": attention.head_dim, "mlp_dim": inner[0],
        "mlp_activations": ["silu", "linear"], "vocab_size": model.vocab, "rope_max_timescale": model.rope_theta,
        "normalization_layer_epsilon": model.norm_epsilon, "logits_via_embedding": model.tied_embeddings,
        "attention_bias": attention.qkv_bias, "use_qk_norm": attention.norm_parameters > 0, "num_experts": 1,
        "mtp_num_layers": 0, "dropout_rate": 0.0, "rope_type": "llama3.1" if model.rope_scaling else "default",
        "rope_use_scale": True,  # of llama3.1 only
        **dict.fromkeys(("weight_dtype", "grad_dtype", "mu_dtype"), "float32"),
    }  # fmt: skip
    if layout.cp > 1:
        ring = CP_ALGORITHMS[layout.cp_algorithm] == "ring"
        out |= {"context_parallel_strategy": "ring" if ring else "all_gather", "packing": ring}
    if model.tied_embeddings:
        out["normalize_embedding_logits"] = False
    return out


def of_deepspeed(setup: Setup) -> dict[str, Any]:
    layout, work = setup.layout, setup.workload
    techniques = {name for name, knobs in work.techniques if dict(knobs).get("on")}
    device = "nvme" if "zero-infinity" in techniques else "cpu" if "cpu-offload" in techniques else "none"
    out: dict[str, Any] = {
        "stage": layout.zero, "micro_batch": layout.micro_batch, "steps": setup.num_micro_batches,
        "bf16": setup.precision == "bf16", "fp16": setup.precision == "fp16", "optimizer": work.optimizer,
        "offload_param": device, "offload_optimizer": "cpu" if "opt" in setup.offload else device,
        "tp": layout.tp,
    }  # fmt: skip
    if layout.tp == 1 or layout.pp > 1:  # else the ranks of AutoTP count as replicas
        out["train_batch_size"] = work.global_batch
    if layout.zero:
        out["overlap_comm"] = setup.switches.get("overlap_grad_reduce") == "on"
    return out


def of_accelerate(setup: Setup) -> dict[str, Any]:
    layout, sharded = setup.layout, setup.layout.zero > 0
    full = setup.recompute == "full"
    out: dict[str, Any] = {
        "ranks": layout.num_gpus, "precision": {"fp32": "no"}.get(setup.precision, setup.precision), "fsdp": sharded,
        "micro_batch": layout.micro_batch, "steps": setup.num_micro_batches, "checkpointing": full and not sharded,
        "optimizer": {"adamw": "adamw_torch_fused", "adamw-8bit": "adamw_8bit"}.get(setup.workload.optimizer, "sgd"),
    }  # fmt: skip
    if sharded:
        out |= {"version": 2, "reshard": layout.zero == 3, "recompute": full, "on_host": False, "tp": layout.tp,
                "cp": layout.cp, "dp_shard": layout.shard, "dp_replicate": layout.dp // layout.shard,
                "each": setup.switches.get("sync_each_batch") == "on"}  # fmt: skip
    return out


def expected_of(target: str, setup: Setup) -> dict[str, Any]:
    """Name -> value of the plan, restated."""
    own = {"maxtext": of_maxtext, "deepspeed": of_deepspeed, "accelerate": of_accelerate}
    if target in own:
        return own[target](setup)
    if target != "torchtitan":
        return of_model(setup.model) | of_experts(setup) | of_numerics(setup) | of_layout(setup)
    layers = (of_titan_layer(setup.model, setup.model.kinds[number]) for number in setup.model.pattern)
    return of_titan(setup) | {f"layers.{number}.{name}": value for number, layer in enumerate(layers)
                              for name, value in layer.items()}  # fmt: skip


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """The values of torchtitan with those of its layers by name."""
    layers = enumerate(values.pop("layers", ()))
    return values | {f"layers.{number}.{name}": set(value) if name == "norm_eps" else value
                     for number, layer in layers for name, value in layer.items()}  # fmt: skip


def differs(expected: Any, value: Any) -> bool:
    if isinstance(expected, float) and isinstance(value, int | float):
        return abs(value - expected) > 1e-6 * abs(expected)
    return bool((value or None) != (expected or None))  # no prediction modules are None or 0


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "torchtitan", "maxtext",
                                    "deepspeed", "accelerate"])
def test_the_framework_trains_with_what_the_plan_states(target: str, row: Row) -> None:
    if source(target) is None:
        row(target, "trains with what the plan states", "not run")
        pytest.skip(f"{target} is not there")
    found, parser = emitted(target)[0], config_of(target).parser
    cases = "".join(json.dumps(parser.case(files, Setup.of(plan, 1))) + "\n" for plan, files in found)
    words = [python_of(target), str(HERE / "resolved.py"), target, source(target) or ""]
    done = subprocess.run(words, input=cases, text=True, capture_output=True, check=False)
    values = [flat(json.loads(line)) for line in done.stdout.splitlines()]
    assert len(values) == len(found), done.stderr[-2000:]
    wrong: Counter[str] = Counter()
    right = 0
    for (plan, _), value in zip(found, values, strict=True):
        setup = Setup.of(plan, 1)
        expected = expected_of(target, setup)
        problems = [name for name, each in expected.items() if differs(each, value[name])]
        wrong.update(f"{name}: {value[name]}, not {expected[name]}" for name in problems)
        right += not problems
    row(target, "trains with what the plan states", f"{right} of {len(found)}")
    assert not wrong
