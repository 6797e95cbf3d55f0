"""Inputs that were once believed, or met with a message that helped nobody."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli import text
from meshwright.cli.files import write_files
from meshwright.planner import api

from meshwright.errors import InputError

from ..snapshots import ROOT, UNCOMPILED, environment, run, run_here

MEMORY = ["memory", "--model", "llama-3.1-8b", "--layout", "dp8-mbs1-z3-rfull"]


@pytest.fixture(scope="module")
def plan_text() -> str:
    return api.plan(model="gpt2", gpu="h100-sxm-80gb", gpus=2, lengths="512:1,1024:3").to_json()


def _edited(text: str, path: str, value: Any) -> str:
    document = json.loads(text)
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    inner = document
    for part in way:
        inner = inner[part]
    inner[last] = value
    return json.dumps(document)


@pytest.mark.parametrize("command", ["memory", "emit", "explain", "report", "check"])
@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("request.model", "llama-3.1-8b", "request: its digest is"),
        ("candidates.0.hfu", float("nan"), "candidates.0.hfu: not a finite number"),
        ("candidates.1.hfu", float("inf"), "candidates.1.hfu: not a finite number"),
        ("candidates.0.mfu", 0.99, "candidates.0.mfu: 0.99, by the other layouts it is"),
        ("candidates.0.mfu", 1.5, "candidates.0.mfu: input should be less than or equal to 1"),
        ("candidates.0.memory.0.device_bytes", 1e9, "candidates.0.memory.0.device_bytes: 1e+09, reserve and context"),
        ("candidates.0.memory.0.weights_bytes", 1e9, "candidates.0.memory.0.allocated_bytes: "),
        ("candidates.2.tokens_per_s_per_gpu", 1.0, "candidates.2.tokens_per_s_per_gpu: 1, the tokens"),
    ],
)
def test_a_plan_edited_by_hand_is_refused(
    tmp_path: Path, plan_text: str, command: str, path: str, value: Any, named: str
) -> None:
    (tmp_path / "plan.json").write_text(_edited(plan_text, path, value))
    result = run_here(command, "plan.json", cwd=tmp_path)

    assert (result.code, result.out) == (2, "")
    assert f"plan.json, {named}" in result.err


def test_a_number_beyond_any_float_is_refused(tmp_path: Path, plan_text: str) -> None:
    text = _edited(plan_text, "candidates.0.hfu", 0.123456).replace("0.123456", "1e999")
    assert "1e999" in text
    (tmp_path / "plan.json").write_text(text)
    result = run_here("memory", "plan.json", cwd=tmp_path)

    assert result.code == 2
    assert "plan.json, candidates.0.hfu: not a finite number" in result.err


def test_a_plan_as_written_is_accepted(tmp_path: Path, plan_text: str) -> None:
    (tmp_path / "plan.json").write_text(plan_text)
    assert run_here("check", "plan.json", cwd=tmp_path).code == 0


def test_all_edits_are_named_at_once(tmp_path: Path, plan_text: str) -> None:
    twice = _edited(_edited(plan_text, "candidates.0.memory.0.device_bytes", 1e9), "request.top", 3)
    (tmp_path / "plan.json").write_text(twice)
    result = run_here("check", "plan.json", cwd=tmp_path)

    assert "2 things are wrong" in result.err


@pytest.mark.parametrize("words", [["show", "models"], ["--help"], ["show", "models", "--json"]])
def test_closed_standard_output_is_one_line(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "meshwright", *words], cwd=ROOT, env=environment(), timeout=60,
                          preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, text=True)  # fmt: skip

    assert done.returncode == 2
    assert done.stderr.lower() == "error: cannot write to standard output: bad file descriptor\n"


def test_a_file_does_not_take_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    words = ["plan", "--model", "gpt2", "--gpu", "h100-sxm-80gb", "--gpus", "1", "-o", str(tmp_path / "plan.json")]
    subprocess.run([sys.executable, "-m", "meshwright", *words], cwd=ROOT, env=environment(), timeout=60,
                   preexec_fn=lambda: os.closerange(0, 3))  # fmt: skip

    assert json.loads((tmp_path / "plan.json").read_text())["kind"] == "plan"


def _no_room() -> None:
    """No file may grow beyond 20,000 bytes: fewer than the plan beside the launch files has."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_emit_leaves_nothing_on_a_full_disk(tmp_path: Path, plan_text: str) -> None:
    (tmp_path / "plan.json").write_text(plan_text)
    words = ["emit", "plan.json", "-d", "a/run"]
    done = subprocess.run([sys.executable, "-m", "meshwright", *words], cwd=tmp_path, env=environment(UNCOMPILED),
                          timeout=60, preexec_fn=_no_room, stderr=subprocess.PIPE, text=True)  # fmt: skip

    assert done.returncode == 2
    assert "cannot write a/run/plan.json: file too large" in done.stderr
    assert not (tmp_path / "a").exists()


