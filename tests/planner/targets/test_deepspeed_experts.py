"""PR-MoE of Megatron-DeepSpeed: numbers of experts by layer, and a dense block beside them (arXiv 2201.05596)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.cost_models.quantities.params import layer_parameters, total_parameters
from meshwright.cost_models.specs.model import MixtureOfExperts
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.request.resolve import resolve

from meshwright.errors import InputError

H, F, VOCAB, LENGTH, LAYERS = 512, 2048, 32_000, 1024, 6
SIZES = (f"--num-layers {LAYERS} --hidden-size {H} --num-attention-heads 8 --seq-length {LENGTH} --micro-batch-size 1 "
         f"--max-position-embeddings {LENGTH} --global-batch-size 16 --bf16 --vocab-size {VOCAB} "
         "--make-vocab-size-divisible-by 1 ")  # fmt: skip
COMMAND = (f"deepspeed --num_nodes 1 --num_gpus 8 pretrain_gpt.py {SIZES} --deepspeed --zero-stage 1 "
           "--no-pipeline-parallel --moe-expert-parallel-size 4 ")  # fmt: skip
PYRAMID = "--num-experts 8 8 16 --mlp-type residual "


def imported(folder: Path, text: str) -> Imported:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"})


def modules(experts: int, *, residual: bool) -> int:
    """Parameters of DeepSpeed's own layer around such a block."""
    moe: Any = pytest.importorskip("deepspeed.moe.layer")
    block = torch.nn.Sequential(torch.nn.Linear(H, F), torch.nn.Linear(F, H))
    return sum(part.numel() for part in moe.MoE(H, block, num_experts=experts, use_residual=residual).parameters())


def test_a_pyramid_of_residual_experts(tmp_path: Path) -> None:
    """Parameters by hand: attention 4 h^2 + 4 h, two norms of 2 h, a block 2 h f + f + h, a router h E without bias."""
    found = imported(tmp_path, COMMAND + PYRAMID)
    assert (found.gaps, str(found.layout)) == ((), "dp8-ep4-mbs1-z1-rnone")
    model = resolve(found.request).model
    blocks = [model.kinds[kind].feed_forward for kind in model.pattern]
    routed = [block for block in blocks if isinstance(block, MixtureOfExperts)]
    assert [isinstance(block, MixtureOfExperts) for block in blocks] == [False, True] * 3
    assert [(block.experts, block.top_k, block.residual, block.shared_inner) for block in routed] == [
        (8, 1, True, F), (8, 1, True, F), (16, 1, True, F)]  # fmt: skip
    dense = 2 * H * F + F + H
    attention = 4 * H * H + 4 * H + 4 * H
    layers = LAYERS * attention + 3 * dense + sum(H * n + (n + 1) * dense + 2 * H + 2 for n in (8, 8, 16))
    assert total_parameters(model) == layers + (VOCAB + LENGTH) * H + 2 * H
    assert found.price().best.step_s > 0


@pytest.mark.parametrize(("options", "residual"), [(PYRAMID, True), ("--num-experts 8 8 16", False)])
def test_layers_have_the_parameters_of_deepspeeds_module(tmp_path: Path, options: str, residual: bool) -> None:
    model = resolve(imported(tmp_path, COMMAND + options).request).model
    names = {"router", "router_bias", "experts", "shared", "coefficient"}
    for layer, experts in ((1, 8), (5, 16)):
        counts = layer_parameters(model, model.kinds[model.pattern[layer]])
        assert sum(counts[name] for name in names & counts.keys()) == modules(experts, residual=residual)


def test_more_experts_are_priced(tmp_path: Path) -> None:
    """A pyramid lies between the models that have the least and the most of its experts in every layer."""
    few, pyramid, many = (imported(tmp_path, f"{COMMAND} --mlp-type residual --num-experts {number}").price().best
                          for number in ("8", "8 8 16", "16"))  # fmt: skip
    assert few.step_s < pyramid.step_s < many.step_s
    assert few.memory[0].weights_bytes < pyramid.memory[0].weights_bytes < many.memory[0].weights_bytes


def test_a_residual_block_is_priced(tmp_path: Path) -> None:
    plain, residual = (imported(tmp_path, f"{COMMAND} --num-experts 8 {kind}").price().best
                       for kind in ("", "--mlp-type residual"))  # fmt: skip
    assert plain.step_s < residual.step_s


def test_layers_with_one_expert_are_dense(tmp_path: Path) -> None:
    model = resolve(imported(tmp_path, f"{COMMAND} --num-experts 1 8 8").request).model
    assert [model.kinds[kind].is_moe for kind in model.pattern] == [False, False, False, True, False, True]


@pytest.mark.parametrize(
    ("options", "tp"), [(PYRAMID, 1), ("--num-experts 8", None), ("--num-experts 8 --topk 2", None)]
)
def test_layouts_are_compared_without_a_target(tmp_path: Path, options: str, tp: int | None) -> None:
    """No target writes these layers; tp would split the block that DeepSpeed leaves whole."""
    request = imported(tmp_path, COMMAND + options).request
    assert (request.target, request.fix.get("tp")) == ("any", tp)


def test_the_router_is_deepspeeds(tmp_path: Path) -> None:
    """It has no bias, and weighs the outputs of two experts by their shares, that of one by its score."""
    for options, normalised in (("", False), ("--topk 2", True)):
        model = resolve(imported(tmp_path, f"{COMMAND} --num-experts 8 {options}").request).model
        block = next(block for block in model.feed_forwards if isinstance(block, MixtureOfExperts))
        assert (block.router_bias, block.expert_bias, block.router_normalised) == (False, True, normalised)


def test_numbers_of_experts_for_other_layers_than_the_models(tmp_path: Path) -> None:
    text = "2 numbers of experts for 6 layers / interval 2 = 3 layers with experts"
    with pytest.raises(InputError, match=text) as error:
        imported(tmp_path, f"{COMMAND} --num-experts 8 8")
    assert error.value.problems[0].line == 1


def test_ranks_that_do_not_divide_the_experts_of_each_layer(tmp_path: Path) -> None:
    (gap,) = imported(tmp_path, f"{COMMAND} --num-experts 8 8 18").gaps
    assert (gap.field, gap.line) == ("--moe-expert-parallel-size", 1)
    assert gap.message == ("DeepSpeed refuses layers of 18 experts on ep 4, or, before 0.7.1, makes smaller groups for "
                           "them: give a divisor of 2")  # fmt: skip


def test_the_block_beside_experts_is_whole_on_ranks_of_tp(tmp_path: Path) -> None:
    text = f"{COMMAND} {PYRAMID} --tensor-model-parallel-size 2 "
    assert [gap.field for gap in imported(tmp_path, text).gaps] == ["--mlp-type"]
    assert imported(tmp_path, f"{text} --enable-expert-tensor-parallelism").gaps == ()


@pytest.mark.parametrize("option", ["--skip-train", "--no-train 1", "--eval-only"])
def test_a_script_that_only_evaluates_is_a_gap(tmp_path: Path, option: str) -> None:
    found = imported(tmp_path, f"{COMMAND} --num-experts 8 {option}")
    assert [(gap.field, gap.message) for gap in found.gaps] == [(option.split()[0], "it evaluates: no training")]
