"""Gemma 3n against transformers 5.24: FLOPs of whole models on meta, and the bytes that a small one keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.quantities.edge_operations import embedding, head
from meshwright.cost_models.quantities.layer_operations import decoder_layer
from meshwright.cost_models.quantities.operation_builder import Builder
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.shards import Shard
from meshwright.cost_models.serving.served_model import kv_elements
from meshwright.cost_models.specs.documents import spec_to_dict
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.stack import StackSpec
from meshwright.cost_models.specs.workload import Precision, Workload
from meshwright.planner.document.specs import model_of
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.gemma3n import modeling_gemma3n
from transformers.models.gemma3n.configuration_gemma3n import Gemma3nTextConfig

from meshwright.errors import InputError

from ...published_configs import LISTED
from ..quantities.kept_bytes import KeptBytes

SMALL: dict[str, Any] = {
    **LISTED["gemma-3n-e4b"], "hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": [512, 768, 1024, 1024],
    "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0], "num_attention_heads": 4, "num_key_value_heads": 4,
    "head_dim": 64, "hidden_size_per_layer_input": 32, "laurel_rank": 4, "num_kv_shared_layers": 2, "vocab_size": 512,
    "vocab_size_per_layer_input": 500, "sliding_window": 4096, "max_position_embeddings": 4096,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "pad_token_id": None,
}  # fmt: skip


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Distributions whose arguments torch does not look at, which it cannot on meta."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    yield
    torch.distributions.Distribution.set_default_validate_args(before)


def operations(
    model: ModelSpec, tokens: int, stack: StackSpec, precision: Precision = "bf16"
) -> tuple[LayerOperations, list[LayerOperations], LayerOperations]:
    """Those of the embedding, of each layer and of the head."""
    workload = Workload(seq_len=tokens, global_batch=1, precision=precision)
    builder = Builder(model, workload, stack, Shard.of(Layouts.of([Layout()]), model, workload))
    kinds = [decoder_layer(builder, kind) for kind in model.kinds]
    return embedding(builder), [kinds[index] for index in model.pattern], head(builder)


def whole_squares(model: ModelSpec) -> ModelSpec:
    return replace(model, kinds=tuple(
        replace(kind, attention=replace(kind.attention, window=None)) for kind in model.kinds
        if kind.attention is not None))  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["gemma-3n-e4b", "gemma-3n-e2b"])
def test_flops_are_those_of_transformers(name: str) -> None:
    tokens, config = 256, Gemma3nTextConfig(**LISTED[name])
    config._attn_implementation = "eager"
    model = whole_squares(read_config(LISTED[name], "test")[0])
    with torch.device("meta"):
        theirs: Any = modeling_gemma3n.Gemma3nForCausalLM(config)
        mask = torch.zeros(1, 1, tokens, tokens)
        with FlopCounterMode(display=False) as counter:
            theirs(input_ids=torch.zeros(1, tokens, dtype=torch.long),
                   attention_mask={"full_attention": mask, "sliding_attention": mask}, use_cache=False)  # fmt: skip
    first, layers, last = operations(model, tokens, load_stack("megatron-core"))
    ops = [first, *layers, last]
    products = sum(float((2 * gemm.m * gemm.n * gemm.k * gemm.count)[0]) for each in ops for gemm in each.gemms)
    scores = 2 * sum(float(core.flops[0]) for each in ops for core in each.cores)
    assert products + scores == pytest.approx(counter.get_total_flops(), rel=0.002)


def test_kept_bytes_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 with torch's kernel of LayerNorm: on a CPU there is none of RMSNorm, which would keep as much."""

    def fused(norm: Any, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], getattr(norm, "weight", None), None, norm.eps)

    monkeypatch.setattr(modeling_gemma3n.Gemma3nRMSNorm, "forward", fused)
    tokens, config = 256, Gemma3nTextConfig(**SMALL)
    config._attn_implementation = "sdpa"
    theirs = modeling_gemma3n.Gemma3nTextModel(config).train()
    model, _ = read_config(SMALL, "test")
    kept = KeptBytes(theirs)
    ids = torch.randint(0, 500, (1, tokens))
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        theirs(input_ids=ids, attention_mask={"full_attention": None, "sliding_attention": None}, use_cache=False)
    stack = replace(load_stack("megatron-core"), fused_activation=False)
    first, layers, last = operations(model, tokens, stack, "fp32")
    ours = sum(float(part.num_bytes[0]) for each in (first, *layers, last) for part in each.saved)
    positions = 2 * 2 * tokens * 64 * 4  # cosine and sine, of layers with and without a window
    assert ours == pytest.approx(kept.num_bytes - positions - 2 * ids.nbytes, rel=0.01)


def test_later_layers_take_the_keys_of_earlier_ones() -> None:
    """In E4B the last 15 layers: they have no projections of keys and values, keep none and cache none."""
    model = load_model("gemma-3n-e4b")[0]
    attentions = [model.kinds[kind].attention for kind in model.pattern]
    taken = [attention for attention in attentions if attention is not None and attention.takes_keys]
    assert (len(attentions), len(taken), {kv_elements(attention) for attention in taken}) == (35, 15, {0})
    _, layers, _ = operations(model, 128, load_stack("megatron-core"))
    kept = [next(float(part.num_bytes[0]) for part in layer.saved if part.name == "query, key, value")
            for layer in (layers[0], layers[-1])]  # fmt: skip
    assert kept == [2 * 128 * (8 + 2 + 2) * 256, 2 * 128 * 8 * 256]


def test_plans_keep_all_fields() -> None:
    model = read_config(SMALL, "m")[0]
    assert model_of({"model": json.loads(json.dumps(spec_to_dict(model)))}, "m") == model


@pytest.mark.parametrize(("changes", "words"), [
    ({"intermediate_size": [128] * 3}, "has 3 entries for 4 layers"),
    ({"intermediate_size": [128, 0, 128, 128]}, "layer 1 has 0, which is not a whole number above 0"),
    ({"activation_sparsity_pattern": [0.9, 1.0, 0, 0]}, "layer 1 has 1.0, which is not a share from 0 to below 1"),
    ({"num_kv_shared_layers": 3}, "the 1 layers before the last 3 have no full attention"),
    ({"num_kv_shared_layers": 4}, "is more than 3"),
    ({"laurel_rank": 0}, "must be 1 or more"),
    ({"altup_num_inputs": 1}, "must be 2 or more"),
    ({"hidden_size_per_layer_input": 0}, "must be 1 or more"),
])  # fmt: skip
def test_bad_fields_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_config({**SMALL, **changes}, "m")
    assert words in str(caught.value)
    assert str(caught.value).count(next(iter(changes))) == 1
