"""Parameter counts against transformers: the same config.json, built on the meta device, element by element."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshwright.cost_models.quantities.memory import edge_parameters
from meshwright.cost_models.quantities.params import (
    active_parameters,
    embedding_parameters,
    expert_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    total_parameters,
)
from meshwright.cost_models.specs.model import MixtureOfExperts, ModelSpec
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from transformers import CONFIG_MAPPING, PretrainedConfig

from ...meta_models import assert_equal_counts, text_config
from ...published_configs import ENTRIES
from ...snapshots import ROOT
from ..mtp_parameters import mtp_parameters
from .hybrid_configs import HYBRIDS

# Families that have no file of their own, by one of their configs; transformers has a class of each.
LISTED = {entry["name"]: entry["config"] for entry in ENTRIES if "refused" not in entry}
CONFIGS = sorted((ROOT / "tests" / "data" / "configs").glob("*.json"))
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:transformers"),
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_real_config_counts_equal_transformers(path: Path) -> None:
    assert_equal_counts(json.loads(path.read_text()))


@pytest.mark.parametrize("model_type", sorted(set(HYBRIDS) & set(CONFIG_MAPPING) - {"lfm2_moe"}))
def test_default_config_counts_equal_transformers(model_type: str) -> None:
    """The class of LFM2 with experts has no default of `layer_types`."""
    assert_equal_counts(family(model_type))


def family(name: str) -> dict[str, Any]:
    """By the name of its file or entry, or a model_type: the defaults of its class."""
    path = ROOT / "tests" / "data" / "configs" / f"{name}.json"
    if name in CONFIG_MAPPING and not path.exists():
        shared = PretrainedConfig().to_dict()
        own = {key: value for key, value in CONFIG_MAPPING[name]().to_dict().items() if key not in shared}
        return {**own, "model_type": name}
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else LISTED[name]
    return dict(data.get("text_config", data))


def _layers_of(*kinds: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(kinds), min_size=3, max_size=3)


@st.composite
def perturbed(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A small model of the family with its switches drawn: heads, widths, tying, biases, dense/MoE pattern."""
    data = family(name)
    heads = draw(st.sampled_from([4, 8]))
    layers = draw(st.integers(1, 4))
    hidden = heads * draw(st.sampled_from([8, 16]))
    data |= {key: hidden for key in ("hidden_size", "n_embd", "n_embed") if key in data}
    data |= {key: heads for key in ("num_attention_heads", "n_head") if key in data}
    data |= {key: layers for key in ("num_hidden_layers", "n_layer") if key in data}
    data["vocab_size"] = draw(st.integers(50, 200))
    data |= {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}  # the defaults lie outside a small vocabulary
    data["tie_word_embeddings"] = draw(st.booleans())
    for key in ("rope_scaling", "no_rope_layers", "hybrid_layer_pattern", "moe_layer_freq"):
        data.pop(key, None)
    for key in ("num_key_value_heads", "num_kv_heads"):
        if key in data and "kv_lora_rank" not in data:
            data[key] = draw(st.sampled_from([1, 2, heads]))
    for key in ("intermediate_size", "ffn_dim", "moe_intermediate_size", "shared_expert_intermediate_size"):
        if key in data:
            data[key] = draw(st.integers(8, 96))
    for key in SWITCHES:
        if key in data or (name, key) in ADDED:
            data[key] = draw(st.booleans())
    for key, kinds in LAYERS.items():
        if key in data:
            data[key] = draw(st.lists(st.sampled_from(kinds), min_size=layers, max_size=layers))
    data |= draw(FAMILY_SWITCHES.get(name, st.just({})))
    return data


SWITCHES = ("attention_bias", "attention_out_bias", "mlp_bias", "use_bias", "bias", "qkv_bias", "enable_bias",
            "use_qkv_bias", "use_qk_norm", "qk_layernorm", "use_parallel_residual", "lm_head_bias")  # fmt: skip
# Fields with a word per layer.
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"]}
# Switches that the published config leaves at their default.
ADDED = {
    ("opt-125m", "enable_bias"), ("qwen1.5-moe-a2.7b", "qkv_bias"), ("gpt-neox-20b", "attention_bias"),
    ("command-r", "use_qk_norm"), ("stablelm-2-1.6b", "qk_layernorm"), ("stablelm-2-1.6b", "use_parallel_residual"),
}  # fmt: skip

