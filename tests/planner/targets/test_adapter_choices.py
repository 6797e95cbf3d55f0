"""Adapters on modules that a recipe picks without listing them: as many parameters as peft makes on the meta device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from meshwright.cost_models.quantities.params import lora_parameters
from meshwright.planner.importing import Imported
from meshwright.planner.request.resolve import resolve

from ...meta_models import build
from ...snapshots import ROOT
from .test_readers import AXOLOTL, FACTORY, RECIPE, SWIFT, imported

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers

LLAMA, QWEN, MIXTRAL = "llama-3.2-1b", "qwen2.5-0.5b", "mixtral-8x7b"
LORA = FACTORY.replace("type: full", "type: lora")
PEFT, LISTED = "use_peft: true\nlora_r: 8\n", "adapter: lora\nlora_r: 8\n"
VERL = """\
actor_rollout_ref:
  model:
    path: Qwen/Qwen2.5-7B-Instruct
    lora_rank: 8
    target_modules: all-linear
  actor: {strategy: fsdp, ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 1}
  rollout: {n: 1}
algorithm: {adv_estimator: grpo}
data: {max_prompt_length: 512, max_response_length: 512}
trainer: {nnodes: 2, n_gpus_per_node: 8}
"""
ALL, LINEAR = f"{PEFT}lora_target_modules: all-linear\n", f"{LISTED}lora_target_linear: true\n"


def of(recipe: str, model: str) -> str:
    """The recipe with another model."""
    return re.sub(r"(?m)^( *(model_name_or_path|base_model|model|path)): .+$", rf"\1: {model}", recipe)


def linear_names(model: torch.nn.Module) -> list[str]:
    """The names of linear modules, as Axolotl, LLaMA-Factory and ms-swift list them for peft."""
    found = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return sorted(found - {"lm_head"})


def made(model: str, picked: object) -> int:
    """Elements of the adapters of rank 8 that peft makes. picked: target_modules, or the function that lists them."""
    base = build(dict(yaml.safe_load((ROOT / f"profiles/catalogue/models/{model}.yaml").read_text())["config"]))
    modules: Any = picked(base) if callable(picked) else picked
    with torch.device("meta"):
        adapted = peft.get_peft_model(base, peft.LoraConfig(r=8, target_modules=modules, task_type="CAUSAL_LM"))
    return sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)


def priced(found: Imported) -> int:
    resolved = resolve(found.request)
    model, lora = resolved.model, resolved.workload.lora
    assert lora is not None
    return sum(sum(lora_parameters(model, model.kinds[kind], lora.rank, lora.targets)) for kind in model.pattern)


@pytest.mark.parametrize(("kind", "recipe", "model", "picked"), [
    ("hf-trainer", RECIPE + ALL, LLAMA, "all-linear"),
    ("hf-trainer", RECIPE + PEFT, LLAMA, None),
    ("hf-trainer", RECIPE + PEFT, "gemma-3-1b", None),
    ("hf-trainer", RECIPE + ALL, "gpt-oss-20b", "all-linear"),
    ("hf-trainer", RECIPE + ALL, "starcoder2-3b", "all-linear"),
    ("llama-factory", LORA + "lora_target: all\n", QWEN, linear_names),
    ("llama-factory", LORA, "gemma-2-2b", linear_names),
    ("axolotl", AXOLOTL + LINEAR, LLAMA, linear_names),
    ("axolotl", AXOLOTL + LINEAR, MIXTRAL, linear_names),
    ("axolotl", AXOLOTL + LINEAR, "qwen3-30b-a3b", linear_names),
    ("swift", SWIFT.replace("full", "lora"), QWEN, linear_names),
    ("swift", SWIFT.replace("full", "lora") + "target_modules: [all-linear]\n", "olmo-2-7b", linear_names),
    ("verl", VERL, QWEN, "all-linear"),
    ("hf-trainer", RECIPE + ALL, "granite-3.1-3b-a800m", "all-linear"),
])  # fmt: skip
def test_as_many_parameters_as_peft_makes(tmp_path: Path, kind: str, recipe: str, model: str, picked: object) -> None:
    found = imported(tmp_path, kind, of(recipe, model))
    assert not found.gaps
    assert priced(found) == made(model, picked)


@pytest.mark.parametrize(("kind", "recipe", "model", "text"), [
    ("hf-trainer", RECIPE + ALL, MIXTRAL, "adapters of routed experts"),
    ("hf-trainer", RECIPE + ALL, "deepseek-v2-lite", "the down projections of latent attention, routed experts"),
    ("hf-trainer", RECIPE + PEFT, MIXTRAL, "names no modules, and plans have no default of peft for mixtral"),
    ("hf-trainer", RECIPE + PEFT, "qwen3-30b-a3b", "names no modules, and plans have no default of peft for qwen3_moe"),
    ("axolotl", AXOLOTL + LINEAR, "qwen1.5-moe-a2.7b", "adapters of routers, or gates of shared experts"),
    ("hf-trainer", RECIPE + ALL, "llama-4-scout", "routers, or gates of shared experts"),
    ("axolotl", AXOLOTL + LINEAR, "qwen3-next-80b-a3b", "adapters of blocks beside attention"),
    ("axolotl", AXOLOTL + LINEAR, "phi-3.5-moe", "adapters of the router"),
    ("llama-factory", LORA.replace("cutoff_len: 2048", "cutoff_len: 512"), "gpt2-xl",
     "gpt2 has no linear module to pick"),
    ("llama-factory", LORA, "opt-350m", "adapters of projections of the embedding"),
    ("hf-trainer", RECIPE + PEFT + "lora_target_modules: [q_proj, o_proj, gate_proj, up_proj, down_proj]\n",
     "moonlight-16b-a3b", "are parts of routed experts, too"),
    ("axolotl", AXOLOTL + LISTED + "lora_target_modules: [q_proj, down_proj]\n", "glm-4.5-air",
     "are parts of routed experts, too"),
])  # fmt: skip
def test_adapters_that_no_plan_has(tmp_path: Path, kind: str, recipe: str, model: str, text: str) -> None:
    (gap,) = imported(tmp_path, kind, of(recipe, model)).gaps
    assert text in gap.message


def test_a_list_without_parts_of_experts_is_read(tmp_path: Path) -> None:
    recipe = RECIPE + PEFT + "lora_target_modules: [q_proj, o_proj]\n"
    assert not imported(tmp_path, "hf-trainer", of(recipe, "moonlight-16b-a3b")).gaps
    dense = RECIPE + PEFT + "lora_target_modules: [q_proj, gate_proj]\n"
    assert not imported(tmp_path, "hf-trainer", dense).gaps


def test_the_gap_has_the_line_of_the_option(tmp_path: Path) -> None:
    found = imported(tmp_path, "axolotl", of(AXOLOTL, "qwen1.5-moe-a2.7b") + LINEAR)
    (gap,) = found.gaps
    assert (gap.field, gap.line) == ("lora_target_linear", 11)
    assert "workload.lora_modules" not in found.stated


def test_a_recipe_that_picks_no_module(tmp_path: Path) -> None:
    (gap,) = imported(tmp_path, "axolotl", AXOLOTL + LISTED).gaps
    assert gap.message == "neither lora_target_modules nor lora_target_linear picks modules"
    with pytest.raises(ValueError, match="target_modules"):
        made(LLAMA, [])


@pytest.mark.parametrize(("kind", "recipe", "word"), [
    ("hf-trainer", f"{RECIPE}{PEFT}lora_target_modules: all\n", "all"),
    ("llama-factory", f"{LORA}lora_target: all-linear\n", "all-linear"),
    ("llama-factory", f"{LORA}lora_target: all,q_proj\n", "all"),
    ("hf-trainer", f"{RECIPE}{PEFT}lora_target_modules: [all-linear, q_proj]\n", "all-linear"),
    ("swift", SWIFT.replace("full", "lora") + "target_modules: [all-linear, all-embedding]\n", "all-embedding"),
])  # fmt: skip
def test_words_of_other_frameworks(tmp_path: Path, kind: str, recipe: str, word: str) -> None:
    (gap,) = imported(tmp_path, kind, recipe).gaps
    assert gap.message == f"no plan has adapters of {word}"


def test_lists_of_no_module(tmp_path: Path) -> None:
    (gap,) = imported(tmp_path, "swift", SWIFT.replace("full", "lora") + "target_modules: []\n").gaps
    assert (gap.field, gap.line, gap.message) == ("target_modules", 10, "names no modules")
    (gap,) = imported(tmp_path, "hf-trainer", of(RECIPE, MIXTRAL) + PEFT).gaps
    assert (gap.field, gap.line) == ("use_peft", 9)


def test_projections_that_share_a_module_are_named(tmp_path: Path) -> None:
    for model, modules in (("phi-3-mini-4k", "qkv_proj and gate_up_proj"), ("glm-4-9b", "gate_up_proj")):
        found = imported(tmp_path, "hf-trainer", of(RECIPE + ALL, model))
        assert any(f"adapter of {modules} is priced as one of each" in text for text in found.assumed)


def test_adapters_of_a_tower_are_named(tmp_path: Path) -> None:
    for kind, recipe, told in (("axolotl", AXOLOTL + LINEAR, True), ("swift", SWIFT.replace("full", "lora"), False)):
        found = imported(tmp_path, kind, of(recipe, "qwen2.5-vl-7b"))
        assert any("modules of the tower learn, too" in text for text in found.assumed) is told
        assert found.request.workload.train.lora is not None


def test_adapters_on_all_linear_modules_have_a_price(tmp_path: Path) -> None:
    few, all_of_them = (imported(tmp_path, "hf-trainer", of(RECIPE + text, LLAMA)).price().best for text in (PEFT, ALL))
    assert all_of_them.step_s > few.step_s


def test_a_model_by_flag_has_its_own_projections(tmp_path: Path) -> None:
    given = {"model": "starcoder2-3b", "cluster": "dgx-h100:2"}
    found = imported(tmp_path, "axolotl", of(AXOLOTL, "acme/unknown") + LINEAR, **given)
    lora = found.request.workload.train.lora
    assert lora is not None
    assert lora.targets == ("q", "k", "v", "o", "up", "down")


def test_a_list_with_the_word_is_no_word_to_peft(tmp_path: Path) -> None:
    """It raises `Target modules {'all-linear'} not found`; TRL alone unpacks a list of one."""
    (gap,) = imported(tmp_path, "axolotl", AXOLOTL + LISTED + "lora_target_modules: [all-linear]\n").gaps
    assert "no plan has adapters of all-linear" in gap.message
    (gap,) = imported(tmp_path, "verl", VERL.replace("all-linear", "[all-linear]")).gaps
    assert "no plan has adapters of all-linear" in gap.message
    assert not imported(tmp_path, "hf-trainer", RECIPE + PEFT + "lora_target_modules: [all-linear]\n").gaps


def test_towers_of_llama_factory_are_frozen_by_default(tmp_path: Path) -> None:
    recipe = of(LORA, "qwen2.5-vl-7b")
    trained = imported(tmp_path, "llama-factory", recipe + "freeze_vision_tower: false\n")
    tower = "linear modules of the tower learn, too: priced without their adapters"
    assert any(tower in text for text in trained.assumed)
    assert not any(tower in text for text in imported(tmp_path, "llama-factory", recipe).assumed)


def test_an_empty_list_of_modules(tmp_path: Path) -> None:
    (gap,) = imported(tmp_path, "llama-factory", LORA + "lora_target: ''\n").gaps
    assert gap.message == "names no modules"
