"""Plans of post-training in the commands: who reads them, and how their screens and messages read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.screens import rl_plan as screen
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.profiles.stack.post_training import post_training_constants

from ..snapshots import run_here

SMALL: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "2xh100-sxm-80gb", "output": 300, "prompts": 16}
FLAGS = ["plan", "--workload", "grpo", "--model", "llama-3.2-1b", "--cluster", "2xh100-sxm-80gb", "--output", "300"]


@pytest.fixture(scope="module")
def grpo() -> RlPlan:
    return plan_rl(algorithm="grpo", **SMALL)


@pytest.fixture(scope="module")
def dpo() -> RlPlan:
    return plan_rl(algorithm="dpo", **SMALL)


def words(plan: RlPlan) -> str:
    return " ".join(" ".join(map(str, screen.screen(plan, plan.best, None))).split())


@pytest.mark.parametrize("command", ["plan", "memory"])
def test_a_plan_of_post_training_is_no_request(tmp_path: Path, grpo: RlPlan, command: str) -> None:
    (tmp_path / "rl.json").write_text(grpo.to_json())
    result = run_here(command, "rl.json", cwd=tmp_path)
    assert result.code == 2
    assert "rl.json: the plan of a step of post-training, where a request is needed" in result.err
    assert "`explain`, `report`, `emit`, `check` and `launch` read it" in result.err


def test_check_reads_it_and_explain_lists_its_origins(tmp_path: Path, grpo: RlPlan) -> None:
    (tmp_path / "rl.json").write_text(grpo.to_json())
    checked = run_here("check", "rl.json", cwd=tmp_path)
    assert (checked.code, "rl.json: a plan of 1 placement, in order" in checked.out) == (0, True)
    assert "workload.prompts" in run_here("explain", "rl.json", "--origins", cwd=tmp_path).out


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"step_s": 1.0}, "document_sha256: is not the digest of the other fields"),
        ({"format_version": "1.2"}, "format 1.2, this version reads 2.0"),
        ({"prompts": 17}, "request: its digest is"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "check"])
def test_an_edited_plan_is_refused(
    tmp_path: Path, grpo: RlPlan, command: str, change: dict[str, Any], named: str
) -> None:
    document = json.loads(grpo.to_json())
    for part in (document, document["candidates"][0], document["request"]["workload"]):
        part.update({name: value for name, value in change.items() if name in part})
    (tmp_path / "rl.json").write_text(json.dumps(document))
    result = run_here(command, "rl.json", cwd=tmp_path)
    assert result.code == 2
    assert named in result.err


def test_a_step_that_generates_nothing_names_no_engine(grpo: RlPlan, dpo: RlPlan) -> None:
    assert "megatron and vllm; 16 x 16 answers a step" in words(grpo)
    assert "s of them to the engine, and 15.5 s into data, rewards and logs, as in NeMo-RL." in words(grpo)
    text = words(dpo)
    assert "megatron; 16 pairs a step Given answers: 300 tokens in the mean" in text
    for word in ("vllm", "engine", "rewards", "new weights"):
        assert word not in text
    assert dpo.best.controller_s == 0.0


def test_factors_of_calls_name_the_framework_that_shows_them(grpo: RlPlan, dpo: RlPlan) -> None:
    constants = post_training_constants()
    fitted = (f"{constants.training:.2f} times as long as in tuned runs, and copies to the host {constants.copies:.1f} "
              "times as long as over their link: fitted to steps of NeMo-RL")  # fmt: skip
    for plan in (grpo, dpo):
        assert f"Training takes {fitted}, assumed of other frameworks." in words(plan)
    for target, assumed in (("verl", ", assumed of verl."), ("nemo-rl", ".")):
        other = grpo.model_copy(update={"request": {**grpo.request, "target": target}})
        assert f"Training takes {fitted}{assumed}" in words(other)


@pytest.mark.parametrize(("gap", "proof"), [(0.0004, "of this space is faster."), (0.006, "more than 0.6 % faster.")])
def test_a_gap_that_prints_as_none_is_none(grpo: RlPlan, gap: float, proof: str) -> None:
    certificate = grpo.certificate.model_copy(update={"gap": gap})
    assert proof in words(grpo.model_copy(update={"certificate": certificate}))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lag", "-1"], "--lag: must be 0 or more, is -1"),
        (["--prompts", "0"], "--prompts: must be 1 or more, is 0"),
        (["--engine", "nope"], "hint: known: sglang, tensorrt-llm, vllm"),
    ],
)
def test_bad_flags(tmp_path: Path, flags: list[str], message: str) -> None:
    result = run_here(*FLAGS, *flags, cwd=tmp_path)
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize("workload", ["train", "grpo"])
def test_only_training_names_the_flag_that_adds_a_vision_tower(tmp_path: Path, workload: str) -> None:
    flags = ["--output", "300", "--prompts", "16"] if workload == "grpo" else ["--seq-len", "2048"]
    where = ["--model", "qwen3-vl-8b", "--cluster", "dgx-h100:1"]
    result = run_here("plan", "--workload", workload, *where, *flags, cwd=tmp_path)
    assert "without its vision tower" in result.err
    assert ("--images" in result.err) == (workload == "train")


def blocks(page: str) -> list[tuple[float, float]]:
    """(left, width) of the drawn calls."""
    found = re.findall(r'<rect [^>]*x="([\d.]+)"[^>]* width="([\d.]+)"', page)
    return [(float(left), float(width)) for left, width in found]


def test_the_report_draws_every_call_over_its_gpus_to_scale(tmp_path: Path, grpo: RlPlan, dpo: RlPlan) -> None:
    for plan in (grpo, dpo):
        (tmp_path / "rl.json").write_text(plan.to_json())
        result = run_here("report", "rl.json", "-o", "rl.html", "--force", cwd=tmp_path)
        assert result.code == 0, result.err
        page, best = (tmp_path / "rl.html").read_text(), plan.best
        edges = sorted({edge for it in best.calls for edge in (it.first_gpu, it.first_gpu + it.gpus)})
        bands = sum(it.first_gpu <= first < it.first_gpu + it.gpus for first in edges[:-1] for it in best.calls)
        drawn = blocks(page)
        assert len(drawn) == bands
        seconds = sorted(it.end_s - it.start_s for it in best.calls)
        widths = sorted(width for _, width in drawn)
        assert widths[-1] / widths[0] == pytest.approx(seconds[-1] / seconds[0], rel=0.02)
        assert max(left + width for left, width in drawn) <= 1000.0
        assert best.placement_id in page
        assert "placements" in page


@pytest.fixture(scope="module")
def ppo() -> RlPlan:
    """All seven calls of a step."""
    return plan_rl(algorithm="ppo", updates=2, **SMALL)


def test_the_report_has_a_colour_for_every_call(tmp_path: Path, ppo: RlPlan) -> None:
    (tmp_path / "rl.json").write_text(ppo.to_json())
    assert run_here("report", "rl.json", "-o", "rl.html", cwd=tmp_path).code == 0
    page = (tmp_path / "rl.html").read_text()
    names = [re.search(rf"--{name}: (#\w+);", page) for name in re.findall(r'class="key (m\d+)"', page)]
    colours = {found[1] for found in names if found}
    assert len(colours) == len(ppo.best.calls) == 7


def test_the_timeline_draws_calls_that_take_no_time(ppo: RlPlan) -> None:
    calls = tuple(it.model_copy(update={"first_gpu": 0, "gpus": 2, "start_s": start, "end_s": start + 0.001})
                  for it, start in zip(ppo.best.calls, (0.0, 0.001, 0.002, 50.0, 99.997, 99.998, 99.999), strict=True))
    placed = ppo.best.model_copy(update={"calls": calls, "step_s": 100.0})
    row = str(next(iter(screen.timeline(placed)[0].columns[1].cells)))  # type: ignore[union-attr]
    assert (row[:3], row[28], row[53:], len(row)) == ("ABC", "D", "EFG", 56)


def test_the_report_of_no_placement_writes_nothing(tmp_path: Path, grpo: RlPlan) -> None:
    (tmp_path / "rl.json").write_text(grpo.to_json())
    result = run_here("report", "rl.json", "--choice", "9", "-o", "rl.html", cwd=tmp_path)
    assert (result.code, "the plan has no placement 9" in result.err) == (2, True)
    assert not (tmp_path / "rl.html").exists()


def test_flags_of_a_training_step_are_named(tmp_path: Path) -> None:
    result = run_here(*FLAGS, "--lora", "8", cwd=tmp_path)
    assert result.code == 2
    assert "--lora: is not for a workload of kind rl" in " ".join(result.err.split())
    assert "leave it out" in result.err


def test_a_folder_without_its_plan_says_so(tmp_path: Path) -> None:
    (tmp_path / "rl.json").write_text(plan_rl(algorithm="grpo", **SMALL, target="verl").to_json())
    assert run_here("emit", "rl.json", "--to", "verl", "-d", "run", cwd=tmp_path).code == 0
    (tmp_path / "run" / "plan.json").unlink()
    result = run_here("check", "run", cwd=tmp_path)
    assert result.code == 2
    assert "run: no plan.json, which files of post-training are compared with" in " ".join(result.err.split())


def test_a_framework_of_training_is_answered_with_those_of_post_training(tmp_path: Path, grpo: RlPlan) -> None:
    (tmp_path / "rl.json").write_text(grpo.to_json())
    result = run_here("emit", "rl.json", "--to", "megatron", "-d", "run", cwd=tmp_path)
    assert (result.code, "known: verl, nemo-rl, slime, areal, openrlhf" in result.err) == (2, True)
