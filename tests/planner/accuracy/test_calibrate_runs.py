"""`meshwright calibrate --from-run`: what one run tells, and reports that tell nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import yaml
from meshwright.planner import api
from meshwright.planner.accuracy.fit import SCATTER
from meshwright.planner.accuracy.from_run import calibrate_runs, identified
from meshwright.planner.document.plan import Plan
from meshwright.planner.request.load import request_from_dict
from meshwright.runtime.job import job_of
from meshwright.runtime.report import Recorder

from meshwright.errors import InputError

from ...snapshots import check, run_here

SLOWER = 1.15
Change = Callable[[dict[str, Any]], Any]


def planned(gpu: str = "h200-sxm-141gb", stages: Literal["even", "own"] = "even", **changes: Any) -> Plan:
    asked = {"model": "llama-3.2-1b", "cluster": f"1x{gpu}", "target": "meshwright", "top": 3,
             "workload": {"seq_len": 4096, "global_batch": 8}}  # fmt: skip
    return api.plan(request_from_dict({**asked, **changes, "stages": stages}))


def reported(plan: Plan, device: str = "NVIDIA H200", factor: float = SLOWER, choice: int = 1) -> dict[str, Any]:
    """The report of a launch of `plan`, as its recorder writes it: 8 steps, of which the first two are slow."""
    recorder, step_s = Recorder(job_of(plan, choice), []), plan.candidates[choice - 1].step_s * factor
    recorder.add({"event": "start", "device": device})
    for step in range(1, 9):
        recorder.add({"event": "step", "step": step, "loss": 3.0, "step_s": step_s * (2 if step < 3 else 1)})
    recorder.add({"event": "end", "peak_memory_bytes": [10**9]})
    return recorder.document(memory=[{"stage": 0, "measured_bytes": 10**9, "predicted_bytes": 1.02e9}])


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


@pytest.fixture
def folder(plan: Plan, tmp_path: Path) -> Path:
    """plan.json, and run.json: 15 % above what is predicted."""
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "run.json").write_text(json.dumps(reported(plan)))
    return tmp_path


ASK = ("calibrate", "--from-run", "run.json", "--plan", "plan.json")


def test_plan_predicts_the_run_closer_afterwards(folder: Path, plan: Plan) -> None:
    made = run_here(*ASK, "-o", "stack.yaml", cwd=folder)
    check("calibrate-from-run", made)
    assert made.code == 0
    stack = yaml.safe_load((folder / "stack.yaml").read_text())
    assert set(stack) == {"inherits", "throughput"}
    assert stack["inherits"] == "meshwright"
    assert "fitted to 1 run;" in stack["throughput"]["source"]
    again = planned(stack=str(folder / "stack.yaml"))
    same = next(each for each in again.candidates if each.layout_id == plan.best.layout_id)
    measured = plan.best.step_s * SLOWER
    assert abs(same.step_s / measured - 1) < 0.25 * abs(plan.best.step_s / measured - 1)
    document = json.loads(run_here(*ASK, "--json", cwd=folder).out)
    (row,) = document["runs"]["reports"]
    assert row["after_s"] == pytest.approx(same.step_s, rel=1e-4)  # the very number that `plan` says
    assert row["before_s"] == pytest.approx(plan.best.step_s, rel=1e-6)
    assert (row["num_steps"], row["measured_step_s"]) == (6, pytest.approx(measured))
    assert document["errors"]["all"]["after"]["mean"] < document["errors"]["all"]["before"]["mean"]


def test_a_plan_made_with_a_fitted_stack_calibrates_as_well(folder: Path) -> None:
    """A second round: what is fitted starts at what ships, whatever the plan was priced with."""
    calibrated = calibrate_runs([folder / "run.json"], [folder / "plan.json"])
    (folder / "stack.yaml").write_text(calibrated.stack)
    second = planned(stack=str(folder / "stack.yaml"))
    measured = reported(second, factor=planned().best.step_s * SLOWER / second.best.step_s)
    (folder / "second.json").write_text(second.to_json())
    (folder / "run.json").write_text(json.dumps(measured))
    assert calibrate_runs([folder / "run.json"], [folder / "second.json"]).stack == calibrated.stack
    (folder / "stack.yaml").write_text(calibrated.stack + "dp_overlap: 0.5\n")
    (folder / "second.json").write_text(planned(stack=str(folder / "stack.yaml")).to_json())
    (folder / "run.json").write_text(json.dumps(reported(planned(stack=str(folder / "stack.yaml")))))
    with pytest.raises(InputError, match=re.escape("dp_overlap 0.5 (ships: 0.18)")):
        calibrate_runs([folder / "run.json"], [folder / "second.json"])


def test_a_pipeline_is_fitted_as_the_plan_simulates_it(tmp_path: Path) -> None:
    plan = planned(cluster="8xh200-sxm-141gb", fix={"pp": 4, "dp": 2, "schedule": "1f1b"}, stages="own")
    assert plan.best.closed_form_s is not None
    assert plan.best.partition is not None
    assert plan.best.closed_form_s > 1.05 * plan.best.step_s
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "run.json").write_text(json.dumps(reported(plan, factor=1.0)))
    (constant, *_) = calibrate_runs([tmp_path / "run.json"], [tmp_path / "plan.json"]).report.values
    assert constant.value == pytest.approx(constant.prior, rel=1e-6)


def test_tiny_layers_tell_launches_and_not_the_throughput(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(json.dumps({"source": "a test", "model": {
        "hidden": 256, "layers": 24, "heads": 4, "kv_heads": 4, "ffn_hidden": 512, "vocab": 512, "max_positions": 256}
    }))  # fmt: skip
    work = {"seq_len": 256, "global_batch": 8}
    plan = planned(model=str(tmp_path / "tiny.yaml"), workload=work, fix={"micro_batch": 1})
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "run.json").write_text(json.dumps(reported(plan)))
    constants = calibrate_runs([tmp_path / "run.json"], [tmp_path / "plan.json"]).report.values
    assert [constant.name for constant in constants if constant.identified] == ["meshwright host_s_per_kernel"]


def test_numbers_that_move_runs_alike_count_once() -> None:
    big, small = 10 * SCATTER, 0.1 * SCATTER
    assert identified(np.array([[big, 0.9 * big, small]])) == [0]
    assert identified(np.array([[big, 0.9 * big, small]] * 3)) == [0]
    assert identified(np.array([[big, 0.9 * big, 0.0], [big, 0.0, small]])) == [0, 1]
    assert identified(np.array([[small, small, small]])) == []


def test_a_run_that_waits_for_links_tells_nothing(tmp_path: Path) -> None:
    slow = {"groups": [{"gpu": "h200-sxm-141gb", "gpus_per_node": 1, "count": 2, "nics": 1,
                        "nic_bandwidth": "1 Gb/s", "network": "roce"}]}  # fmt: skip
    (tmp_path / "slow.yaml").write_text(json.dumps(slow))
    plan = planned(cluster=str(tmp_path / "slow.yaml"), fix={"dp": 2}, workload={"seq_len": 256, "global_batch": 2})
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "run.json").write_text(json.dumps(reported(plan)))
    result = run_here(*ASK, "-o", "stack.yaml", cwd=tmp_path)
    check("calibrate-from-run-nothing", result)
    assert result.code == 2
    assert not (tmp_path / "stack.yaml").exists()


# --- what is wrong


BAD: dict[str, Change] = {
    "another-plan": lambda run: run.update(plan="0123456789ab"),
    "another-layout": lambda run: run.update(layout_id="dp1-mbs1-z0-rfull"),
    "no-steps": lambda run: run.update(steps=[]),
    "few-steps": lambda run: run.update(steps=run["steps"][:4]),
    "nan": lambda run: run["steps"][3].update(step_s=None),
    "rehearsal": lambda run: run.update(scaled_down=["GPUs 16 -> 8"]),
    "cpu": lambda run: run["environment"].update(device="cpu"),
    "own-order": lambda run: run.update(predicted_step_s=None),
    "newer": lambda run: run.update(format_version="2.0"),
    "no-report": lambda run: run.update(kind="plan"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_reports(folder: Path, plan: Plan, name: str) -> None:
    document = reported(plan)
    BAD[name](document)
    (folder / "run.json").write_text(json.dumps(document, indent=1))
    result = run_here(*ASK, "-o", "stack.yaml", cwd=folder)
    check(f"calibrate-from-run-{name}", result)
    assert result.code == 2
    assert not (folder / "stack.yaml").exists()


def test_a_cut_off_report_and_the_way_it_is_asked(folder: Path, plan: Plan) -> None:
    text = json.dumps(reported(plan), indent=1)
    (folder / "run.json").write_text(text[: len(text) // 2])
    result = run_here(*ASK, cwd=folder)
    assert result.code == 2
    assert "run.json, line" in result.err
    for words in (("calibrate",), ASK[:3], ("calibrate", "rows.yaml", *ASK[1:]), (*ASK, "--keep-going"),
                  ("calibrate", "rows.yaml", "--plan", "plan.json")):  # fmt: skip
        assert run_here(*words, cwd=folder).code == 2
    assert run_here("calibrate", "--from-run", "none.json", "--plan", "plan.json", cwd=folder).code == 2
    assert run_here("calibrate", "--from-run", "run.json", "--plan", "none.json", cwd=folder).code == 2


def test_reports_of_two_gpus_are_refused(folder: Path) -> None:
    other = planned("h100-sxm-80gb")
    (folder / "other.json").write_text(other.to_json())
    (folder / "run2.json").write_text(json.dumps(reported(other, "NVIDIA H100 80GB HBM3")))
    words = (*ASK, "--from-run", "run2.json", "--plan", "other.json")
    result = run_here(*words, cwd=folder)
    assert result.code == 2
    assert "run.json on h200-sxm-141gb and run2.json on h100-sxm-80gb" in result.err


def test_a_plan_for_another_framework_is_refused(tmp_path: Path) -> None:
    plan = planned(target="any")
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "run.json").write_text(json.dumps(reported(plan)))
    with pytest.raises(InputError, match=r"planned for the software generic, and ran on meshwright"):
        calibrate_runs([tmp_path / "run.json"], [tmp_path / "plan.json"])


def test_steps_after_a_restart_warm_up_again(folder: Path, plan: Plan) -> None:
    document = reported(plan)
    document["resumed"] = [{"step": 5}]
    (folder / "run.json").write_text(json.dumps(document))
    report = calibrate_runs([folder / "run.json"], [folder / "plan.json"]).report
    assert report.runs.reports[0].num_steps == 4
