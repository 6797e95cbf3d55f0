"""Rows of forms that no cost model prices: counted by file, and checked like runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.planner.accuracy.calibrate import calibrate
from meshwright.planner.accuracy.runs import Problems, read_cases
from meshwright.planner.accuracy.validate import validate

from meshwright.errors import InputError

from ...snapshots import run_here

LEARNING = """\
- {id: grpo, source: a, workflow: grpo, model: m, gpu: 'h100 (paper)', num_gpus: 256,
   generation: {tp: 32, pp: 1}, training: {tp: 1, ep: 16, vpp: null}, measured: {step_s: 134.0, ref_s: null}}
"""
SERVING = """\
- {id: serve, source: a, kind: closed-loop, engine: vllm, model: m, gpu: GB200-192GB, num_gpus: 4,
   parallel: {tp: 4, decode: {workers: 2, tp: 1}}, isl: 1024, osl: 128.5, load: {mode: closed, concurrency: 16},
   measured: {ttft_ms_p99: 27873.2, tpot_ms_p99: 222.1, output_tok_s: 30354}}
"""
TUNED = """\
- {id: tuned, model: m, task: pretrain, gpu: b200, num_gpus: 8, precision: bf16, tp: 1, pp: 1, dp: 8, global_batch: 8}
"""


def complaints(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "rows.yaml"
    path.write_text(text, encoding="utf-8")
    problems = Problems([])
    assert not list(read_cases([path], problems))
    return [str(problem).partition("rows.yaml, ")[2] for problem in problems.first]


def test_rows_are_counted_by_file_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(LEARNING + LEARNING.replace("grpo,", "other,", 1), encoding="utf-8")
    (tmp_path / "rest.yaml").write_text(SERVING + TUNED, encoding="utf-8")
    result = run_here("validate", "two.yaml", "rest.yaml", "--json", cwd=tmp_path)
    assert result.code == 0
    found = {rows["kind"]: (rows["file"], rows["rows"]) for rows in json.loads(result.out)["not_priced"]}
    assert found == {
        "steps of reinforcement learning": ("two.yaml", 2),
        "requests to inference engines": ("rest.yaml", 1), "tuned plans": ("rest.yaml", 1),
    }  # fmt: skip
    screen = run_here("validate", "two.yaml", "rest.yaml", cwd=tmp_path).out
    assert "not priced: among other rows" in screen
    assert "runs," not in screen


@pytest.mark.parametrize(
    ("text", "old", "new", "complaint"),
    [
        (LEARNING, "tp: 32", "tp: 0", "generation.tp: must be 1 or more, is 0"),
        (LEARNING, "step_s: 134.0, ", "", "measured: has no number"),
        (SERVING, "ttft_ms_p99: 27873.2", "ttft_ms_p99: 500.0, ttft_s_p99: 0.5",
         "measured.ttft_s_p99: 0.5 is 500 as `ttft_ms_p99`, and `ttft_ms_p99` is 500: one quantity, one unit"),
        (SERVING, "workers: 2", "workers: 1.5", "parallel.decode.workers: must be a whole number, is 1.5"),
        (SERVING, "isl: 1024", "isl: .nan", "isl: must be a number, is nan"),
        (TUNED, "num_gpus: 8", "num_gpus: eight", "num_gpus: must be a whole number, is 'eight'"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named_by_line_and_field(tmp_path: Path, text: str, old: str, new: str, complaint: str) -> None:
    assert old in text
    found = complaints(tmp_path, "# rows\n" + text.replace(old, new, 1))
    assert [text.startswith("line ") for text in found] == [True]
    assert complaint in found[0]


def test_all_problems_come_at_once_and_the_rest_is_counted_by_keep_going(tmp_path: Path) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text(TUNED + LEARNING.replace("134.0", "-1") + SERVING.replace("id: serve", "id: tuned"))
    with pytest.raises(InputError) as error:
        validate([path])
    assert [problem.field for problem in error.value.problems] == ["measured.step_s", "id"]
    kept = validate([path], keep_going=True)
    assert [rows.kind for rows in kept.not_priced] == ["tuned plans"]
    assert len(kept.problems) == 2


def test_a_calibration_names_why_it_has_no_run(tmp_path: Path) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text(SERVING)
    with pytest.raises(InputError, match="requests to inference engines: among other rows"):
        calibrate([path])
