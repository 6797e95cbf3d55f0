"""nanotron: the stages that it cuts itself, and notes of its imports."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.nanotron.stages import cut
from meshwright.profiles.model.load import load_model

from meshwright.errors import UnsupportedError

from .test_readers import NANOTRON, imported

ASKED = {"model": "llama-3-8b", "cluster": "dgx-h100:1", "target": "nanotron",
         "workload": {"seq_len": 8192, "global_batch": 64}}  # fmt: skip
LAYOUT = "tp2-pp2-dp2-mbs1-z0-rnone"


@pytest.mark.parametrize(("num_stages", "sizes"), [(1, (32,)), (2, (18, 14)), (4, (9, 9, 8, 6))])
def test_stages_are_cut_by_products(num_stages: int, sizes: tuple[int, ...]) -> None:
    """Those of build_model of nanotron 2411b022; its head costs as much as 2.16 layers of Llama-3-8B."""
    assert cut(load_model("llama-3-8b")[0], num_stages) == sizes


def test_a_pipeline_has_the_stages_of_nanotron() -> None:
    plan = api.evaluate(request_from_dict({**ASKED, "stages": [18, 14]}), LAYOUT)
    files = emit(plan, "nanotron").files
    assert "  pp: 2\n" in files["nanotron.yaml"]
    assert check_files(files).problems == []
    with pytest.raises(UnsupportedError, match="it divides the layers itself") as caught:
        api.evaluate(request_from_dict({**ASKED, "stages": [16, 16]}), LAYOUT)
    assert caught.value.hint == "its own: --stages 18,14"
    with pytest.raises(LayoutRefusedError, match="it cuts pp 2 stages by their products"):
        emit(api.evaluate(request_from_dict(ASKED), LAYOUT), "nanotron")


@pytest.mark.parametrize(("layout", "reason"), [
    ("dp8-mbs1-z1-rnone", "NotImplementedError with zero_stage 1"), ("cp2r-dp4-mbs1-z0-rnone", "with cp 2"),
    ("dp8-mbs1-z0-rsel", "recomputes whole layers"),
])  # fmt: skip
def test_layouts_that_raise_in_nanotron_are_refused(layout: str, reason: str) -> None:
    with pytest.raises(LayoutRefusedError, match=reason):
        emit(api.evaluate(request_from_dict(ASKED), layout), "nanotron")


def test_scaled_positions_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"model\.rope_scaling llama3 x8 from 8192: Qwen2Config has no option"):
        api.plan(request_from_dict({**ASKED, "model": "llama-3.1-8b"}))


def test_imports_note_what_no_plan_holds(tmp_path: Path) -> None:
    text = NANOTRON.replace("pp: 2", "pp: 1").replace("pp_engine: 1f1b", "pp_engine: afab")
    text = text.replace("grad_in_fp32: true", "grad_in_fp32: false")
    found = imported(tmp_path, "nanotron", text, gpu="h100-sxm-80gb")
    notes = "\n".join(found.assumed)
    assert "pp_engine afab keeps the activations of all micro-batches: priced as 1f1b" in notes
    assert "accumulate_grad_in_fp32 is false" in notes
    # Half of 24 layers and 1.27 for the head.
    assert imported(tmp_path, "nanotron", NANOTRON, gpu="h100-sxm-80gb").stages == (13, 11)
