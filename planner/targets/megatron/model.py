"""The model <-> arguments of pretrain_gpt.py, both ways."""

from __future__ import annotations

from ....cost_models.specs.model import Attention, MixtureOfExperts, ModelSpec
from ....cost_models.specs.workload import Workload
from ....errors import InputError
from ..options import Entry, Facts, Settings, number, switch
from ..setup import Setup
from . import deepspeed_experts, delta_net, feed_forward, hybrid, mtp, rope
from .feed_forward import biased, blocks
from .layer_patterns import pattern_text, read_pattern


def windows(model: ModelSpec, workload: Workload) -> set[int]:
    """Sizes of windows that are shorter than the sequence."""
    sizes = {attention.window for attention in model.attentions}
    return {size for size in sizes if size is not None and size < workload.seq_len}


def _attention(setup: Setup) -> Attention:
    return setup.model.attentions[0]


def _routed(setup: Setup) -> MixtureOfExperts | None:
    return next(iter(blocks(setup.model)[1]), None)


def _attention_write(setup: Setup) -> Settings:
    attention = _attention(setup)
    out: Settings = {"--num-attention-heads": attention.heads}
    if attention.is_mla:
        out |= {
            "--multi-latent-attention": True, "--kv-lora-rank": attention.kv_lora_rank,
            "--qk-head-dim": attention.head_dim - attention.rope_head_dim,
            "--qk-pos-emb-head-dim": attention.rope_head_dim, "--v-head-dim": attention.value_head_dim,
        }  # fmt: skip
        if attention.q_lora_rank is not None:
            out["--q-lora-rank"] = attention.q_lora_rank
    else:
        out["--kv-channels"] = attention.head_dim
        if attention.kv_heads != attention.heads:
            out |= {"--group-query-attention": True, "--num-query-groups": attention.kv_heads}
    if attention.norm_parameters:
        out["--qk-layernorm"] = True
    if attention.sink_parameters:
        out["--softmax-type"] = "learnable"
    if attention.output_gate:
        out["--attention-output-gate"] = True
    return out


