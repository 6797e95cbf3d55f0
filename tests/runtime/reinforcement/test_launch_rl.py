"""`launch` with a plan of post-training, on ranks of torchrun."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from meshwright.cost_models.layouts import Layout
from meshwright.planner.api import plan_rl
from meshwright.planner.document.reading import load_rl_plan
from meshwright.runtime.preparation import prepare
from meshwright.runtime.reinforcement.job import RlJob, rl_job
from meshwright.runtime.reinforcement.rehearsal import rehearsed
from meshwright.runtime.settings import Settings

from meshwright.errors import InputError

from ...snapshots import run_here
from ..launched import finish, start
from .test_preferences import GOOD, random_pairs, written
from .test_transfer import priced_bytes


def planned(folder: Path, **fields: object) -> Path:
    usual = {"model": "llama-3.2-1b", "cluster": "8xh100-sxm-80gb", "output": 300, "prompts": 32, "samples": 8}
    path = folder / "rl.json"
    path.write_text(_planned(json.dumps({**usual, **fields})), encoding="utf-8")
    return path


@cache
def _planned(asked: str) -> str:
    """The plan of a request, as JSON each: many tests read the same."""
    return plan_rl(**json.loads(asked)).to_json()


def prepared(path: Path, choice: int = 1) -> tuple[RlJob, list[str]]:
    job, notes = prepare(Settings(plan=str(path), choice=choice, scale_down=True))
    assert isinstance(job, RlJob)
    return job, notes


@pytest.mark.parametrize("fields", [
    {}, {"lag": 3, "kl": True, "updates": 4}, {"model": "qwen3-30b-a3b", "cluster": "dgx-h100:2", "lag": 1},
    {"model": "deepseek-v2-lite", "algorithm": "dapo"}, {"reward": "qwen3-0.6b"},
    {"algorithm": "ppo", "lag": 1, "critic": "llama-3.1-8b"}, {"algorithm": "dpo", "samples": None},
])  # fmt: skip
def test_every_placement_fits_four_ranks(fields: dict[str, object], tmp_path: Path) -> None:
    path = planned(tmp_path, **fields)
    for choice in range(1, len(json.loads(path.read_text())["candidates"]) + 1):
        job, notes = prepared(path, choice)
        assert job.world_size <= 4
        assert job.global_batch % (job.layout.dp * job.layout.micro_batch) == 0
        assert all(job.answers % place.layout.dp == 0 for place in job.places)
        assert (job.engine is None) == (job.algorithm == "dpo")
        if job.engine is not None:
            meshes = load_rl_plan(path).candidate(choice).calls
            there = {it.name: set(range(it.first_gpu, it.first_gpu + it.gpus)) for it in meshes}
            assert set(job.engine.ranks).isdisjoint(job.train.ranks) == there["generate"].isdisjoint(there["train"])
        assert {rank for place in job.places for rank in place.ranks} == set(range(job.world_size))
        before = rl_job(load_rl_plan(path), choice, path)
        for one, other in combinations(range(len(before.places)), 2):
            if before.places[one].ranks == before.places[other].ranks:
                assert job.places[one].ranks == job.places[other].ranks
        assert any("-> ranks" in note for note in notes)


@pytest.mark.parametrize(("gpus", "lag", "ranks"), [(1, 0, 1), (2, 0, 2), (2, 1, 2), (3, 0, 2)])
def test_a_small_plan_is_not_scaled_up(tmp_path: Path, gpus: int, lag: int, ranks: int) -> None:
    path = planned(tmp_path, cluster=f"{gpus}xh100-sxm-80gb", lag=lag, prompts=6, samples=2, kl=True)
    job, notes = prepared(path)
    assert job.world_size == ranks
    assert job.prompts <= 6, notes


@pytest.mark.slow
def test_a_rehearsal_runs_and_shows_planned_times(tmp_path: Path) -> None:
    path, report, lines = planned(tmp_path, lag=1, kl=True), tmp_path / "run.json", tmp_path / "run.jsonl"
    code, out, err = finish(start(str(path), "--scale-down", "--steps", "3", "--report", str(report),
                                  "--metrics", str(lines)))  # fmt: skip
    assert code == 0, out + err
    steps = json.loads(report.read_text())["steps"]
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["step"] for line in written] == [1, 2, 3]
    assert [line["reward"] for line in written] == pytest.approx([step["reward"] for step in steps])
    assert [line["train_s"] for line in written] == pytest.approx([step["calls"]["train"] for step in steps])
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(0 <= step["reward"] <= 1 and step["calls"]["train"] > 0 for step in steps)
    assert "planned s" in out
    assert "step 3/3  reward" in out
    small, _ = prepared(path)
    assert small.engine is not None
    assert small.engine.layout.tp == small.engine.layout.pp == 1
    received = json.loads(report.read_text())["transfers"]["generate"]
    assert [received[rank] for rank in small.engine.ranks] == [priced_bytes(small.model)] * len(small.engine.ranks)


@pytest.mark.parametrize(("words", "message"), [
    ((), "a plan of post-training is only rehearsed"),
    (("--scale-down", "--data", "x.jsonl"), "--data: not with a plan of grpo, which generates its answers"),
    (("--scale-down", "--check-parity"), "--check-parity: not with"),
    (("--scale-down", "--choice", "9"), "rl.json has no placement 9"),
    (("--scale-down", "--keep", "tp=2"), "is shrunk to 4 ranks only"),
    (("--scale-down", "--resume"), "--resume: checkpoints are not saved anywhere hint: add `--checkpoint DIR`"),
    (("--scale-down", "--checkpoint", "ckpt", "--max-restarts", "1", "--copy-every", "2"),
     "--copy-every: not with a plan of post-training hint: leave it out"),
    (("--scale-down", "--checkpoint", "ckpt", "--resume"), "ckpt: no such folder hint: leave out `--resume`"),
])  # fmt: skip
def test_launch_refuses_what_it_cannot_rehearse(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    planned(tmp_path)
    result = run_here("launch", "rl.json", *words, cwd=tmp_path)
    assert result.code == 2
    assert message in " ".join(result.err.split())


def test_launch_refuses_steps_that_generate_nothing(tmp_path: Path) -> None:
    planned(tmp_path, lag=1, kl=True, cluster="2xh100-sxm-80gb")
    result = run_here("launch", "rl.json", "--scale-down", "--steps", "1", cwd=tmp_path)
    assert result.code == 2
    message = "--steps 1: none generates, since all answers are older, by a lag of 1 hint: `--steps 2` or more"
    assert message in " ".join(result.err.split())


def test_calls_on_other_gpus_get_other_ranks(tmp_path: Path) -> None:
    plan = load_rl_plan(planned(tmp_path, kl=True))
    layout = Layout(dp=4, shard=4, zero=1)
    half = {"gpus": 4, "layout": layout.as_dict(), "layout_id": str(layout)}
    firsts = {"train": 0, "reference": 4}
    calls = tuple(call.model_copy(update={**half, "first_gpu": firsts[call.name]}) if call.name in firsts else call
                  for call in plan.best.calls)  # fmt: skip
    moved = plan.model_copy(update={"candidates": (plan.best.model_copy(update={"calls": calls}),)})
    small, _ = rehearsed(rl_job(moved, 1, Path("rl.json")), {}, 10)
    (reference,) = small.scores
    assert (small.train.ranks, reference.ranks) == (range(2), range(2, 4))


def test_a_plan_without_a_call_names_it(tmp_path: Path) -> None:
    plan = load_rl_plan(planned(tmp_path))
    calls = tuple(call for call in plan.best.calls if call.name != "generate")
    cut = plan.model_copy(update={"candidates": (plan.best.model_copy(update={"calls": calls}),)})
    with pytest.raises(InputError) as caught:
        rl_job(cut, 1, Path("rl.json"))
    assert [problem.field for problem in caught.value.problems] == ["candidates.0.calls.generate"]


def test_launch_refuses_a_critic_that_does_not_know_all_tokens(tmp_path: Path) -> None:
    planned(tmp_path, algorithm="ppo", samples=1, critic="llama-2-7b", cluster="2xh100-sxm-80gb")
    result = run_here("launch", "rl.json", "--scale-down", cwd=tmp_path)
    assert result.code == 2
    assert "the critic, llama-2-7b, reads 32,000 tokens, and llama-3.2-1b generates 128,256" in " ".join(
        result.err.split())  # fmt: skip


@pytest.mark.slow
def test_rehearsals_of_ppo_and_dpo_name_all_calls(tmp_path: Path) -> None:
    for algorithm, measure in (("ppo", "reward"), ("dpo", "margin")):
        path, report = planned(tmp_path, algorithm=algorithm, samples=None), tmp_path / "run.json"
        words = ("--scale-down", "--steps", "2", "--report", str(report), "--force")
        code, out, err = finish(start(str(path), *words))
        assert code == 0, out + err
        calls = {call.name for call in load_rl_plan(path).best.calls}
        calls |= {"new weights"} if algorithm == "ppo" else set()
        for step in json.loads(report.read_text())["steps"]:
            assert set(step["calls"]) == calls
            assert measure in step
            assert ("critic_loss" in step) == (algorithm == "ppo")
        assert f"step 2/2  {measure} " in out


TINY = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_hidden": 64, "vocab": 61, "max_positions": 64}


def of_pairs(folder: Path, **fields: object) -> Path:
    """A plan of DPO on 4 GPUs, of a small model."""
    usual = {"model": TINY, "cluster": "4xh100-sxm-80gb", "algorithm": "dpo", "samples": None, "input": 8, "output": 4,
             "output_max": 12, "prompts": 16, "trainer": "meshwright"}  # fmt: skip
    return planned(folder, **{**usual, **fields})


def test_pairs_run_at_the_planned_size(tmp_path: Path) -> None:
    data = written(tmp_path / "pairs.jsonl", GOOD)
    job, notes = prepare(Settings(plan=str(of_pairs(tmp_path)), data=data))
    assert isinstance(job, RlJob)
    assert (job.world_size, job.answers, job.data) == (4, 32, data)
    assert job.layout.micro_batch % 2 == 0
    assert job.num_micro_batches * job.layout.micro_batch * job.layout.dp == job.global_batch
    assert all(job.seq_len % (place.layout.tp * place.layout.cp) == 0 for place in job.places)
    assert job.prompt_len == 8
    (note,) = notes
    assert f"answers are padded to {job.seq_len + 1} tokens, not packed" in note


@pytest.mark.parametrize(("words", "message"), [
    (("--scale-down", "--data", "pairs.jsonl"), "--data: a rehearsal has a small model"),
    (("--shuffle",), "--shuffle: synthetic tokens are random"),
    (("--data", "pairs.jsonl", "--end-token", "1"), "--end-token: not with a plan of post-training"),
    (("--data", "pairs.jsonl", "--scale-down", "--init-from", "hf"), "--init-from"),
])  # fmt: skip
def test_launch_refuses_flags_beside_pairs(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    of_pairs(tmp_path)
    written(tmp_path / "pairs.jsonl", GOOD)
    result = run_here("launch", "rl.json", *words, cwd=tmp_path)
    assert result.code == 2
    assert message in " ".join(result.err.split())


@pytest.mark.slow
def test_pairs_of_a_file_train_at_the_planned_size_and_resume(tmp_path: Path) -> None:
    path, report = of_pairs(tmp_path), tmp_path / "run.json"
    data, saved = written(tmp_path / "pairs.jsonl", *random_pairs(20)), tmp_path / "ckpt"
    words = ("--data", data, "--device", "cpu", "--checkpoint", str(saved), "--report", str(report), "--force")
    code, out, err = finish(start(str(path), *words, "--steps", "2"))
    assert code == 0, out + err
    assert "not as planned: answers are padded" in out + err
    code, out, err = finish(start(str(path), *words, "--steps", "3", "--resume"))
    assert code == 0, out + err
    assert [step["step"] for step in json.loads(report.read_text())["steps"]] == [3]
    written(tmp_path / "pairs.jsonl", GOOD, {"prompt": [61]})
    code, out, err = finish(start(str(path), *words, "--steps", "4", "--resume"))
    assert code == 2
    assert "pairs.jsonl, line 2, prompt: token 61, the model knows 0 to 60" in " ".join((out + err).split())
