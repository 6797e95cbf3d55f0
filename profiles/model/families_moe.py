"""The families with routed experts of Hugging Face: config.json -> ModelSpec; defaults as in `families.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...cost_models.specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from ...cost_models.specs.sparse_index import SparseIndex
from .blocks import attention_of, expert_model, num_layers_of, window_size, windows_of
from .families_llama import with_granite_factors, with_norms_of_heads
from .fields import Fields


def mixtral(f: Fields) -> ModelSpec:
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    moe = MixtureOfExperts(
        experts=f.count("num_local_experts"),
        top_k=f.count("num_experts_per_tok"),
        expert_inner=f.count("intermediate_size"),
    )
    windows = windows_of(f, layers, window_size(f, "sliding_window", None), lambda index: True)
    return expert_model(
        f, "mixtral", attention_of(f, hidden), hidden, moe, dense=None, is_moe=[True] * layers, windows=windows
    )


def sparse_pattern(f: Fields, layers: int) -> list[bool]:
    """Qwen: every decoder_sparse_step-th layer has experts, those in mlp_only_layers never."""
    step = f.count("decoder_sparse_step", default=1)
    dense = set(f.indices("mlp_only_layers", layers) or [])
    return [index not in dense and (index + 1) % step == 0 for index in range(layers)]


def qwen2_moe(f: Fields) -> ModelSpec:
    """Shared expert with a learned gate; every other layer below max_window_layers slides, if any does."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    pattern = sparse_pattern(f, layers)
    moe = MixtureOfExperts(
        experts=f.count("num_experts"),
        top_k=f.count("num_experts_per_tok"),
        expert_inner=f.count("moe_intermediate_size"),
        shared_inner=f.count("shared_expert_intermediate_size", minimum=0),
        shared_gate=True,
        router_normalised=f.flag("norm_topk_prob", False),
    )
    dense = None if all(pattern) else FeedForward(inner=f.count("intermediate_size"))
    size = window_size(f, "sliding_window", 4096) if f.flag("use_sliding_window", False) else None
    below = f.count("max_window_layers", default=28, minimum=0)
    windows = windows_of(f, layers, size, lambda index: index % 2 == 0 and index < below)
    attention = attention_of(f, hidden, bias=(f.flag("qkv_bias", True), False))
    return expert_model(f, "qwen2_moe", attention, hidden, moe, dense=dense, is_moe=pattern, windows=windows)


def qwen3_moe(f: Fields) -> ModelSpec:
    """Also the text model of Qwen 3 VL, whose router normalises the weights of a token's experts whatever
    `norm_topk_prob` is (Qwen3VLMoeTextTopKRouter in transformers)."""
    of_vision = f.get("model_type") == "qwen3_vl_moe_text"
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    pattern = sparse_pattern(f, layers)
    moe = MixtureOfExperts(
        experts=f.count("num_experts", "num_local_experts"),
        top_k=f.count("num_experts_per_tok"),
        expert_inner=f.count("moe_intermediate_size"),
        router_normalised=f.flag("norm_topk_prob", False) or of_vision,
    )
    dense = None if all(pattern) else FeedForward(inner=f.count("intermediate_size"))
    size = window_size(f, "sliding_window", 4096) if f.flag("use_sliding_window", False) else None
    windows = windows_of(f, layers, size, lambda index: True)
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, bias=(bias, bias), head_norms=True)
    return expert_model(f, "qwen3_moe", attention, hidden, moe, dense=dense, is_moe=pattern, windows=windows)


def latent_attention(f: Fields, index: SparseIndex | None = None) -> Attention:
    """Multi-head latent attention; the two norms are of the compressed query and key/value."""
    heads = f.count("num_attention_heads")
    q_rank, kv_rank = f.optional_count("q_lora_rank"), f.count("kv_lora_rank")
    rope = f.count("qk_rope_head_dim")
    bias = f.flag("attention_bias", False)
    return Attention(
        heads=heads,
        kv_heads=heads,  # every head has its own keys and values, expanded from the latent
        head_dim=f.count("qk_nope_head_dim") + rope,
        value_head_dim=f.count("v_head_dim"),
        qkv_bias=bias,
        output_bias=bias,
        norm_parameters=(q_rank or 0) + kv_rank,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        rope_head_dim=rope,
        index=index,
    )


def expert_groups(f: Fields, number: str, *, ignored: bool = False) -> tuple[int, int]:
    """Groups of experts, and how many of them a token may use (DeepSeek-V2, arXiv 2405.04434, 2.2.2). number: the field
    of the experts. ignored: the model takes experts out of all groups, whatever the config has."""
    groups, experts = f.count("n_group", default=1), f.count(number)
    chosen = f.count("topk_group", default=groups)
    if ignored:
        return 1, 1
    if f.sound and experts % groups:
        f.problem("n_group", f"{groups} groups do not divide {experts} experts")
    if f.sound and chosen > groups:
        f.problem("topk_group", f"{chosen} groups per token, but there are only {groups}")
    return groups, chosen


