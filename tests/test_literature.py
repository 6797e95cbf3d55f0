"""What papers report of whole plans, by the public functions."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner import api

SC21: dict[str, Any] = {"cluster": "dgx-a100:384", "seq_len": 2048, "stack": "megatron-lm-2021"}


def step_s(layout: str, **asked: Any) -> float:
    return api.evaluate(None, layout, **asked).best.step_s


def test_one_trillion_parameters_of_megatron() -> None:
    """SC21 (arXiv 2104.04473) 5.1 and 5.10: 502 PFLOP/s on 3,072 A100, 102.6 s a step, 84 days for 450e9 tokens."""
    found = step_s("tp8-nosp-pp64-dp6-mbs1-z0-rfull", model="gpt-1t", global_batch=3072, **SC21)
    assert found == pytest.approx(102.6, rel=0.1)
    assert 450e9 / (3072 * 2048) * found / 86400 == pytest.approx(84, rel=0.1)


def test_interleaving() -> None:
    """SC21 2.2.2: the bubble of 12 stages and 36 micro-batches halves with two chunks per device, 13 % of the step."""
    asked: dict[str, Any] = {**SC21, "model": "gpt-175b", "cluster": "dgx-a100:12", "global_batch": 36}
    whole, chunks = (step_s(f"tp8-nosp-pp12-{v}dp1-mbs1-z0-rfull", **asked) for v in ("", "vpp2-"))
    assert whole / chunks == pytest.approx(1.13, abs=0.01)


def test_frontier() -> None:
    """arXiv 2312.12705: 175B runs better at tp 4 than at tp 8, and as well on 16 times the GPUs, of 640 micro-batches.

    Its share of peak is not held: no product was measured on an MI250X.
    """
    asked: dict[str, Any] = {"model": "gpt-175b", "seq_len": 2048, "stack": "deepspeed"}

    def mfu(tp: int, dp: int) -> float:
        nodes, batch = tp * 16 * dp // 8, 640 * dp
        layout = f"tp{tp}-pp16-dp{dp}-mbs1-z{int(dp > 1)}-rfull"
        return api.evaluate(None, layout, cluster=f"frontier:{nodes}", global_batch=batch, **asked).best.mfu

    assert mfu(4, 16) > mfu(8, 8) * 1.05
    assert mfu(4, 16) == pytest.approx(mfu(4, 1), rel=0.03)


def test_folded_experts() -> None:
    """arXiv 2504.14960: Mixtral-8x22B on 128 H100. The best plan folds (etp is not tp, or ep goes over cp) and
    keeps an expert's ranks inside a node; what cannot fold is slower by the same search."""
    asked: dict[str, Any] = {"model": "mixtral-8x22b", "cluster": "dgx-h100:16", "seq_len": 4096,
                             "global_batch": 1024, "target": "megatron", "top": 1}  # fmt: skip
    same = {"zero": 1, "pp": 8}
    folded = api.plan(**asked, fix=same).best
    plain = min(api.plan(**asked, fix={**same, "tp": tp, "etp": tp, "cp": 1}).best.step_s for tp in (1, 2, 4, 8))
    layout = folded.to_layout()
    assert (layout.etp, layout.cp) != (layout.tp, 1)
    assert layout.ep * layout.etp <= 8
    assert plain / folded.step_s > 1.01
