"""`check`: emitted folders are in order; every class of corruption is found, with file, line and field."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from meshwright.cli.main import main
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.registry import TARGETS

from meshwright.errors import InputError

from ...table import Row
from .emit_corruptions import CATALOGUE, Files, corrupted
from .emit_plans import random_plans

ASKED = {"model": "llama-3-70b", "cluster": "dgx-h100:8", "workload": {"seq_len": 8192, "global_batch": 512}}


# Recipes in Python are followed statement by statement, which takes longer.
SLOW = ("megatron-bridge", "nemo")


@pytest.fixture(scope="module", params=[
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CATALOGUE
])  # fmt: skip
def folders(request: pytest.FixtureRequest) -> tuple[str, list[Files]]:
    out = []
    for plan in random_plans(request.param, 60, seed=1)[0]:
        try:
            out.append(dict(emit(plan, request.param).files))
        except LayoutRefusedError:  # DeepSpeed with uneven stages
            continue
    return request.param, out


def test_what_is_emitted_is_in_order(folders: tuple[str, list[Files]]) -> None:
    target, emitted = folders
    assert len(emitted) > 50
    for files in emitted:
        found = check_files(files)
        assert not found.problems, (target, [str(each) for each in found.problems])
        assert found.layout is not None


def test_every_corruption_is_found(folders: tuple[str, list[Files]], row: Row) -> None:
    target, emitted = folders
    tried, missed = Counter[str](), []
    for kind, files in corrupted(target, emitted, 200):
        tried[kind] += 1
        found = check_files(files, target)
        if not found.problems:
            missed.append(kind)
        assert all(each.file and (each.field or "disagree" in each.message) for each in found.problems), found.problems
        # What files disagree on is on no line of one of them; the message has both values.
        assert any(each.line or "syntax" in each.message or "disagree" in each.message for each in found.problems)
    row(target, "corruptions rejected by check", f"{tried.total() - len(missed)} of {tried.total()}")
    assert not missed
    assert set(tried) == set(CATALOGUE[target])
    assert min(tried.values()) >= 15


def test_rules_see_the_switches_of_the_files() -> None:
    """A graph of the iteration holds experts under current scaling, which only `--fp8-recipe` tells."""
    asked = {"model": "qwen3-30b-a3b", "cluster": "dgx-h100:2", "target": "megatron", "fix": {"fp8_recipe": "current"},
             "workload": {"seq_len": 4096, "global_batch": 64, "precision": "fp8"}}  # fmt: skip
    files = emit(api.evaluate(request_from_dict(asked), "dp16-ep8-gfull-mbs1-z1-rnone-fp8"), "megatron").files
    assert not check_files(files).problems
    name, text = "megatron.args", files["megatron.args"]
    delayed = check_files({**files, name: text.replace("--fp8-recipe tensorwise", "--fp8-recipe delayed")}).problems
    assert any("under mxfp8 or current scaling" in problem.message for problem in delayed)


def test_a_number_of_layers_beside_a_pattern_is_that_of_the_pattern() -> None:
    asked = {"model": "nemotron-3-nano-30b-a3b", "cluster": "dgx-h100:2", "target": "megatron",
             "workload": {"seq_len": 8192, "global_batch": 64}}  # fmt: skip
    files = emit(api.evaluate(request_from_dict(asked), "dp16-ep8-mbs1-z1-rnone"), "megatron").files
    assert not check_files(files).problems
    text = files["megatron.args"].replace("--num-layers 52", "--num-layers 53")
    (problem,) = check_files({**files, "megatron.args": text}).problems
    assert (problem.field, problem.message) == ("--num-layers", "is ignored: --hybrid-layer-pattern has 52 layers")


def test_without_the_plan_the_rules_still_find_most() -> None:
    """A folder that somebody sends on, without plan.json: Megatron's arguments hold model and batch themselves; only
    the GPU, on which the rule of the connections depends, is not said."""
    emitted = [emit(plan, "megatron").files for plan in random_plans("megatron", 60, seed=1)[0]]
    lone = [{name: text for name, text in files.items() if name != "plan.json"} for files in emitted]
    assert not any(check_files(files).problems for files in lone)
    found = [kind for kind, files in corrupted("megatron", lone, 200) if check_files(files).problems]
    assert len(found) >= 165


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    plan = tmp_path / "plan.json"
    found = api.evaluate(request_from_dict({**ASKED, "target": "megatron"}), "tp8-pp4-dp2-mbs1-z1-rsel")
    plan.write_text(found.to_json(), encoding="utf-8")
    assert main(["emit", str(plan), "--to", "megatron", "-d", str(tmp_path / "run"), "-q"]) == 0
    return tmp_path / "run"


def test_the_command_says_what_and_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(folder)]) == 0
    assert "layout tp8-pp4-dp2-mbs1-z1-rsel: in order" in capsys.readouterr().out
    path = folder / "megatron.args"
    path.write_text(path.read_text(encoding="utf-8").replace("--bf16", "--bf17"), encoding="utf-8")
    assert main(["check", str(folder)]) == 1
    out = capsys.readouterr().out
    line = next(n for n, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if text == "--bf17")
    assert f"megatron.args, line {line}, --bf17: unknown option" in out
    assert "did you mean `--bf16`?" in out


def test_the_spelling_of_a_fork_is_no_option_of_the_release(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Imports accept it (Megatron-LLM); argparse of Megatron-LM does not."""
    path = folder / "megatron.args"
    path.write_text(path.read_text(encoding="utf-8").replace("--num-layers", "--num_layers"), encoding="utf-8")
    assert main(["check", str(folder)]) == 1
    assert "--num_layers: unknown option" in capsys.readouterr().out


