"""`--to megatron-bridge` for Wan: its class, the mock latents, and the layouts that its model runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.importing import import_config
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.megatron_bridge.options import TABLE
from meshwright.planner.targets.registry import TARGETS
from meshwright.profiles.model.load import load_model

from meshwright.errors import InputError

MODULE = "bridge_plan.py"
DATA = """\
        dataset=WanDatasetConfig(
            seq_length=37440,
            F_latents=24,
            H_latents=104,
            W_latents=60,
            context_seq_len=512,
            micro_batch_size=1,
            global_batch_size=64,
            packing_buffer_size=200,
        ),
"""
LAYOUT = "tp2-cp4r-dp4-mbs1-z1-rfull8"


@cache
def plan_of(layout: str = LAYOUT, target: str = "megatron-bridge", images: str = "1@832x480x93") -> Plan:
    request = {"model": "wan2.1-t2v-14b", "cluster": "dgx-h100:4", "target": target,
               "workload": {"global_batch": 64, "images": images}}  # fmt: skip
    return api.evaluate(request_from_dict(request), layout)


def test_a_plan_is_written_checked_and_read(tmp_path: Path) -> None:
    """The class sets its norms, positions and vocabulary by itself: LayerNorm would be that of queries and keys."""
    files = emit(plan_of(), "megatron-bridge").files
    text = files[MODULE]
    assert DATA in text
    assert "model=WanModelProvider(\n            num_layers=40,\n            hidden_size=5120," in text
    assert "crossattn_emb_size=5120," in text
    assert "forward_step_func=WanForwardStep())" in text
    assert [name for name in ("normalization", "position_embedding", "gpt_step", "GPT", "random_seed")
            if name in text] == []  # fmt: skip
    assert not check_files(files).problems
    (tmp_path / MODULE).write_text(text, encoding="utf-8")
    read = import_config("megatron-bridge", [tmp_path / MODULE], {"cluster": "dgx-h100:4"})
    assert (str(read.layout), read.request.model) == (LAYOUT, "wan2.1-t2v-14b")
    images = read.request.workload.images
    assert images is not None
    assert (images.height, images.width, images.num_frames) == (832, 480, 93)


@pytest.mark.parametrize(("old", "new", "problem"), [
    ("F_latents=24", "F_latents=23", "workload.images is 1@832x480x89, plan.json has 1@832x480x93"),
    ("crossattn_emb_size=5120", "crossattn_emb_size=4096", "is 4096, model.hidden_size 5120"),
    ("            micro_batch_size=1,\n            global_batch_size=64,\n            packing",
     "            micro_batch_size=2,\n            global_batch_size=64,\n            packing",
     "is 2, train.micro_batch_size 1"),
    ("model=WanModelProvider(", "model=GPTModelProvider(", "WanDatasetConfig goes with WanModelProvider"),
    ("F_latents=24", "F_latent=24", "unknown option"),
    ("            crossattn_emb_size=5120,\n", "", "is 1536, model.hidden_size 5120"),
    ("context_seq_len=512", "context_seq_len=256", "Wan reads 512 tokens"),
])  # fmt: skip
def test_edits_and_conflicts_are_found(old: str, new: str, problem: str) -> None:
    files = emit(plan_of(), "megatron-bridge").files
    assert old in files[MODULE]
    edited = {**files, MODULE: files[MODULE].replace(old, new)}
    assert problem in "\n".join(map(str, check_files(edited).problems))


def test_messages_of_tensor_parallelism_run_beside_no_cross_attention() -> None:
    """The layer of Megatron Core fails with buffers for one length, so the plan prices and writes no overlap."""
    plan = plan_of("tp4-dp8-mbs1-z1-rfull8")
    text = emit(plan, "megatron-bridge").files[MODULE]
    assert "sequence_parallel=True" in text
    assert "tp_comm_overlap=True" not in text
    assert "cross_entropy_loss_fusion=True" not in text


def test_attention_alone_is_recomputed() -> None:
    text = emit(plan_of("tp2-cp4r-dp4-mbs1-z1-rsel"), "megatron-bridge").files[MODULE]
    assert 'recompute_modules=["core_attn"]' in text


@pytest.mark.parametrize(("layout", "reason"), [
    ("tp2-cp4u-dp4-mbs1-z1-rnone", "dealt out for a ring"),
    ("tp2-cp4r-dp4-mbs1-z1-rsel(norm)", "as a whole, in their attention, or not at all"),
    ("pp2-dp16-mbs1-z1-rnone", "on each of pp 2 stages"),
    ("tp2-dp16-mbs2-z1-rnone", "a micro-batch of Wan is one video, not 2"),
    ("dp32-mbs1-z3-rnone", "z1, not with Megatron-FSDP, z3"),
])
def test_layouts_that_its_model_does_not_run_are_refused(layout: str, reason: str) -> None:
    with pytest.raises(LayoutRefusedError, match=reason.replace("(", r"\(")):
        emit(plan_of(layout, "any"), "megatron-bridge")


def test_recipes_have_the_defaults_of_the_class() -> None:
    read = TABLE.read({"model": "WanModelProvider"})
    assert (read["workload.images"], read["model_name"]) == ("1@832x480x93", "Wan of 30 layers x 1536")
    assert "model.hidden" not in read
    one = TABLE.read({"model": "WanModelProvider", "dataset.F_latents": 1, "dataset.H_latents": 64})
    assert one["workload.images"] == "1@512x480x1"
    with pytest.raises(InputError, match="number_packed_samples 4 has no counterpart"):
        TABLE.read({"model": "WanModelProvider", "dataset.number_packed_samples": 4})
    with pytest.raises(InputError, match="latents are not 1 or more of each"):
        TABLE.read({"model": "WanModelProvider", "dataset.F_latents": 0})


def test_other_diffusion_transformers_are_refused() -> None:
    flux = load_model("flux.1-schnell")[0]
    reasons = TARGETS["megatron-bridge"].cannot_build(flux, Workload(seq_len=4608, global_batch=8))
    assert reasons == ["model.diffusion: of diffusion transformers only Wan is written for it"]
