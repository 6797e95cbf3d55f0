"""Number formats: the catalogue has the bytes that memory and messages are priced by."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from meshwright.cost_models.quantities.formats import FORMATS
from meshwright.cost_models.specs.workload import OPERAND_BYTES, OptimizerName
from meshwright.planner.document.candidate import Candidate
from meshwright.planner.studies.systems.base import priced, shown_s, single_gpus

from ...snapshots import run_here

BY_NAME = {entry.name: entry for entry in FORMATS}
# A step over such links is messages alone.
ASKED: dict[str, Any] = {"model": "llama-3.1-8b", "seq_len": 512, "global_batch": 8, "cluster": single_gpus(8, 0.1)}


def step_of(layout_id: str, **asked: Any) -> Candidate:
    return priced(layout_id, None, **{"stack": "torchtitan", **ASKED, **asked})


def test_every_choice_is_listed() -> None:
    names = {f"operands-{dtype}" for dtype in OPERAND_BYTES}
    names |= {f"states-{name}" for name in get_args(OptimizerName)}

    assert names <= set(BY_NAME)
    assert len(BY_NAME) == len(FORMATS)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-bf16", "adamw-8bit", "sgd"])
def test_states_take_the_bytes_of_the_catalogue(optimizer: str) -> None:
    """Beside 4 bytes of the fp32 copy of a weight."""
    asked = {**ASKED, "target": "any", "stack": "megatron-core", "optimizer": optimizer}
    stage = priced("dp8-mbs1-z0-rfull", None, **asked).memory[0]
    parameters = priced("dp8-mbs1-z0-rfull", None, **{**asked, "optimizer": "adamw"}).memory[0].optimizer_bytes / 12

    assert stage.optimizer_bytes / parameters == pytest.approx(4 + BY_NAME[f"states-{optimizer}"].bytes_per_element)


def test_fp8_weights_halve_their_gathers() -> None:
    """Of the layers' weights two gathers per micro-batch, beside one scatter of gradients: FORMULAS of ZeRO-3."""
    term = "gather and scatter, exposed"
    wide, narrow = (step_of(f"dp8-mbs1-z3-rnone{'' if dtype == 'bf16' else '-fp8'}", dtype=dtype)
                    for dtype in ("bf16", "fp8"))  # fmt: skip
    saved_s = shown_s(wide, term) - shown_s(narrow, term)
    layers = 32 * (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336)
    fewer = BY_NAME["gathered-bf16"].bytes_per_element - BY_NAME["gathered-fp8"].bytes_per_element

    assert BY_NAME["gathered-fp8"].saved == 0.5
    assert saved_s == pytest.approx(2 * layers * fewer * 7 / 8 / (0.1e9 / 8), rel=0.1)  # links reach 92 %


def test_the_screen() -> None:
    listed, one, wrong = (run_here("show", "formats", *more) for more in ((), ("frozen-nf4",), ("fp9",)))

    assert all(name in listed.out for name in BY_NAME)
    assert "0.516" in one.out
    assert wrong.code == 2
    assert "unknown format `fp9`" in wrong.err
