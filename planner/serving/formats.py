"""Number formats of weights and caches, by the names that engines and published rows use."""

from __future__ import annotations

from ...cost_models.quantities.element_bytes import INT4_BYTES
from ...cost_models.specs.cluster import GpuSpec
from ...cost_models.specs.model import ModelSpec
from ...profiles.model.load import published_in

# Bytes per element. Formats of 4 bits have the scales of their blocks: a byte per 16 elements (NVFP4) or 32 (MXFP4).
BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "fp4": 0.5625, "mxfp4": 0.53125,
         "int4": INT4_BYTES, "int8": 1.0}  # fmt: skip
# Format of the products where it has another name, or where weights are widened before they are multiplied.
PRODUCTS = {"fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "int8": "fp8", "int4": "bf16", "fp16": "bf16"}


def dense_format(model: ModelSpec, weights: str) -> str:
    """Format of the weights outside routed experts. Checkpoints in fp4 of gpt-oss and of models with latent attention
    have experts alone in fp4, and the rest in bf16 (quantization_config of openai/gpt-oss-120b, hf_quant_config.json of
    nvidia/DeepSeek-R1-FP4)."""
    latent = any(attention.is_mla for attention in model.attentions)
    return "bf16" if PRODUCTS.get(weights) == "fp4" and (latent or model.family == "gpt_oss") else weights


def cache_format(model: ModelSpec, weights: str, cache: str) -> str:
    """Format of the KV cache. `auto` is the one that the checkpoint states (kv_cache_quant_algo of
    hf_quant_config.json, kv_cache_scheme of quantization_config), else 16 bits (vLLM 0.32,
    resolve_kv_cache_dtype_string). NVIDIA's of fp8 and fp4 state fp8. Integers (AWQ, GPTQ), gpt-oss, and models that
    their makers publish in fp8 (DeepSeek-V3, MiniMax-M2.5, Kimi-K2: by blocks) state none."""
    if cache in BYTES:
        return cache
    by_maker = weights.removesuffix("_block") == published_in(model.name) or weights == "fp8_block"
    none = weights in ("bf16", "fp16", "mxfp4", "int4", "int8") or by_maker or model.family == "gpt_oss"
    return "bf16" if none else "fp8"


def cache_read_bytes(gpu: GpuSpec, cache: str) -> float:
    """Bytes per element as reading takes time. Hopper's attention kernels convert a cache of fp8 and read it no faster
    than one of bf16 (vllm-project/vllm issues 42058 and 48786)."""
    return max(BYTES[cache], 2.0) if "hopper" in gpu.arch else BYTES[cache]
