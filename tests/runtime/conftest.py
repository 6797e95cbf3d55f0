"""Plans that several tests launch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama-3.1-8B on one node of 8: pp 2, dp 4, one chunk per stage, three layouts."""
    asked = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "fix": {"pp": 2, "vpp": 1, "tp": 1}, "top": 3,
             "workload": {"seq_len": 8192, "global_batch": 64}}  # fmt: skip
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    path.write_text(api.plan(request_from_dict(asked)).to_json(), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model small enough to train here as it is: dp 2 on two GPUs."""
    return _tiny_plan(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model and batch on dp 4."""
    return _tiny_plan(tmp_path_factory.mktemp("four"), 4)


def _tiny_plan(folder: Path, num_gpus: int) -> Path:
    sizes = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_hidden": 64, "vocab": 61, "max_positions": 16}
    (folder / "tiny.yaml").write_text(json.dumps({"source": "a test", "model": sizes}), encoding="utf-8")
    asked = {"model": str(folder / "tiny.yaml"), "cluster": f"{num_gpus}xh100-sxm-80gb", "fix": {"pp": 1, "tp": 1},
             "target": "meshwright", "workload": {"seq_len": 16, "global_batch": 8}}  # fmt: skip
    path = folder / "plan.json"
    path.write_text(api.plan(request_from_dict(asked)).to_json(), encoding="utf-8")
    return path
