"""Experts beside a dense block whose output is weighed against theirs (arXiv 2201.05596), in unlike numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.specs.documents import spec_to_dict
from meshwright.cost_models.specs.model import MixtureOfExperts, ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner.document.specs import model_of
from meshwright.planner.targets.registry import TARGETS
from meshwright.profiles.model.explicit_form import read_explicit_form

from meshwright.errors import InputError

from ..quantities.kept_bytes import KeptBytes
from .test_mixers import operations

TOKENS, H = 1024, 64
DATA: dict[str, Any] = {"hidden": H, "layers": 4, "heads": 4, "vocab": 512, "seq_len": TOKENS, "ffn_hidden": 32,
                        "gated_mlp": False}  # fmt: skip
MOE: dict[str, Any] = {"experts": 8, "topk": 1, "expert_ffn": 32, "shared_ffn": 32, "moe_layers": [1, 3]}


def model_with(**more: Any) -> ModelSpec:
    return read_explicit_form({**DATA, "moe": {**MOE, **more}}, "own")[0]


def layer_operations(**more: Any) -> LayerOperations:
    model = model_with(**more)
    return operations(model, next(kind for kind in model.kinds if kind.is_moe), tokens=TOKENS, precision="fp32")


def test_the_weighed_sum_keeps_what_torch_keeps() -> None:
    """The sum of MoE.forward of DeepSpeed 38327e07. The two weights of a token are no part of the outputs."""
    routed, dense = (torch.randn(TOKENS, H, requires_grad=True) for _ in range(2))
    weights = torch.randn(TOKENS, 2, requires_grad=True)
    kept = KeptBytes(torch.nn.Module())
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        routed * weights[..., 0:1] + dense * weights[..., 1:]
    saved = [part for part in layer_operations(residual=True).saved if part.name == "outputs that are weighed"]
    assert float(saved[0].num_bytes[0]) == pytest.approx(kept.num_bytes - weights.nbytes, rel=0.01)


def test_the_weighed_sum_is_all_that_a_residual_layer_adds() -> None:
    plain, own = layer_operations(), layer_operations(residual=True)
    assert [gemm.name for gemm in own.gemms if gemm.name not in {each.name for each in plain.gemms}] == ["coefficient"]
    moved = [sum(float(part.forward_bytes[0]) for part in ops.traffic) for ops in (plain, own)]
    assert moved[1] - moved[0] == 7 * 4 * TOKENS * H
    assert float(np.max(own.kernels - plain.kernels)) == 5.0


@pytest.mark.parametrize(("more", "difference", "reason"), [
    ({"residual": True}, 2 * 2 * (H + 1), "weighs the outputs"),
    ({"experts": [8, 16]}, 8 * (H + 2 * H * 32), "different numbers of experts"),
])  # fmt: skip
def test_the_explicit_form_has_both_and_no_target_trains_them(
    more: dict[str, Any], difference: int, reason: str
) -> None:
    plain, own = model_with(), model_with(**more)
    assert total_parameters(own) - total_parameters(plain) == difference
    assert model_of({"model": json.loads(json.dumps(spec_to_dict(own)))}, "own") == own
    workload = Workload(seq_len=TOKENS, global_batch=8)
    for name in ("meshwright", "megatron", "torchtitan", "nemo", "maxtext"):
        before, after = (TARGETS[name].cannot_build(model, workload) for model in (plain, own))
        assert any(reason in text for text in set(after) - set(before)), name


def test_numbers_of_experts_go_to_layers_in_turn() -> None:
    own = model_with(experts=[8, 16])
    blocks = [own.kinds[kind].feed_forward for kind in own.pattern]
    assert [block.experts if isinstance(block, MixtureOfExperts) else 1 for block in blocks] == [1, 8, 1, 16]


@pytest.mark.parametrize(("more", "message"), [
    ({"experts": [8, 16, 16]}, "moe.experts: lists 3 numbers for 2 layers with experts"),
    ({"experts": [8, "x"]}, "moe.experts: must be a number of 1 or more, or a list of such"),
    ({"experts": [8, 12], "groups": 8}, "8 groups, 8 of them per token, of 8, 12 experts"),
    ({"residual": True, "shared_ffn": 0}, "moe.residual: weighs a shared block against the routed ones"),
])  # fmt: skip
def test_fields_that_contradict_each_other(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_with(**more)


def test_a_pattern_has_one_kind_of_experts() -> None:
    data = {**DATA, "pattern": ["attention+mlp", "attention+experts"] * 2}
    with pytest.raises(InputError, match="all layers of `pattern` have as many"):
        read_explicit_form({**data, "moe": {**MOE, "moe_layers": None, "experts": [8, 8, 16, 16]}}, "own")
