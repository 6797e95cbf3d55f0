"""The frame of the command line: help, global options, errors, exit codes, colours."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from meshwright.cli import main as cli
from meshwright.cli.settings import UsageError, extract

from ..snapshots import ROOT, check, environment, run, run_here, run_terminal, run_terminal_here

HEAVY = ("torch", "pulp", "networkx", "scipy", "matplotlib", "numpy", "pydantic", "rich", "typer", "yaml")


def test_top_level_help() -> None:
    check("help", run("--help"))


def test_help_is_the_same_with_and_without_a_terminal() -> None:
    assert run("-h").out == run_terminal("--help").out.replace("\r\n", "\n")


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_help_of_each_command(name: str) -> None:
    result = run_here(*name.split(), "--help")
    check(f"help-{name.replace(' ', '-')}", result)
    assert result.out == run_here(*name.split(), "-h").out
    assert "Example" in result.out
    assert max(map(len, result.out.splitlines())) <= 80


def test_no_arguments_is_help_and_exit_2() -> None:
    result = run()
    assert result.code == 2
    assert result.out == run("--help").out


def test_help_loads_nothing_heavy() -> None:
    code = f"from meshwright.cli.main import main; main(['--help']); print([m for m in {HEAVY} if m in sys.modules])"
    command = [sys.executable, "-c", f"import sys; {code}"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version() -> None:
    import meshwright

    assert run("--version").out == run("-V").out == f"meshwright {meshwright.__version__}\n"


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("unknown-command", ["plam"]),
        ("unknown-command-far", ["quux"]),
        ("unknown-option", ["plan", "--modle", "llama-3.1-8b"]),
        ("option-before-command", ["--model", "llama-3.1-8b", "plan"]),
        ("option-not-a-number", ["plan", "--top", "many"]),
        ("missing-argument", ["explain"]),
        ("unknown-catalogue", ["show", "gpu"]),
        ("entry-without-catalogue", ["show", "h100"]),
        ("bad-color", ["--color", "blue", "env"]),
        ("global-option-without-value", ["env", "--profiles-path"]),
    ],
)
def test_usage_errors(name: str, args: list[str]) -> None:
    piped, shown = run_here(*args), run_terminal_here(*args)
    check(f"error-{name}", piped)
    check(f"error-{name}-terminal", shown)
    assert piped.code == shown.code == 2
    assert "\x1b" not in piped.err
    assert "\x1b" in shown.out
    document = json.loads(run_here("--json", *args).out)
    assert document["kind"] == "error"
    assert document["code"] == "usage"
    assert document["message"] in piped.err


def test_global_options_stand_before_or_after_the_command() -> None:
    settings, rest = extract(["--json", "plan", "-qv", "--color=never", "x.yaml", "--", "--json"], {})
    assert (settings.json, settings.quiet, settings.verbose, settings.color) == (True, True, True, "never")
    assert rest == ["plan", "x.yaml", "--", "--json"]
    assert run("--json", "env").out == run("env", "--json").out


def test_environment_variables_are_weaker_than_options() -> None:
    environ = {"MESHWRIGHT_COLOR": "always", "MESHWRIGHT_NO_PROGRESS": "1", "MESHWRIGHT_PROFILES_PATH": "a"}
    settings, _ = extract(["env", "--color", "never"], environ)
    assert (settings.color, settings.no_progress, settings.profiles_path) == ("never", True, "a")
    assert extract(["--profiles-path", "b"], environ)[0].profiles_path == "b"
    assert not extract([], {"MESHWRIGHT_NO_PROGRESS": "0"})[0].no_progress
    with pytest.raises(UsageError):
        extract([], {"MESHWRIGHT_COLOR": "mauve"})


@pytest.mark.parametrize(
    ("env", "args", "colored"),
    [
        ({}, [], False),
        ({"FORCE_COLOR": "1"}, [], True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, [], False),
        ({"FORCE_COLOR": "1"}, ["--color", "never"], False),
        ({"NO_COLOR": "1"}, ["--color", "always"], True),
        ({"MESHWRIGHT_COLOR": "always"}, [], True),
    ],
)
def test_colours_when_piped(env: dict[str, str], args: list[str], colored: bool) -> None:
    shown, failed = run_here("show", "gpus", *args, env=env), run_here("plam", *args, env=env)
    assert ("\x1b" in shown.out) == colored
    assert ("\x1b" in failed.err) == colored


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"MESHWRIGHT_COLOR": "never"}])
def test_no_colour_on_a_terminal_that_asks_for_none(env: dict[str, str]) -> None:
    assert "\x1b" not in run_terminal_here("show", "gpus", env=env).out


def test_our_bug_is_exit_3_with_the_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(name: str) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(cli, "load", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.main(["env", "--json"]) == 3
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["code"] == "internal_error"
    assert "please report" in err
    assert "Traceback" not in err
    report = Path(document["details"]["traceback"])
    assert str(report) in err
    assert "ZeroDivisionError: division by zero" in report.read_text()
    assert "arguments: ['env', '--json']" in report.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("args", [["show", "gpus"], ["show", "gpus", "--json"], ["--help"], ["plam", "--json"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(args: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        command, env = [sys.executable, "-m", "meshwright", *args], environment({"PYTHONUNBUFFERED": unbuffered})
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: cannot write to standard output: No space left on device"
    assert "Traceback" not in done.stderr
    assert "broke" not in done.stderr


def test_a_reader_that_closes_early_is_no_error() -> None:
    command = f"{sys.executable} -m meshwright show models | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def writer_when_read(pipe: Path, process: subprocess.Popen[bytes]) -> int:
    """The writing end of a named pipe, as soon as `process` has opened the other."""
    for _ in range(600):
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            if process.poll() is not None:
                break
            time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate()[1].decode())


def interrupted(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What `process` wrote when it ended of SIGINT, which is sent again while it has not.

    Python only notes a signal that comes after its last look and before the read that blocks; the next one
    interrupts that read.
    """
    for _ in range(12):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    return process.communicate()


