"""The parameters of transformers' models on the meta device, element by element, and those of our formulas."""

from __future__ import annotations

import functools
from typing import Any

import torch
from meshwright.cost_models.layer_kinds import stack_start
from meshwright.cost_models.quantities.params import expert_parameters, layer_parameters, total_parameters
from meshwright.cost_models.specs.variants import text_of
from meshwright.profiles.model.huggingface import read_config
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    PretrainedConfig,
)
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

# Where transformers keeps its lists of layers: one, or those of an encoder and a decoder.
STACKS = (("encoder.block", "decoder.block"), ("model.encoder.layers", "model.decoder.layers"))
LAYER_LISTS = ("model.layers", "transformer.h", "gpt_neox.layers", "backbone.layers", "model.decoder.layers",
               "bert.encoder.layer", "roberta.encoder.layer")  # fmt: skip

MASKED = ("bert", "roberta", "xlm-roberta")


def text_config(data: dict[str, Any]) -> PretrainedConfig:
    """The config of the text model; only what the file says, no code and no network."""
    text = dict(data.get("text_config", data))
    for key in ("auto_map", "quantization_config", "architectures"):
        text.pop(key, None)
    if text["model_type"] == "kimi_k2":  # Kimi K2 is DeepSeek-V3 with other sizes; transformers has no type of its own
        text["model_type"] = "deepseek_v3"
    return AutoConfig.for_model(**text)


def count(module: torch.nn.Module) -> int:
    """Elements of the distinct parameters: tied weights once, buffers and what never trains (ERNIE 4.5) not at all."""
    return sum(parameter.numel() for parameter in {id(p): p for p in module.parameters() if p.requires_grad}.values())


def expert_count(module: torch.nn.Module) -> int:
    """Elements of the routed experts."""
    named = module.named_parameters()
    return sum(p.numel() for name, p in named if ".experts." in f".{name}" and "shared" not in name)


def build(data: dict[str, Any]) -> torch.nn.Module:
    config = text_config(data)
    if isinstance(config, Step3p7TextConfig):
        return _text_of_step(config)
    kind: Any = AutoModelForMaskedLM if config.model_type in MASKED else AutoModelForCausalLM
    if config.is_encoder_decoder:
        kind = AutoModelForSpeechSeq2Seq if config.model_type == "whisper" else AutoModelForSeq2SeqLM
    with torch.device("meta"):
        model: torch.nn.Module = kind.from_config(config)
    model.tie_weights()  # type: ignore[operator]  # the method of transformers, not a submodule
    return model


def _text_of_step(config: Step3p7TextConfig) -> torch.nn.Module:
    """Step-3.5 is a part of a model that sees: its layers and its head."""
    with torch.device("meta"):
        model = torch.nn.Module()
        model.model = Step3p7TextModel(config)
        model.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    for paths in (*STACKS, *((path,) for path in LAYER_LISTS)):
        try:
            found: list[Any] = [functools.reduce(getattr, path.split("."), model) for path in paths]
        except AttributeError:
            continue
        if all(isinstance(layers, torch.nn.ModuleList) for layers in found):
            return [layer for layers in found for layer in layers]
    raise LookupError(f"no list of layers in {type(model).__name__}")


def assert_equal_counts(data: dict[str, Any]) -> None:
    spec, _ = read_config(data, "test")
    model = build(data)
    layers = layers_of(model)

    assert len(layers) == spec.num_layers
    for index, layer in enumerate(layers):
        kind = spec.kinds[spec.pattern[index]]
        beside = sum(stack_start.parameters(spec, kind).values())  # elsewhere in transformers
        assert count(layer) == sum(layer_parameters(spec, kind).values()) - beside, f"layer {index}"
        assert expert_count(layer) == expert_parameters(spec, kind), f"experts of layer {index}"
    assert count(model) == total_parameters(text_of(spec))  # towers: test_vision.py
