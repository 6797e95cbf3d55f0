"""`check` on edited files of a deployment: every difference from the plan is named, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from meshwright.planner.document.serving_plan import ServingPlan
from meshwright.planner.targets.engines.check import check_service
from meshwright.planner.targets.engines.check_commands import CheckedService
from meshwright.planner.targets.engines.emit import emit_serving
from meshwright.planner.targets.engines.registry import ENGINE_TARGETS, SERVING_LAUNCHERS

from meshwright.errors import MeshwrightError

from ...snapshots import run_here
from .drawn_services import drawn, for_engine, planned

DRAWN = 12


@pytest.fixture(scope="module")
def plan() -> ServingPlan:
    return planned()


def emitted(plan: ServingPlan, launcher: str = "scripts") -> dict[str, str]:
    """Empty where the launcher or the engine refuses the deployment."""
    try:
        return dict(emit_serving(plan, str(plan.resolved["engine"]), 1, launcher).files)
    except MeshwrightError:
        return {}


def edited(plan: ServingPlan, before: str, after: str) -> CheckedService:
    files = emitted(plan)
    assert any(before in text for text in files.values())
    return check_service(plan, {name: text.replace(before, after) for name, text in files.items()})


@pytest.mark.parametrize("engine", list(ENGINE_TARGETS))
@pytest.mark.parametrize("launcher", list(SERVING_LAUNCHERS))
def test_files_as_they_are_emitted_are_in_order(engine: str, launcher: str, plan: ServingPlan) -> None:
    checked = [check_service(it, files) for it in drawn(for_engine(plan, engine), DRAWN)
               if (files := emitted(it, launcher))]  # fmt: skip
    assert checked
    assert [problem for each in checked for problem in each.problems] == []


@pytest.mark.parametrize(("launcher", "file"), [("dynamo", "dynamo.yaml"), ("llm-d", "modelserver.yaml")])
def test_options_in_a_config_map_are_compared_one_by_one(launcher: str, file: str, plan: ServingPlan) -> None:
    service = for_engine(plan, "tensorrt-llm")
    text = emitted(service, launcher)[file]
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if "max_batch_size" in line)
    before = lines[at].split()[1]
    lines[at] = lines[at].replace(before, "3")
    (problem,) = check_service(service, {file: "\n".join(lines)}).problems
    assert (problem.line, problem.message) == (at + 1, f"is `3`, the plan has `{before}`")
    assert problem.field.endswith("max_batch_size")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_changed_value_is_named(engine: str, plan: ServingPlan) -> None:
    numbers = random.Random(1)
    for service in (for_engine(it, engine) for it in drawn(plan, DRAWN, seed=1)):
        files = emitted(service)
        name = numbers.choice([name for name in files if name.endswith(".sh") and name != "router.sh"])
        lines = files[name].splitlines(keepends=True)
        options = [number for number, line in enumerate(lines) if line.startswith("  --") and "$" not in line
                   and line.split()[1].isdecimal()]  # fmt: skip
        at = numbers.choice(options)
        option, value = lines[at].split()[:2]
        changed = lines[at].replace(f" {value}", f" {int(value) + 1}")
        text = "".join([*lines[:at], changed, *lines[at + 1 :]])
        (problem,) = check_service(service, {**files, name: text}).problems
        assert (problem.file, problem.line, problem.field) == (name, at + 1, option)
        assert f"`{value}`" in problem.message
        (missing,) = check_service(service, {**files, name: "".join([*lines[:at], *lines[at + 1 :]])
                                             .replace("\\\n\n", "\n")}).problems  # fmt: skip
        assert (missing.field, "is missing" in missing.message) == (option, True)


@pytest.mark.parametrize(("before", "after", "expected"), [
    ("--max-num-seqs", "--max-num-seq", "unknown option"),
    ("--max-num-seqs", "--speculative-config '{}' --max-num-seqs", "speculation"),
    ("--max-num-seqs", "--pipeline-parallel-size 2 --max-num-seqs", "the plan does not have it"),
    ("--tensor-parallel-size 1", "--tensor-parallel-size=4", "is `4`, the plan has `1`"),
    ("vllm serve", "python serve.py", "no command of vllm"),
])  # fmt: skip
def test_what_is_wrong_is_said(before: str, after: str, expected: str, plan: ServingPlan) -> None:
    assert expected in "\n".join(problem.message for problem in edited(plan, before, after).problems)


@pytest.mark.parametrize(("before", "after"), [
    ("--tensor-parallel-size 1", "-tp 1"), ("--max-num-seqs", "--max_num_seqs"),
    ("--port $port", "--port 9000 --host 10.0.0.1"), ("meta-llama/Llama-3.1-8B", "/models/llama"),
    ("--max-num-seqs", "--pipeline-parallel-size 1 --max-num-seqs"),
])  # fmt: skip
def test_other_spellings_and_places_are_in_order(before: str, after: str, plan: ServingPlan) -> None:
    assert edited(plan, before, after).problems == []


def test_options_without_a_rule_are_not_judged(plan: ServingPlan) -> None:
    checked = edited(plan, "--max-num-seqs", "--seed 7 --max-num-seqs")
    assert checked.problems == []
    assert checked.not_judged == ["--seed"]


def test_the_yaml_of_tensorrt_llm_is_compared(plan: ServingPlan) -> None:
    of_engine = for_engine(plan, "tensorrt-llm")
    checked = edited(of_engine, "tensor_parallel_size: 1", "tensor_parallel_size: 2")
    (problem,) = checked.problems
    assert (problem.file, problem.field, problem.line > 0) == ("serve.yaml", "tensor_parallel_size", True)


@pytest.mark.parametrize(("launcher", "before", "after", "field"), [
    ("dynamo", "replicas: 1\n    type: worker", "replicas: 3\n    type: worker", "replicas"),
    ("llm-d", "replicas: 1", "replicas: 2", "replicas"),
    ("llm-d", "- '8192'", "- '4096'", "--max-num-batched-tokens"),
])  # fmt: skip
def test_manifests_are_compared(launcher: str, before: str, after: str, field: str, plan: ServingPlan) -> None:
    files = emitted(plan, launcher)
    name = next(name for name in files if name in ("dynamo.yaml", "modelserver.yaml"))
    text = files[name].replace(before, after)
    if text == files[name]:  # keys in another order
        text = files[name].replace("replicas: 1", "replicas: 3")
    problems = check_service(plan, {**files, name: text}).problems
    assert any(problem.field.endswith(field) for problem in problems)


def test_the_command_reads_folders_and_files(plan: ServingPlan, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(plan.to_json())
    assert run_here("emit", "p.json", "-d", "run", cwd=tmp_path).code == 0
    for words in (("run",), ("p.json",), ("p.json", "run/serve.sh"), ("p.json", "p.json")):
        checked = run_here("check", *words, cwd=tmp_path)
        assert (checked.code, "in order" in checked.out) == (0, True), checked.err
    script = tmp_path / "run" / "serve.sh"
    script.write_text(script.read_text().replace("--max-num-seqs ", "--max-num-seqs 1"))
    wrong = run_here("check", "run", cwd=tmp_path)
    assert wrong.code == 1
    assert "--max-num-seqs" in wrong.out
    assert "the plan has" in wrong.out


Change = Callable[[Path], object]


@pytest.mark.parametrize(("change", "words", "expected"), [
    (lambda folder: (folder / "other.sh").write_text("vllm serve x"), ("p.json", "other.sh"), "no file of this plan"),
    (lambda folder: (folder / "serve.sh").write_bytes(b"\xff"), ("p.json", "serve.sh"), "not UTF-8"),
    (lambda folder: None, ("p.json", "gone.sh"), "cannot be read"),
    (lambda folder: (folder / "run").mkdir(), ("run",), ""),
])  # fmt: skip
def test_what_the_command_refuses(
    change: Change, words: tuple[str, ...], expected: str, plan: ServingPlan, tmp_path: Path
) -> None:  # fmt: skip
    (tmp_path / "p.json").write_text(plan.to_json())
    change(tmp_path)
    refused = run_here("check", *words, cwd=tmp_path)
    assert refused.code == 2
    assert expected in refused.err
    assert "Traceback" not in refused.err
