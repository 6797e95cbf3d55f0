"""Adapters in recipes of Megatron-Bridge: read as such, or named where no plan has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_recipes import imported

PEFT = '''\
def tuned(peft_scheme: str | PEFT = "lora") -> ConfigContainer:
    cfg = _peft_common()
    cfg.model = AutoBridge.from_hf_pretrained("MODEL").to_megatron_provider(load_weights=False)
    peft_cfg = default_peft_config(peft_scheme)
    if isinstance(peft_scheme, str) and peft_scheme.lower() in ["lora", "dora"]:
        peft_cfg.dim = 8
        peft_cfg.target_modules = ["linear_qkv", "linear_proj"]
    cfg.peft = peft_cfg
    LINE
    return cfg
'''
LLAMA, MIXTRAL, DEEPSEEK = "meta-llama/Meta-Llama-3-8B", "mistralai/Mixtral-8x7B-v0.1", "deepseek-ai/DeepSeek-V3"
ADAPTERS = [
    (LLAMA, "pass", 8, ("q", "k", "v", "o")),
    (MIXTRAL, "pass", 8, ("q", "k", "v", "o")),
    (LLAMA, "cfg.peft.dim = 4", 4, ("q", "k", "v", "o")),
    (LLAMA, 'cfg.peft = CanonicalLoRA(dim=2, target_modules=["linear_q"])', 2, ("q",)),
    (LLAMA, "cfg.peft = LoRA()", 32, ("q", "k", "v", "o", "gate", "up", "down")),
]  # fmt: skip


@pytest.mark.parametrize(("model", "line", "rank", "targets"), ADAPTERS)
def test_adapters_of_a_recipe(tmp_path: Path, model: str, line: str, rank: int, targets: tuple[str, ...]) -> None:
    found = imported(tmp_path, PEFT.replace("MODEL", model).replace("LINE", line))
    lora = found.request.workload.train.lora
    assert lora is not None
    assert (lora.rank, lora.targets, lora.base_dtype) == (rank, targets, "bf16")
    assert found.request.target == "any"


def test_without_a_scheme_all_weights_learn(tmp_path: Path) -> None:
    found = imported(tmp_path, PEFT.replace("MODEL", LLAMA).replace("LINE", "cfg.peft = None"))
    assert found.request.workload.train.lora is None
    assert found.request.target == "megatron-bridge"


OTHER_ADAPTERS = [
    (LLAMA, "cfg.peft = DoRA(dim=8)", "peft", "`DoRA` has no counterpart in a plan"),
    (LLAMA, "cfg.peft = default_peft_config(chosen())", "peft", "`chosen()` is computed"),
    (LLAMA, 'cfg.peft.target_modules = ["*.layers.0.*.linear_qkv"]', "peft.target_modules", "adapters of *.layers.0"),
    (LLAMA, 'cfg.peft.exclude_modules = ["linear_qkv"]', "peft.exclude_modules", "adapters of other modules"),
    (MIXTRAL, "cfg.peft = LoRA()", "peft", "adapters of routed experts"),
    (DEEPSEEK, "pass", "peft.target_modules", "latent attention has other modules"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "line", "option", "text"), OTHER_ADAPTERS)
def test_adapters_that_no_plan_has(tmp_path: Path, model: str, line: str, option: str, text: str) -> None:
    found = imported(tmp_path, PEFT.replace("MODEL", model).replace("LINE", line))
    assert [gap.field for gap in found.gaps] == [option]
    assert text in found.gaps[0].message
