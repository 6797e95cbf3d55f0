"""The screens and files of `what-if`."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from meshwright.planner.studies.registry import STUDIES

from ..snapshots import Result, check, run_here

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
    "held-without-headroom": ["--set", "workload.headroom=70%", "--replan"],
    "held-illegal": ["--set", "gpus=24"],
    "nothing-fits": ["--set", "gpu.memory.capacity=4GiB", "--replan"],
    "unknown-path": ["--set", "gpu.memry.bandwidth=4.8TB/s"],
    "no-unit": ["--set", "gpu.memory.bandwidth=4800"],
    "nothing-asked": [],
    "curve": ["--vary", "cluster.links.inter_node.bandwidth=12.5Gb/s..1.6Tb/s"],
    "curve-replanned": ["--vary", "cluster.links.inter_node.bandwidth=12.5Gb/s..1.6Tb/s:8", "--replan"],
    "words": ["--vary", "gpu=a100-sxm-80gb,h100-sxm-80gb,h200-sxm-141gb"],
    "map": ["--vary", "gpu.peak=x0.5..x4:4", "--vary", "cluster.links.inter_node.bandwidth=25Gb/s..400Gb/s:5"],
    "map-shaded": ["--vary", "gpu.memory.capacity=40GiB..160GiB:6", "--vary", "gpu.peak=x0.5..x4:30"],
    "sensitivity": ["--study", "sensitivity"],
    "sensitivity-replanned": ["--study", "sensitivity", "--replan"],
    "strong-scaling": ["--study", "strong-scaling", "--vary", "gpus=8..32"],
    "weak-scaling": ["--study", "weak-scaling", "--vary", "gpus=8..32"],
    "generations": ["--study", "generations"],
    "reliability": ["--study", "reliability", "--assume", "gpu_mtbf=20000h"],
    "faults": ["--study", "faults", "--assume", "gpu_mtbf=20000h", "--assume", "interval=1h"],
    "network-cost": ["--study", "network-cost", "--assume", "switch_price=20000", "--assume", "transceiver_price=900"],
    "cost-without-price": ["--study", "network-cost", "--assume", "switch_price=20000"],
    "step-law": ["--study", "step-law", "--assume", "tokens=1T"],
    "conversion": ["--study", "conversion", "--assume", "to=tp2-dp8-mbs1-z1-rfull"],
    "no-layout-to-convert-to": ["--study", "conversion"],
    "gossip-alone": ["--study", "gossip", "--assume", "graph=line"],
    "no-tokens": ["--study", "step-law"],
    "no-gpus-left": ["--study", "faults", "--assume", "lost_gpus=16"],
    "no-assumption": ["--study", "reliability", "--assume", "mtbf=20000h"],
    "nothing-fits-anywhere": ["--vary", "gpu.memory.capacity=1GiB..4GiB:3", "--replan"],
    "too-many-points": ["--vary", "gpu.memory.bandwidth=1TB/s..4TB/s:10000000"],
    "no-unit-in-range": ["--vary", "gpu.memory.bandwidth=1..4TB/s"],
    "unknown-study": ["--study", "sensitivities"],
    "no-picture": ["--vary", "gpus=8,16", "--plot", "x.jpg"],
    "plot-of-one-change": ["--set", "gpus=8", "--plot", "x.html"],
}


@pytest.mark.parametrize("name", SCREENS)
def test_screens(folder: Path, name: str) -> None:
    result = what_if(folder, *SCREENS[name])

    check(f"what-if-{name}", result)
    assert "…" not in result.out
    assert "\x1b" not in result.out
    assert max(map(len, result.out.splitlines()), default=0) <= 80


OUT_OF_RANGE = {
    "gpu.memory.bandwidth=0TB/s": "must be above zero, is 0 B/s",
    "gpu.memory.bandwidth=x0": "must be above zero, is 0 B/s (x0 of 3.35e+12 B/s)",
    "gpu.memory.bandwidth=1e400TB/s": "must be above zero and finite, is inf B/s",
    "gpu.peak=0TFLOP/s": "must be above zero",
    "gpu.peak=x..": "`x..` is not a quantity",
    "gpu.pcie.bandwidth=0GB/s": "must be above zero",
    "cluster.links.inter_node.bandwidth=x0": "must be above zero, is 0 B/s (x0 of 5e+10 B/s)",
    "stack.throughput=0": "must be above zero, is 0\n",
    "stack.tp_overlap=2": "must be a share in [0, 1], is 2",
    "stack.tp_overlap=-1": "hint: it must be a share in [0, 1]",
    "stack.straggler_share=100": "must be a share in [0, 1], is 100",
    "stack.nics_per_ring=0": "must be 1 or more, is 0",
    "stack.elementwise_traffic=0": "must be 1 or more, is 0",
    "stack.gradient_bytes=x0.1": "must be 1 or more, is 0.4 (x0.1 of 4)",
    "stack.moe_imbalance=0": "must be 1 or more, is 0",
}


@pytest.mark.parametrize("change", OUT_OF_RANGE)
def test_numbers_out_of_range_are_refused(folder: Path, change: str) -> None:
    result = what_if(folder, "--set", change)

    assert (result.code, result.out) == (2, "")
    assert change.partition("=")[0] in result.err
    assert OUT_OF_RANGE[change] in result.err


def test_json_has_what_the_screen_shows(folder: Path) -> None:
    result = what_if(folder, *SCREENS["set"], "--json")
    document = json.loads(result.out)

    assert (document["kind"], document["study"]) == ("what-if", "compare")
    assert document["changes"][0] == {"path": "gpu.memory.bandwidth", "dimension": "B/s", "before": 3.35e12,
                                      "after": 4.8e12, "per": "", "fastest_before": None,
                                      "fastest_after": None}  # fmt: skip
    after = document["after"]["held"]
    assert sum(after["terms"].values()) == pytest.approx(after["step_s"], rel=1e-8)


def test_json_of_an_illegal_layout_has_null(folder: Path) -> None:
    document = json.loads(what_if(folder, *SCREENS["held-illegal"], "--json").out)
    assert document["after"]["held"]["step_s"] is None


def test_every_study_has_its_line_in_the_help() -> None:
    text = run_here("what-if", "--help").out
    for name in STUDIES:
        assert name in ("compare", "sweep") or f"\n    {name}  " in text


CURVE = ["--vary", "cluster.links.inter_node.bandwidth=25Gb/s..400Gb/s:5", "--replan"]


def test_csv_has_a_line_per_point(folder: Path, tmp_path: Path) -> None:
    result = what_if(folder, *CURVE, "--csv", str(tmp_path / "x.csv"), "--json")
    points = json.loads(result.out)["points"]
    lines = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))

    assert len(lines) == len(points) == 5
    path = "cluster.links.inter_node.bandwidth"
    for line, point in zip(lines, points, strict=True):
        assert float(line[path]) == point["values"][path]
        assert float(line["held_step_s"]) == point["held"]["step_s"]
        assert line["replanned_layout_id"] == point["replanned"]["layout_id"]


def test_the_page_is_whole_and_asks_for_nothing(folder: Path, tmp_path: Path) -> None:
    for name, args in (("curve", CURVE), ("map", SCREENS["map"])):
        page = tmp_path / f"{name}.html"
        assert what_if(folder, *args, "--plot", str(page)).code == 0
        text = page.read_text()

        assert not re.findall(r"(?:src|href)=[\"'](?!data:)|@import|fetch\(|XMLHttpRequest", text)
        assert re.findall("https?:", text) == ["http:"]  # the name space of SVG
        data = json.loads(re.search(r"const data = (.*);\n", text)[1])  # type: ignore[index]
        assert len(data["points"]) == {"curve": 5, "map": 20}[name]
        assert len(data["metrics"][0]["of"]) == len(data["points"])


def test_a_picture(folder: Path, tmp_path: Path) -> None:
    for name, args in (("curve", CURVE), ("map", SCREENS["map"])):
        assert what_if(folder, *args, "--plot", str(tmp_path / f"{name}.png")).code == 0
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_output_that_cannot_be_written_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "old.html").write_text("old")
    for path in ("old.html", "no/folder.html", "."):
        result = what_if(folder, *CURVE, "--csv", str(tmp_path / path), "--plot", str(tmp_path / "new.html"))
        assert result.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["old.html"]
    assert (tmp_path / "old.html").read_text() == "old"

    full = OSError(28, "No space left on device")
    with patch("os.replace", side_effect=full):
        result = what_if(folder, *CURVE, "--plot", str(tmp_path / "new.html"))
    assert result.code == 2
    assert "no space left on device" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["old.html"]


@pytest.mark.parametrize(("study", "assumed", "columns"), [
    ("faults", (), {"name", "goodput"}), ("network-cost", (), {"name", "switches"}),
    ("step-law", ("--assume", "tokens=1T"), {"name", "sequences", "held_step_s"}),
])  # fmt: skip
def test_studies_without_points_write_their_rows(
    folder: Path, tmp_path: Path, study: str, assumed: tuple[str, ...], columns: set[str]
) -> None:
    path = tmp_path / "rows.csv"
    assert what_if(folder, "--study", study, *assumed, "--csv", str(path), "--json").code == 0
    lines = list(csv.DictReader(path.read_text().splitlines()))
    assert len(lines) >= 2
    assert columns <= set(lines[0])