def _deepseek(f: Fields, family: str, index: SparseIndex | None = None, dense: int = 0, **router: Any) -> ModelSpec:
    """first_k_dense_replace (default: dense) dense layers, then experts in every moe_layer_freq-th layer."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    first = f.count("first_k_dense_replace", default=dense, minimum=0)
    every = f.count("moe_layer_freq", default=1)
    inner = f.count("moe_intermediate_size")
    # V2 takes experts out of all groups unless its config has another method. V3 has only one method.
    free = family == "deepseek_v2" and f.get("topk_method") in (None, "greedy")
    groups, top_groups = expert_groups(f, "n_routed_experts", ignored=free)
    moe = MixtureOfExperts(
        experts=f.count("n_routed_experts"),
        top_k=f.count("num_experts_per_tok"),
        expert_inner=inner,
        shared_inner=inner * f.count("n_shared_experts", default=0, minimum=0),
        groups=groups,
        top_groups=top_groups,
        **router,
    )
    words = f.words("mlp_layer_types", layers, ("dense", "sparse")) if index else None
    pattern = [i >= first and i % every == 0 if words is None else words[i] == "sparse" for i in range(layers)]
    block = None if all(pattern) else FeedForward(inner=f.count("intermediate_size"))
    spec = expert_model(f, family, latent_attention(f, index), hidden, moe, dense=block, is_moe=pattern)
    # `aux_loss_alpha` counts in each layer, and over the experts of a token already (MoEGate of the code that
    # DeepSeek published with the weights, whose default is 0.001); the classes in transformers have no such loss.
    alpha = f.number("aux_loss_alpha", 0.0 if family == "glm_moe_dsa" else 0.001)
    return replace(
        spec, mtp_layers=f.count("num_nextn_predict_layers", "num_mtp_layers", default=0, minimum=0),
        moe_aux_loss_coeff=alpha, moe_aux_loss_per_sequence=f.flag("seq_aux", True),
    )  # fmt: skip


def deepseek_v2(f: Fields) -> ModelSpec:
    """Softmax scores, as they are unless the config says otherwise."""
    return _deepseek(f, "deepseek_v2", router_normalised=f.flag("norm_topk_prob", False),
                     router_scale=f.number("routed_scaling_factor", 1.0))  # fmt: skip


def deepseek_v3(f: Fields) -> ModelSpec:
    return _deepseek(f, "deepseek_v3", router_scores="sigmoid", router_normalised=f.flag("norm_topk_prob", True),
                     router_scale=f.number("routed_scaling_factor", 2.5))  # fmt: skip


def deepseek_v32(f: Fields) -> ModelSpec:
    """DeepSeek-V3 with an index of sparse attention."""
    return _indexed(f, "deepseek_v32", index_heads=64)


def glm_moe_dsa(f: Fields) -> ModelSpec:
    """GLM-5; in 5.2 most layers share the choice of tokens with the layer before (arXiv 2603.12201)."""
    spec = _indexed(f, "glm_moe_dsa", index_heads=32)
    words = f.get("indexer_types")
    if words is None and isinstance(pattern := f.get("index_topk_pattern"), str):
        words = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    if words is None:
        every, offset = f.count("index_topk_freq", default=1), f.count("index_skip_topk_offset", default=2, minimum=0)
        words = ["shared" if max(i - offset + 1, 0) % every else "full" for i in range(spec.num_layers)]
    types = Fields({"indexer_types": words}).words("indexer_types", spec.num_layers, ("full", "shared"))
    if types is None or types[0] == "shared":
        f.problem("indexer_types", f"must have full or shared for each of {spec.num_layers} layers, full for the first")
        return spec
    layers = [spec.kinds[number] for number in spec.pattern]
    kinds = [_sharing(layer) if word == "shared" else layer for layer, word in zip(layers, types, strict=True)]
    distinct = tuple(dict.fromkeys(kinds))
    return replace(spec, kinds=distinct, pattern=tuple(map(distinct.index, kinds)))


def _sharing(layer: Layer) -> Layer:
    """The layer without an index of its own."""
    if layer.attention is None or layer.attention.index is None:
        return layer
    index = replace(layer.attention.index, shared=True)
    return replace(layer, attention=replace(layer.attention, index=index))


def _indexed(f: Fields, family: str, index_heads: int) -> ModelSpec:
    index = SparseIndex(
        heads=f.count("index_n_heads", default=index_heads),
        head_dim=f.count("index_head_dim", default=128),
        top_k=f.count("index_topk", default=2048),
    )
    spec = _deepseek(f, family, index, 3, router_scores="sigmoid", router_normalised=f.flag("norm_topk_prob", True),
                     router_scale=f.number("routed_scaling_factor", 2.5))  # fmt: skip
    return replace(spec, unmodelled=("index of sparse attention",))


def gpt_oss(f: Fields) -> ModelSpec:
    """Biases everywhere, a learned sink per head, every other layer slides, the first one included."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    moe = MixtureOfExperts(
        experts=f.count("num_local_experts", "num_experts"),
        top_k=f.count("num_experts_per_tok", "experts_per_token"),
        expert_inner=f.count("intermediate_size"),
        expert_bias=True,
        router_bias=True,
    )
    bias = f.flag("attention_bias", True)
    attention = attention_of(f, hidden, head_dim=64, bias=(bias, bias))
    attention = replace(attention, sink_parameters=attention.heads)
    windows = windows_of(f, layers, window_size(f, "sliding_window", 128), lambda index: index % 2 == 0)
    return expert_model(f, "gpt_oss", attention, hidden, moe, dense=None, is_moe=[True] * layers, windows=windows)