def _attention_read(settings: Settings, facts: Facts) -> Facts:
    heads = settings.get("--num-attention-heads")
    if heads is None:
        return {}
    if heads < 1:
        raise InputError(f"--num-attention-heads `{heads}` is not 1 or more")
    out: Facts = {"model.heads": heads}
    if settings.get("--multi-latent-attention"):
        # The defaults of MLATransformerConfig.
        rank = settings.get("--q-lora-rank")
        out["model.mla"] = {
            "kv_lora_rank": settings.get("--kv-lora-rank", 32),
            "qk_nope_head_dim": settings.get("--qk-head-dim", 128),
            "qk_rope_head_dim": settings.get("--qk-pos-emb-head-dim", 64),
            "v_head_dim": settings.get("--v-head-dim", 128),
        } | ({} if rank is None else {"q_lora_rank": rank})
    else:
        out["model.head_dim"] = settings.get("--kv-channels", facts.get("model.hidden", heads) // heads)
        grouped = settings.get("--group-query-attention")
        out["model.kv_heads"] = settings.get("--num-query-groups", 1) if grouped else heads
        if settings.get("--qk-layernorm"):
            out["model.qk_norm"] = 2 * out["model.head_dim"]
    if settings.get("--softmax-type") == "learnable":
        out["model.sink_attention"] = True
    if settings.get("--attention-output-gate"):
        out["model.output_gate"] = True
    return out


def _bias_write(setup: Setup) -> Settings:
    if biased(setup.model):
        return {}
    return {"--disable-bias-linear": True} | ({"--add-qkv-bias": True} if _attention(setup).qkv_bias else {})


def _bias_read(settings: Settings, facts: Facts) -> Facts:
    biased = not settings.get("--disable-bias-linear")
    qkv = biased or bool(settings.get("--add-qkv-bias"))
    return {"model.output_bias": biased, "model.ffn_bias": biased, "model.qkv_bias": qkv}


def _norm_write(setup: Setup) -> Settings:
    return {"--normalization": "LayerNorm" if setup.model.norm_bias else "RMSNorm"}


def _moe_write(setup: Setup) -> Settings:
    block, model = _routed(setup), setup.model
    if block is None:
        return {}
    out: Settings = {
        "--num-experts": block.experts, "--moe-router-topk": block.top_k, "--moe-ffn-hidden-size": block.expert_inner,
    }  # fmt: skip
    routed = [int(model.kinds[kind].is_moe) for kind in model.pattern]
    if not all(routed) and not hybrid.is_hybrid(model):
        out["--moe-layer-freq"] = pattern_text(routed)
    if block.shared_inner:
        out["--moe-shared-expert-intermediate-size"] = block.shared_inner
    if block.shared_gate:
        out["--moe-shared-expert-gate"] = True
    if block.choice_bias:
        out["--moe-router-enable-expert-bias"] = True
    if block.latent:
        out["--moe-latent-size"] = block.latent
    return out | _router(block)


def _router(block: MixtureOfExperts) -> Settings:
    """Options of the choice and the weights of experts.

    Megatron's default is a softmax over the chosen scores, which sum to 1. It divides sigmoid scores by their sum where
    there are several (topk_routing_with_score_function).
    """
    out: Settings = {}
    if block.groups > 1:
        out |= {"--moe-router-num-groups": block.groups, "--moe-router-group-topk": block.top_groups}
    if block.router_scores == "sigmoid":
        out["--moe-router-score-function"] = "sigmoid"
    elif not block.router_normalised:
        out["--moe-router-pre-softmax"] = True
    if block.router_scale != 1.0:
        out["--moe-router-topk-scaling-factor"] = block.router_scale
    return out


def _moe_read(settings: Settings, facts: Facts) -> Facts:
    experts = settings.get("--num-experts")
    if not experts:
        return {}
    layers = facts.get("model.layers", 0)
    routed = read_pattern("--moe-layer-freq", settings.get("--moe-layer-freq", 1), layers)
    if "model.pattern" in facts:
        routed = []  # the pattern of all layers marks those with experts
    moe = {
        "experts": experts, "topk": (chosen := settings.get("--moe-router-topk", 2)),
        "expert_ffn": settings.get("--moe-ffn-hidden-size", facts.get("model.ffn_hidden")),
        "shared_ffn": settings.get("--moe-shared-expert-intermediate-size", 0),
        "shared_gate": bool(settings.get("--moe-shared-expert-gate")),
        "router_bias": _router_adds(settings),
        "choice_bias": bool(settings.get("--moe-router-enable-expert-bias")),
        "expert_bias": not settings.get("--disable-bias-linear"),
        **({"latent": latent} if (latent := settings.get("--moe-latent-size")) else {}),
        **({"moe_layers": [index for index, is_routed in enumerate(routed) if is_routed]} if routed else {}),
        "groups": (groups := settings.get("--moe-router-num-groups") or 1),
        "top_groups": settings.get("--moe-router-group-topk") or groups,
        "router_scores": (scores := settings.get("--moe-router-score-function", "softmax")),
        "router_normalised": not settings.get("--moe-router-pre-softmax") if scores == "softmax" else chosen > 1,
        "router_scale": settings.get("--moe-router-topk-scaling-factor") or 1.0,
    }  # fmt: skip
    of_deepspeed = deepspeed_experts.of_layers(settings, moe["expert_ffn"])
    return {"model.moe": moe | of_deepspeed, **({deepspeed_experts.ENGINE: True} if of_deepspeed else {})}


def _router_adds(settings: Settings) -> bool:
    """Whether the router is a linear layer with a bias (core/transformer/moe/router.py)."""
    softmax = settings.get("--moe-router-score-function", "softmax") == "softmax"
    return softmax and not settings.get("--disable-bias-linear")


def _capacity_write(setup: Setup) -> Settings:
    factor = setup.model.capacity_factor
    return {} if factor is None else {"--moe-expert-capacity-factor": factor,
                                      "--moe-pad-expert-input-to-capacity": True}  # fmt: skip


def _capacity_read(settings: Settings, facts: Facts) -> Facts:
    factor = settings.get("--moe-expert-capacity-factor")
    return {} if factor is None else {"workload.expert_capacity_factor": factor}


def _aux_loss_write(setup: Setup) -> Settings:
    """The balancing loss of a plan as arguments. Megatron's defaults are aux_loss and 0."""
    model = setup.model
    kind = {"--moe-router-load-balancing-type": "seq_aux_loss"} if model.moe_aux_loss_per_sequence else {}
    return kind | ({"--moe-aux-loss-coeff": model.moe_aux_loss_coeff} if model.moe_aux_loss_coeff else {})


def _aux_loss_read(settings: Settings, facts: Facts) -> Facts:
    """The first loss in a list that a plan can hold."""
    values = (settings.get("--moe-router-load-balancing-type", "aux_loss"), settings.get("--moe-aux-loss-coeff", 0.0))
    kinds, coefficients = (value if isinstance(value, list) else [value] for value in values)
    held = [(kind, float(coefficient)) for kind, coefficient in zip(kinds, coefficients, strict=False)
            if kind in ("aux_loss", "seq_aux_loss")]  # fmt: skip
    if not held or not settings.get("--num-experts"):
        return {}
    kind, coefficient = held[0]
    return {"model.moe_aux_loss_coeff": coefficient, "model.moe_aux_loss_per_sequence": kind == "seq_aux_loss"}


def _window_write(setup: Setup) -> Settings:
    sizes = windows(setup.model, setup.workload)
    if not sizes:
        return {}
    size = sizes.pop()
    windowed = [int(attention.window == size) for attention in setup.model.attentions]
    pattern = [windowed[kind] for kind in setup.model.pattern]
    out: Settings = {"--window-size": f"{size - 1},0"}  # tokens before the query, which also sees itself
    return out if all(pattern) else out | {"--window-attn-skip-freq": pattern_text(pattern)}


def _window_read(settings: Settings, facts: Facts) -> Facts:
    text = settings.get("--window-size")
    if text is None:
        return {}
    before = int(str(text).strip("()").split(",")[0])
    layers, skip = facts.get("model.layers", 0), settings.get("--window-attn-skip-freq")
    if skip is None:
        return {"model.sliding_window": before + 1}
    if str(skip).isdigit():
        windowed = [int((index + 1) % int(skip) != 0) for index in range(layers)]
    else:
        windowed = read_pattern("--window-attn-skip-freq", skip, layers)
    window_layers = [index for index, is_windowed in enumerate(windowed) if is_windowed]
    return {"model.sliding_window": before + 1, "model.window_layers": window_layers}


def _dropout_write(setup: Setup) -> Settings:
    return {} if setup.model.dropout else {"--attention-dropout": 0.0, "--hidden-dropout": 0.0}


def _vocab_read(settings: Settings, facts: Facts) -> Facts:
    size = settings.get("--vocab-size", settings.get("--padded-vocab-size"))
    return {} if size is None else {"model.vocab": size}


MODEL = (
    number("model.layers", "--num-layers", lambda s: s.model.num_layers),
    number("model.hidden", "--hidden-size", lambda s: s.model.hidden),
    hybrid.ENTRY,
    delta_net.ENTRY,
    Entry(("model.attention",),
          ("--num-attention-heads", "--kv-channels", "--group-query-attention", "--num-query-groups", "--qk-layernorm",
           "--softmax-type", "--attention-output-gate", "--multi-latent-attention", "--kv-lora-rank", "--q-lora-rank",
           "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim"), _attention_write, _attention_read),
    feed_forward.ENTRY,
    Entry(("model.moe",),
          ("--num-experts", "--moe-router-topk", "--moe-ffn-hidden-size", "--moe-layer-freq",
           "--moe-shared-expert-intermediate-size", "--moe-shared-expert-gate", "--moe-router-enable-expert-bias",
           "--moe-router-num-groups", "--moe-router-group-topk", "--moe-router-score-function",
           "--moe-router-pre-softmax", "--moe-router-topk-scaling-factor", "--moe-latent-size",
           *deepspeed_experts.OPTIONS),
          _moe_write, _moe_read),
    Entry(("workload.expert_capacity_factor",), ("--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity"),
          _capacity_write, _capacity_read),
    Entry(("model.moe_aux_loss_coeff",), ("--moe-router-load-balancing-type", "--moe-aux-loss-coeff"),
          _aux_loss_write, _aux_loss_read),
    Entry(("model.window",), ("--window-size", "--window-attn-skip-freq"), _window_write, _window_read),
    Entry(("model.bias",), ("--disable-bias-linear", "--add-qkv-bias"), _bias_write, _bias_read),
    Entry(("model.norm_bias",), ("--normalization",), _norm_write,
          lambda given, facts: {"model.norm_bias": given.get("--normalization", "LayerNorm") == "LayerNorm"}),
    switch("model.unit_offset_norms", "--apply-layernorm-1p", lambda s: s.model.unit_offset_norms),
    number("model.norm_epsilon", "--norm-epsilon", lambda s: s.model.norm_epsilon, 1e-5),
    Entry(("model.positions",), rope.OPTIONS, rope.write, rope.read),
    switch("model.tied_embeddings", "--untie-embeddings-and-output-weights", lambda s: s.model.tied_embeddings,
           when=False),
    mtp.ENTRY,
    Entry(("model.dropout",), ("--attention-dropout", "--hidden-dropout"), _dropout_write,
          lambda given, facts: {"model.dropout": given.get("--hidden-dropout", 0.1) > 0}),
    Entry(("model.vocab",), ("--vocab-size", "--padded-vocab-size"), lambda s: {"--vocab-size": s.model.vocab},
          _vocab_read),
)  # fmt: skip
