"""Bad and unusual model inputs: every complaint names what is wrong, all at once, and nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from meshwright.cost_models.specs.model import FeedForward, MixtureOfExperts, ModelSpec
from meshwright.cost_models.specs.rope_scaling import RopeScaling
from meshwright.cost_models.specs.variants import text_of
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.families import FAMILIES
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from meshwright.profiles.model.vision import added_by, in_words

from meshwright.errors import InputError, UnknownNameError

from ...cost_models.quantities.hybrid_configs import HYBRIDS
from ...published_configs import ENTRIES
from ...snapshots import ROOT

CONFIGS = ROOT / "tests" / "data" / "configs"
# Families without a class in transformers.
NOT_IN_TRANSFORMERS = {"Dream", "baichuan", "bailing_moe", "bailing_moe_v2", "deepseek", "internlm", "internlm2",
                       "kimi_k2", "llada", "mimo", "nemotron-nas", "rwkv7"}  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}
OWN: dict[str, Any] = {"hidden": 64, "layers": 4, "heads": 8, "ffn_hidden": 128, "vocab": 100, "max_positions": 256}


def config(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return data


def normalises(spec: ModelSpec) -> bool:
    routed = next(kind.feed_forward for kind in spec.kinds if kind.is_moe)
    assert isinstance(routed, MixtureOfExperts)
    return routed.router_normalised


def problems(data: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        read_config(data, "m")
    return caught.value.message


def test_every_family_has_a_config_that_is_compared() -> None:
    """A published one, or that of its class (HYBRIDS)."""
    published = [entry["config"] for entry in ENTRIES if "refused" not in entry]
    published += [json.loads(path.read_text()) for path in CONFIGS.glob("*.json")]
    shown = {str(data.get("text_config", data)["model_type"]) for data in published}
    functions = {FAMILIES[name] for name in shown | (set(HYBRIDS) & set(FAMILIES))}

    assert set(FAMILIES.values()) == functions


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_every_published_config_is_in_sources(path: Path) -> None:
    assert f"| {path.name} |" in (CONFIGS / "SOURCES.md").read_text()


@pytest.mark.parametrize("spelling", ["Llama", "qwen-3", "DeepSeek_V3"])
def test_another_spelling_of_a_family_is_suggested(spelling: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        read_config({**LLAMA, "model_type": spelling}, "m")

    assert f"`{spelling}`" in caught.value.message
    assert "did you mean `" in caught.value.hint
    assert "ffn_hidden" in caught.value.hint
    assert "never executed" not in caught.value.hint


@pytest.mark.parametrize(
    ("model_type", "fields", "words"),
    [
        ("zamba2", {"mamba_d_conv": 4, "num_mem_blocks": 2}, "its shared attention blocks (`num_mem_blocks`)"),
        ("llamba", {"sparse_attention_config": {"a": 1}}, "its sparse attention of blocks (`sparse_attention_config`)"),
        ("lama", {"hidden_size_per_layer_input": 0}, "unknown model_type `lama` in m"),
        ("llama5", {"memory_slots": 64, "eos_token_id": 2}, "no known family reads its field `memory_slots`"),
        ("llama6", {f"new_{n}": 1 for n in range(8)}, "`new_4`, `new_5` and 2 more"),
        ("llama7", {"new": 0, "layer_types": 3, "rope_scaling": [1]}, "unknown model_type `llama7` in m"),
    ],
)
def test_a_family_that_sounds_alike_is_not_suggested(model_type: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        read_config({**LLAMA, **fields, "model_type": model_type}, "m")

    assert caught.value.message.endswith(words)
    assert "did you mean" not in caught.value.hint
    assert caught.value.hint.startswith("`meshwright show families` lists those with formulas; ")
    assert len(caught.value.hint) < 300


def test_unknown_architecture_with_custom_code_is_not_executed(tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text("raise SystemExit('executed')")
    data = {"model_type": "mystery", "auto_map": {"AutoModel": "modeling.Model"}, **{"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(data))

    with pytest.raises(UnknownNameError) as caught:
        load_model(tmp_path)

    assert "never executed" in caught.value.hint


def test_config_without_model_type() -> None:
    message = problems({"architectures": ["LlamaForCausalLM"], "hidden_size": 8})

    assert "model_type" in message
    assert "LlamaForCausalLM" in message


def test_all_missing_fields_are_named_at_once() -> None:
    message = problems({"model_type": "llama", "num_attention_heads": 8})

    for field in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"):
        assert f"`{field}`" in message


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_attention_heads", 0, "must be 1 or more"),
        ("num_hidden_layers", -1, "must be 1 or more"),
        ("num_hidden_layers", 10**8, "is more than"),
        ("vocab_size", "100", "must be an integer"),
        ("hidden_size", 64.0, "must be an integer"),
        ("hidden_size", True, "must be an integer"),
        ("hidden_size", [64], "must be an integer"),
        ("num_key_value_heads", 3, "not divisible by 3"),
        ("num_attention_heads", 7, "not divisible by"),
        ("tie_word_embeddings", "no", "must be true or false"),
        ("attention_bias", 1, "must be true or false"),
        ("hidden_size", None, "missing field `hidden_size`"),
    ],
)
def test_wrong_values(field: str, value: object, words: str) -> None:
    message = problems({**LLAMA, field: value})

    assert words in message
    assert field in message or field == "num_attention_heads"


def test_heads_that_do_not_divide_the_width_have_a_way_out() -> None:
    with pytest.raises(InputError) as caught:
        read_config({**LLAMA, "num_attention_heads": 7, "num_key_value_heads": 7}, "m")
    assert caught.value.hint == "give `head_dim`, or a number of heads that divides it"


def test_several_problems_come_together_with_their_lines(tmp_path: Path) -> None:
    text = json.dumps({**LLAMA, "hidden_size": 0, "vocab_size": "x"}, indent=1)
    path = tmp_path / "bad.json"
    path.write_text(text)

    with pytest.raises(InputError) as caught:
        load_model(path)

    lines = text.splitlines()
    for field in ("hidden_size", "vocab_size"):
        line = next(number for number, content in enumerate(lines, 1) if field in content)
        assert f"{path}, line {line}, {field}: " in caught.value.message


def test_problem_inside_the_text_config_names_its_path() -> None:
    assert "text_config.hidden_size" in problems({"model_type": "x", "text_config": {**LLAMA, "hidden_size": -2}})


def test_tower_of_a_published_config_is_read() -> None:
    spec, warnings = read_config(config("gemma-3-4b"), "gemma-3-4b")

    assert spec.vocab == 262_208  # the family's default: the published text_config leaves it out
    assert spec.num_layers == 34
    assert spec.tower is not None
    assert (spec.tower.side, spec.tower.output, spec.tower.layers) == (896, spec.hidden, 27)
    assert not any("vision_config" in warning for warning in warnings)


def test_a_known_tower_is_described_beside_the_text_model() -> None:
    data = {"model_type": "qwen3_vl", "text_config": LLAMA, "vision_config": {"out_hidden_size": 4096}}
    spec, warnings = read_config({**data, "audio_config": {}}, "m")
    assert spec.tower is not None
    assert text_of(spec) == read_config(LLAMA, "m")[0]
    assert warnings == ["m: left out: audio_config"]
    text = in_words(spec.tower)
    assert "without its vision tower of 576 million parameters" in text
    assert "1,024 x 1,024 pixels is 1,024 tokens" in text
    assert added_by(spec.tower) == "`--images 1@1024x1024` adds it"


def test_problems_of_a_tower_are_named_together() -> None:
    tower = {"depth": 0, "patch_size": "16", "deepstack_visual_indexes": [30]}
    broken = {**LLAMA, "hidden_size": -2}
    text = problems({"model_type": "qwen3_vl_moe", "text_config": broken, "vision_config": tower})
    assert "text_config.hidden_size" in text
    for problem in ("depth: must be 1 or more", "patch_size: must be an integer", "deepstack_visual_indexes: names"):
        assert f"vision_config.{problem}" in text
    uneven = {"model_type": "qwen3_vl", "text_config": LLAMA, "vision_config": {"num_heads": 7}}
    assert "vision_config.hidden_size: 1152 is not a multiple of 7 heads" in problems(uneven)
    gemma = {"model_type": "gemma3", "text_config": LLAMA}
    assert "vision_config.image_size" in problems({**gemma, "vision_config": {"patch_size": 14}})
    assert "64 x 64 patches of 14 pixels do not become 250 tokens" in problems(
        {**gemma, "mm_tokens_per_image": 250, "vision_config": {"image_size": 896, "patch_size": 14}}
    )


def test_flat_multimodal_config_warns_too() -> None:
    data = {**LLAMA, "vision_config": {"depth": 32}}

    assert any("vision_config" in warning for warning in read_config(data, "m")[1])


def test_chunks_of_long_prompts_are_no_other_part() -> None:
    data = {**LLAMA, "model_type": "qwen2", "dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}}

    assert not read_config(data, "m")[1]


def test_flat_multimodal_config_has_its_tower() -> None:
    scaling = {"type": "mrope", "mrope_section": [8, 12, 12]}
    data = {**LLAMA, "model_type": "qwen2_vl", "vision_config": {"depth": 3}, "rope_scaling": scaling}
    spec, warnings = read_config(data, "m")

    assert spec.tower is not None
    assert (spec.tower.layers, spec.tower.rope_sections) == (3, (8, 12, 12))
    assert not any("vision_config" in warning for warning in warnings)


def test_quantization_and_custom_code_give_warnings() -> None:
    _, warnings = read_config(config("deepseek-v3"), "deepseek-v3")

    assert any("quantization_config" in warning for warning in warnings)
    assert any("auto_map" in warning for warning in warnings)


def test_family_defaults_of_tied_embeddings() -> None:
    for name in ("gpt2", "opt-125m", "bloom-560m", "falcon-7b", "gemma-2b", "starcoder2-7b"):
        assert read_config(config(name), name)[0].tied_embeddings, name
    assert not read_config(LLAMA, "m")[0].tied_embeddings


def test_outer_tied_embeddings_reach_the_text_model() -> None:
    assert read_config({"model_type": "x", "tie_word_embeddings": True, "text_config": LLAMA}, "m")[0].tied_embeddings


def windows(name: str, **changes: object) -> list[int | None]:
    spec, _ = read_config({**config(name), **changes}, name)
    return [spec.kinds[index].transformer_blocks[0].window for index in spec.pattern]


def test_sliding_windows_follow_each_family() -> None:
    assert windows("mistral-7b") == [4096] * 32
    assert windows("mixtral-8x7b") == [None] * 32
    assert windows("gemma-2-9b") == [4096, None] * 21
    assert windows("gemma-3-1b") == ([512] * 5 + [None]) * 4 + [512] * 2
    assert windows("gpt-oss-20b") == [128, None] * 12
    assert windows("qwen2.5-7b") == [None] * 28
    assert windows("qwen2.5-7b", use_sliding_window=True, max_window_layers=20) == [None] * 20 + [131072] * 8
    assert windows("llama-3.1-8b") == [None] * 32
    assert windows("mistral-7b", sliding_window=None) == [None] * 32
    assert windows("gemma-2-9b", sliding_window=None) == [None] * 42


def test_layer_types_win_over_the_pattern() -> None:
    kinds = ["full_attention"] * 26
    kinds[7] = "sliding_attention"

    assert windows("gemma-3-1b", layer_types=kinds) == [512 if index == 7 else None for index in range(26)]


def test_layer_types_without_a_formula_are_refused() -> None:
    data = {**config("gemma-3-1b"), "layer_types": ["linear_attention"] * 26}

    assert "linear_attention" in problems(data)
    assert "26 layers" in problems({**data, "layer_types": ["full_attention"]})


def test_llama4_chunks_and_experts() -> None:
    spec, _ = read_config(config("llama-4-maverick"), "m")
    layers = [spec.kinds[index] for index in spec.pattern]

    assert [layer.transformer_blocks[0].window for layer in layers] == [8192, 8192, 8192, None] * 12
    assert [layer.is_moe for layer in layers] == [False, True] * 24
    routed = layers[1].feed_forward
    assert isinstance(routed, MixtureOfExperts)
    assert (routed.top_k, routed.router_scores, routed.router_normalised) == (1, "sigmoid", False)


@pytest.mark.parametrize(
    ("name", "normalised"), [("qwen1.5-moe-a2.7b", False), ("qwen2-57b-a14b", False), ("qwen3-235b-a22b", True)]
)
def test_scores_of_qwens_experts_are_divided_by_their_sum_where_the_config_says(name: str, normalised: bool) -> None:
    spec, _ = load_model(name)

    assert normalises(spec) is normalised


@pytest.mark.parametrize("name", ["qwen1.5-moe-a2.7b", "qwen3-30b-a3b"])
def test_norm_topk_prob_is_read(name: str) -> None:
    data = config(name)
    without = {key: value for key, value in data.items() if key != "norm_topk_prob"}

    for given, expected in ((data, data["norm_topk_prob"]), (without, False)):  # transformers leaves it False
        assert normalises(read_config(given, "m")[0]) is expected


def test_qwen_3_vl_divides_the_scores_of_its_experts_whatever_the_config_has() -> None:
    data = {**config("qwen3-30b-a3b"), "model_type": "qwen3_vl_moe_text", "norm_topk_prob": False}

    assert normalises(read_config(data, "m")[0])


def test_dense_layers_before_experts() -> None:
    spec, _ = read_config(config("deepseek-v3"), "m")

    assert [spec.kinds[index].is_moe for index in spec.pattern] == [False] * 3 + [True] * 58
    assert spec.mtp_layers == 1
    dense = spec.kinds[0].feed_forward
    assert isinstance(dense, FeedForward)
    assert dense.inner == 18432


def test_more_experts_per_token_than_experts() -> None:
    assert "only 8" in problems({**config("mixtral-8x7b"), "num_experts_per_tok": 9})
    assert "7 groups do not divide 256" in problems({**config("deepseek-v3"), "n_group": 7})
    assert "there are only 8" in problems({**config("deepseek-v3"), "topk_group": 9})


def test_mlp_only_layer_outside_the_model() -> None:
    assert "outside 0..47" in problems({**config("qwen3-30b-a3b"), "mlp_only_layers": [48]})


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: write(folder, "c.json", '{"model_type": "llama",\n "hidden_size": }'), "line 2"),
        (lambda folder: write(folder, "c.json", '{"model_type": "llama",\n "hidden_size": }'), "column 17"),
        (lambda folder: write(folder, "c.json", ""), "empty"),
        (lambda folder: write(folder, "c.json", "[1, 2]"), "must be a mapping"),
        (lambda folder: write(folder, "m.yaml", "hidden: [1"), "line"),
        (lambda folder: folder / "none.json", "no such file"),
        (lambda folder: folder, "no config.json"),
    ],
)
def test_broken_files(tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    path = make(tmp_path)
    for reference in (path, str(path)):
        with pytest.raises(InputError, match=words):
            load_model(reference)


def test_folder_and_file_give_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    by_folder, by_file = load_model(folder)[0], load_model(str(folder / "config.json"))[0]

    assert by_folder == by_file
    assert by_folder.name == "my-llama"
    assert str(folder) in by_folder.source


def test_own_form_reads_every_variant_of_published_tables(tmp_path: Path) -> None:
    block = {
        **OWN,
        "name": "x",
        "seq_len": 128,
        "kv_heads": 2,
        "head_dim": 16,
        "gated_mlp": True,
        "tied_embeddings": False,
        "params_b": None,
        "activation": "clamped SwiGLU",
        "qkv_bias": True,
        "sink_attention": True,
        "sliding_window": 32,
        "window_layers": 2,
        "moe": {"experts": 4, "topk": 2, "expert_ffn": 24, "shared": 2, "shared_ffn": 48, "moe_layers": 3},
        "mla": {"q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
                "v_head_dim": 16},
    }  # fmt: skip
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"source": "a table", "model": block}))
    spec, warnings = load_model(path)
    layers = [spec.kinds[index] for index in spec.pattern]
    block_of_last = layers[-1].feed_forward

    assert not warnings
    assert spec.source == "a table"
    assert [layer.is_moe for layer in layers] == [False, True, True, True]
    assert [layer.transformer_blocks[0].window for layer in layers] == [32, None, 32, None]
    assert isinstance(block_of_last, MixtureOfExperts)
    assert block_of_last.shared_inner == 48
    assert layers[0].transformer_blocks[0].is_mla
    assert layers[0].transformer_blocks[0].head_dim == 24
    assert layers[0].transformer_blocks[0].sink_parameters == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hiden": 3}, "hiden: unknown field"),
        ({"ffn_hidden": None}, "missing field `ffn_hidden`"),
        ({"kv_heads": 3}, "not divisible by 3"),
        ({"moe": {"experts": 4, "topk": 5, "expert_ffn": 8}}, "moe.topk: 5 experts per token"),
        ({"moe": {"experts": 4, "topk": 2}}, "moe.expert_ffn"),
        ({"moe": {"experts": 4, "topk": 2, "expert_ffn": 8, "moe_layers": 9}}, "moe.moe_layers"),
        ({"moe": {"experts": 4, "topk": 2, "expert_ffn": 8, "moe_layers": [4]}}, "outside 0..3"),
        ({"moe": 7}, "moe: must be a mapping"),
        ({"mla": {"kv_lora_rank": 8}}, "mla.qk_rope_head_dim"),
        ({"learned_positions": "yes"}, "learned_positions: must be an integer"),
    ],
)
def test_wrong_own_form(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_explicit_form({**OWN, **changes}, "m")

    assert words in caught.value.message


def test_stated_size_that_does_not_fit_the_fields_warns() -> None:
    assert read_explicit_form({**OWN, "params_b": 7.0}, "m")[1]
    assert not read_explicit_form({**OWN, "params_b": 0.000177}, "m")[1]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_the_catalogue_says_what_the_published_config_says(path: Path) -> None:
    published, listed = load_model(path)[0], load_model(path.stem)[0]
    for name in ("rope_theta", "rope_scaling", "partial_rotary_factor", "norm_epsilon", "activation", "assumed",
                 "moe_aux_loss_coeff", "moe_aux_loss_per_sequence"):  # fmt: skip
        assert getattr(published, name) == getattr(listed, name), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(FAMILIES) - NOT_IN_TRANSFORMERS))
def test_what_a_config_leaves_out_is_the_default_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    whole = transformers.AutoConfig.for_model(name)
    theirs = dict(getattr(whole, "text_config", whole).to_dict(), model_type=name)
    for field, value in (("num_experts_per_tok", 2), ("n_routed_experts", 8)):  # deepseek_v2, dots1 have no default
        theirs[field] = theirs.get(field) or value
    if name == "lfm2_moe":  # neither have its layers
        theirs["layer_types"] = ["conv"] * 31 + ["full_attention"]
    if name.startswith("gemma4"):  # its defaults are of a model with embeddings of each layer, which is refused
        theirs["hidden_size_per_layer_input"] = 0
    bare = {key: value for key, value in theirs.items() if key not in NUMERIC_FIELDS}
    full, lacking = read_config(theirs, "m")[0], read_config(bare, "m")[0]

    assert (lacking.rope_theta, lacking.norm_epsilon) == (full.rope_theta, full.norm_epsilon)
    assert (lacking.activation, lacking.partial_rotary_factor) == (full.activation, full.partial_rotary_factor)
    assert lacking.moe_aux_loss_coeff == full.moe_aux_loss_coeff
    assert lacking.rope_scaling == full.rope_scaling
    assert set(full.assumed) <= set(lacking.assumed)


NUMERIC_FIELDS = {"rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor", "rotary_pct", "rotary_dim",
                  "rotary_emb_base", "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon",
                  "hidden_act", "hidden_activation", "activation_function", "activation",
                  "router_aux_loss_coef"}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": -1}, "rope_theta: must be a number of at least 0"),
        ({"rope_theta": 0}, "rope_theta: must be more than 0"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: must be a number"),
        ({"hidden_act": 3}, "hidden_act: must be the name of a function"),
        ({"hidden_act": "slu"}, "hidden_act: `slu` is no known activation"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_parameters.rope_theta: must be more than 0"),
    ],
)
def test_wrong_numerics(changes: dict[str, Any], words: str) -> None:
    assert words in problems({**LLAMA, **changes})


def test_an_unknown_activation_names_its_line_and_those_that_are_known(tmp_path: Path) -> None:
    """It was taken without a word, and refused by nobody before the job."""
    path = write(tmp_path, "c.json", json.dumps({**LLAMA, "hidden_act": "gelu_pytorch"}, indent=1))
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert f"{path}, line 10, hidden_act: `gelu_pytorch` is no known activation" in caught.value.message
    said = f"{caught.value.message} {caught.value.hint}"
    assert "did you mean `gelu_pytorch_tanh`? known: clamped swiglu, geglu, gelu, " in said
    for name in ("quick_gelu", "SiLU", "gelu_python", "clamped SwiGLU (limit 7)"):
        assert read_config({**LLAMA, "hidden_act": name}, "m")[0].activation


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, (None, 1.0)),
        ({"rope_scaling": None}, (None, 1.0)),
        ({"rope_scaling": {"type": "default"}}, (None, 1.0)),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}, (None, 1.0)),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, (None, 0.5)),
        ({"partial_rotary_factor": 0.25}, (None, 0.25)),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
         (RopeScaling(kind="llama3", factor=8.0, original_max_positions=64), 1.0)),
        ({"rope_parameters": {"rope_type": "llama3", **LLAMA3, "rope_theta": 5e5}},
         (RopeScaling(kind="llama3", factor=8.0, original_max_positions=64), 1.0)),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, (RopeScaling(kind="linear", factor=4.0), 1.0)),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, (RopeScaling(kind="dynamic", factor=2.0), 1.0)),
        # Without a factor the ratio of the lengths; the first length may stand outside (Phi 3).
        ({"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]},
          "original_max_position_embeddings": 64},
         (RopeScaling(kind="longrope", factor=4.0, original_max_positions=64), 1.0)),
        # mscale without mscale_all_dim changes nothing.
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 16, "mscale": 0.7, "truncate": False}},
         (RopeScaling(kind="yarn", factor=4.0, original_max_positions=256, beta_fast=16.0, truncate=False), 1.0)),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9}},
         (RopeScaling(kind="yarn", factor=4.0, original_max_positions=256, mscale=0.7, mscale_all_dim=0.9), 1.0)),
        ({"rope_parameters": {"sliding_attention": {"rope_type": "default"},
                              "full_attention": {"rope_type": "linear", "factor": 8.0}}},
         (RopeScaling(kind="linear", factor=8.0), 1.0)),
    ],
)  # fmt: skip
def test_rotation_is_read_from_old_and_new_configs(said: dict[str, Any], expected: tuple[Any, float]) -> None:
    spec, _ = read_config({**LLAMA, **said}, "m")
    assert (spec.rope_scaling, spec.partial_rotary_factor) == expected


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"rope_scaling": {"type": "lama3", "factor": 8}}, "rope_scaling.type: `lama3` is none of default, linear"),
        ({"rope_parameters": {"rope_type": "ntk"}}, "rope_parameters.rope_type: `ntk` is none of"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: is missing, and linear needs it"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor: must be more than 0"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "beta_slow": "x"}}, "rope_scaling.beta_slow: must be a number"),
        ({"rope_scaling": "llama3"}, "rope_scaling: must be a mapping"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor: 1.5 of a head of 8 is not an even number"),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor: 0.4 of a head of 8 is not an even number"),
    ],
)
def test_wrong_rotation(said: dict[str, Any], words: str) -> None:
    assert words in problems({**LLAMA, **said})


def test_rotation_in_our_own_form() -> None:
    written = {"partial_rotary_factor": 0.5, "rope_scaling": {"type": "llama3", **LLAMA3}}
    spec, _ = read_explicit_form({**OWN, **written}, "m")
    assert spec.rope_scaling == RopeScaling(kind="llama3", factor=8.0, original_max_positions=64)
    assert spec.partial_rotary_factor == 0.5
    with pytest.raises(InputError, match=r"rope_scaling.facter: unknown field"):
        read_explicit_form({**OWN, "rope_scaling": {"type": "linear", "factor": 2, "facter": 3}}, "m")
    learned, _ = read_explicit_form({**OWN, **written, "learned_positions": True}, "m")
    assert (learned.rope_scaling, learned.partial_rotary_factor) == (None, 1.0)


def test_numerics_of_our_own_form() -> None:
    def read(**changes: Any) -> tuple[Any, ...]:
        spec, _ = read_explicit_form({**OWN, **changes}, "m")
        return spec.rope_theta, spec.norm_epsilon, spec.activation, spec.assumed

    assert read() == (10_000.0, 1e-5, "silu", ("rope_theta", "norm_epsilon", "activation"))
    assert read(rope_theta=5e5, norm_epsilon=1e-6, activation="GeGLU") == (5e5, 1e-6, "gelu", ())
    assert read(rope_theta=None, gated_mlp=False) == (None, 1e-5, "gelu", ("norm_epsilon", "activation"))
    assert read(learned_positions=True)[0] is None


@pytest.mark.parametrize(("fields", "scale"), [
    ({}, 512**-0.5), ({"tie_word_embeddings": False}, 1.0), ({"scale_decoder_outputs": False}, 1.0),
    ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, 512**-0.5), ({"model_type": "mt5"}, 1.0),
])  # fmt: skip
def test_t5_scales_what_a_tied_head_takes_or_what_the_config_states(fields: dict[str, Any], scale: float) -> None:
    """T5Config of transformers 5.24 writes the choice beside a head that is always tied."""
    sizes = {"model_type": "t5", "d_model": 512, "num_heads": 8, "num_layers": 6, "d_ff": 2048, "vocab_size": 32128}
    assert read_config({**sizes, **fields}, "t5")[0].logit_scale == pytest.approx(scale)


@pytest.mark.parametrize(
    "types", [[[["global", "local"], 1]], [[["global", "near"], 2]], "global", [["global"]], [[["global"], "x"]]]
)
def test_kinds_of_gpt_neo_that_its_layers_cannot_have(types: Any) -> None:
    sizes = {"model_type": "gpt_neo", "hidden_size": 64, "num_heads": 4, "num_layers": 4, "vocab_size": 100,
             "max_position_embeddings": 32}  # fmt: skip
    assert [kind.attention.window for kind in read_config(sizes, "m")[0].kinds if kind.attention] == [None, 256]
    message = problems({**sizes, "attention_types": types})
    assert "attention_types: must be pairs of words and numbers for 4 layers" in message
