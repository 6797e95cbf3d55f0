"""The model families of Hugging Face that meshwright has formulas for: config.json fields -> ModelSpec.

One small function per family, most of them in the other `families_*.py`. Where a key is absent, the default of
that family in transformers holds (5.23, `configuration_<family>.py`); sizes have no default but where published configs
leave them out (gemma3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...cost_models.specs.model import FeedForward, ModelSpec
from . import families_compressed as compressed
from . import families_encoder as encoders
from . import families_encoder_decoder as encoder_decoder
from . import families_gemma as gemma
from . import families_hybrid as hybrid
from . import families_layernorm as layernorm
from . import families_linear_attention as linear
from . import families_llama as dense
from . import families_masked as masked
from . import families_moe as moe
from . import families_shared_experts as shared
from . import families_state_space as state_space
from . import families_unequal as unequal
from .blocks import attention_of, dense_model, num_layers_of, window_size, windows_of
from .fields import Fields


def _falcon(f: Fields) -> ModelSpec:
    """Three blocks: multi-query parallel (7B), grouped-query parallel with two norms (40B, 180B), sequential (RW)."""
    hidden = f.count("hidden_size")
    heads = f.count("num_attention_heads", "n_head")
    new = f.flag("new_decoder_architecture", False)
    bias = f.flag("bias", False)
    multi_query = f.flag("multi_query", True) and not new
    kv_heads = 1 if multi_query else f.count("num_kv_heads", "n_head_kv", default=heads)
    ffn = FeedForward(inner=f.count("ffn_hidden_size", default=4 * hidden), gated=False, bias=bias)
    parallel_norms = f.count("num_ln_in_parallel_attn", default=2 if new else 1)
    parallel = f.flag("parallel_attn", True)
    dropout = f.number("hidden_dropout", 0.0) > 0
    attention = attention_of(f, hidden, kv_heads=kv_heads, bias=(bias, bias))
    return dense_model(f, "falcon", attention, hidden, ffn=ffn, num_norms=parallel_norms if parallel else 2,
                       norm_bias=True, tied=True, dropout=dropout, parallel=parallel)  # fmt: skip


def _mistral(f: Fields) -> ModelSpec:
    """A null window means full attention, an absent one the default of 4096."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    window = window_size(f, "sliding_window", 4096)
    windows = windows_of(f, layers, window, lambda index: True)
    return dense_model(f, "mistral", attention_of(f, hidden), hidden, windows=windows)


