"""Small jobs to run here, by the words of a layout id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from meshwright.cost_models.layer_kinds.gated_delta_net import GatedDeltaNet
from meshwright.cost_models.layer_kinds.mamba2 import Mamba2
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.quantities.even_stages import chunk_sizes
from meshwright.cost_models.quantities.stages import devices_of
from meshwright.cost_models.specs.encoder import Encoder
from meshwright.cost_models.specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from meshwright.cost_models.specs.rope_scaling import RopeScaling
from meshwright.cost_models.specs.vision import VisionTower
from meshwright.cost_models.specs.workload import Images
from meshwright.planner.document.candidate import Chunk
from meshwright.profiles.stack.load import load_stack
from meshwright.runtime.job import Job
from meshwright.runtime.parallel.strategies import Strategies

STACK = load_stack("meshwright")


def attention(**changes: Any) -> Attention:
    return Attention(**{"heads": 4, "kv_heads": 2, "head_dim": 8, "value_head_dim": 8, **changes})


def llama(layers: int = 4, **changes: Any) -> ModelSpec:
    """A Llama of 32 hidden units; 61 tokens, which tp 2 does not divide."""
    layer = Layer(attention=attention(), feed_forward=FeedForward(inner=64))
    fields = {"name": "tiny", "family": "llama", "hidden": 32, "vocab": 61, "kinds": (layer,), "pattern": (0,) * layers}
    return ModelSpec(**{**fields, "max_positions": 16, **changes})


def gpt(layers: int = 4, **changes: Any) -> ModelSpec:
    """As GPT-2: LayerNorm, GELU, biases, learned positions, tied embeddings."""
    layer = Layer(
        attention=attention(kv_heads=4, qkv_bias=True, output_bias=True),
        feed_forward=FeedForward(inner=64, gated=False, bias=True), norm_bias=True,
    )  # fmt: skip
    how: dict[str, Any] = {"family": "gpt2", "kinds": (layer,), "tied_embeddings": True, "learned_positions": 16,
                           "norm_bias": True, "activation": "gelu"}  # fmt: skip
    return llama(layers, **{**how, **changes})


def moe(layers: int = 4, **changes: Any) -> ModelSpec:
    """As Mixtral: 4 experts, 2 per token."""
    block = MixtureOfExperts(experts=4, top_k=2, expert_inner=48)
    return llama(layers, kinds=(Layer(attention=attention(), feed_forward=block),), **changes)


def shared_experts(layers: int = 4) -> ModelSpec:
    """As Qwen1.5-MoE: a shared expert behind a gate, and a dense layer first."""
    block = MixtureOfExperts(experts=4, top_k=2, expert_inner=24, shared_inner=40, shared_gate=True)
    dense = Layer(attention=attention(), feed_forward=FeedForward(inner=64))
    sparse = replace(dense, feed_forward=block)
    return llama(layers, kinds=(dense, sparse), pattern=(0, *(1 for _ in range(layers - 1))))


def deepseek(layers: int = 4, **changes: Any) -> ModelSpec:
    """As DeepSeek-V3: latent attention, scaled positions, a dense layer first, a shared expert, experts in groups, one
    prediction."""
    latent = attention(kv_heads=4, head_dim=12, rope_head_dim=4, q_lora_rank=16, kv_lora_rank=8, norm_parameters=24)
    block = MixtureOfExperts(experts=8, top_k=2, expert_inner=24, shared_inner=40, groups=4, top_groups=2,
                             router_scores="sigmoid", router_scale=2.5)  # fmt: skip
    dense = Layer(attention=latent, feed_forward=FeedForward(inner=64))
    scaling = RopeScaling(kind="yarn", factor=8.0, original_max_positions=8, mscale=1.0, mscale_all_dim=0.8)
    how: dict[str, Any] = {"family": "deepseek_v3", "rope_scaling": scaling, "mtp_layers": 1,
                           "kinds": (dense, replace(dense, feed_forward=block)),
                           "pattern": (0, *(1 for _ in range(layers - 1)))}  # fmt: skip
    return llama(layers, **{**how, **changes})


def gemma(layers: int = 4) -> ModelSpec:
    """As Gemma 2 and 3: scaled embeddings, norms of inputs and outputs by 1 + weight, normed heads, softcaps, scores by
    a width of their own, every other layer with a window and another rotary base, tied embeddings."""
    windowed = Layer(attention=attention(window=5, norm_parameters=16, score_scale=0.3, score_softcap=2.0),
                     feed_forward=FeedForward(inner=64), num_norms=4)  # fmt: skip
    full = replace(windowed, attention=replace(windowed.transformer_blocks[0], window=None))
    return llama(layers, family="gemma3", kinds=(windowed, full), pattern=tuple(i % 2 for i in range(layers)),
                 tied_embeddings=True, activation="gelu_tanh", unit_offset_norms=True, embedding_scale=32**0.5,
                 window_rope_theta=100.0, logit_softcap=3.0)  # fmt: skip


def gpt_oss(layers: int = 4) -> ModelSpec:
    """As gpt-oss: sinks, windows, biased experts that clamp; with Granite's factors."""
    heads = attention(qkv_bias=True, output_bias=True, sink_parameters=4, window=5)
    block = MixtureOfExperts(experts=4, top_k=2, expert_inner=24, expert_bias=True, router_bias=True)
    return llama(layers, family="gpt_oss", kinds=(Layer(attention=heads, feed_forward=block),), residual_scale=0.4,
                 activation="clamped swiglu", logit_scale=0.5)  # fmt: skip


