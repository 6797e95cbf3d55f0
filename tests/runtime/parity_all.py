"""`make parity`: what test_parity.py leaves out. Not collected by `make test`.

Every schedule with every ZeRO stage, tp and recompute mode, three axes at once, uneven stages, other models, and the
layouts of the issue's command lines at the size of `--scale-down`.
"""

from __future__ import annotations

import itertools

import pytest

from .jobs import job, llama
from .test_parity import model_for, parity_of

SCHEDULES = ("", "-gpipe", "-vpp2")
RECOMPUTES = ("rnone", "rfull", "rfull1", "rsel", "rsel(norm)", "rsel(act)", "rsel(attn+norm+act)")
GRID = [
    f"pp2{schedule}-dp2-mbs1-z{zero}-{recompute}"
    for schedule, zero, recompute in itertools.product(SCHEDULES, range(4), ("rnone", "rfull", "rsel(norm+act)"))
]
TENSOR = [f"tp2-dp2-mbs1-z{zero}-{recompute}" for zero, recompute in itertools.product(range(4), RECOMPUTES)]
THREE = [f"tp2-pp2{schedule}-dp2-mbs1-z{zero}-rnone" for schedule, zero in itertools.product(SCHEDULES, range(4))]
HYBRID = [f"dp4-sh2-mbs2-z{zero}-{recompute}" for zero, recompute in itertools.product((1, 2, 3), RECOMPUTES)]
MORE = ["pp4-dp1-mbs1-z0-rnone", "pp4-vpp2-dp1-mbs1-z0-rnone", "pp2-vpp4-dp1-mbs2-z0-rnone", "tp4-dp1-mbs1-z0-rnone",
        "dp8-sh4-mbs1-z3-rnone", "tp2-pp2-dp2-mbs2-z3-rfull1"]  # fmt: skip
MODELS = [
    f"{name}:{each}"
    for name in ("gpt", "moe")
    for each in ("tp2-pp2-dp2-mbs1-z3-rnone", "tp2-pp2-vpp2-dp2-mbs1-z1-rsel(norm+act)", "dp4-sh2-mbs1-z2-rfull",
                 "tp2-dp4-sh2-mbs1-z3-rnone", "pp2-gpipe-dp2-mbs1-z2-rnone", "tp2-pp2-dp2-mbs1-z0-rnone")
]  # fmt: skip

EXPERTS = [
    f"{name}:{each}"
    for name in ("moe", "shared")
    for each in ("tp2-dp4-sh2-ep4-mbs1-z3-rnone", "tp2-pp2-dp2-ep2-mbs1-z1-rsel(act+moe)", "dp4-ep4-mbs1-z2-rfull",
                 "tp2-pp2-vpp2-dp2-ep4-mbs1-z0-rnone", "dp8-sh4-ep2-mbs1-z3-rsel(moe)",
                 "pp2-gpipe-dp2-ep2-mbs2-z3-rnone")
]  # fmt: skip


@pytest.mark.parametrize("text", [f"llama:{each}" for each in GRID + TENSOR + THREE + HYBRID + MORE] + MODELS + EXPERTS)
@pytest.mark.filterwarnings("default")
def test_trains_the_same_model(text: str) -> None:
    name, _, layout_id = text.partition(":")
    layers = {"tp4": "gpt"}.get(layout_id[:3], name)  # tp 4 needs four key/value heads
    wanted = job(layout_id, model_for(layers, layout_id), stack_changes={"sharded_states": "zero"},
                 extra=4 if layout_id.startswith("pp4-vpp") else 2)  # fmt: skip
    verdict = parity_of(wanted)
    assert verdict.agrees, verdict.as_dict()


@pytest.mark.parametrize("sizes", [[1, 5], [5, 1], [3, 3], [0, 6]])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_uneven_stages(sizes: list[int], zero: int) -> None:
    wanted = job(f"pp2-dp2-mbs1-z{zero}-rnone", llama(6), sizes=sizes, stack_changes={"sharded_states": "zero"})
    assert parity_of(wanted).agrees