_small_moe = st.fixed_dictionaries({"num_experts": st.integers(2, 5), "num_experts_per_tok": st.just(2)})
_small_mla = st.fixed_dictionaries(
    {
        "n_routed_experts": st.sampled_from([4, 8]),
        "n_shared_experts": st.integers(1, 2),
        "n_group": st.just(1),
        "topk_group": st.just(1),
        "num_experts_per_tok": st.just(2),
        "first_k_dense_replace": st.integers(0, 3),
        "q_lora_rank": st.sampled_from([None, 8, 24]),
        "kv_lora_rank": st.sampled_from([8, 16]),
        "qk_nope_head_dim": st.sampled_from([8, 16]),
        "qk_rope_head_dim": st.sampled_from([4, 8]),
        "v_head_dim": st.sampled_from([8, 12]),
    }
)
_index = st.fixed_dictionaries(
    {"index_n_heads": st.sampled_from([2, 4]), "index_head_dim": st.sampled_from([8, 16]), "index_topk": st.just(4)}
)
_small_dsa = st.builds(
    lambda mla, index, q_rank, types: {
        **mla, **index, "q_lora_rank": q_rank, "num_hidden_layers": len(types) + 1, "indexer_types": ["full", *types],
    },
    _small_mla, _index, st.sampled_from([8, 24]), st.lists(st.sampled_from(["full", "shared"]), max_size=3),
)  # fmt: skip
_LOCAL = {"num_local_experts": st.integers(2, 5), "num_experts_per_tok": st.just(2)}
_local = st.fixed_dictionaries(_LOCAL)
_shared = st.fixed_dictionaries(
    {
        "n_routed_experts": st.sampled_from([4, 8]),
        "n_shared_experts": st.integers(1, 2),
        "n_group": st.sampled_from([1, 2]),
        "topk_group": st.just(1),
        "num_experts_per_tok": st.just(2),
        "first_k_dense_replace": st.integers(0, 3),
        "head_dim": st.sampled_from([8, 16]),
    }
)
# Without a tied head, transformers counts its bias twice.
_encoder = st.fixed_dictionaries({"tie_word_embeddings": st.just(True), "type_vocab_size": st.integers(1, 4),
                                  "max_position_embeddings": st.integers(8, 64)})  # fmt: skip
