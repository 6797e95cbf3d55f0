"""Small random models of the families of Hugging Face, and ours with the same weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.profiles.model.huggingface import read_config
from meshwright.runtime.checkpoint.huggingface import converted
from meshwright.runtime.model.decoder import DecoderChunk
from meshwright.runtime.reference import whole_model
from torch import Tensor

from ...published_configs import LISTED
from ...snapshots import ROOT
from ..jobs import job

CONFIGS = ROOT / "tests" / "data" / "configs"
# A published config of each family, its sizes shrunk: what is no size stays as published. Windows cut, and heads,
# experts and layers are enough for each kind of layer, group and share of a head to be there twice.
_SIZES: Mapping[str, Any] = {
    "hidden_size": 32, "n_embd": 32, "intermediate_size": 48, "n_inner": None, "ffn_dim": 48, "num_hidden_layers": 4,
    "n_layer": 4, "num_attention_heads": 4, "n_head": 4, "num_kv_heads": 2, "head_dim": 8, "vocab_size": 61,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "num_experts": 8, "num_local_experts": 8,
    "n_routed_experts": 16, "num_experts_per_tok": 4, "experts_per_token": 4, "kv_lora_rank": 8,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "word_embed_proj_dim": 32, "sliding_window": 5,
    "moe_num_experts": 8, "moe_k": 4, "rotary_dim": 4, "query_pre_attn_scalar": 13, "first_k_dense_replace": 1,
}  # fmt: skip
_ALWAYS: Mapping[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
_MARKS = ("architectures", "auto_map", "quantization_config", "layer_types")
LENGTH = 16


@dataclass(frozen=True)
class Case:
    """A family: the name of a published config, and what is changed in it beside its sizes."""

    config: str
    changes: Mapping[str, Any]
    absent: tuple[str, ...] = ()  # fields that are left out

    def data(self) -> dict[str, Any]:
        path = CONFIGS / f"{self.config}.json"
        published = json.loads(path.read_text()) if path.exists() else LISTED[self.config]
        published = dict(published.get("text_config", published))
        heads, groups = published.get("num_attention_heads"), published.get("num_key_value_heads")
        sizes = {name: value for name, value in _SIZES.items() if published.get(name) is not None}
        if groups is not None:
            sizes["num_key_value_heads"] = 4 if groups == heads else 2 if groups > 1 else 1
        if published.get("q_lora_rank"):
            sizes["q_lora_rank"] = 16
        kept = {name: value for name, value in published.items() if name not in (*_MARKS, *self.absent)}
        return {**kept, **sizes, **_ALWAYS, **self.changes}


def theirs_of(data: Mapping[str, Any]) -> Any:
    """The model of transformers, in fp32, with random numbers where initial weights are ones or zeros."""
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[data["model_type"]].from_dict(dict(data))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(0)  # of the initial weights
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if not weight.requires_grad:  # a bias for the choice of experts (ERNIE 4.5)
                continue
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                weight.add_(0.3 * noise)
            else:
                weight.copy_(1.5 * noise / weight.shape[-1] ** 0.5)
        chosen = any(getattr(kind.feed_forward, "choice_bias", False) for kind in spec_of(data).kinds)
        for bias in choice_biases_of(model).values() if chosen else ():
            bias.copy_(0.2 * torch.randn(bias.shape, generator=generator))
    return model


def choice_biases_of(model: Any) -> dict[str, Tensor]:
    """The biases for the choice of experts: buffers, or parameters that do not train (ERNIE 4.5)."""
    every = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    return {name: bias.data for name, bias in sorted(every.items()) if name.endswith("e_score_correction_bias")}


def state_of(model: Any) -> dict[str, Tensor]:
    """All numbers of the model, as transformers would write them into files."""
    return filed(model, {**dict(model.named_parameters()), **choice_biases_of(model)})


def filed(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of the model's parameters, as transformers would write them into files."""
    loading = pytest.importorskip("transformers.core_model_loading")
    written: dict[str, Tensor] = loading.revert_weight_conversion(model, dict(tensors))
    return written


def ours_of(spec: ModelSpec, state: Mapping[str, Tensor], whole: ModelSpec | None = None) -> DecoderChunk:
    """Our model with their weights, by their names in files. whole: the model that `spec` has a fault of."""
    model = whole_model(job("dp1-mbs1-z0-rnone", spec, dtype="fp32", seq_len=LENGTH))
    parameters: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    weights = converted(whole or spec, state)
    if whole is not None and not set(weights) >= set(parameters):
        weights = converted(spec, state)
    assert set(weights) == set(parameters) or whole is not None
    _copy(weights, parameters)
    return model


def filled(model: DecoderChunk, weights: Mapping[str, Tensor]) -> DecoderChunk:
    """The model with weights by its own names, one for each of its parameters and no others."""
    parameters = dict(model.named_parameters())
    assert set(weights) == set(parameters)
    _copy(weights, parameters)
    return model


def _copy(weights: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            assert parameter.shape == weights[name].shape, name
            parameter.copy_(weights[name])


def spec_of(data: Mapping[str, Any]) -> ModelSpec:
    return read_config(data, "tiny")[0]


def logits_of(model: DecoderChunk, tokens: Tensor) -> Tensor:
    """The path of the loss up to the loss, which caps them."""
    head, seen = model.head, []
    assert head is not None
    usual = head.loss
    head.loss = lambda x, targets, norm=None: seen.append(head.logits(x)) or x.sum()  # type: ignore[method-assign, func-returns-value]
    model(tokens, tokens)
    head.loss = usual  # type: ignore[method-assign]
    logits: Tensor = seen[0]
    return logits if head.softcap is None else head.softcap * (logits / head.softcap).tanh()