def olmo2(layers: int = 4) -> ModelSpec:
    """As OLMo 2: norms of outputs, and of the queries and keys of all heads."""
    layer = Layer(attention=attention(norm_parameters=48), feed_forward=FeedForward(inner=64), output_norms=True)
    return llama(layers, family="olmo2", kinds=(layer,))


def falcon(layers: int = 4) -> ModelSpec:
    """As Falcon and GPT-NeoX: LayerNorm, blocks in parallel; the first half of the layers with one norm."""
    separate = Layer(attention=attention(), feed_forward=FeedForward(inner=64, gated=False), norm_bias=True,
                     parallel_blocks=True)  # fmt: skip
    return llama(layers, family="falcon", kinds=(replace(separate, num_norms=1), separate), norm_bias=True,
                 pattern=tuple(2 * i // layers for i in range(layers)), activation="gelu")  # fmt: skip


def nemotron(layers: int = 4, **changes: Any) -> ModelSpec:
    """As Nemotron-H: one block behind one norm, Mamba-2, attention without positions, experts without gates."""
    mamba = Mamba2(heads=4, head_dim=8, groups=2, state=6, chunk=6)
    block = Layer(attention=None, feed_forward=None, num_norms=1)
    experts = MixtureOfExperts(experts=4, top_k=2, expert_inner=24, gated=False, shared_inner=40,
                               router_scores="sigmoid", router_scale=2.5)  # fmt: skip
    mlp = FeedForward(inner=64, gated=False)
    kinds = (replace(block, mixer=mamba), replace(block, attention=attention(kv_heads=4, rotary=False)),
             replace(block, feed_forward=experts), replace(block, feed_forward=mlp))  # fmt: skip
    how: dict[str, Any] = {"family": "nemotron_h", "kinds": kinds, "rope_theta": None, "activation": "relu2",
                           "pattern": tuple((0, 1, 2, 3)[i % 4] for i in range(layers))}  # fmt: skip
    return llama(layers, **{**how, **changes})


def mixers(layers: int = 4) -> ModelSpec:
    """The same without attention."""
    return nemotron(layers, pattern=tuple((0, 3, 0, 2)[i % 4] for i in range(layers)))


def qwen_next(layers: int = 4, **changes: Any) -> ModelSpec:
    """As Qwen3-Next: gated DeltaNet, every other layer gated attention; experts, norms by 1 + weight."""
    delta = GatedDeltaNet(key_heads=4, value_heads=8, key_head_dim=8, value_head_dim=6)
    block = MixtureOfExperts(experts=4, top_k=2, expert_inner=24, shared_inner=40, shared_gate=True)
    gated = attention(kv_heads=4, norm_parameters=16, output_gate=True)
    kinds = (Layer(attention=None, feed_forward=block, mixer=delta), Layer(attention=gated, feed_forward=block))
    how: dict[str, Any] = {"family": "qwen3_next", "kinds": kinds, "unit_offset_norms": True,
                           "partial_rotary_factor": 0.5, "pattern": tuple(i % 2 for i in range(layers))}  # fmt: skip
    return llama(layers, **{**how, **changes})


IMAGES = Images(per_sequence=2, height=16, width=24)


def vision(layers: int = 4, base: Callable[..., ModelSpec] = llama, **changes: Any) -> ModelSpec:
    """As Qwen3-VL: a tower whose first and last layer are tapped, before a text model; images take 12 of 32 tokens."""
    tower = VisionTower(layers=3, hidden=32, heads=4, inner=48, patch=4, channels=3, frames=2, merge=2, positions=16,
                        output=32, merger="mlp", taps=(0, 2), rope_sections=(2, 1, 1))  # fmt: skip
    return base(layers, max_positions=32, tower=tower, **changes)


def with_images(layout_id: str, model: ModelSpec | None = None, **changes: Any) -> Job:
    """A job of `vision` with images in every sequence."""
    model = model or vision(8 if "vpp" in layout_id else 4)
    return job(layout_id, model, **{"seq_len": 32, "images": IMAGES, **changes})


def t5(layers: int = 4, **changes: Any) -> ModelSpec:
    """As T5 v1.1: as many layers in the encoder as in the decoder, biases by distance, gates, a head of its own."""
    heads = attention(kv_heads=4, rotary=False, score_scale=1.0)
    biased = replace(heads, relative_bias=True)
    encodes = Layer(attention=replace(biased, causal=False), feed_forward=FeedForward(inner=48), encodes=True)
    decodes = Layer(attention=biased, feed_forward=FeedForward(inner=48), cross_attention=heads, num_norms=3)
    first = [replace(kind, starts=True, attention=replace(kind.transformer_blocks[0], bias_parameters=32 * 4))
             for kind in (encodes, decodes)]  # fmt: skip
    of_encoder, of_decoder = layers // 2, layers - layers // 2
    how: dict[str, Any] = {
        "family": "t5", "rope_theta": None, "activation": "gelu_tanh", "kinds": (first[0], encodes, first[1], decodes),
        "pattern": (0, *[1] * (of_encoder - 1), 2, *[3] * (of_decoder - 1)),
        "encoder": Encoder(layers=of_encoder, max_positions=64),
    }  # fmt: skip
    return llama(layers, **{**how, **changes})


def with_source(layout_id: str, model: ModelSpec | None = None, **changes: Any) -> Job:
    """A job of `t5`: 24 tokens of a source for 16 of a target."""
    return job(layout_id, model or t5(), **{"source_len": 24, **changes})


def job(layout_id: str, model: ModelSpec | None = None, *, extra: int = 2, sizes: list[int] | None = None,
        stack_changes: dict[str, Any] | None = None, **changes: Any) -> Job:  # fmt: skip
    """A job on `layout_id`: `extra` micro-batches more than pp, float64, SGD without clipping, 4 steps of 16 tokens."""
    layout, model = parse(layout_id), model or llama()
    devices = devices_of(layout)
    sizes = sizes or chunk_sizes(model.num_layers, len(devices))
    full = layout.recompute == 2
    chunks, start = [], 0
    for index, (device, size) in enumerate(zip(devices, sizes, strict=True)):
        redone = (min(size, layout.recompute_layers) or size) if full else 0
        chunks.append(Chunk(stage=device, chunk=devices[:index].count(device),
                            layers=(start, start + size - 1) if size else (), embedding=index == 0,
                            head=index == len(devices) - 1, gpu="", recompute_layers=redone))  # fmt: skip
        start += size
    batch = layout.dp * layout.micro_batch * (layout.pp + extra)
    stack = replace(STACK, **(stack_changes or {}))
    fields = {"plan_id": "test", "choice": 1, "model": model, "layout": layout, "chunks": tuple(chunks), "stack": stack,
              "seq_len": 16, "global_batch": batch, "optimizer": "sgd", "dtype": "fp64", "predicted_step_s": None,
              "steps": 4, "seed": 0, "learning_rate": 0.3, "clip": None}  # fmt: skip
    return Job(**{**fields, **changes})


def mixed(strategies: str, model: ModelSpec | None = None, **changes: Any) -> Job:
    """A job whose embedding, layers and head have strategies of their own: ids in their order."""
    every = [parse(each) for each in strategies.split()]
    own = Strategies(every[0], tuple(every[1:-1]), every[-1])
    wanted = job(str(every[1]), model or llama(len(every) - 2), **changes)
    chunks = tuple(chunk.model_copy(update={"recompute_layers": 0}) for chunk in wanted.chunks)
    return replace(wanted, chunks=chunks, strategies=own)
