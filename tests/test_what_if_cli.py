"""The screens and files of `what-if`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .snapshots import Result, check, run_here

REQUEST = """\
model: llama-3.1-8b
cluster: dgx-h100:2
workload: {global_batch: 64}
fix: {tp: 4, zero: 1}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan."""
    path = tmp_path_factory.mktemp("what_if")
    (path / "request.yaml").write_text(REQUEST)
    made = run_here("plan", "request.yaml", "-o", "plan.json", cwd=path)
    assert made.code == 0, made
    return path


def what_if(folder: Path, *args: str) -> Result:
    return run_here("what-if", "plan.json", *args, cwd=folder)


SCREENS = {
    "set": ["--set", "gpu.memory.bandwidth=4.8 TB/s", "--set", "cluster.price=98.32 USD/h"],
    "replan": ["--set", "cluster.links.inter_node.bandwidth=25Gb/s", "--replan"],
    "held-too-big": ["--set", "gpu.memory.capacity=24GiB"],
    "held-illegal": ["--set", "gpus=24"],
    "nothing-fits": ["--set", "gpu.memory.capacity=4GiB", "--replan"],
    "unknown-path": ["--set", "gpu.memry.bandwidth=4.8TB/s"],
    "no-unit": ["--set", "gpu.memory.bandwidth=4800"],
    "nothing-asked": [],
}


@pytest.mark.parametrize("name", SCREENS)
def test_screens(folder: Path, name: str) -> None:
    result = what_if(folder, *SCREENS[name])

    check(f"what-if-{name}", result)
    assert "…" not in result.out
    assert "\x1b" not in result.out
    assert max(map(len, result.out.splitlines()), default=0) <= 80


def test_json_has_what_the_screen_shows(folder: Path) -> None:
    result = what_if(folder, *SCREENS["set"], "--json")
    document = json.loads(result.out)

    assert (document["kind"], document["study"]) == ("what-if", "compare")
    assert document["changes"][0] == {"path": "gpu.memory.bandwidth", "dimension": "B/s", "before": 3.35e12,
                                      "after": 4.8e12}  # fmt: skip
    after = document["after"]["held"]
    assert sum(after["terms"].values()) == pytest.approx(after["step_s"], rel=1e-8)


def test_json_of_an_illegal_layout_has_null(folder: Path) -> None:
    document = json.loads(what_if(folder, *SCREENS["held-illegal"], "--json").out)
    assert document["after"]["held"]["step_s"] is None
