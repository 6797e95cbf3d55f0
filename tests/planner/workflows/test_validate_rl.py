"""Measured steps of post-training beside their predictions."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.accuracy.runs import Problems, read_rows
from meshwright.planner.workflows.graph import graph_of
from meshwright.planner.workflows.row import RlCase, read_rl_row
from meshwright.planner.workflows.validate import RlValidation, are_rl, validate_rl

from meshwright.errors import InputError

STEP = (
    "{{id: {id}, source: test, workflow: grpo, model: DeepSeek V3, gpu: h100, num_gpus: {gpus}, precision: BF16, "
    "policy_lag: {lag}, train_max_seq: 1536, generated_avg_len: 701, rollouts_per_step: 512, "
    "train_global_batch: 512, generation: {{tp: 32, pp: 1}}, "
    "training: {{tp: 1, cp: 1, ep: 16, pp: 16, vpp: null}}, measured: {{step_s: {step_s}}}}}"
)


@pytest.fixture(scope="module")
def validation(tmp_path_factory: pytest.TempPathFactory) -> RlValidation:
    file = tmp_path_factory.mktemp("rl") / "rows.yaml"
    other = STEP.format(id="short", gpus=256, lag="On policy", step_s=9.0).replace("generated_avg_len: 701, ", "")
    rows = [STEP.format(id="apart", gpus=512, lag="1-step Off", step_s=64.1),
            STEP.format(id="together", gpus=256, lag="On policy", step_s=134.0), other]  # fmt: skip
    file.write_text("".join(f"- {row}\n" for row in rows))
    assert are_rl([file])
    return validate_rl([file])


def test_deepseek_v3_on_256_gpus_is_in_the_space_and_fits(validation: RlValidation) -> None:
    together = validation.rows[1]
    assert (together.lag, together.gpus, together.trainer_gpus) == (0, 256, 256)
    assert together.step_s == pytest.approx(134.0, rel=0.2)


def test_steps_of_nemo_rl_are_priced_as_its_recipes_run(tmp_path: Path) -> None:
    """Both frozen copy and policy score all answers, packs of 1,536 tokens train one by one, an engine has 60 % of the
    memory beside the trainer and 80 % apart from it."""
    ran = (("On policy", 256), ("1-step Off", 512))
    rows = [STEP.format(id=lag, gpus=gpus, lag=lag, step_s=9.0) for lag, gpus in ran]
    (file := tmp_path / "rows.yaml").write_text("".join(f"- {row}\n" for row in rows))
    cases = [row for row in read_rows([file], read_rl_row, Problems([])) if isinstance(row, RlCase)]
    assert [(case.memory_share, case.row_tokens, case.ray_engine) for case in cases] == [
        (0.6, 1536, True), (0.8, 1536, True)]  # fmt: skip
    for case in cases:
        names = [call.name for call in graph_of(case.request.workload)]
        assert names == ["generate", "reference", "logprobs", "train"]
        assert case.fixed["train"]["micro_batch"] == 1
        assert case.switches["grad_reduce_dtype"] == "bf16"


def test_a_split_that_is_not_published_is_half(validation: RlValidation) -> None:
    apart = validation.rows[0]
    assert (apart.trainer_gpus, apart.split_assumed) == (256, True)
    assert apart.step_s == pytest.approx(64.1, rel=0.2)


def test_pairs_that_differ_in_lag(validation: RlValidation) -> None:
    (pair,) = validation.pairs
    assert pair.measured_ratio == pytest.approx(134.0 / 64.1)
    assert pair.ratio == pytest.approx(validation.rows[1].step_s / validation.rows[0].step_s)


def test_rows_without_lengths_have_a_reason(validation: RlValidation) -> None:
    assert [(row.id, row.reason) for row in validation.left_out] == [
        ("short", "the mean length of its answers is not published")
    ]


def test_rows_without_the_longest_length_have_a_reason(tmp_path: Path) -> None:
    rows = [STEP.format(id="whole", gpus=256, lag="On policy", step_s=134.0),
            STEP.format(id="open", gpus=256, lag="On policy", step_s=9.0).replace("train_max_seq: 1536, ", "")]
    (file := tmp_path / "rows.yaml").write_text("".join(f"- {row}\n" for row in rows))
    assert [(row.id, row.reason) for row in validate_rl([file]).left_out] == [
        ("open", "the length at which its engine ends answers is not published")
    ]


def test_wrong_rows_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.yaml"
    file.write_text(f"- {STEP.format(id='wrong', gpus='no', lag='On policy', step_s=1.0)}\n")
    with pytest.raises(InputError, match="num_gpus"):
        validate_rl([file])


def test_gains_over_one_symmetric_layout(tmp_path: Path) -> None:
    row = ("- {{id: {system}-{name}, source: test, workflow: ppo, system: {system}, group: real-scale-critic-8, "
           "num_gpus: 8, gpu: h100, model: 7B, measured: {{throughput_pflop_per_s: {value}}}}}\n")  # fmt: skip
    file = tmp_path / "rows.yaml"
    file.write_text(row.format(system="ReaL-Heuristic", name="a", value=0.4)
                    + row.format(system="ReaL", name="b", value=0.6)
                    + row.format(system="OpenRLHF", name="c", value=0.2))  # fmt: skip
    validation = validate_rl([file])
    (gain,) = validation.gains
    assert (gain.first, gain.second) == ("ReaL-Heuristic-a", "ReaL-b")
    assert gain.measured_gain == pytest.approx(1.5)
    assert gain.gain > 1.1  # calls beside one another, and no sums to launch in every layer
    assert validation.gain_median == pytest.approx(abs(gain.gain / 1.5 - 1))
    (left,) = validation.left_out
    assert left.id == "OpenRLHF-c"
