"""The catalogue: every entry loads, totals equal the published counts, every spelling finds its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from meshwright.cost_models.quantities.params import active_parameters, final_norm_parameters, total_parameters
from meshwright.cost_models.specs.variants import text_of
from meshwright.cost_models.specs.workload import OptimizerName
from meshwright.profiles.io.folders import CATALOGUE
from meshwright.profiles.io.reader import read_document
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.load import load_model, model_names, published_in, trained_with

from meshwright.errors import InputError, UnknownNameError

# Parameters as published: safetensors metadata of the Hugging Face repository, or the paper's table (in billions).
PUBLISHED = {
    "gpt2": 0.124440,
    "gpt2-xl": 1.557611,
    "gpt-neox-20b": 20.554568,
    "gpt-j-6b": 6.050883,
    "opt-125m": 0.125239,
    "opt-350m": 0.331196,
    "opt-66b": 65.72,
    "bert-large-uncased": 0.335174,  # BertForMaskedLM on the meta device; the paper (arXiv 1810.04805) has 0.34
    "roberta-base": 0.124697,  # RobertaForMaskedLM on the meta device; the paper (arXiv 1907.11692) has 0.125
    "bloom-560m": 0.559215,
    "bloom-7b1": 7.069016,
    "bloom-176b": 176.247271,
    "falcon-7b": 6.921721,
    "falcon-40b": 41.303,
    "falcon-180b": 180.0,
    "llama-2-7b": 6.738416,
    "llama-2-70b": 68.976648,
    "llama-3.1-8b": 8.030261,
    "llama-3.1-70b": 70.553706,
    "llama-3.1-405b": 405.853389,
    "llama-3.2-1b": 1.235814,
    "llama-3.2-3b": 3.212750,
    "llama-4-scout": 107.77,  # 109 B with its vision part
    "llama-4-maverick": 400.71,
    "mistral-7b": 7.241732,
    "mistral-nemo-12b": 12.247782,
    "mixtral-8x7b": 46.702793,
    "mixtral-8x22b": 140.620634,
    "qwen2.5-0.5b": 0.494033,
    "qwen2.5-7b": 7.615617,
    "qwen2.5-72b": 72.706204,
    "qwen3-0.6b": 0.596050,
    "qwen3-8b": 8.190735,
    "qwen3-30b-a3b": 30.532123,
    "qwen3-235b-a22b": 235.093635,
    "qwen1.5-moe-a2.7b": 14.315784,
    "deepseek-v2": 235.741435,
    "deepseek-v2-lite": 15.706484,
    "deepseek-v3": 671.0,
    "kimi-k2": 1026.0,
    "moonlight-16b-a3b": 15.96,
    "gemma-2b": 2.506172,
    "gemma-7b": 8.537681,
    "gemma-2-9b": 9.241706,
    "gemma-2-27b": 27.227128,
    "gemma-3-1b": 0.999886,
    "gemma-3-4b": 3.880,
    "phi-3-mini-4k": 3.821080,
    "phi-4": 14.659507,
    "olmo-2-7b": 7.298617,
    "olmo-2-32b": 32.234280,
    "starcoder2-7b": 7.173924,
    "starcoder2-15b": 15.957889,
    "granite-3.1-8b": 8.170848,
    "gpt-oss-20b": 20.914757,
    "gpt-oss-120b": 116.829157,
    "nemotron-4-340b": 341.0,
}
ACTIVE = {
    "mixtral-8x7b": 12.9,
    "deepseek-v2": 21.4,
    "deepseek-v3": 37.6,
    "kimi-k2": 32.9,
    "qwen3-30b-a3b": 3.35,
    "qwen3-235b-a22b": 22.2,
    "llama-4-maverick": 17.2,
}
# Table 1 of the Megatron-LM paper (arXiv 2104.04473): billions, and layers, hidden for the formula.
MEGATRON = {
    "gpt-1.7b": (1.7, 24, 2304),
    "gpt-3.6b": (3.6, 30, 3072),
    "gpt-7.5b": (7.5, 36, 4096),
    "gpt-18.4b": (18.4, 40, 6144),
    "gpt-39.1b": (39.1, 48, 8192),
    "gpt-76.1b": (76.1, 60, 10240),
    "gpt-145.6b": (145.6, 80, 12288),
    "gpt-310.1b": (310.1, 96, 16384),
    "gpt-530b": (529.6, 105, 20480),
    "gpt-1t": (1008.0, 128, 25600),
}
# Every name in the published runs, and the canonical name it must find.
VALIDATION = {
    "deepseek-v2 truncated to 4 layers": "deepseek-v2-truncated-to-4-layers",
    "deepseek-v3": "deepseek-v3",
    "deepseek-v3 truncated to 4 layers": "deepseek-v3-truncated-to-4-layers",
    "gpt-1.7B": "gpt-1.7b",
    "gpt-175b": "gpt-175b",
    "gpt-175b (128 heads)": "gpt-175b-128-heads",
    "gpt-176b (BLOOM tuning)": "gpt-176b-bloom-tuning",
    "gpt-177b (BLOOM tuning)": "gpt-177b-bloom-tuning",
    "gpt-178b (BLOOM tuning)": "gpt-178b-bloom-tuning",
    "gpt-181b (BLOOM tuning)": "gpt-181b-bloom-tuning",
    "gpt-182b (BLOOM tuning)": "gpt-182b-bloom-tuning",
    "gpt-184b (BLOOM tuning)": "gpt-184b-bloom-tuning",
    "gpt-195b (BLOOM tuning)": "gpt-195b-bloom-tuning",
    "gpt-196b (BLOOM tuning)": "gpt-196b-bloom-tuning",
    "gpt-1t": "gpt-1t",
    "gpt-203b (BLOOM tuning)": "gpt-203b-bloom-tuning",
    "gpt-22b": "gpt-22b",
    "gpt-24b (BLOOM tuning)": "gpt-24b-bloom-tuning",
    "gpt-310B": "gpt-310.1b",
    "gpt-32B": "gpt-32b",
    "gpt-39B": "gpt-39.1b",
    "gpt-4b": "gpt-4b",
    "gpt-530B": "gpt-530b",
    "gpt-530b": "gpt-530b",
    "gpt-5b": "gpt-5b",
    "gpt-7.5B": "gpt-7.5b",
    "gpt-76B": "gpt-76.1b",
    "gpt-h1024-l12": "gpt-h1024-l12",
    "gpt-h1024-l20": "gpt-h1024-l20",
    "gpt-h2048-l12": "gpt-h2048-l12",
    "gpt-h2048-l20": "gpt-h2048-l20",
    "gpt-h3072-l30": "gpt-3.6b",
    "gpt-h8192-l48": "gpt-39.1b",
    "gpt-oss-120b": "gpt-oss-120b",
    "gpt3-175b": "gpt-175b",
    "gpt3-20b": "gpt3-20b",
    "gpt3-5b": "gpt3-5b",
    "gpt3-7b (test)": "gpt3-7b-test",
    "internlm-7b": "internlm-7b",
    "kempner-13b": "kempner-13b",
    "kempner-29b": "kempner-29b",
    "llama-34b (CodeLlama-34B shape)": "codellama-34b",
    "llama2-13b": "llama-2-13b",
    "llama2-70b": "llama-2-70b",
    "llama2-7b": "llama-2-7b",
    "llama3-70b": "llama-3-70b",
    "llama3-70b shape": "llama-3-70b",
    "llama3-70b truncated to 12 layers": "llama3-70b-truncated-to-12-layers",
    "llama3-8b": "llama-3-8b",
    "llama3-8b shape": "llama-3-8b",
    "llama3.1-405b": "llama-3.1-405b",
    "llama3.1-405b truncated to 4 layers": "llama3.1-405b-truncated-to-4-layers",
    "moonlight-16b-a3b": "moonlight-16b-a3b",
    "mpt-13b": "mpt-13b",
    "mpt-1b": "mpt-1b",
    "mpt-30b": "mpt-30b",
    "mpt-3b": "mpt-3b",
    "mpt-70b": "mpt-70b",
    "mpt-7b": "mpt-7b",
    "mt-nlg-530b": "mt-nlg-530b",
    "nemotron4-340b": "nemotron-4-340b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
}


def billions(name: str) -> float:
    return total_parameters(load_model(name)[0]) / 1e9


@pytest.mark.parametrize("name", model_names())
def test_every_entry_loads_with_a_source(name: str) -> None:
    spec, _ = load_model(name)

    assert spec.name == name
    assert spec.source
    assert total_parameters(spec) >= active_parameters(spec) > 0


def test_catalogue_is_large() -> None:
    assert len(model_names()) >= 100


@pytest.mark.parametrize("name", PUBLISHED)
def test_total_equals_the_published_count(name: str) -> None:
    assert billions(name) == pytest.approx(PUBLISHED[name], rel=0.01)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_equal_the_published_count(name: str) -> None:
    spec = text_of(load_model(name)[0])  # published counts are those of a token of text
    assert active_parameters(spec) / 1e9 == pytest.approx(ACTIVE[name], rel=0.01)


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_family_follows_its_formula(name: str) -> None:
    """G1 of FORMULAS section 15: 12 l h^2 (1 + 13/(12h) + (V+s)/(12 l h)), which leaves out the final norm."""
    billion, layers, hidden = MEGATRON[name]
    spec, _ = load_model(name)
    by_formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (51200 + 2048) / (12 * layers * hidden))

    assert total_parameters(spec) - final_norm_parameters(spec) == pytest.approx(by_formula, rel=1e-12)
    assert round(billions(name), 1) == pytest.approx(billion, abs=0.051)


def test_golden_g1() -> None:
    assert round(billions("gpt-1t"), 1) == 1008.0
    assert round(billions("gpt-530b"), 1) == 529.6
    assert round(billions("gpt-175b"), 1) == 174.6
    assert round(billions("gpt-22b")) == 22


@pytest.mark.parametrize("name", VALIDATION)
def test_every_published_run_names_a_known_model(name: str) -> None:
    assert load_model(name)[0].name == VALIDATION[name]


def test_name_of_several_shapes_says_so() -> None:
    _, warnings = load_model("gpt-181b (BLOOM tuning)")

    assert "4 shapes" in warnings[0]
    assert load_model("gpt-181b-bloom-tuning-a256")[0].kinds[0].transformer_blocks[0].heads == 256


@pytest.mark.parametrize(
    "spelling",
    ["llama-3.1-8b", "Llama-3.1-8B", "llama_3_1_8b", "LLAMA 3.1 8B", "meta-llama/Llama-3.1-8B", "llama3.1-8b",
     "meta-llama/Meta-Llama-3.1-8B-Instruct"],
)  # fmt: skip
def test_spellings_of_one_model(spelling: str) -> None:
    assert load_model(spelling)[0].name == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("release", "model"),
    [("Qwen/Qwen3-14B-Base", "qwen3-14b"), ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
     ("unsloth/Llama-3.2-1B", "llama-3.2-1b"), ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-v3"),
     ("amd/Llama-3.1-405B-Instruct-FP8-KV", "llama-3.1-405b"), ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
     ("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "llama-3.1-70b"),
     ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "nemotron-3-nano-30b-a3b"), ("Qwen/QwQ-32B-AWQ", "qwen2.5-32b"),
     ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.3-70b"), ("zai-org/GLM-4.7-FP8", "glm-4.7"),
     ("lmsys/vicuna-13b-v1.5", "llama-2-13b"), ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b"),
     ("google/flan-t5-xl", "t5-v1.1-xl"), ("allenai/OLMo-2-1124-13B-Instruct", "olmo-2-13b"),
     ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3"),
     ("nvidia/Llama-3.1-Nemotron-70B-Instruct", "llama-3.1-70b"), ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7b")],
)  # fmt: skip
def test_a_release_is_priced_with_the_shapes_of_its_model(release: str, model: str) -> None:
    spec, (warning, *_) = load_model(release)
    assert spec == load_model(model)[0]
    assert warning.startswith(f"{release} is taken for {spec.name}")


def test_a_folder_wins_over_the_model_of_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "Qwen" / "Qwen3-14B-Base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="holds no config"):
        load_model("Qwen/Qwen3-14B-Base")
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 128, "vocab_size": 100, "rms_norm_eps": 1e-5}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    assert load_model("Qwen/Qwen3-14B-Base")[0].num_layers == 2


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8",
        "lama-3.1-8b",
        "meta-llama/Llama-3.1-8",
        "deepseek-v33",
        "",
        "-instruct",
        "org/-fp8",
        "some/Llama-3-8B-pruned",
        "gpt2-2048",
        "gpt2-1024",
        "THUDM/GLM-4-9B-0414",
        "org/Mistral-7B-v0.9",
    ],
)
def test_unknown_model(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model(name)

    assert name in caught.value.message
    assert "meshwright show models" in caught.value.hint


def test_unknown_model_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-8c") as caught:
        load_model("llama-3.1-8c")

    assert "`llama-3.1-8b`" in caught.value.hint


def test_catalogue_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)

    assert load_model("gpt2")[0].num_layers == 12
    with pytest.raises(InputError, match="no config"):
        load_model(Path("gpt2"))


def test_published_row_reads_as_the_catalogue_model() -> None:
    row = {"name": "llama3-8b", "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128,
           "ffn_hidden": 14336, "gated_mlp": True, "vocab": 128256, "seq_len": 8192, "tied_embeddings": False,
           "params_b": 8.03, "moe": None}  # fmt: skip
    spec, warnings = read_explicit_form(row, "llama3-8b")

    assert total_parameters(spec) == total_parameters(load_model("llama3-8b")[0])
    assert not warnings


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2", "gpt-oss-20b"])
def test_formats_of_published_weights_are_those_of_the_config(name: str) -> None:
    config = json.loads((Path(__file__).parents[2] / f"data/configs/{name}.json").read_text(encoding="utf-8"))
    assert published_in(name) == config["quantization_config"]["quant_method"]


def test_optimizers_that_models_were_trained_with_have_a_source() -> None:
    assert trained_with("moonshotai/Kimi-K2-Instruct") == trained_with("kimi-k2") == "muon"
    assert trained_with("llama-3-8b") is None
    assert trained_with("no-such-model") is None
    for path in sorted((CATALOGUE / "models").glob("[!_]*.yaml")):
        if stated := read_document(path).data.get("trained_with"):
            assert stated["optimizer"] in get_args(OptimizerName), path.name
            assert stated["source"], path.name
