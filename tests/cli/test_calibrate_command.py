"""`meshwright calibrate` and the stack files that it writes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from meshwright.planner.accuracy import calibrate as calibration_of
from meshwright.planner.accuracy.calibrate import calibrate
from meshwright.planner.accuracy.validate import predict
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.stack_file import load_stacks, read_stacks, stack_text

from meshwright.errors import InputError

from ..planner.accuracy.test_validate import one, row
from ..snapshots import ROOT, check, run_here

SLOWER = 1.15
PLAN = ("plan", "--model", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "8")
REFUSED = {"cluster": "cluster: {gpu: a100_sxm_80g, num_gpus: 16}", "precision": "precision: fp8"}
LAYOUTS = [row("a"), row("b", dp="dp: 8", tp="tp: 1", sp="sp: false"), row("c", pp="pp: 1", dp="dp: 8")]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Three runs of one model and cluster, all measured 15 % above what ships predicts."""
    return write_runs(tmp_path, LAYOUTS)


def write_runs(tmp_path: Path, texts: list[str], factor: float = SLOWER) -> Path:
    path = tmp_path / "runs.yaml"
    seconds = [f"step_s: {predict(one(tmp_path, text)).step_s * factor:.6f}" for text in texts]
    path.write_text("".join(text.replace("step_s: 2.0", s) for text, s in zip(texts, seconds, strict=True)))
    return path


def test_three_runs_move_what_they_can_tell_and_little_else(three: Path) -> None:
    """FIDELITY: one shrunken scalar. All three are compute-bound: the throughput takes most of it, launches next to
    nothing, and a pull towards the prior remains."""
    report = calibrate([three]).report
    by_name = {constant.name: constant for constant in report.values}
    moved = by_name["megatron-core throughput"]
    assert moved.identified
    assert 1 / SLOWER < moved.value / moved.prior < 0.95
    launches = by_name["megatron-core host_s_per_kernel"]
    assert not launches.identified
    assert launches.value == pytest.approx(launches.prior, rel=0.1)
    errors = report.errors["all"]
    assert errors.before.mean == pytest.approx(1 - 1 / SLOWER, abs=1e-3)
    assert errors.after.mean < 0.3 * errors.before.mean
    assert errors.across_groups.mean < 0.5 * errors.before.mean
    assert report.runs.groups == 1
    assert report.runs.left_out_by == "runs"
    # nothing is left of runs of this source in a fit without it
    assert errors.across_sources.mean == pytest.approx(errors.before.mean)
    assert moved.error_without > 2 * errors.after.mean


def test_runs_that_the_model_predicts_move_nothing(tmp_path: Path) -> None:
    for constant in calibrate([write_runs(tmp_path, LAYOUTS, 1.0)]).report.values:
        assert constant.value == pytest.approx(constant.prior, rel=1e-4)


def test_the_stack_file_is_used_by_validate_and_plan(three: Path, tmp_path: Path) -> None:
    made = run_here("calibrate", "runs.yaml", "-o", "stack.yaml", cwd=tmp_path)
    assert made.code == 0, made.err
    assert "Next: meshwright plan REQUEST --stack stack.yaml" in made.out
    data = yaml.safe_load((tmp_path / "stack.yaml").read_text())
    assert data["inherits"] == "megatron-core"
    assert "fitted to 3 runs" in data["throughput"]["source"]
    errors = {}
    for extra in ((), ("--stack", "stack.yaml")):
        document = json.loads(run_here("validate", "runs.yaml", "--json", *extra, cwd=tmp_path).out)
        errors[extra] = document["summary"]["step_time"]["all"]["mean"]
    assert errors[("--stack", "stack.yaml")] < 0.3 * errors[()]
    asked = (*PLAN, "--target", "megatron", "--json")
    shipped, own = (json.loads(run_here(*asked, *extra, cwd=tmp_path).out) for extra in ((), ("--stack", "stack.yaml")))
    assert own["candidates"][0]["step_s"] > 1.05 * shipped["candidates"][0]["step_s"]
    assert own["resolved"]["stack"]["throughput"] == pytest.approx(data["throughput"]["value"])
    assert "stack.yaml" in {each["name"] for each in own["profiles"]}


def test_runs_of_one_version_keep_what_it_does_otherwise_than_its_family(tmp_path: Path) -> None:
    """Our own runtime: its numbers are fitted, its logits and overlaps stay its own."""
    texts = [row(f"run-{i}", stack="stack: meshwright", global_batch=f"global_batch: {64 * (i + 1)}") for i in range(3)]
    (tmp_path / "stack.yaml").write_text(calibrate([write_runs(tmp_path, texts)]).stack)
    assert yaml.safe_load((tmp_path / "stack.yaml").read_text())["inherits"] == "meshwright"
    (found,), own = read_stacks(tmp_path / "stack.yaml").values(), load_stack("meshwright")
    assert found.throughput < 0.95 * own.throughput
    assert (found.logit_bytes, found.dp_overlap) == (own.logit_bytes, own.dp_overlap) != (
        load_stack("torch-fsdp").logit_bytes, load_stack("torch-fsdp").dp_overlap)  # fmt: skip


def test_the_document(three: Path, tmp_path: Path) -> None:
    document = json.loads(run_here("calibrate", "runs.yaml", "--json", cwd=tmp_path).out)
    assert document["kind"] == "calibration"
    assert document["families"] == ["megatron-core"]
    assert document["constants"]["total"] == len(document["values"]) == document["constants"]["family"]
    assert {"name", "prior", "value", "spread_over_prior", "identified", "error_without"} <= set(document["values"][0])


