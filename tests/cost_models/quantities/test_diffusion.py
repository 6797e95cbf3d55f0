"""Diffusion transformers: parameters, FLOPs and kept bytes against diffusers and torch, and blocks of two streams."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.params import layer_parameters, total_parameters
from meshwright.cost_models.quantities.stages import HEAD
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from meshwright.errors import InputError

from .kept_bytes import KeptBytes

# Elements of the classes of diffusers 0.42.1 with the config of the catalogue, on the meta device.
PARAMETERS = {"flux.1-dev": 11_901_408_320, "wan2.1-t2v-14b": 14_288_491_584, "dit-xl-2-256": 749_826_464}
FLUX = {"_class_name": "FluxTransformer2DModel", "num_layers": 3, "num_single_layers": 6, "guidance_embeds": True}
WAN = {"_class_name": "WanTransformer3DModel", "num_layers": 3}
DIT = {"_class_name": "DiTTransformer2DModel", "num_layers": 28, "out_channels": 8}
# FLOPs of both passes of one sample through these, as FlopCounterMode of torch 2.13 counts those of diffusers 0.42.1.
FLOPS: list[tuple[dict[str, Any], str, tuple[int, int]]] = [
    (FLUX, "1@1024x1024", (11_758_594_424_832, 23_502_685_470_720)),
    (WAN, "1@480x832x81", (125_962_526_392_320, 251_882_105_733_120)),
    (DIT, "1@256x256", (237_333_676_032, 474_640_809_984)),
]
NAMED = pytest.mark.parametrize(("config", "images", "counted"), FLOPS, ids=["flux", "wan", "dit"])


def problem(folder: Path, config: dict[str, Any], images: str) -> Problem:
    (folder / "config.json").write_text(json.dumps(config))
    asked = {"model": str(folder), "cluster": "8xh100-sxm-80gb", "images": images, "target": "any", "global_batch": 8}
    return resolve(load_request(None, asked)).problem


def flops(of: Problem) -> Any:
    times = Counter(of.pattern)
    return sum(of.flops[:, kind] * number for kind, number in times.items()) + of.flops[:, HEAD]


def operations(of: Problem, name: str, **layout: int) -> LayerOperations:
    tables = build(of, index_keys(Layouts.of([Layout(**{"dp": 8, **layout})]))[0])
    return next(ops for ops in tables.operations if ops.name == name)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameters_are_those_of_diffusers(name: str) -> None:
    assert total_parameters(load_model(name)[0]) == PARAMETERS[name]


@NAMED
def test_flops_are_those_that_torch_counts(
    config: dict[str, Any], images: str, counted: tuple[int, int], tmp_path: Path
) -> None:
    assert flops(problem(tmp_path, config, images)) == pytest.approx(counted, rel=0.002)


@pytest.mark.slow
@NAMED
def test_diffusers_still_counts_so(config: dict[str, Any], images: str, counted: tuple[int, int]) -> None:
    diffusers = pytest.importorskip("diffusers")
    sizes = {name: value for name, value in config.items() if name != "_class_name"}
    if config is DIT:
        sizes |= {"in_channels": 4, "sample_size": 32, "num_embeds_ada_norm": 1000, "norm_elementwise_affine": False}
    model = getattr(diffusers, config["_class_name"])(**sizes).to("meta")
    inputs: dict[str, Any] = {"timestep": torch.zeros(1, dtype=torch.long)}
    if config is FLUX:
        inputs |= {"hidden_states": torch.zeros(1, 4096, 64), "encoder_hidden_states": torch.zeros(1, 512, 4096),
                   "pooled_projections": torch.zeros(1, 768), "img_ids": torch.zeros(4096, 3),
                   "txt_ids": torch.zeros(512, 3), "guidance": torch.zeros(1)}  # fmt: skip
    elif config is WAN:
        for name in ("freqs_cos", "freqs_sin"):
            setattr(model.rope, name, getattr(model.rope, name).to("meta"))
        inputs |= {"hidden_states": torch.zeros(1, 16, 21, 60, 104), "encoder_hidden_states": torch.zeros(1, 512, 4096)}
    else:
        inputs |= {"hidden_states": torch.zeros(1, 4, 32, 32), "class_labels": torch.zeros(1, dtype=torch.long)}
    with torch.device("meta"), FlopCounterMode(display=False) as forward:
        out = model(**{name: value.to("meta") for name, value in inputs.items()}, return_dict=False)[0]
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    assert (forward.get_total_flops(), backward.get_total_flops()) == counted
    spec, _ = read_config(config, "small")
    assert sum(parameter.numel() for parameter in model.parameters()) == total_parameters(spec)


def _normed(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift


def _gated(x: torch.Tensor, block: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x + gate * block


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_saved_bytes_of_a_modulated_layer_are_those_that_torch_keeps(compiled: bool, tmp_path: Path) -> None:
    """A layer of DiT out of torch modules in bf16 on the CPU, whose flash kernel keeps the sums of its scores. Compiled
    as WanAdaLN of Megatron-Bridge is: norm and modulation together, by the partitioner of torch without its kernels."""
    h, heads, tokens = 1152, 16, 256
    qkv, out, up, down = (torch.nn.Linear(i, o).bfloat16()
                          for i, o in ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)))  # fmt: skip
    kept = KeptBytes(qkv, out, up, down)
    normed, gated = (torch.compile(each, backend="aot_eager_decomp_partition") if compiled else each
                     for each in (_normed, _gated))  # fmt: skip

    x = torch.randn(1, tokens, h, dtype=torch.bfloat16, requires_grad=True)
    shift, scale, gate, shift_2, scale_2, gate_2 = (
        torch.randn(1, 1, h, dtype=torch.bfloat16, requires_grad=True) for _ in range(6)
    )
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        q, k, v = (part.view(1, tokens, heads, h // heads).transpose(1, 2)
                   for part in qkv(normed(x, scale, shift)).chunk(3, dim=-1))  # fmt: skip
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, tokens, h)
        y = gated(x, out(attended), gate)
        gated(y, down(F.gelu(up(normed(y, scale_2, shift_2)), approximate="tanh")), gate_2)
    of = problem(tmp_path, DIT, "1@256x256")
    of = replace(of, stack=replace(of.stack, fused_activation=compiled))
    ours = sum(float(saved.num_bytes[0]) for saved in operations(of, "single-stream block").saved)
    assert ours == pytest.approx(kept.num_bytes, rel=0.01)


def test_norms_over_all_heads_gather_queries_and_keys(tmp_path: Path) -> None:
    """Over tp 2, queries of 32,760 tokens for both attentions, keys of these and of the text's 512; as many back. Where
    no code gathers them, ranks sum up squares of queries and of keys in fp32."""
    of = problem(tmp_path, WAN, "1@480x832x81")
    plain, bridge = (replace(of, stack=replace(of.stack, gathers_normed_heads=gathers)) for gathers in (False, True))
    one, two = (operations(bridge, "single-stream block", dp=8 // tp, tp=tp) for tp in (1, 2))
    elements = [2 * 32_760 * 5120, (32_760 + 512) * 5120]
    gathers = [each for each in two.exchanges if each.op == "all_gather" and float(each.num_bytes[0]) in
               {2.0 * number for number in elements}]  # fmt: skip
    assert [(each.forward_calls, each.backward_calls) for each in gathers] == [(1, 1)] * 2
    inputs = [[float(part.num_bytes[0]) for part in each.saved if part.name == "input of query and key norms"]
              for each in (one, two)]  # fmt: skip
    assert inputs == [[2 * number for number in elements]] * 2
    assert not any("gathered" in part.name and part.forward_bytes[0] > 0 for part in one.traffic)
    sums = [float(each.num_bytes[0]) for each in operations(plain, "single-stream block", dp=4, tp=2).exchanges
            if each.op == "all_reduce" and each.forward_calls == each.backward_calls == 1]  # fmt: skip
    assert sums.count(2 * 4 * 32_760) == 2


def test_two_streams_have_weights_of_their_own(tmp_path: Path) -> None:
    of = problem(tmp_path, FLUX, "1@1024x1024")
    assert of.workload.seq_len == 64 * 64 + 512
    double, single = (operations(of, f"{name}-stream block") for name in ("double", "single"))
    qkv = [gemm for gemm in double.gemms if gemm.name == "qkv"]
    assert [float(gemm.m[0]) for gemm in qkv] == pytest.approx([512, 4096])
    assert [float(gemm.m[0]) for gemm in single.gemms if gemm.name == "qkv"] == [4608]
    assert float(double.cores[0].flops[0]) == float(single.cores[0].flops[0]) == 4 * 4608**2 * 3072
    of_double, of_single = (layer_parameters(of.model, kind) for kind in of.model.kinds)
    assert of_double["up"] == 2 * of_single["up"]
    modulated = next(gemm for gemm in double.gemms if gemm.name == "modulation")
    assert (float(modulated.m[0]), float(modulated.n[0]), float(modulated.count[0])) == (1, 6 * 3072, 2)


def test_layers_of_wan_attend_to_a_text(tmp_path: Path) -> None:
    of = problem(tmp_path, WAN, "1@480x832x81")
    assert (of.workload.seq_len, of.workload.source_len) == (21 * 30 * 52, 512)
    ops = operations(of, "single-stream block")
    assert [core.context for core in ops.cores] == [32760, 512]
    assert np.isclose(float(ops.cores[1].flops[0]), 4 * 32760 * 512 * 5120)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({**FLUX, "patch_size": 2}, "patch_size"),
        ({**WAN, "patch_size": [1, 1, 1]}, "must be [1, 2, 2]"),
        ({**WAN, "image_dim": 1280}, "no formula for attention to an image"),
        ({**DIT, "num_layers": 0}, "num_layers"),
    ],
)
def test_what_has_no_formula_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_config(fields, "bad")
    assert text in caught.value.message
