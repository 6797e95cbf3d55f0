"""The plan of a deployment as a file: its schema, its seal, and what a reader refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.api import plan_serving
from meshwright.planner.document.reading import read_serving_plan

from meshwright.errors import InputError

from ...snapshots import run_here

Document = dict[str, Any]


@pytest.fixture(scope="module")
def text() -> str:
    return plan_serving(model="llama-3.1-8b", cluster="2xh100-sxm-80gb", input=500, output=100, rate="2/s", top=2,
                        fix=["pp=1", "chunk_tokens=8192"]).to_json()  # fmt: skip


def refused(text: str, change: Callable[[Document], object]) -> list[str]:
    """Lines of the error that a changed plan is refused by."""
    data = json.loads(text)
    change(data)
    with pytest.raises(InputError) as caught:
        read_serving_plan(json.dumps(data), "p.json")
    return [line for line in str(caught.value).splitlines() if line.strip()]


def test_a_plan_is_read_as_it_was_written(text: str) -> None:
    assert read_serving_plan(text, "p.json").to_json() == text


def test_a_rate_of_endless_digits_is_read_as_it_was_written(tmp_path: Path) -> None:
    asked = ("plan", "--workload", "serve", "--model", "llama-3.2-1b", "--cluster", "1xh100-sxm-80gb", "--input", "100")
    assert run_here(*asked, "--output", "10", "--rate", "2/min", "-o", str(tmp_path / "plan.json")).code == 0
    assert run_here("check", str(tmp_path / "plan.json")).code == 0


@pytest.mark.parametrize("change", [
    lambda data: data["candidates"][0].update(ttft_promised_s=0.001),
    lambda data: data["candidates"][0]["pools"][0].update(chunk_tokens=512),
    lambda data: data["resolved"]["model"].update(max_positions=4),
    lambda data: data.pop("document_sha256"),
])  # fmt: skip
def test_an_edited_plan_is_refused_by_its_seal(text: str, change: Callable[[Document], object]) -> None:
    assert "document_sha256" in refused(text, change)[0]


def test_fields_that_contradict_others_are_named_all_at_once(text: str) -> None:
    def edit(data: Document) -> None:
        data["candidates"][0]["pools"][0]["tp"] = 16
        data["candidates"][1]["goodput_per_gpu"] *= 2
        data["candidates"][1]["gpus"] += 1
        data["request"]["workload"]["percentile"] = 99.0

    lines = "\n".join(refused(text, edit))
    for field in ("candidates.0.pools.0.gpus", "candidates.1.goodput_per_gpu", "candidates.1.gpus", "request"):
        assert f"p.json, {field}" in lines


def test_damaged_fields_are_named_all_at_once(text: str) -> None:
    def edit(data: Document) -> None:
        del data["certificate"]["space"]
        data["candidates"][0]["ttft_s"] = "soon"
        data["candidates"][0]["pools"][0]["role"] = "router"

    lines = "\n".join(refused(text, edit))
    for field in ("certificate.space", "candidates.0.ttft_s", "candidates.0.pools.0.role"):
        assert f"p.json, {field}" in lines


def test_numbers_that_are_none_are_named(text: str) -> None:
    assert "candidates.0.rate" in refused(text, lambda data: data["candidates"][0].update(rate=float("nan")))[0]


def test_files_before_the_seal_are_read_and_later_formats_are_not(text: str) -> None:
    data = json.loads(text)
    del data["document_sha256"]
    data["format_version"] = "1.0"
    assert read_serving_plan(json.dumps(data), "p.json").format_version == "1.0"
    assert "format 2.0, this version reads 1." in refused(text, lambda data: data.update(format_version="2.0"))[0]


def test_a_damaged_resolved_part_is_refused(text: str) -> None:
    assert "resolved" in refused(text, lambda data: data["resolved"].pop("engine"))[0]


@pytest.mark.parametrize(("content", "expected"), [
    ("{", "not JSON"), ("[" * 100_000, "nested too deeply"), ('{"kind": "plan"}', "the plan of a training step"),
    ("[]", "not one"),
])  # fmt: skip
def test_other_files_are_no_plans_of_deployments(content: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        read_serving_plan(content, "p.json")


def test_emit_verifies_the_seal(text: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(text)
    assert run_here("emit", "p.json", cwd=tmp_path).code == 0
    (tmp_path / "p.json").write_text(text.replace('"max_sequences": ', '"max_sequences": 1'))
    edited = run_here("emit", "p.json", cwd=tmp_path)
    assert edited.code == 2
    assert "document_sha256" in edited.err
    assert "plan again" in edited.err