def llama4(f: Fields) -> ModelSpec:
    """Layers with RoPE see chunks of attention_chunk_size, every fourth sees all; the query/key norm has no weights.

    Experts take their input times the sigmoid of the router's logit (Llama4Router, Llama4TextMoe in transformers).
    """
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    inner = f.count("intermediate_size")
    moe = MixtureOfExperts(
        experts=f.count("num_local_experts"),
        top_k=f.count("num_experts_per_tok"),
        expert_inner=inner,
        shared_inner=inner,
        router_scores="sigmoid",
        router_normalised=False,
    )
    step = f.count("interleave_moe_layer_step", default=1)
    routed = f.indices("moe_layers", layers)
    pattern = [(i + 1) % step == 0 if routed is None else i in set(routed) for i in range(layers)]
    dense = None if all(pattern) else FeedForward(inner=f.count("intermediate_size_mlp"))
    interval = f.count("no_rope_layer_interval", default=4)
    rope = f.get("no_rope_layers") or [(index + 1) % interval for index in range(layers)]
    if not isinstance(rope, list) or len(rope) < layers:
        f.problem("no_rope_layers", f"must be a list of at least {layers} entries, 0 for a layer without RoPE")
        rope = [1] * layers
    windows = windows_of(f, layers, window_size(f, "attention_chunk_size", 8192), lambda index: bool(rope[index]))
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, head_dim=128, bias=(bias, bias))
    return expert_model(f, "llama4", attention, hidden, moe, dense=dense, is_moe=pattern, windows=windows)


def olmoe(f: Fields) -> ModelSpec:
    """Norms of queries and keys over all heads; scores as they are unless the config says otherwise."""
    hidden, layers, bias = f.count("hidden_size"), num_layers_of(f), f.flag("attention_bias", False)
    moe = MixtureOfExperts(
        experts=f.count("num_experts"), top_k=f.count("num_experts_per_tok"), expert_inner=f.count("intermediate_size"),
        router_normalised=f.flag("norm_topk_prob", False),
    )  # fmt: skip
    attention = with_norms_of_heads(attention_of(f, hidden, bias=(bias, bias)))
    return expert_model(f, "olmoe", attention, hidden, moe, dense=None, is_moe=[True] * layers, balancing=0.01)


def granitemoe(f: Fields) -> ModelSpec:
    """Mixtral with the factors of Granite."""
    hidden, layers, bias = f.count("hidden_size"), num_layers_of(f), f.flag("attention_bias", False)
    moe = MixtureOfExperts(experts=f.count("num_local_experts"), top_k=f.count("num_experts_per_tok"),
                           expert_inner=f.count("intermediate_size"))  # fmt: skip
    attention = attention_of(f, hidden, bias=(bias, bias))
    return with_granite_factors(
        f, expert_model(f, "granitemoe", attention, hidden, moe, dense=None, is_moe=[True] * layers)
    )


def phimoe(f: Fields) -> ModelSpec:
    """LayerNorm; a token's two experts are drawn at random among the good ones (SparseMixer, arXiv 2409.12136)."""
    hidden, layers, bias = f.count("hidden_size"), num_layers_of(f), f.flag("attention_bias", False)
    moe = MixtureOfExperts(
        experts=f.count("num_local_experts"), top_k=f.count("num_experts_per_tok"),
        expert_inner=f.count("intermediate_size"), router_normalised=False,
    )  # fmt: skip
    windows = windows_of(f, layers, window_size(f, "sliding_window", None), lambda index: True)
    attention = attention_of(f, hidden, bias=(bias, bias))
    spec = expert_model(f, "phimoe", attention, hidden, moe, dense=None, is_moe=[True] * layers, windows=windows)
    kinds = tuple(replace(kind, norm_bias=True) for kind in spec.kinds)
    return replace(spec, kinds=kinds, norm_bias=True, head_bias=f.flag("lm_head_bias", False),
                   unmodelled=("SparseMixer router",))  # fmt: skip


def minimax_m2(f: Fields) -> ModelSpec:
    """Sigmoid scores; norms of queries and keys over all heads. Configs mention modules that predict several tokens:
    neither transformers nor Megatron-Bridge has them."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    moe = MixtureOfExperts(experts=f.count("num_local_experts"), top_k=f.count("num_experts_per_tok"),
                           expert_inner=f.count("intermediate_size"), router_scores="sigmoid")  # fmt: skip
    attention = with_norms_of_heads(attention_of(f, hidden, head_dim=128))
    spec = expert_model(f, "minimax_m2", attention, hidden, moe, dense=None, is_moe=[True] * layers)
    turned = f.count("rotary_dim", default=attention.head_dim)
    return replace(spec, partial_rotary_factor=turned / attention.head_dim)
