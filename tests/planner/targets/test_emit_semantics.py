"""Fields of public models that change what is computed, in the files of every target that describes the model."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from meshwright.cost_models.specs.model import MixtureOfExperts, ModelSpec
from meshwright.cost_models.specs.variants import text_of
from meshwright.planner import api
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.facts import request_part
from meshwright.planner.targets.option_lists import option_list
from meshwright.planner.targets.registry import TARGETS
from meshwright.profiles.model.choice_bias import FAMILIES as BIASED
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.families import FAMILIES
from meshwright.profiles.model.load import load_model, model_names

from .emit_plans import config_of, without_whole_windows

DESCRIBING = [name for name, target in TARGETS.items() if target.config is not None
              and "model.hidden" in target.config.table(option_list(name)[0]).fields]  # fmt: skip
# The model is that of a script, or of a registry.
SCRIPTED = {"trl", "llama-factory", "axolotl", "deepspeed", "accelerate", "torchtitan"}


def test_the_targets_that_describe_a_model() -> None:
    written = {name for name, target in TARGETS.items() if target.config is not None}
    assert set(DESCRIBING) == written - SCRIPTED == {"maxtext", "megatron", "megatron-bridge", "nanotron", "nemo"}


@cache
def public() -> list[tuple[str, ModelSpec]]:
    """But for diffusion transformers and graph networks, which have no sequence length of their own."""
    models = [(name, load_model(name)[0]) for name in model_names()]
    return [(name, model) for name, model in models if model.family != "own" and model.diffusion is None
            and model.graph is None]  # fmt: skip


@pytest.mark.parametrize("target", DESCRIBING)
def test_public_models_are_written_as_they_are_or_refused(target: str) -> None:
    options, config = option_list(target)[0], config_of(target)
    written = 0
    for name, model in public():
        layout = {"nanotron": "dp8-mbs1-z0-rnone", "maxtext": "dp8-mbs1-z0-rfull"}.get(target, "dp8-mbs1-z1-rnone")
        plan = api.evaluate(None, layout, model=name, cluster="dgx-h100:1", seq_len=model.max_positions,
                            global_batch=8, target=target)  # fmt: skip
        try:
            files = emit(plan, target).files
        except LayoutRefusedError:
            continue
        facts = config.table(options).read(config.read_folder(files, options).settings)
        found = read_explicit_form(request_part(facts, "model"), name)[0]
        # A plan without images is of the text model alone. Every framework refuses one with images.
        assert _meaning(found) == _meaning(without_whole_windows(text_of(model))), name
        written += 1
    assert written >= {"nanotron": 20, "nemo": 30, "maxtext": 30}.get(target, 51)


def _meaning(model: ModelSpec) -> ModelSpec:
    """A model without its origin, with the digits that plans and both targets keep."""
    activation = model.activation.replace("gelu_tanh", "gelu")  # their one GELU is computed by tanh where it is fused
    theta = model.rope_theta and float(round(model.rope_theta))
    return replace(model, name="", source="", family="", assumed=(), unmodelled=(), activation=activation,
                   rope_theta=theta, rope_scaling=model.trained_scaling,
                   moe_aux_loss_coeff=float(f"{model.moe_aux_loss_coeff:.6g}"))  # fmt: skip


@pytest.mark.parametrize(("name", "biased"), [
    ("deepseek-v3", True), ("kimi-k2", True), ("glm-5", True), ("nemotron-3-nano-30b-a3b", True),
    ("deepseek-v2", False), ("mixtral-8x7b", False), ("gpt-oss-120b", False), ("qwen3-30b-a3b", False),
])  # fmt: skip
def test_the_bias_of_a_choice_is_read_from_public_configs(name: str, biased: bool) -> None:
    blocks = [block for block in load_model(name)[0].feed_forwards if isinstance(block, MixtureOfExperts)]
    assert blocks
    assert all(block.choice_bias == biased for block in blocks)


def test_transformers_has_the_bias_in_the_same_families() -> None:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    models = Path(spec.origin).parent / "models"
    sources = {name: path.read_text(encoding="utf-8") for name in FAMILIES
               if (path := models / name / f"modeling_{name}.py").is_file()}  # fmt: skip
    assert len(sources) > 60
    stated = {name for name, text in sources.items() if "self.e_score_correction_bias =" in text or
              "self.expert_bias =" in text}  # fmt: skip
    assert stated == BIASED & set(sources)
    # Those that transformers keeps under another name, or not at all.
    assert BIASED - set(sources) == {"bailing_moe_v2", "kimi_k2", "step3p5"}


def test_deepseek_v3_balances_its_experts_in_megatron() -> None:
    plan = api.evaluate(None, "dp8-ep8-mbs1-z1-rnone", model="deepseek-v3", cluster="dgx-h100:1", seq_len=4096,
                        global_batch=8, target="megatron")  # fmt: skip
    assert "--moe-router-enable-expert-bias\n" in emit(plan, "megatron").files["megatron.args"]
    assert "moe_router_enable_expert_bias=True," in emit(plan, "megatron-bridge").files["bridge_plan.py"]
