"""Attention of Gemma 4 and Step-3.5 against transformers on the meta device: FLOPs, and bytes of their parts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.cost_models.layer_kinds.attention import add_attention
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.quantities.operation_builder import Builder
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.quantities.shards import Shard
from meshwright.cost_models.specs.documents import spec_to_dict
from meshwright.cost_models.specs.model import Attention, Layer, MixtureOfExperts, ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner.document.specs import model_of
from meshwright.planner.targets.registry import TARGETS
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextAttention, Gemma4TextRouter
from transformers.models.step3p7.modeling_step3p7 import Step3p7Attention

from meshwright.errors import InputError

from ...meta_models import text_config
from ...published_configs import LISTED
from ..quantities.kept_bytes import KeptBytes
from .test_mixers import operations

GEMMA = LISTED["gemma-4-31b"]["text_config"]
STEP = {**LISTED["step-3.5-flash"], "num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 512, "attention_other_setting": {"num_attention_heads": 96}}  # fmt: skip
TOKENS = 1024


def attention_of(data: dict[str, Any], place: int) -> tuple[ModelSpec, Attention, LayerOperations]:
    model, _ = read_config(data, "test")
    kind = model.kinds[model.pattern[place]]
    assert kind.attention is not None
    whole = Layer(attention=replace(kind.attention, window=None), feed_forward=None, num_norms=1)
    return model, kind.attention, operations(model, whole, Layout(), Layout(tp=4, sequence_parallel=1), tokens=TOKENS)


def counted(module: type[torch.nn.Module], data: dict[str, Any], place: int, **more: Any) -> float:
    """FLOPs of the forward pass of an attention of transformers, which computes whole squares of scores."""
    config = text_config(data)
    config._attn_implementation = "eager"
    heads = config.per_layer_config[place].head_dim
    with torch.device("meta"):
        own = config.per_layer_config[place] if module is Step3p7Attention else config
        attention = module(own, place)
        hidden, mask = torch.zeros(1, TOKENS, config.hidden_size), torch.zeros(1, 1, TOKENS, TOKENS)
        positions = (torch.zeros(1, TOKENS, heads), torch.zeros(1, TOKENS, heads))
        with FlopCounterMode(display=False) as counter:
            attention(hidden, position_embeddings=positions, attention_mask=mask, **more)
    return float(counter.get_total_flops())


@pytest.mark.parametrize(("data", "place", "module", "more"), [
    (GEMMA, 0, Gemma4TextAttention, {"shared_kv_states": {}}),
    (GEMMA, 5, Gemma4TextAttention, {"shared_kv_states": {}}),
    (STEP, 0, Step3p7Attention, {}),
    (STEP, 1, Step3p7Attention, {}),
], ids=["gemma-4 window", "gemma-4 full", "step full", "step window"])  # fmt: skip
def test_flops_are_those_of_transformers(
    data: dict[str, Any], place: int, module: type[torch.nn.Module], more: dict[str, Any]
) -> None:
    _, _, ops = attention_of(data, place)
    products = sum(float((2 * gemm.m * gemm.n * gemm.k * gemm.count)[0]) for gemm in ops.gemms)
    assert products + 2 * float(ops.cores[0].flops[0]) == pytest.approx(counted(module, data, place, **more), rel=1e-3)


def test_a_full_layer_of_gemma_4_has_no_projection_of_values_but_keeps_them() -> None:
    model, full, ops = attention_of(GEMMA, 5)
    assert (full.head_dim, full.kv_heads, full.values_from_keys, full.value_norm) == (512, 4, True, True)
    qkv = next(gemm for gemm in ops.gemms if gemm.name == "qkv")
    assert qkv.n.tolist() == [32 * 512 + 4 * 512, (32 * 512 + 4 * 512) / 4]
    saved = {part.name: float(part.num_bytes[0]) for part in ops.saved}
    assert saved["query, key, value"] == 2 * TOKENS * (32 + 4 + 4) * 512
    assert "input of the norm of values" not in saved  # it is that of the norm of keys
    assert model.attentions[0].window == 1024
    _, short, own = attention_of(GEMMA, 0)
    kept = next(part for part in own.saved if part.name == "input of the norm of values")
    assert float(kept.num_bytes[0]) == 2 * TOKENS * short.kv_heads * short.head_dim


def test_norms_of_experts_and_of_their_router_in_gemma_4() -> None:
    """Beside a dense block: a norm of the output of each, of the experts' input, and one without weights of the
    router's, whose input is the residual stream (Gemma4TextDecoderLayer of transformers 5.24)."""
    model, _ = read_config(LISTED["gemma-4-26b-a4b"], "test")
    h, (kind, *_) = model.hidden, model.kinds
    block = kind.feed_forward
    assert isinstance(block, MixtureOfExperts)
    around = replace(kind, num_norms=4, feed_forward=replace(block, branch_norms=False))
    ops, dense = (operations(model, each, tokens=TOKENS) for each in (kind, around))
    moved, before = ({part.name: part.forward_bytes[0] for part in each.traffic} for each in (ops, dense))
    assert (moved["norms"], before["norms"]) == (2 * 2 * 7 * h * TOKENS, 2 * 2 * 4 * h * TOKENS)
    assert moved["router norm"] == 2 * 2 * h * TOKENS
    saved, kept = ({part.name: float(part.num_bytes[0]) for part in each.saved} for each in (ops, dense))
    assert {name: saved[name] for name in saved.keys() - kept.keys()} == {
        "shared experts norm input": 2 * h * TOKENS, "routed experts norm input": 2 * h * TOKENS,
    }  # fmt: skip
    assert saved["router norm output"] == saved["feed-forward output norm input"] == 2 * h * TOKENS


