"""The fit of the constants of post-training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.planner.accuracy.runs import Problems, read_rows
from meshwright.planner.workflows.fit import fit, held_out, ratios_of, report, text_of
from meshwright.planner.workflows.row import RlCase, read_rl_row
from meshwright.planner.workflows.runs import RlRun
from meshwright.profiles.io.folders import MEASURED
from meshwright.profiles.stack.post_training import PostTrainingConstants, post_training_constants

ROW = (
    "- {{id: r{number}, source: test, workflow: grpo, model: {model}, gpu: h100, num_gpus: {gpus}, precision: BF16, "
    "policy_lag: On policy, train_max_seq: 4096, generated_avg_len: {mean}, rollouts_per_step: 512, "
    "train_global_batch: 512, generation: {{tp: 2, pp: 1}}, training: {{tp: {tp}, cp: 1, pp: 1}}, "
    "measured: {{step_s: 1.0}}}}\n"
)
MADE_BY = PostTrainingConstants(training=1.5, copies=3.0, iteration_s=5e-3, step_s=20.0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RlRun]:
    """Steps that take as long as MADE_BY has it."""
    file = tmp_path_factory.mktemp("fit") / "rows.yaml"
    shapes = [("llama-3.1-8b", 8, 4, 900), ("llama-3.1-8b", 16, 2, 3000), ("qwen2.5-7b", 8, 4, 2000),
              ("qwen2.5-7b", 16, 4, 500)]  # fmt: skip
    file.write_text("".join(ROW.format(number=n, model=model, gpus=gpus, tp=tp, mean=mean)
                            for n, (model, gpus, tp, mean) in enumerate(shapes)))  # fmt: skip
    cases = [row for row in read_rows([file], read_rl_row, Problems([])) if isinstance(row, RlCase)]
    found = [run for run in map(RlRun.of, cases) if run is not None]
    assert len(found) == len(shapes)
    return [replace(run, case=replace(run.case, step_s=run.step_s(MADE_BY))) for run in found]


def test_the_fit_finds_steps_that_constants_made(runs: list[RlRun]) -> None:
    other = PostTrainingConstants(training=1.0, copies=3.0, iteration_s=5e-3, step_s=10.0)
    before = abs(np.log(ratios_of(runs, other)))
    after = abs(np.log(ratios_of(runs, fit(runs))))
    assert before.max() > 0.15
    assert after.max() < 0.03


@pytest.mark.parametrize("name", ["training", "copies", "iteration_s", "step_s"])
def test_a_step_is_priced_by_the_constants_that_are_given(runs: list[RlRun], name: str) -> None:
    more = replace(MADE_BY, **{name: getattr(MADE_BY, name) + 5.0})
    if name == "step_s":
        assert runs[0].step_s(more) == pytest.approx(runs[0].step_s(MADE_BY) + 5.0)
    else:
        assert runs[0].step_s(more) > runs[0].step_s(MADE_BY)


def test_folds_leave_out_a_family(runs: list[RlRun]) -> None:
    others = [run for run in runs if run.case.family == "qwen2.5-7b"]
    expected = ratios_of(runs[:2], fit(others))
    np.testing.assert_allclose(held_out(runs)[:2], expected)
    assert "llama-3.1-8b" in report(runs, held_out(runs))


def test_the_text_is_that_which_ships(runs: list[RlRun]) -> None:
    shipped = (MEASURED / "post_training.yaml").read_text(encoding="utf-8")
    text = text_of(post_training_constants(), runs, "test")
    assert text[text.index("constants:") :] == shipped[shipped.index("constants:") :]
