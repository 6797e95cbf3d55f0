"""`import` shows the problems of different kinds of a file at once, and reads the DeepSpeed JSON beside a script."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cli.main import main
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

SCRIPT = """torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
  --global-batch-size 128 --bf16 {}
"""
# Options -> the option of each problem, and a part of its text.
WRONG = {
    "--micro-batch-size x --tensor-model-parallel-size 0":
        {"--micro-batch-size": "`x` is not a whole number", "--tensor-model-parallel-size": "`0` is not 1 or more"},
    "--micro-batch-size 0 --tensor-model-parallel-size 3":
        {"--micro-batch-size": "`0` is not 1 or more", "--tensor-model-parallel-size": "does not divide the 16 GPUs"},
    "--fp16 --micro-batch-size 1 --context-parallel-size 3":
        {"--fp16": "cannot be given together with --bf16", "--context-parallel-size": "does not divide the 16 GPUs"},
    "--fp16 --foo-parallel 3 --micro-batch-size 1 --pipeline-model-parallel-size 0":
        {"--fp16": "cannot be given together", "--pipeline-model-parallel-size": "`0` is not 1 or more"},
    "--micro-batch-size 1 --tensor-model-parallel-size 3 --group-query-attention --num-query-groups 5":
        {"--num-query-groups": "32 heads are not divisible by 5", "--tensor-model-parallel-size": "the 16 GPUs"},
    "--micro-batch-size 1 --group-query-attention --num-query-groups 5":
        {"--num-query-groups": "32 heads are not divisible by 5"},
    # Layers that cannot be read say nothing about stages.
    "--micro-batch-size 1 --num-layers x --pipeline-model-parallel-size 2":
        {"--num-layers": "`x` is not a whole number"},
}  # fmt: skip


@pytest.mark.parametrize("where", [{"gpu": "h100-sxm-80gb"}, {"cluster": "dgx-h100:2"}], ids=["ranks", "cluster"])
@pytest.mark.parametrize(("extra", "expected"), WRONG.items())
def test_problems_of_different_kinds(
    tmp_path: Path, extra: str, expected: dict[str, str], where: dict[str, object]
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT.format(extra), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        import_config("megatron-args", [path], where)
    problems = caught.value.problems
    assert [problem.field for problem in problems] == [*expected]
    for problem in problems:
        assert expected[problem.field] in problem.message
        assert (problem.file, problem.line) == (str(path), 3)


DEEPSPEED = SCRIPT.format("--micro-batch-size 1 --deepspeed --zero-stage 1 --deepspeed_config conf/ds.json")


def beside(folder: Path, config: str) -> Imported:
    for name, text in (("run.sh", DEEPSPEED), ("ds.json", config)):
        (folder / name).write_text(text, encoding="utf-8")
    return import_config("megatron-args", [folder / "run.sh", folder / "ds.json"], {"gpu": "h100-sxm-80gb"})


@pytest.mark.parametrize(("config", "layout"), [
    ('{"zero_optimization": {"stage": 2, "cpu_offload": true}}', "dp16-mbs1-z2-rnone-oopt"),
    ('{"zero_optimization": {"stage": 3}}', "dp16-mbs1-z3-rnone"),
    ('{"train_batch_size": 128}', "dp16-mbs1-z1-rnone"),  # the states of bf16 in a pipeline
])  # fmt: skip
def test_the_json_of_deepspeed_is_read(tmp_path: Path, config: str, layout: str) -> None:
    found = beside(tmp_path, config)
    assert (str(found.layout), found.gaps) == (layout, ())


@pytest.mark.parametrize(("block", "field", "text"), [
    ('"compression_training": {"layer_reduction": {"enabled": true}}', "compression_training",
     "layer_reduction compresses layers while they learn"),
    ('"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}', "--deepspeed_config",
     "zero-infinity, which is no technique of Megatron"),
])  # fmt: skip
def test_what_the_json_adds_is_a_gap(
    tmp_path: Path, block: str, field: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (gap,) = beside(tmp_path, f"{{{block}}}").gaps
    assert (gap.field, gap.message) == (field, text)
    files = [str(tmp_path / name) for name in ("run.sh", "ds.json")]
    assert main(["import", "megatron-args", *files, "--gpu", "h100-sxm-80gb"]) == 0
    assert f"{Path(gap.file).name}, line {gap.line}: {field}: {text}" in " ".join(capsys.readouterr().out.split())


def test_problems_of_the_json_are_those_of_its_option(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        beside(tmp_path, '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, '
                         '"gradient_accumulation_steps": 3, "fp16": {"enabled": "x"}}')  # fmt: skip
    assert {problem.field for problem in caught.value.problems} == {"--deepspeed_config"}
    assert "fp16.enabled: `x`" in caught.value.message
    assert "train_batch_size: 7 is no multiple" in caught.value.message


def test_a_missing_json_leaves_the_layout_open(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(DEEPSPEED.replace("--zero-stage 1 ", ""), encoding="utf-8")
    found = import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"})
    assert [gap.field for gap in found.gaps] == ["--deepspeed_config"]
    assert found.read_layout is None
    assert not {"zero", "shard"} & set(found.stated)


@pytest.mark.parametrize(("kind", "own"), [("axolotl", False), ("torchtitan", False), ("megatron-bridge", True)])
def test_the_syntax_of_another_file(tmp_path: Path, kind: str, own: bool) -> None:
    text = "def mine():\n    return ConfigContainer(\n" if own else f"#!/bin/bash\na: b: c\n{SCRIPT.format('--fp16')}"
    path = tmp_path / ("recipe.py" if own else "run.sh")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2.*: not valid") as caught:
        import_config(kind, [path], {"gpu": "h100-sxm-80gb"})
    assert caught.value.hint.endswith("`import megatron-args`") is not own


def test_a_loop_over_jobs(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    job = SCRIPT.format("--micro-batch-size $i")
    path.write_text(f"for i in {{1..3}}; do\n{job}done\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2: starts 3 jobs .* 2 \(line 2, --micro-batch-size 2\)"):
        import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"})
    path.write_text(f"for i in {{1..3}}; do\n{job.replace('$i', '1 --seed $i')}done\n", encoding="utf-8")
    assert str(import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"}).layout) == "dp16-mbs1-z0-rnone"