def test_interrupted_is_exit_130(tmp_path: Path) -> None:
    """The signal comes while the request is read from a pipe, which never ends."""
    request = tmp_path / "request.yaml"
    os.mkfifo(request)
    command = [sys.executable, "-m", "meshwright", "plan", str(request)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    handle = writer_when_read(request, process)
    try:
        out, err = interrupted(process)
    finally:
        os.close(handle)
    assert process.returncode == 130, err
    assert out == b""
    assert err.decode() == "error: interrupted\n"


def completed(shell: str, words: str) -> set[str]:
    """The words that a shell is offered behind `words`."""
    env = {"_MESHWRIGHT_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": words}
    env |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)} if shell == "bash" else {}
    env |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else {}
    out = run_here(env=env).out
    if shell == "zsh":
        return {word for word, _ in re.findall(r'"([^"]+)"(:"[^"]*")?', out)}
    return {line.partition("\t")[0] for line in out.splitlines()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("meshwright ", {name for name in cli.COMMANDS if " " not in name}),
        ("meshwright pl", {"plan"}),
        ("meshwright profile l", {"links"}),
        ("meshwright profile links --la", {"--largest"}),
        ("meshwright profile import sl --gpus", {"--gpus-per-node"}),
        ("meshwright plan --gpu h100-s", {"h100-sxm-80gb"}),
        ("meshwright plan --model llama-3.1-7", {"llama-3.1-70b"}),
        ("meshwright show mod", {"models"}),
    ],
)
def test_completion(shell: str, words: str, offered: set[str]) -> None:
    assert completed(shell, words) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_shows_the_whole_help(shell: str) -> None:
    env = {"_MESHWRIGHT_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "meshwright plan --seq",
           "_TYPER_COMPLETE_FISH_ACTION": "get-args"}  # fmt: skip
    assert "Tokens per sequence, as 8192 or 8K (8192)." in run(env=env).out


@pytest.mark.parametrize("option", ["-o", "--out", "--output-dir"])
def test_emit_names_the_option_that_writes_files(option: str) -> None:
    assert "hint: did you mean `--directory`?" in run_here("emit", "plan.json", option, "launch").err