def test_runs_of_several_families_make_one_file(tmp_path: Path) -> None:
    texts = [row(f"{stack}-{i}", stack=f"stack: {stack}", global_batch=f"global_batch: {64 * (i + 1)}")
             for stack in ("megatron-core-2025", "torchtitan-2024") for i in range(2)]  # fmt: skip
    path = write_runs(tmp_path, texts)
    (tmp_path / "stack.yaml").write_text(calibrate([path]).stack)
    found = read_stacks(tmp_path / "stack.yaml")
    assert set(found) == {"megatron-core", "torchtitan"}
    result = run_here(*PLAN, "--target", "deepspeed", "--stack", "stack.yaml", cwd=tmp_path)
    assert result.code == 2
    assert "has no stack for target deepspeed" in result.err
    assert run_here("validate", "runs.yaml", "--no-rows", "--stack", "stack.yaml", cwd=tmp_path).code == 0


# --- stack files


def test_a_stack_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    facts = {"throughput": (0.91234, "mine"), "host_s_per_kernel": (1.25e-5, "mine")}
    path = tmp_path / "stack.yaml"
    path.write_text(stack_text({"jax": facts}, "two lines\nof heading"))
    stack = read_stacks(path)["jax"]
    assert stack.throughput == pytest.approx(0.91234)
    assert stack.host_s_per_kernel == pytest.approx(1.25e-5)
    assert stack.tp_overlap == load_stack("jax").tp_overlap
    assert stack.sources["throughput"] == "mine"
    assert load_stacks("jax") == {"jax": load_stack("jax")}
    path.write_text(stack_text({"jax": facts, "torchtitan": facts}, ""))
    assert set(read_stacks(path)) == {"jax", "torchtitan"}


def test_what_is_wrong_in_a_stack_file_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "stack.yaml").write_text(
        "inherits: megatron-core\nthroughput: {value: fast}\nthruput: 0.9\nhost_s_per_kernel: 12\ntp_overlap: 1.5\n"
        "attention: flash9\nfused_activation: 3\ncontention: -1\ndp_overlap: .nan\nmoe_imbalance: 0\n"
    )
    check("calibrate-bad-stack", run_here("validate", "--stack", "stack.yaml", cwd=tmp_path))
    (tmp_path / "stack.yaml").write_text("inherits: megatron\n")
    check("calibrate-unknown-family", run_here("validate", "--stack", "stack.yaml", cwd=tmp_path))
    (tmp_path / "stack.yaml").write_text("throughput: 0.9\n")
    assert run_here("validate", "--stack", "stack.yaml", cwd=tmp_path).code == 2
    assert run_here("validate", "--stack", "none.yaml", cwd=tmp_path).code == 2


# --- what is wrong


BAD = {
    "empty": "",
    "nan": row("a", measured="measured: {step_s: .nan}") + row("b") + row("c"),
    "duplicates": row("a") + row("a") + row("b"),
    "refused": "".join(row(name, **REFUSED) for name in "abc"),
    "few": row("a") + row("b") + row("c", measured="measured: {peak_memory_gib: 3}"),
    "no-times": "".join(row(n, measured="measured: {}") for n in "abc"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_runs(tmp_path: Path, name: str) -> None:
    (tmp_path / "runs.yaml").write_text(BAD[name])
    result = run_here("calibrate", "runs.yaml", "-o", "stack.yaml", cwd=tmp_path)
    check(f"calibrate-bad-{name}", result)
    assert result.code == 2
    assert not (tmp_path / "stack.yaml").exists()


def test_no_file_is_written_where_it_may_not_be(three: Path, tmp_path: Path) -> None:
    (tmp_path / "stack.yaml").write_text("mine")
    result = run_here("calibrate", "runs.yaml", "-o", "stack.yaml", cwd=tmp_path)
    assert (result.code, (tmp_path / "stack.yaml").read_text()) == (2, "mine")
    assert "--force" in result.err
    assert run_here("calibrate", "runs.yaml", "-o", "stack.yaml", "--force", cwd=tmp_path).code == 0
    assert run_here("calibrate", "runs.yaml", "-o", "none/stack.yaml", cwd=tmp_path).code == 2
    assert run_here("calibrate", cwd=tmp_path).code == 2
    assert run_here("calibrate", "none.yaml", cwd=tmp_path).code == 2
    if os.getuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        assert run_here("calibrate", "runs.yaml", "-o", "locked/stack.yaml", cwd=tmp_path).code == 2


def test_keep_going_uses_the_runs_that_are_right(three: Path, tmp_path: Path) -> None:
    three.write_text(three.read_text() + row("wrong", dp="dp: 5"))
    assert run_here("calibrate", "runs.yaml", cwd=tmp_path).code == 2
    result = run_here("calibrate", "runs.yaml", "--keep-going", cwd=tmp_path)
    assert result.code == 0
    assert "3 runs" in result.out
    assert "layout" in result.err


def test_ctrl_c_is_exit_130(three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration_of, "study", interrupted)
    result = run_here("calibrate", "runs.yaml", "-o", "stack.yaml", cwd=tmp_path)
    assert result.code == 130
    assert not (tmp_path / "stack.yaml").exists()


def test_refused_runs_count_in_every_error(three: Path) -> None:
    three.write_text(three.read_text() + row("cannot", **REFUSED))
    report = calibrate([three]).report
    assert list(report.runs.refused) == ["cannot"]
    assert report.errors["all"].after.count == 4
    assert report.errors["all"].after.max == 1.0


def test_input_errors_are_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape("needs 3")):
        calibrate([write_runs(tmp_path, [row("a")])])


def test_the_runs_of_the_guide_can_be_copied(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "calibrate.md").read_text(encoding="utf-8")
    (tmp_path / "runs.yaml").write_text(guide.partition("```yaml\n")[2].partition("```")[0])
    report = calibrate([tmp_path / "runs.yaml"]).report
    assert report.runs.used == 3
    assert report.values[0].identified
