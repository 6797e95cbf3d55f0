"""Plans with adapters: the modules that peft names are those that a plan counts, in files that say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.cost_models.quantities.params import lora_parameters, lora_targets
from meshwright.cost_models.specs.workload import Lora
from meshwright.planner import api
from meshwright.planner.importing import import_config
from meshwright.planner.targets import adapters
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.profiles.model.huggingface import read_config
from transformers import AutoConfig

from meshwright.errors import UnsupportedError

from ...meta_models import build

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 512, "head_dim": 16}  # fmt: skip
LATENT = {**SMALL, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
          "v_head_dim": 16, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
          "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}  # fmt: skip
MOE = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
       "shared_expert_intermediate_size": 48}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SMALL, "mistral": SMALL, "mixtral": {**SMALL, **MOE}, "gemma": SMALL, "gemma2": SMALL, "granite": SMALL,
    "olmo2": SMALL, "qwen2": SMALL, "qwen2_moe": {**SMALL, **MOE}, "qwen3": SMALL, "qwen3_moe": {**SMALL, **MOE},
    "gpt_oss": {**SMALL, **MOE}, "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": {**LATENT, "q_lora_rank": 24},
}  # fmt: skip
ASKED: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "seq_len": 4096, "global_batch": 64,
                         "target": "trl"}  # fmt: skip


@pytest.mark.parametrize("family", CONFIGS)
def test_the_modules_of_transformers_have_the_adapters_of_the_plan(family: str) -> None:
    data = AutoConfig.for_model(family, **CONFIGS[family]).to_dict()
    model = read_config(data, family)[0]
    lora = Lora(rank=8, targets=lora_targets(model))
    names = adapters.modules(model, lora)
    linear = [module for name, module in build(data).named_modules()
              if name.rpartition(".")[2] in names and isinstance(module, torch.nn.Linear)]  # fmt: skip
    counted = sum(sum(lora_parameters(model, model.kinds[kind], 8, lora.targets)) for kind in model.pattern)
    shared = 8 * len(model.pattern) * (model.attentions[0].kv_lora_rank or 0)  # of kv_b_proj
    assert shared + 8 * sum(module.in_features + module.out_features for module in linear) == counted
    assert linear


def test_an_adapter_that_is_switched_off_is_no_difference() -> None:
    plan = api.evaluate(None, "dp8-mbs1-z3-rnone", lora="32:q,k,v,o:nf4", **ASKED)
    files = dict(emit(plan, "trl").files)
    for value, found in (("false", []), ("true", ["training_arguments.use_dora"])):
        edited = {**files, "sft.yaml": f"{files['sft.yaml']}use_dora: {value}\n"}
        assert [problem.field for problem in check_files(edited).problems] == found


def test_a_plan_with_adapters_says_them_and_is_in_order() -> None:
    plan = api.evaluate(None, "dp8-mbs1-z3-rnone", lora="32:q,k,v,o:nf4", **ASKED)
    files = emit(plan, "trl").files
    for line in ("use_peft: true", "lora_r: 32", 'lora_target_modules: ["q_proj", "k_proj", "v_proj", "o_proj"]',
                 "load_in_4bit: true", "use_bnb_nested_quant: true",
                 'bnb_4bit_quant_storage: "bfloat16"', "max_length: 4096"):  # fmt: skip
        assert f"{line}\n" in files["sft.yaml"]
    assert check_files(files).problems == []


def test_accelerate_points_to_who_has_adapters() -> None:
    plan = api.evaluate(None, "dp8-mbs1-z3-rnone", lora=16, **ASKED)
    with pytest.raises(LayoutRefusedError) as refused:
        emit(plan, "accelerate")
    assert "trl" in refused.value.hint


@pytest.mark.parametrize(("model", "text"), [
    ("phi-3-mini-4k", "the modules of phi3 that hold these adapters are unknown"),
    ("deepseek-v2-lite", "makes keys and values, so both get an adapter"),
])  # fmt: skip
def test_adapters_without_a_module_of_their_own_are_refused(model: str, text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        api.plan(None, lora="16:q,v", **{**ASKED, "model": model})


def test_lists_of_modules_that_are_parts_of_experts_are_refused() -> None:
    """peft also adapts the routed experts of such a list: 177,496,064 elements for the 5,345,280 of a plan."""
    with pytest.raises(UnsupportedError, match="peft adapts the routed experts of deepseek_v3, too"):
        api.plan(None, lora="16:q,o,gate,up,down", **{**ASKED, "model": "moonlight-16b-a3b"})


def test_eight_bits_are_not_sharded() -> None:
    plan = api.evaluate(None, "dp8-mbs1-z3-rnone", lora="16:q,v:int8", **ASKED)
    with pytest.raises(LayoutRefusedError, match="FSDP2 shards no weights of 8 bits"):
        emit(plan, "trl")
    whole = api.evaluate(None, "dp8-mbs1-z0-rnone", lora="16:q,v:int8", **ASKED)
    assert "load_in_8bit: true\n" in emit(whole, "trl").files["sft.yaml"]


@pytest.mark.parametrize(("more", "lines"), [
    ({"lora": "32:q,v:nf4"}, ('finetuning_type: "lora"', "lora_rank: 32", 'lora_target: "q_proj,v_proj"',
                              "quantization_bit: 4", "double_quantization: true")),
    ({"train_layers": 4}, ('finetuning_type: "freeze"', "freeze_trainable_layers: 4")),
    ({}, ('finetuning_type: "full"', "cutoff_len: 4096", "disable_gradient_checkpointing: true")),
])  # fmt: skip
def test_llama_factory_trains_adapters_or_layers_and_reads_them_back(
    more: dict[str, Any], lines: tuple[str, ...], tmp_path: Path
) -> None:
    plan = api.evaluate(None, "dp8-mbs1-z3-rnone", **{**ASKED, "target": "llama-factory"}, **more)
    files = emit(plan, "llama-factory").files
    for line in lines:
        assert f"{line}\n" in files["llama_factory.yaml"]
    assert check_files(files).problems == []
    paths = [tmp_path / name for name in ("llama_factory.yaml", "ranks.yaml")]
    for path in paths:
        path.write_text(files[path.name], encoding="utf-8")
    again = import_config("llama-factory", paths, {"model": ASKED["model"], "cluster": ASKED["cluster"]}).price()
    assert again.request == {**plan.request, "fix": {"sync_each_batch": "on"}}  # the recipe states it
    assert again.best == plan.best


def test_replicas_of_shards_are_refused_where_they_crash() -> None:
    plan = api.evaluate(None, "dp8-sh4-mbs1-z3-rnone", **{**ASKED, "target": "trl"})
    with pytest.raises(LayoutRefusedError, match="fail on replicas of shards: shard 4 of dp 8"):
        emit(plan, "llama-factory")


def test_axolotl_takes_options_of_accelerate_under_its_own_names() -> None:
    plan = api.evaluate(None, "dp8-sh4-mbs1-z2-rfull", lora="16:q,v:nf4", **{**ASKED, "target": "axolotl"})
    files = emit(plan, "axolotl").files
    for line in ('adapter: "qlora"', "load_in_4bit: true", "dp_replicate_size: 2", "dp_shard_size: 4",
                 "fsdp_version: 2", "  reshard_after_forward: false", "gradient_checkpointing: true"):  # fmt: skip
        assert f"{line}\n" in files["axolotl.yaml"]
    assert check_files(files).problems == []
    assert set(files) == {"axolotl.yaml", "launch.sh", "plan.json"}


def test_axolotl_keeps_no_copies_in_fp32_without_fsdp() -> None:
    asked = {**ASKED, "model": "llama-3.2-1b", "target": "axolotl"}
    with pytest.raises(LayoutRefusedError, match="only FSDP2 keeps copies in fp32"):
        emit(api.evaluate(None, "dp8-mbs1-z0-rnone", **asked), "axolotl")
    assert "adapter" in emit(api.evaluate(None, "dp8-mbs1-z0-rnone", lora=8, **asked), "axolotl").files["axolotl.yaml"]


@pytest.mark.parametrize(("layout", "name"), [
    ("dp8-mbs1-z3-rnone", "adamw_torch_8bit"), ("dp8-mbs1-z0-rnone-fp32", "adamw_8bit"),
])  # fmt: skip
def test_axolotl_has_states_of_eight_bits_that_fsdp_shards(layout: str, name: str) -> None:
    asked = {**ASKED, "model": "llama-3.2-1b", "target": "axolotl", "optimizer": "adamw-8bit",
             "precision": "fp32" if "fp32" in layout else "bf16"}  # fmt: skip
    files = emit(api.evaluate(None, layout, **asked), "axolotl").files
    assert f'optimizer: "{name}"\n' in files["axolotl.yaml"]
    assert check_files(files).problems == []


@pytest.mark.parametrize("target", ["llama-factory", "axolotl"])
def test_options_that_no_plan_writes_are_found_with_their_effect(target: str) -> None:
    plan = api.evaluate(None, "dp8-mbs1-z3-rnone", lora=16, **{**ASKED, "target": target})
    files, name = dict(emit(plan, target).files), {"llama-factory": "llama_factory.yaml"}.get(target, "axolotl.yaml")
    line = {"llama-factory": "use_galore: true", "axolotl": "relora: true"}[target]
    (problem,) = check_files({**files, name: files[name] + f"{line}\n"}).problems
    assert problem.field.endswith(line.partition(":")[0])
    assert "is not in what `emit` wrote: " in problem.message