def test_bytes_that_the_router_of_gemma_4_keeps_are_those_of_transformers() -> None:
    """In float32, where the norm has no casts; it takes the residual stream, which the norms of blocks keep."""
    data = LISTED["gemma-4-26b-a4b"]
    model, _ = read_config(data, "test")
    config: Any = text_config(data)
    router = Gemma4TextRouter(config)
    kept = KeptBytes(router)
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        x = torch.randn(TOKENS, model.hidden, requires_grad=True)
        router(x)
    ops = operations(model, model.kinds[0], tokens=TOKENS, precision="fp32")
    ours = sum(float(part.num_bytes[0]) for part in ops.saved if part.name.startswith("router"))
    assert ours == pytest.approx(kept.num_bytes - x.nbytes, rel=0.01)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"router_factors": True}, "router"), ({"branch_norms": True}, "shared and of routed experts"),
])  # fmt: skip
def test_the_explicit_form_has_both_and_no_target_trains_them(changes: dict[str, bool], reason: str) -> None:
    data: dict[str, Any] = {"hidden": 64, "layers": 2, "heads": 4, "vocab": 512, "seq_len": 128, "num_norms": 7}
    moe = {"experts": 8, "topk": 2, "expert_ffn": 32, "shared_ffn": 32}
    plain, own = (read_explicit_form({**data, "moe": {**moe, **more}}, "own")[0] for more in ({}, changes))
    more = total_parameters(own) - total_parameters(plain)
    assert more == (2 * (64 + 8) if "router_factors" in changes else 0)
    assert model_of({"model": json.loads(json.dumps(spec_to_dict(own)))}, "own") == own
    with pytest.raises(InputError, match="branch_norms: needs shared experts and 3 norms beside those of the blocks"):
        read_explicit_form({**data, "num_norms": 2, "moe": {**moe, "branch_norms": True}}, "own")
    workload = Workload(seq_len=128, global_batch=8)
    for name in ("meshwright", "megatron"):
        before, after = (TARGETS[name].cannot_build(model, workload) for model in (plain, own))
        assert any(reason in text for text in set(after) - set(before)), name


def test_gates_of_heads_are_split_with_their_heads_and_move_less_than_gates_of_elements() -> None:
    _, sliding, ops = attention_of(STEP, 1)
    assert (sliding.heads, sliding.gates) == (96, 96)
    qkv = next(gemm for gemm in ops.gemms if gemm.name == "qkv")
    assert qkv.n.tolist() == [(96 + 16) * 128 + 96, (96 + 16) * 128 / 4 + 96 / 4]
    wide = replace(sliding, gates_heads=False)
    model, _ = read_config(STEP, "test")
    moved, kept = [], []
    for attention in (sliding, wide):
        whole = operations(model, Layer(attention=attention, feed_forward=None, num_norms=1), tokens=TOKENS)
        gate = next(part for part in whole.traffic if part.name == "output gate")
        moved.append(np.array([gate.forward_bytes[0], gate.backward_bytes[0]]) / (2 * TOKENS * 96 * 128))
        saved = [part for part in whole.saved if part.name in ("gate of the output", "gated output")]
        kept.append(sum(float(part.num_bytes[0]) for part in saved) / (2 * TOKENS * 96 * 128))
    share = 1 / 128
    assert moved[0] == pytest.approx([2 + 3 * share, 6 + 3 * share])
    assert moved[1] == pytest.approx([5, 9])
    assert kept == pytest.approx([1 + share, 2])


