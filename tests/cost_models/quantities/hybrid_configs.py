"""Small configs of hybrids, for test_params.py: the switches of each family."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_delta = st.fixed_dictionaries(
    {
        "full_attention_interval": st.integers(1, 4),
        "head_dim": st.sampled_from([8, 16, 32]),
        "linear_num_key_heads": st.sampled_from([1, 2]),
        "linear_num_value_heads": st.sampled_from([2, 4]),
        "linear_key_head_dim": st.sampled_from([4, 8]),
        "linear_value_head_dim": st.sampled_from([4, 8]),
        "linear_conv_kernel_dim": st.sampled_from([2, 4]),
        "layer_types": st.none(),
    }
)
_small_moe = st.fixed_dictionaries({"num_experts": st.integers(2, 5), "num_experts_per_tok": st.just(2)})
_mamba = st.fixed_dictionaries(
    {
        "mamba_n_heads": st.sampled_from([4, 8]),
        "mamba_d_head": st.just("auto"),
        "mamba_n_groups": st.sampled_from([1, 2]),
        "mamba_d_state": st.sampled_from([4, 16]),
        "mamba_d_conv": st.sampled_from([2, 4]),
        "mamba_conv_bias": st.booleans(),
        "mamba_proj_bias": st.booleans(),
    }
)
_nemotron = st.fixed_dictionaries(
    {
        "mamba_num_heads": st.sampled_from([4, 8]),
        "mamba_head_dim": st.sampled_from([4, 8]),
        "n_groups": st.sampled_from([1, 2]),
        "ssm_state_size": st.sampled_from([4, 16]),
        "conv_kernel": st.sampled_from([2, 4]),
        "use_conv_bias": st.booleans(),
        "use_bias": st.booleans(),
        "n_routed_experts": st.sampled_from([2, 4]),
        "moe_latent_size": st.sampled_from([None, 8]),
        "attention_bias": st.just(False),
        "mlp_bias": st.just(False),
        "head_dim": st.sampled_from([8, 16]),
    }
)


_selective = st.fixed_dictionaries(
    {
        "state_size": st.sampled_from([4, 8]),
        "time_step_rank": st.sampled_from(["auto", 6]),
        "conv_kernel": st.sampled_from([2, 4]),
        "expand": st.sampled_from([1, 2]),
        "use_bias": st.booleans(),
        "use_conv_bias": st.booleans(),
    }
)
_linear_types = st.lists(st.sampled_from(["linear_attention", "full_attention"]), min_size=1, max_size=4)
_conv_types = st.lists(st.sampled_from(["conv", "full_attention"]), min_size=1, max_size=4)


def _merged(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda found: {key: value for part in found for key, value in part.items()})


HYBRIDS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "nemotron-h-56b": st.builds(
        lambda pattern, more: {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern), **more},
        st.text("M-*E", min_size=1, max_size=5),
        _nemotron,
    ),
    "qwen3-next-80b-a3b": _merged(
        _delta, _small_moe, st.fixed_dictionaries({"mlp_only_layers": st.sampled_from([[], [0]])})
    ),
    "qwen3.5-27b": _delta,
    "qwen3.5-397b-a17b": _merged(_delta, _small_moe),
    "bamba-9b": _merged(_mamba, st.fixed_dictionaries({"attn_layer_indices": st.sampled_from([[], [0]])})),
    "falcon-h1-0.5b": _merged(
        _mamba,
        st.fixed_dictionaries(
            {
                "mamba_d_ssm": st.sampled_from([None, 32]),
                "mamba_rms_norm": st.booleans(),
                "projectors_bias": st.booleans(),
                "head_dim": st.sampled_from([8, 16]),
            }
        ),
    ),
    "granite-4.0-h-small": st.builds(
        lambda mamba, types, experts: {
            **mamba, "layer_types": types, "num_hidden_layers": len(types), "num_local_experts": experts,
            "num_experts_per_tok": 2,
        },
        _mamba,
        st.lists(st.sampled_from(["linear_attention", "full_attention"]), min_size=1, max_size=4),
        st.sampled_from([0, 4]),
    ),
    "olmo_hybrid": st.builds(
        lambda delta, types: {**delta, "layer_types": [*types, "linear_attention", "full_attention"],
                              "num_hidden_layers": len(types) + 2},
        _delta,
        st.lists(st.sampled_from(["linear_attention", "full_attention"]), max_size=2),
    ),
    "mamba2-codestral-7b": st.builds(
        lambda heads, dim, more: {
            "num_heads": heads, "head_dim": dim, "hidden_size": heads * dim, "expand": 1, **more,
        },
        st.sampled_from([4, 8]),
        st.sampled_from([4, 8]),
        st.fixed_dictionaries(
            {"n_groups": st.sampled_from([1, 2]), "state_size": st.sampled_from([4, 16]),
             "use_conv_bias": st.booleans()}
        ),
    ),
    "falcon_mamba": _selective,
    "jamba-v0.1": st.fixed_dictionaries({
        "num_hidden_layers": st.integers(2, 5), "attn_layer_period": st.just(3), "attn_layer_offset": st.integers(0, 2),
        "num_experts": st.sampled_from([1, 2, 4]), "mamba_d_state": st.sampled_from([4, 8]),
        "mamba_dt_rank": st.sampled_from(["auto", 6]), "mamba_conv_bias": st.booleans(),
        "mamba_proj_bias": st.booleans(),
    }),
    "mamba": _selective,
    "kimi-linear-48b-a3b": st.builds(
        lambda types, mlp, more: {**more, "layer_types": types, "mlp_layer_types": mlp[: len(types)],
                                  "num_hidden_layers": len(types), "num_key_value_heads": None},
        _linear_types,
        st.lists(st.sampled_from(["dense", "sparse"]), min_size=4, max_size=4),
        st.fixed_dictionaries({
            "linear_head_dim": st.sampled_from([4, 8]), "linear_num_heads": st.sampled_from([2, 4]),
            "linear_conv_kernel_dim": st.sampled_from([2, 4]), "num_experts": st.integers(2, 5),
            "num_experts_per_token": st.just(2), "q_lora_rank": st.sampled_from([None, 8]),
            "kv_lora_rank": st.sampled_from([8, 16]), "qk_nope_head_dim": st.just(8),
            "qk_rope_head_dim": st.just(4), "qk_head_dim": st.just(12),
            "v_head_dim": st.sampled_from([8, 12]), "num_shared_experts": st.integers(1, 2),
        }),
    ),
    "lfm2-1.2b": st.builds(
        lambda types, more: {**more, "layer_types": types, "num_hidden_layers": len(types)},
        _conv_types,
        st.fixed_dictionaries({
            "conv_bias": st.booleans(), "conv_L_cache": st.sampled_from([2, 3]), "block_multiple_of": st.just(16),
            "block_auto_adjust_ff_dim": st.booleans(), "block_ffn_dim_multiplier": st.sampled_from([1.0, 1.5]),
        }),
    ),
    "lfm2_moe": st.builds(
        lambda types, dense, experts, bias: {
            "layer_types": types, "num_hidden_layers": len(types), "num_dense_layers": dense, "num_experts": experts,
            "num_experts_per_tok": 2, "conv_bias": bias,
        },
        _conv_types, st.integers(0, 2), st.integers(2, 5), st.booleans(),
    ),
    "minimax-text-01": st.builds(
        lambda types, more: {**more, "layer_types": types, "num_hidden_layers": len(types)},
        _linear_types,
        st.fixed_dictionaries({"head_dim": st.sampled_from([8, 16]), "rotary_dim": st.just(8),
                               "block_size": st.sampled_from([16, 64]),
                               "num_local_experts": st.integers(2, 5), "num_experts_per_tok": st.just(2)}),
    ),
}  # fmt: skip