_head_dim = st.fixed_dictionaries({"head_dim": st.sampled_from([8, 16, 32])})
_small_gemma4 = st.builds(
    lambda data, types: {**data, "layer_types": types, "num_hidden_layers": len(types)},
    st.fixed_dictionaries({
        "head_dim": st.sampled_from([8, 16]), "global_head_dim": st.sampled_from([8, 32]),
        "attention_k_eq_v": st.booleans(), "num_global_key_value_heads": st.sampled_from([None, 1, 2]),
        "rope_parameters": st.none(), "vocab_size_per_layer_input": st.just(50),
    }),
    st.lists(st.sampled_from(["sliding_attention", "full_attention"]), min_size=1, max_size=4),
)
FAMILY_SWITCHES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    **HYBRIDS,
    "t5-11b": st.fixed_dictionaries({  # transformers 5 ties all heads of T5: test_encoder_decoder.py has one apart
        "tie_word_embeddings": st.just(True), "feed_forward_proj": st.sampled_from(["relu", "gated-gelu"]),
        "num_decoder_layers": st.integers(1, 3), "num_layers": st.integers(1, 3), "d_model": st.just(32),
        "relative_attention_num_buckets": st.integers(4, 40)}),
    "whisper-large-v3": st.fixed_dictionaries({
        "tie_word_embeddings": st.just(True), "encoder_layers": st.integers(1, 3), "decoder_layers": st.integers(1, 3),
        "decoder_attention_heads": st.sampled_from([5, 20]), "num_mel_bins": st.integers(8, 40)}),
    "bert-large-uncased": _encoder, "roberta-base": _encoder,
    "gpt2": st.fixed_dictionaries({"n_inner": st.sampled_from([None, 40]), "n_positions": st.integers(8, 64)}),
    "gpt-neo-2.7b": st.builds(
        lambda times: {"num_layers": 2 * times, "num_heads": 4, "attention_types": [[["global", "local"], times]]},
        st.integers(1, 2)),
    "phi-2": st.just({"partial_rotary_factor": 0.5}),
    "starcoder-15b": st.fixed_dictionaries({"n_inner": st.sampled_from([None, 40]), "multi_query": st.booleans()}),
    "gpt-j-6b": st.fixed_dictionaries({"n_inner": st.sampled_from([None, 40]), "rotary_dim": st.just(4)}),
    "opt-125m": st.fixed_dictionaries(
        {
            "word_embed_proj_dim": st.sampled_from([None, 24]),
            "do_layer_norm_before": st.booleans(),
            "layer_norm_elementwise_affine": st.booleans(),
        }
    ),
    "falcon-7b": st.fixed_dictionaries(
        {
            "new_decoder_architecture": st.booleans(),
            "multi_query": st.booleans(),
            "parallel_attn": st.booleans(),
            "num_ln_in_parallel_attn": st.sampled_from([None, 1, 2]),
            "ffn_hidden_size": st.sampled_from([None, 56]),
        }
    ),
    "afm-4.5b": _head_dim,
    "command-r7b": _head_dim,
    "ernie-4.5-0.3b": _head_dim,
    "ernie-4.5-21b-a3b": st.fixed_dictionaries({
        "moe_num_experts": st.integers(2, 5), "moe_k": st.just(2), "moe_num_shared_experts": st.integers(0, 2),
        "moe_layer_start_index": st.integers(0, 2), "moe_layer_end_index": st.sampled_from([-1, 0, 1]),
        "moe_layer_interval": st.integers(1, 2), "use_bias": st.just(False),
    }),
    "dots.llm1": _shared,
    "glm-4.5": _shared,
    "glm-4.7-flash": _small_mla,
    "hy3-295b-a21b": st.fixed_dictionaries({"num_experts": st.integers(2, 5), "num_experts_per_tok": st.just(2),
                                            "num_shared_experts": st.integers(1, 2)}),
    "hunyuan-a13b": st.fixed_dictionaries({"num_experts": st.integers(2, 5), "moe_topk": st.just(2)}),
    "internlm3-8b": st.booleans().map(lambda bias: {"attention_bias": bias, "mlp_bias": bias}),
    "mimo-v2-flash": st.fixed_dictionaries({
        "n_routed_experts": st.integers(2, 5), "num_experts_per_tok": st.just(2), "head_dim": st.sampled_from([12, 24]),
        "v_head_dim": st.sampled_from([8, 12]), "num_key_value_heads": st.sampled_from([1, 2]),
        "layer_types": _layers_of("sliding_attention", "full_attention"), "num_hidden_layers": st.just(3),
        "mlp_layer_types": _layers_of("dense", "sparse"),
    }),
    "granite-3.1-3b-a800m": _local,
    "minimax-m2.5": st.fixed_dictionaries({**_LOCAL, "head_dim": st.sampled_from([16, 32]),
                                           "rotary_dim": st.sampled_from([8, 16])}),
    "nemotron-4-340b": _head_dim,
    "olmoe-1b-7b": _small_moe,
    "phi-3.5-moe": _local,
    "seed-oss-36b": _head_dim,
    "llama-3.1-8b": _head_dim,
    "mistral-7b": _head_dim,
    "mixtral-8x7b": st.fixed_dictionaries({"num_local_experts": st.integers(2, 5)}),
    "qwen3-8b": _head_dim,
    "gemma-2b": _head_dim,
    "gemma-2-9b": _head_dim,
    "gemma-3-1b": _head_dim,
    "qwen1.5-moe-a2.7b": st.builds(
        lambda moe, step, dense: {**moe, "decoder_sparse_step": step, "mlp_only_layers": dense},
        _small_moe,
        st.integers(1, 3),
        st.sampled_from([[], [0]]),
    ),
    "qwen3-30b-a3b": st.builds(
        lambda moe, head, step, dense: {**moe, **head, "decoder_sparse_step": step, "mlp_only_layers": dense},
        _small_moe,
        _head_dim,
        st.integers(1, 3),
        st.sampled_from([[], [0]]),
    ),
    "deepseek-v2-lite": _small_mla,
    "deepseek-v3": _small_mla,
    "deepseek-v3.2": st.builds(lambda more: {k: v for k, v in more.items() if k != "indexer_types"}, _small_dsa),
    "gemma-3n-e4b": st.builds(
        lambda data, types, shared: {**data, "layer_types": ["sliding_attention", "full_attention", *types],
                                     "num_hidden_layers": 2 + len(types), "num_kv_shared_layers": shared * len(types),
                                     "activation_sparsity_pattern": [0.5] * (2 + len(types)),
                                     "intermediate_size": [24 + 8 * place for place in range(2 + len(types))]},
        st.fixed_dictionaries({
            "head_dim": st.sampled_from([8, 16]), "hidden_size_per_layer_input": st.integers(4, 12),
            "vocab_size_per_layer_input": st.integers(50, 90), "laurel_rank": st.integers(2, 9),
            "altup_num_inputs": st.integers(2, 5),
        }),
        st.lists(st.sampled_from(["sliding_attention", "full_attention"]), max_size=3), st.booleans(),
    ),
    "gemma-4-31b": _small_gemma4,
    "gemma-4-26b-a4b": st.builds(
        lambda data, experts: {**data, "num_experts": experts, "top_k_experts": 2}, _small_gemma4, st.integers(2, 5)
    ),
    "step-3.5-flash": st.builds(
        lambda data, types, sparse: {**data, "layer_types": types, "num_hidden_layers": len(types),
                                     "mlp_layer_types": sparse[: len(types)], "num_nextn_predict_layers": 0},
        st.fixed_dictionaries({
            "head_dim": st.sampled_from([8, 16]), "num_attention_groups": st.sampled_from([1, 2]),
            "num_sliding_attention_heads": st.sampled_from([None, 4, 6]), "sliding_window": st.just(4),
            "moe_num_experts": st.integers(2, 5), "moe_top_k": st.just(2), "share_expert_dim": st.integers(8, 40),
            "attention_bias": st.booleans(), "tie_word_embeddings": st.booleans(),
        }),
        st.lists(st.sampled_from(["sliding_attention", "full_attention"]), min_size=1, max_size=4),
        st.lists(st.sampled_from(["dense", "sparse"]), min_size=4, max_size=4),
    ),
    "deepseek-v4-flash": st.builds(
        lambda data, types: {**data, "layer_types": types, "num_hidden_layers": len(types)},
        st.fixed_dictionaries({
            **{name: st.sampled_from([8, 16]) for name in ("head_dim", "q_lora_rank", "o_lora_rank", "index_head_dim")},
            "num_attention_heads": st.just(4), "num_key_value_heads": st.just(1), "qk_rope_head_dim": st.just(4),
            "o_groups": st.sampled_from([1, 2, 4]), "index_n_heads": st.sampled_from([2, 4]),
            "attention_bias": st.just(False),
            "n_routed_experts": st.integers(2, 5), "num_experts_per_tok": st.just(2), "hc_mult": st.integers(2, 4),
            "num_hash_layers": st.integers(0, 2), "index_topk": st.just(4), "compress_ratios": st.none(),
            "compress_rate_csa": st.sampled_from([2, 4]), "compress_rate_hca": st.sampled_from([8, 16]),
        }),
        st.lists(st.sampled_from(["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]),
                 min_size=1, max_size=4),
    ),
    "glm-5": _small_dsa,
    "gpt-oss-20b": _local,
    "llama-4-scout": st.fixed_dictionaries(
        {
            "num_local_experts": st.integers(2, 5),
            "interleave_moe_layer_step": st.integers(1, 3),
            "intermediate_size_mlp": st.integers(8, 96),
        }
    ),
}
# One per family; kimi-k2 is deepseek-v3, the others repeat a family for its published values.
PERTURBED = [
    path.stem
    for path in CONFIGS
    if path.stem not in ("kimi-k2", "opt-350m", "falcon-40b", "llama-3.2-1b", "gemma-3-4b", "llama-4-maverick",
                         "nemotron-3-nano-30b-a3b")
]
PERTURBED += [name for name in HYBRIDS if name not in PERTURBED]
PERTURBED += [
    "afm-4.5b", "command-r", "command-r7b", "deepseek-v3.2", "deepseek-v4-flash", "devstral-2-123b", "dots.llm1",
    "ernie-4.5-0.3b", "ernie-4.5-21b-a3b", "exaone-4.0-32b", "glm-4-32b-0414", "glm-4-9b", "glm-4.5", "glm-4.7-flash",
    "glm-5", "granite-3.1-3b-a800m", "hunyuan-7b", "hunyuan-a13b", "hy3-295b-a21b", "internlm3-8b", "mimo-v2-flash",
    "minimax-m2.5", "nemotron-4-340b", "olmo-3.1-32b", "olmoe-1b-7b", "phi-2", "phi-3.5-moe", "seed-oss-36b",
    "smollm3-3b", "stablelm-2-1.6b", "starcoder-15b", "gemma-3n-e4b", "gemma-4-31b", "gemma-4-26b-a4b",
    "step-3.5-flash", "gpt-neo-2.7b",
]  # fmt: skip


@pytest.mark.parametrize("name", PERTURBED)
def test_perturbed_config_counts_equal_transformers(name: str) -> None:
    @settings(max_examples=10, deadline=None, derandomize=True, database=None)
    @given(perturbed(name))
    def check(data: dict[str, Any]) -> None:
        assert_equal_counts(data)

    check()


# Families whose config in transformers says per layer how it attends.
WINDOWED = [
    "gemma-2-9b",
    "gemma-3-1b",
    "gemma-3-4b",
    "gpt-oss-20b",
    "llama-4-maverick",
    "llama-4-scout",
    "qwen1.5-moe-a2.7b",
    "qwen2.5-7b",
    "qwen3-8b",
]


def spec_of(name: str) -> ModelSpec:
    return read_config(family(name), name)[0]


@pytest.mark.parametrize("name", WINDOWED)
def test_windowed_layers_equal_transformers(name: str) -> None:
    data = family(name)
    spec, _ = read_config(data, name)
    windowed = [spec.kinds[index].transformer_blocks[0].window is not None for index in spec.pattern]

    assert windowed == [kind != "full_attention" for kind in text_config(data).layer_types]


def test_parts_outside_layers_add_up() -> None:
    spec = spec_of("llama-3.1-8b")
    inside = sum(sum(layer_parameters(spec, spec.kinds[i]).values()) for i in spec.pattern)

    assert embedding_parameters(spec) == 128256 * 4096
    assert head_parameters(spec) == 128256 * 4096
    assert final_norm_parameters(spec) == 4096
    assert total_parameters(spec) == inside + 2 * 128256 * 4096 + 4096


def test_tied_head_counts_nothing() -> None:
    assert head_parameters(spec_of("llama-3.2-1b")) == 0


def test_the_ends_of_a_model_split_only_what_has_a_row_per_token() -> None:
    embedding, head, _, copy = edge_parameters(spec_of("opt-350m"), trains_all=True)
    narrow, wide, vocab, positions = 512, 1024, 50272, 2050

    assert (embedding.sharded, embedding.replicated) == (vocab * narrow, narrow * wide + positions * wide)
    assert (head.sharded, head.replicated) == (0, wide * narrow)  # tied, and no norm behind the layers
    assert (copy.sharded, copy.replicated) == (vocab * narrow, 0)


def test_prediction_modules_of_nemotron_lightning_share_their_weights() -> None:
    """32,913,266,240 parameters in all (Megatron-Bridge 067f987d, its verification card), of which we hold no biases of
    routers: 128 in each of 24 blocks of experts."""
    spec = load_model("nemotron-3.5-lightning-30b-a3b")[0]
    assert (spec.mtp_layers, spec.mtp_shared, len(spec.mtp_pattern)) == (2, True, 2)
    assert total_parameters(spec) + mtp_parameters(spec) + 24 * 128 == 32_913_266_240
    apart = mtp_parameters(replace(spec, mtp_shared=False))
    assert apart == 2 * mtp_parameters(spec)


def test_mtp_module_of_deepseek_v3_by_hand() -> None:
    h, f, experts, heads = 7168, 2048, 256, 128
    attention = (
        h * 1536 + 1536 * heads * 192 + h * (512 + 64) + 512 * heads * (128 + 128) + heads * 128 * h + 1536 + 512
    )
    layer = attention + h * experts + (experts + 1) * 3 * h * f + 2 * h
    spec = spec_of("deepseek-v3")

    assert mtp_parameters(spec) == layer + 2 * h * h + 2 * h + h
    assert total_parameters(spec) == 671_026_404_352  # 671 B without the module
    assert mtp_parameters(spec_of("kimi-k2")) == 0


def test_active_parameters_use_top_k_experts() -> None:
    spec = spec_of("mixtral-8x7b")
    block = spec.kinds[0].feed_forward

    assert isinstance(block, MixtureOfExperts)
    assert total_parameters(spec) - active_parameters(spec) == 32 * 6 * 3 * 4096 * 14336
    assert expert_parameters(spec, spec.kinds[0]) == 8 * 3 * 4096 * 14336
    assert active_parameters(spec_of("llama-3.1-8b")) == total_parameters(spec_of("llama-3.1-8b"))