@pytest.mark.parametrize(("data", "reasons"), [
    (GEMMA, ("the runtime has no values out of the projection of keys", "the runtime has no norms of values")),
    (STEP, ("the runtime has no gates of whole heads",)),
], ids=["gemma-4", "step"])  # fmt: skip
def test_the_runtime_and_megatron_say_what_they_lack(data: dict[str, Any], reasons: tuple[str, ...]) -> None:
    model, _ = read_config(data, "test")
    workload = Workload(seq_len=4096, global_batch=64)
    assert set(reasons) <= set(TARGETS["meshwright"].cannot_build(model, workload))
    parts = ("values_from_keys" if data is GEMMA else "output_gate",)
    assert any(part in text for part in parts for text in TARGETS["megatron"].cannot_build(model, workload))


@pytest.mark.parametrize(("data", "changes", "words"), [
    (GEMMA, {"hidden_size_per_layer_input": 256}, "there is no formula for embeddings of each layer"),
    (GEMMA, {"num_kv_shared_layers": 20}, "there is no formula for keys and values of an earlier layer"),
    (GEMMA, {"use_bidirectional_attention": "all"}, "text is read from left to right"),
    (GEMMA, {"num_global_key_value_heads": 5}, "32 heads are not divisible by 5"),
    (STEP, {"mlp_bias": True}, "there is no formula for shared experts with biases"),
    (STEP, {"moe_layers_enum": "3,x"}, "must be the numbers of the layers with experts"),
    (STEP, {"num_sliding_attention_heads": 90}, "90 heads are not divisible by 8"),
    (STEP, {"rope_theta": [10000.0, "x"]}, "layer 1 has 'x'"),
    (STEP, {"layer_types": ["full_attention"]}, "has 1 entries for 2 layers"),
])  # fmt: skip
def test_bad_fields_are_named(data: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_config({**data, **changes}, "test")
    assert words in caught.value.message
    assert next(iter(changes)) in caught.value.message


def test_lists_of_step_may_have_entries_for_prediction_modules() -> None:
    """As its checkpoints have them: three entries behind those of the layers."""
    padded = {**STEP, "num_nextn_predict_layers": 3, "layer_types": [*STEP["layer_types"], *["full_attention"] * 3],
              "rope_theta": [5e6, 1e4, 5e6, 5e6, 5e6], "partial_rotary_factors": [0.5, 1.0, 0.5, 0.5, 0.5],
              "moe_layers_enum": "1,2,3,4"}  # fmt: skip
    spec, _ = read_config(padded, "test")
    assert (spec.num_layers, spec.mtp_layers) == (2, 3)
    assert (spec.rope_theta, spec.window_rope_theta, spec.partial_rotary_factor) == (5e6, 1e4, 0.5)
    assert [kind.is_moe for kind in spec.kinds] == [False, True]


def test_softmax_in_steps_where_heads_do_not_suit_the_fused_kernel() -> None:
    """16 heads over tp 8: one sequence leaves two squares of scores to a rank, two leave the four that Megatron-LM's
    kernel wants. torch: cast (2 to 4 bytes a score), scale, mask and softmax (8 each), cast back; gradients likewise,
    and the softmax reads its result (4). The fused kernel moves 4 and 6, which the surface has."""
    (model, _), tokens = load_model("gpt-h1024-l12"), 1024
    attention = model.kinds[0].attention
    assert attention is not None
    layouts = Layouts.of([Layout(tp=8, micro_batch=number) for number in (1, 2)])
    workload = Workload(seq_len=tokens, global_batch=8)
    builder = Builder(model, workload, load_stack("megatron-lm"), Shard.of(layouts, model, workload))
    ops = LayerOperations(name="layer")
    ops.kernels = np.zeros(2)
    add_attention(builder, ops, attention)
    steps = next(traffic for traffic in ops.traffic if traffic.name == "softmax in steps")
    scores = 2 * tokens**2
    assert steps.forward_bytes.tolist() == [(6 + 3 * 8 + 6 - 4) * scores, 0]
    assert steps.backward_bytes.tolist() == [(6 + 3 * 8 + 4 + 6 - 6) * scores, 0]
    assert ops.kernels.tolist() == [4, 0]
