"""Models that configs name: of the Hub, of a framework, or of neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.planner.importing import import_config
from meshwright.planner.targets.model_names import known_model
from meshwright.profiles.model.load import load_model

from meshwright.errors import InputError

DENSE = "distributed_type: FSDP\nnum_processes: 6\nfsdp_config:\n  fsdp_version: 2\n"
TITAN = '[model]\nname = "{}"\nflavor = "{}"\n[training]\nlocal_batch_size = 1\nseq_len = 2048\n[parallelism]\n'


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"), ("open-r1/Qwen2.5-Math-7B-RoPE-300k", "qwen2.5-7b"),
        ("Qwen/Qwen3-Coder-7B", None), ("Qwen2.5-Coder", None), ("deepseek-ai/deepseek-llm-7b-chat", "deepseek-llm-7b"),
        ("models/deepseek-coder-6.7b-base/pt", "deepseek-coder-6.7b"), ("out/qwen3-8b/checkpoint-500", "qwen3-8b"),
        ("out/own/checkpoint-500", None), ("pt", None),
        ("casperhansen/llama-3-70b-fp16", "llama-3-70b"), ("allenai/Llama-3.1-Tulu-3-8B-SFT", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", None), ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", None),
        ("RedHatAI/Qwen3-32B-FP8-dynamic", None), ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "qwen2.5-7b"),
    ],
)  # fmt: skip
def test_a_name_of_the_hub(name: str, model: str | None) -> None:
    found = known_model(name)
    assert (found and found.name) == model


def test_parameters_of_small_models_of_torchtitan() -> None:
    # Restated from the sizes in torchtitan/models/*/__init__.py: embedding, head and norms; per layer norms and blocks.
    ends = 2 * 2048 * 256 + 256
    attention, experts = 4 * 256 * 256, 3 * 256 * 512
    llama3 = ends + 6 * (attention + 3 * 256 * 768 + 512)
    # 3 of 6 layers have 8 experts, 1 shared expert and a router.
    llama4 = ends + 6 * (attention + 512) + 3 * 3 * 256 * 768 + 3 * (9 * experts + 8 * 256)
    latent = 256 * 16 * 192 + 256 * (512 + 64) + 512 + 512 * 16 * 256 + 16 * 128 * 256
    deepseek = ends + 6 * (latent + 512) + 3 * 256 * 1024 + 5 * (10 * 3 * 256 * 256 + 8 * 256)
    qwen3 = ends + 8 * (256 * 128 * 32 + 2048 * 256 + 2 * 128 + 512 + 64 * 3 * 256 * 768 + 64 * 256)
    for name, parameters in (("llama3/debugmodel", llama3), ("llama4/debugmodel", llama4),
                             ("deepseek_v3/debugmodel", deepseek), ("qwen3/debugmodel_moe", qwen3)):  # fmt: skip
        assert total_parameters(load_model(name)[0]) == parameters, name


def test_a_model_that_another_release_of_torchtitan_registers(tmp_path: Path) -> None:
    (path := tmp_path / "llama2.toml").write_text(TITAN.format("llama2", "13B"))
    imported = import_config("torchtitan", [path], {"cluster": "dgx-h100:1"})
    assert imported.request.model == "llama-2-13b"
    assert "llama2/13B is llama-2-13b of the catalogue: `--model` names another" in imported.assumed
    path.write_text(TITAN.format("llama2", "14B"))
    with pytest.raises(InputError, match="the model llama2/14B is not in the catalogue"):
        import_config("torchtitan", [path], {"cluster": "dgx-h100:1"})


def test_a_config_without_a_batch_gets_one_that_its_ranks_divide(tmp_path: Path) -> None:
    (path := tmp_path / "fsdp.yaml").write_text(DENSE)
    given = {"gpu": "h100-sxm-80gb", "model": "llama-3.2-1b"}
    imported = import_config("accelerate", [path], given)
    assert imported.layout.dp == 6
    assert imported.request.workload.global_batch == 516  # 512 is the default
    imported.price()
    assert "512 is no multiple of dp 6 x micro batch 1: --global-batch 516 is taken" in imported.assumed
    with pytest.raises(InputError, match="512 is not a multiple of dp 6"):
        import_config("accelerate", [path], {**given, "global_batch": 512})


@pytest.mark.parametrize("comment", ["for the recipe with max_length 4096", "with cutoff, max_length: 4096",
                                     "{max_length: 2}"])  # fmt: skip
def test_a_comment_makes_no_recipe(tmp_path: Path, comment: str) -> None:
    (path := tmp_path / "fsdp.yaml").write_text(f"# {comment}\n{DENSE}# {comment}\n")
    assert not import_config("accelerate", [path], {"gpu": "h100-sxm-80gb", "model": "llama-3.2-1b"}).gaps
