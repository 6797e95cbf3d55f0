"""Plans that several tests launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.request import request_from_dict


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama-3.1-8B on one node of 8: pp 2, dp 4, one chunk per stage, three layouts."""
    asked = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "fix": {"pp": 2, "vpp": 1, "tp": 1}, "top": 3,
             "workload": {"seq_len": 8192, "global_batch": 64}}  # fmt: skip
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    path.write_text(api.plan(request_from_dict(asked)).to_json(), encoding="utf-8")
    return path