def _phi3(f: Fields) -> ModelSpec:
    """Phi-3, Phi-4 and the text model of Phi-4-multimodal."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    windows = windows_of(f, layers, window_size(f, "sliding_window", None), lambda index: True)
    dropout = f.number("resid_pdrop", 0.0) > 0
    return dense_model(f, "phi3", attention_of(f, hidden), hidden, windows=windows, dropout=dropout)


def _qwen_windows(f: Fields, layers: int) -> list[int | None]:
    """Layers from max_window_layers on slide, if use_sliding_window is set at all."""
    size = window_size(f, "sliding_window", 4096) if f.flag("use_sliding_window", False) else None
    first = f.count("max_window_layers", default=28, minimum=0)
    return windows_of(f, layers, size, lambda index: index >= first)


def _qwen2(f: Fields) -> ModelSpec:
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    attention = attention_of(f, hidden, bias=(True, False))
    return dense_model(f, "qwen2", attention, hidden, windows=_qwen_windows(f, layers))


def _qwen3(f: Fields) -> ModelSpec:
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, head_dim=128, bias=(bias, bias), head_norms=True)
    return dense_model(f, "qwen3", attention, hidden, windows=_qwen_windows(f, layers))


def _olmo2(f: Fields) -> ModelSpec:
    """Norms after the blocks; query and key norms span all heads."""
    hidden = f.count("hidden_size")
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, bias=(bias, bias))
    return dense_model(f, "olmo2", dense.with_norms_of_heads(attention), hidden, output_norms=True)


def _granite(f: Fields) -> ModelSpec:
    return dense.with_granite_factors(f, dense.llama(f, "granite"))


FAMILIES: Mapping[str, Callable[[Fields], ModelSpec]] = {
    "Dream": masked.dream,
    "apertus": dense.apertus,
    "arcee": dense.arcee,
    "baichuan": dense.baichuan,
    "bailing_moe": shared.deepseek,
    "bailing_moe_v2": shared.bailing_v2,
    "bamba": state_space.bamba,
    "bert": encoders.bert,
    "bloom": layernorm.bloom,
    "cohere": layernorm.cohere,
    "cohere2": layernorm.cohere2,
    "deepseek": shared.deepseek,
    "deepseek_v2": moe.deepseek_v2,
    "deepseek_v3": moe.deepseek_v3,
    "deepseek_v32": moe.deepseek_v32,
    "deepseek_v4": compressed.deepseek_v4,
    "dots1": shared.dots1,
    "ernie4_5": dense.ernie,
    "ernie4_5_moe": shared.ernie_moe,
    "exaone4": dense.exaone4,
    "falcon": _falcon,
    "falcon_h1": state_space.falcon_h1,
    "falcon_mamba": state_space.falcon_mamba,
    "gemma": gemma.gemma,
    "gemma2": gemma.gemma2,
    "gemma3": gemma.gemma3,
    "gemma3_text": gemma.gemma3,
    "gemma3n": gemma.gemma3n,
    "gemma3n_text": gemma.gemma3n,
    "gemma4": gemma.gemma4,
    "gemma4_text": gemma.gemma4,
    "glm": dense.glm,
    "glm4": dense.glm4,
    "glm4_moe": shared.glm4_moe,
    "glm4_moe_lite": shared.glm4_moe_lite,
    "glm_moe_dsa": moe.glm_moe_dsa,
    "gpt2": layernorm.gpt2,
    "gpt_bigcode": layernorm.gpt2,
    "gpt_neo": layernorm.gpt_neo,
    "gpt_neox": layernorm.gpt_neox,
    "gpt_oss": moe.gpt_oss,
    "gptj": layernorm.gptj,
    "granite": _granite,
    "granitemoe": moe.granitemoe,
    "granitemoehybrid": state_space.granitemoehybrid,
    "hunyuan_v1_dense": dense.hunyuan,
    "hunyuan_v1_moe": shared.hunyuan_moe,
    "hy_v3": shared.hy_v3,
    "internlm": dense.internlm,
    "internlm2": dense.internlm,
    "internlm3": dense.internlm3,
    "jamba": state_space.jamba,
    "kimi_k2": moe.deepseek_v3,
    "kimi_linear": linear.kimi_linear,
    "lfm2": linear.lfm2,
    "lfm2_moe": linear.lfm2_moe,
    "llama": dense.llama,
    "llada": masked.llada,
    "llama4": moe.llama4,
    "llama4_text": moe.llama4,
    "mamba": state_space.mamba,
    "mamba2": state_space.mamba2,
    "mimo": dense.mimo,
    "mimo_v2_flash": shared.mimo_v2_flash,
    "minimax": linear.minimax,
    "minimax_m2": moe.minimax_m2,
    "ministral3": dense.ministral3,
    "mistral": _mistral,
    "mixtral": moe.mixtral,
    "mt5": encoder_decoder.t5,
    "nemotron": layernorm.nemotron,
    "nemotron-nas": unequal.nemotron_nas,
    "nemotron_h": state_space.nemotron_h,
    "olmo2": _olmo2,
    "olmo3": dense.olmo3,
    "olmo_hybrid": hybrid.olmo_hybrid,
    "olmoe": moe.olmoe,
    "opt": layernorm.opt,
    "phi": layernorm.phi,
    "phi3": _phi3,
    "phi4_multimodal": _phi3,
    "phimoe": moe.phimoe,
    "qwen2": _qwen2,
    "qwen2_5_vl": _qwen2,
    "qwen2_moe": moe.qwen2_moe,
    "qwen2_vl": _qwen2,  # its text model is Qwen 2
    "qwen3": _qwen3,
    "qwen3_5": hybrid.qwen3_5,
    "qwen3_5_moe": hybrid.qwen3_5_moe,
    "qwen3_5_moe_text": hybrid.qwen3_5_moe,
    "qwen3_5_text": hybrid.qwen3_5,
    "qwen3_moe": moe.qwen3_moe,
    "qwen3_next": hybrid.qwen3_next,
    "qwen3_vl_moe_text": moe.qwen3_moe,
    "qwen3_vl_text": _qwen3,
    "roberta": encoders.roberta,
    "rwkv7": linear.rwkv7,
    "seed_oss": dense.seed_oss,
    "smollm3": dense.smollm3,
    "stablelm": layernorm.stablelm,
    "starcoder2": layernorm.starcoder2,
    "step3p5": shared.step3p5,
    "t5": encoder_decoder.t5,
    "whisper": encoder_decoder.whisper,
    "xlm-roberta": encoders.roberta,
}