def test_files_stay_as_they_were_if_one_of_them_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "first").write_text("old")
    (tmp_path / "second").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_files({tmp_path / "first": "new", tmp_path / "second": "new"}, force=True)

    assert (tmp_path / "first").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def _loop(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


def _below_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "plan.json"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (_loop, "too many levels of symbolic links"),
        (_below_file, "there is no folder"),
        (lambda folder: folder / ("n" * 300), "file name too long"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_paths_that_no_file_can_have(
    tmp_path: Path, made: Callable[[Path], Path], message: str, force: bool
) -> None:
    path = made(tmp_path)
    with pytest.raises(InputError, match=message):
        write_files({path: "text"}, force=force)
    assert (tmp_path / "loop").is_symlink() == (made is _loop)


def test_show_alone_names_the_catalogues() -> None:
    result = run_here("show")
    assert result.code == 2
    assert result.err.splitlines()[0] == "error: missing argument `KIND`: the catalogue to list"
    assert "hint: they are gpus, models, families, " in result.err


def test_layers_of_many_chunks_are_drawn_together(tmp_path: Path) -> None:
    """A list of every chunk filled a screen: 80 times `1`."""
    asked: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "8xh100-sxm-80gb", "seq_len": 512, "global_batch": 64}
    for name, layout in (("a.json", "pp2-vpp6-dp4-mbs1-z1-rnone"), ("b.json", "pp4-dp2-mbs1-z1-rnone")):
        (tmp_path / name).write_text(api.evaluate(None, layout, **asked).to_json())
    out = run_here("diff", "a.json", "b.json", cwd=tmp_path).out
    rows = [[cell.strip() for cell in line.split("  ") if cell] for line in out.splitlines()]
    assert ["recomputed", "12 x 0", "4 x 0"] in rows
    assert [row[-1] for row in rows if row[:1] == ["layers"]] == ["4 x 4"]


def test_an_empty_name_of_an_output_is_refused() -> None:
    result = run_here("profile", "all", "--dry-run", "-o", "")
    assert result.code == 2
    assert ". is a folder" in result.err


@pytest.mark.parametrize("words", [("check",), ("validate",), ("calibrate",), ("show", "models")])
def test_a_path_longer_than_the_system_takes_is_refused(words: tuple[str, ...]) -> None:
    result = run_here(*words, "a" * 300)
    assert (result.code, result.out) == (2, "")
    assert f"error: {'a' * 40}...: file name too long" in result.err


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--model", "PATH", "--cluster", "dgx-h100:1"),
        ("plan", "--model", "gpt2", "--cluster", "dgx-h100:1", "--lengths", "PATH"),
        ("plan", "--model", "gpt2", "--cluster", "dgx-h100:1", "--stack", "PATH"),
        ("plan", "--model", "gpt2", "--cluster", "dgx-h100:1", "--exclude", "PATH"),
        ("plan", "--workload", "serve", "--model", "llama-3.1-8b", "--cluster", "dgx-h100:1", "--input", "PATH",
         "--output", "100"),
        ("explain", "PATH"),
        ("check", "PATH"),
        ("validate", "PATH"),
        ("calibrate", "PATH"),
        ("--profiles-path", "PATH", "show", "gpus"),
    ],
)  # fmt: skip
def test_a_path_in_a_folder_that_may_not_be_entered_is_refused(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`Path.is_file` and its like raise PermissionError there, which root never meets."""
    closed, stat = tmp_path / "closed", Path.stat

    def refused(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if closed in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, follow_symlinks=follow_symlinks)

    closed.mkdir(mode=0)
    monkeypatch.setattr(Path, "stat", refused)
    file = closed / "a.csv"
    result = run_here(*(str(file) if word == "PATH" else word for word in words))
    assert (result.code, result.out) == (2, ""), result.err
    assert str(file) in result.err
    assert "hint: " in result.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("import", "foo", "x.json"), "known: accelerate, areal, axolotl"),
        (("schema", "foo"), "known: mixed-lengths-plan, plan, request"),
        (("plan", "--model", "gpt2", "--cluster", "dgx-h100:1", "--exclude", "0"), "keep at least one of them"),
    ],
)
def test_an_error_without_a_near_name_has_a_hint(words: tuple[str, ...], hint: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    result = run_here(*words, cwd=tmp_path)
    assert (result.code, result.out) == (2, "")
    assert f"hint: {hint}" in result.err


def test_a_folder_of_nobody_is_no_model() -> None:
    result = run_here("plan", "--model", "~nobody-here/model", "--gpu", "h100-sxm-80gb", "--gpus", "2")
    assert result.code == 2
    assert "error: ~nobody-here/model: no such file" in result.err


def test_a_symbolic_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    write_files({tmp_path / "link": "text"}, force=False)

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"


@pytest.mark.parametrize(("number", "meant"), [("010000", "4,096"), ("-0_17", "15")])
def test_a_leading_zero_is_not_read_as_octal(tmp_path: Path, number: str, meant: str) -> None:
    (tmp_path / "r.yaml").write_text(f"model: gpt2\ncluster: dgx-h100:1\nworkload:\n  seq_len: {number}\n")
    result = run_here("plan", "r.yaml", cwd=tmp_path)

    assert result.code == 2
    assert f"r.yaml, line 4: `{number}` would be read as an octal number, {meant}" in result.err


def test_a_link_faster_than_any_is_refused_and_abbreviations_are_known(tmp_path: Path) -> None:
    text = "groups: [{node: dgx-h100, count: 2}]\nlinks: {inter_node: {bandwidth: 1e30 Gb/s, kind: infiniband}}\n"
    (tmp_path / "c.yaml").write_text(text)
    result = run_here(*MEMORY, "--cluster", "c.yaml", cwd=tmp_path)

    assert result.code == 2
    assert "bandwidth: `1e30 Gb/s` is too large" in result.err
    assert "hint: did you mean `ib`?" in result.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--lora", "99999"], "train.lora.rank: 99999 is more than the 4096 that q, v of llama-3.1-8b have"),
        (["--lora", "2000:k"], "2000 is more than the 1024 that k of llama-3.1-8b have"),
        (["--max-memory", "500GiB"], "max_memory: 500.0 GiB are more than the 79.6 GiB of h100-sxm-80gb"),
    ],
)
def test_what_no_model_and_no_gpu_has_is_refused(more: list[str], message: str) -> None:
    result = run_here(*MEMORY, "--gpu", "h100-sxm-80gb", "--gpus", "8", *more)

    assert result.code == 2
    assert message in result.err


def test_the_nominal_size_of_a_gpu_is_no_error() -> None:
    assert run_here(*MEMORY, "--gpu", "h100-sxm-80gb", "--gpus", "8", "--max-memory", "80GiB").code == 0


def test_check_names_the_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    (tmp_path / "b.bin").write_bytes(b"one\ntwo \xa3\n")
    result = run_here("check", ".", cwd=tmp_path)

    assert result.code == 2
    assert "error: b.bin, line 2: not UTF-8 text" in result.err


@pytest.mark.parametrize(("shell", "mark"), [("bash", "COMPREPLY"), ("zsh", "#compdef"), ("fish", "complete -")])
def test_the_completion_script_is_that_of_the_shell(shell: str, mark: str) -> None:
    result = run("--show-completion", shell)

    assert result.code == 0
    assert mark in result.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--show-completion", "csh"], "`csh` is not one of bash, zsh, fish"),
        (["--install-completion", "zsh"], "--install-completion takes no value"),
    ],
)
def test_a_shell_that_cannot_be_completed_is_an_error(words: list[str], message: str) -> None:
    result = run(*words)

    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_a_catalogue_complete(shell: str) -> None:
    words = "meshwright plan --gpu h100-s"
    asked = {"_MESHWRIGHT_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": "3",
             "_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}  # fmt: skip
    result = run(env=asked)

    assert re.search(r"\bh100-sxm-80gb\b", result.out)


@pytest.mark.parametrize(
    ("share", "shown"), [(-0.0004, "+0.0 %"), (0.0, "+0.0 %"), (-0.0006, "-0.1 %"), (0.0149, "+1.5 %"), (0.11, "+11 %")]
)
def test_no_excess_has_no_negative_sign(share: float, shown: str) -> None:
    assert text.more(share) == shown


def test_memory_names_a_plan_of_mixed_lengths(tmp_path: Path) -> None:
    (tmp_path / "ml.json").write_text(json.dumps({"kind": "mixed-lengths-plan"}))
    result = run_here("memory", "ml.json", cwd=tmp_path)
    assert result.code == 2
    assert "ml.json: a plan of documents with a degree each, where a request is needed" in result.err
    assert "unknown key" not in result.err


def test_an_imported_file_that_lacks_its_network_names_that_first(tmp_path: Path) -> None:
    for nodes, next_step in (1, "Next: meshwright plan --cluster c.yaml"), (2, "Next: complete c.yaml"):
        (tmp_path / "hostfile").write_text("".join(f"node{i} slots=8\n" for i in range(nodes)))
        result = run_here("profile", "import", "hostfile", "hostfile", "--gpu", "h100", "-o", "c.yaml", "--force",
                          cwd=tmp_path)  # fmt: skip
        assert result.code == 0
        assert next_step in result.out
    assert "its NICs are not known" in result.out


def test_unlike_groups_are_not_planned_again_as_if_they_were_equal(tmp_path: Path, plan_text: str) -> None:
    (tmp_path / "plan.json").write_text(plan_text)
    result = run_here("what-if", "plan.json", "--set", "cluster=dgx-h100:1+dgx-a100-80gb:1", "--replan", cwd=tmp_path)
    assert result.code == 2
    assert "unlike groups of nodes, and what-if prices all GPUs alike" in " ".join(result.err.split())