def test_all_problems_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt option hides neither an 81st layer, nor a batch that was edited, nor a line that is gone."""
    path = folder / "megatron.args"
    text = path.read_text(encoding="utf-8")
    edited = (("--micro-batch-size", "--micro-batch-sise"), ("--num-layers 80", "--num-layers 81"),
              ("--global-batch-size 512", "--global-batch-size 256"), ("--sequence-parallel\n", ""))  # fmt: skip
    for old, new in edited:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    assert main(["check", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "--micro-batch-sise: unknown option" in out
    assert "--num-layers: 81 layers do not split over pp 4" in out
    assert "--global-batch-size: global_batch is 256, plan.json has 512" in out
    assert "--sequence-parallel: sequence_parallel is False, plan.json has True" in out
    assert "--tp-comm-overlap: needs --sequence-parallel" in out
    assert "5 problems" in out


def test_the_command_in_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(folder), str(folder / "plan.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [item["what"] for item in document["items"]] == ["megatron", "plan"]
    assert document["items"][0]["own_parser"] in ("accepted", "not installed")


def test_folders_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert "holds no file that `emit` writes" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "absent")]) == 2
    capsys.readouterr()
    (tmp_path / "ds_config.json").write_bytes(b"\xff\xfe")
    assert main(["check", str(tmp_path)]) == 2
    assert "ds_config.json, line 1: not UTF-8 text" in capsys.readouterr().err


def test_what_is_no_release_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("check", str(folder)), ("emit", str(folder / "plan.json"), "--to", "megatron"):
        assert main([*command, "--target-version", "abc"]) == 2
        err = capsys.readouterr().err
        assert "`abc` is not a release of megatron" in err
        assert "hint: option lists: 0." in err


def test_a_release_without_a_list_is_the_nearest_with_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(folder), "--target-version", "0.17.9"]) == 0
    assert "written and checked as 0.17.0" in capsys.readouterr().err


def test_a_folder_with_the_main_files_of_two_targets_needs_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second target whose main file has the same name is a doubt, not the first one's folder."""
    megatron = TARGETS["megatron"]
    plan = api.evaluate(request_from_dict(ASKED), "tp8-pp4-dp2-mbs1-z1-rsel")
    files = emit(plan, "megatron").files
    monkeypatch.setitem(TARGETS, "twin", replace(megatron, name="twin"))
    with pytest.raises(InputError, match="holds files of megatron and twin"):
        check_files(files)
    assert check_files(files, "megatron").problems == []
