"""Scripts of MindSpeed-LLM: its options for layouts, positions, experts and adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .test_megatron_forks import imported

BASE = """torchrun --nproc_per_node 16 --nnodes 2 posttrain_gpt.py --num-layers 8 --hidden-size 2048 \\
  --num-attention-heads 16 --group-query-attention --num-query-groups 8 --seq-length 4096 --swiglu \\
  --max-position-embeddings 4096 --position-embedding-type rope --micro-batch-size 1 --global-batch-size 64 --bf16 \\
  --vocab-size 32000 --make-vocab-size-divisible-by 1 --untie-embeddings-and-output-weights --normalization RMSNorm \\
  --disable-bias-linear --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 4 """
EXPERTS = "--num-experts 16 --moe-router-topk 2 --moe-ffn-hidden-size 512 --expert-model-parallel-size 2 "


def model_of(folder: Path, added: str) -> dict[str, Any]:
    found = imported(folder, BASE + added)
    assert not found.gaps
    assert isinstance(found.request.model, dict)
    return found.request.model


@pytest.mark.parametrize(("added", "layout"), [
    ("--use-fused-rmsnorm --stage sft --is-instruction-dataset --prompt-type qwen --padded-samples",
     "tp2-pp4-dp4-mbs1-z0-rnone"),
    ("--context-parallel-size 2 --context-parallel-algo megatron_cp_algo --use-cp-send-recv-overlap",
     "tp2-cp2r-pp4-dp2-mbs1-z0-rnone"),
    ("--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo", "tp2-cp2u-pp4-dp2-mbs1-z0-rnone"),
    ("--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2",
     "tp2-cp4ru-pp4-dp1-mbs1-z0-rnone"),
    ("--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 4",
     "tp2-cp4u-pp4-dp1-mbs1-z0-rnone"),
    ("--context-parallel-algo adaptive_cp_algo", "tp2-pp4-dp4-mbs1-z0-rnone"),
    (EXPERTS, "tp2-pp4-dp4-ep2-etp2-mbs1-z0-rnone"),
    (f"{EXPERTS} --moe-tp-extend-ep --moe-permutation-async-comm --moe-grouped-gemm",
     "tp2-pp4-dp4-ep4-mbs1-z0-rnone"),
])  # fmt: skip
def test_layouts(tmp_path: Path, added: str, layout: str) -> None:
    found = imported(tmp_path, BASE + added)
    assert (str(found.layout), found.gaps) == (layout, ())


@pytest.mark.parametrize(("added", "layers", "stages"), [
    ("--num-layer-list 1,2,2,3", 8, (1, 2, 2, 3)), ("--noop-layers 7", 7, (2, 2, 2, 1)),
    ("--noop-layers 0,7 --num-layers-per-virtual-pipeline-stage 1", 6, (0, 1, 1, 1, 1, 1, 1, 0)),
])  # fmt: skip
def test_layers_of_stages(tmp_path: Path, added: str, layers: int, stages: tuple[int, ...]) -> None:
    found = imported(tmp_path, BASE + added)
    assert isinstance(found.request.model, dict)
    assert (found.gaps, found.request.model["layers"], found.stages) == ((), layers, stages)


def test_positions_of_llama(tmp_path: Path) -> None:
    """The four numbers of config.json of Llama 3.1."""
    added = "--rope-scaling-type llama3 --rope-scaling-factor 8.0 --low-freq-factor 1.0 --high-freq-factor 4.0 "
    model = model_of(tmp_path, added + "--original-max-position-embeddings 8192")
    assert (model["rope_scaling"]["type"], model["rope_scaling"]["factor"]) == ("llama3", 8.0)
    (gap,) = imported(tmp_path, BASE + added + "--original-max-position-embeddings 4096").gaps
    assert gap.field == "--rope-factor"
    (gap,) = imported(tmp_path, BASE + "--rope-scaling-type longrope").gaps
    assert (gap.field, gap.message) == ("--rope-scaling-type", "positions that are scaled otherwise")


def test_dense_blocks_in_front_and_shared_experts(tmp_path: Path) -> None:
    """config.json of DeepSeek-V2: first_k_dense_replace 1, n_shared_experts 2."""
    model = model_of(tmp_path, EXPERTS + "--first-k-dense-replace 1 --n-shared-experts 2 --moe-layer-freq 1")
    assert (model["moe"]["shared_ffn"], model["moe"]["moe_layers"]) == (1024, [1, 2, 3, 4, 5, 6, 7])
    none_dense = model_of(tmp_path, EXPERTS + "--first-k-dense-replace -1 --moe-layer-freq -1")
    assert none_dense["moe"]["moe_layers"] == [*range(8)]
    found = imported(tmp_path, BASE + EXPERTS + "--first-k-dense-replace 1 --moe-layer-freq 2")
    assert [gap.field for gap in found.gaps] == ["--first-k-dense-replace"]


def test_adapters(tmp_path: Path) -> None:
    added = "--lora-r 8 --lora-alpha 16 --lora-target-modules linear_qkv linear_proj "
    for more, base in (("", "bf16"), ("--qlora", "nf4"), ("--lora-fusion", "bf16")):
        lora = imported(tmp_path, BASE + added + more).request.workload.train.lora
        assert lora is not None
        assert (lora.rank, lora.base_dtype, set(lora.targets)) == (8, base, {"q", "k", "v", "o"})
    (gap,) = imported(tmp_path, BASE + added + "--lora-modules-to-save x").gaps
    assert gap.field == "--lora-modules-to-save"


@pytest.mark.parametrize(("added", "note"), [
    ("--no-pad-to-seq-lengths", "--no-pad-to-seq-lengths: every sequence is priced at its full length"),
    ("--reuse-fp32-param --use-ascend-mc2", "--reuse-fp32-param, --use-ascend-mc2: priced as without"),
])  # fmt: skip
def test_what_is_priced_otherwise(tmp_path: Path, added: str, note: str) -> None:
    found = imported(tmp_path, BASE + added)
    assert (note in found.assumed, found.gaps) == (True, ())


@pytest.mark.parametrize(("added", "field"), [
    ("--swap-attention", "--swap-attention"), ("--stage dpo", "--stage"), ("--num-layer-list a,b", "--num-layer-list"),
    ("--noop-layers x", "--noop-layers"),
    ("--noop-layers 7,8", "--noop-layers"), (f"{EXPERTS} --first-k-dense-replace 8", "--first-k-dense-replace"),
    ("--schedules-method dualpipev", "--schedules-method"),
    ("--context-parallel-size 2 --context-parallel-algo adaptive_cp_algo", "--context-parallel-algo"),
])  # fmt: skip
def test_gaps(tmp_path: Path, added: str, field: str) -> None:
    assert field in {gap.field for gap in imported(tmp_path, BASE + added).gaps}
