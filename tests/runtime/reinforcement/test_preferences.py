"""DPO on pairs of a file: against plain torch on rows without padding, resumed, and wrong lines."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.runtime.checkpoint.checkpoint import Checkpoints
from meshwright.runtime.reinforcement.job import RlJob
from meshwright.runtime.reinforcement.preferences import Preferences
from meshwright.runtime.reinforcement.states import LoopStates
from torch.nn.functional import logsigmoid

from meshwright.errors import InputError

from ..fork import fork
from . import plain
from .rl_jobs import loop_of
from .test_dpo import BETA, RATE, dpo, trained_on_four_ranks
from .test_resume_rl import lives, measures
from .test_transfer import wholes

ROW = 17  # tokens of a prompt and an answer
Pair = dict[str, list[int]]


def random_pairs(number: int) -> list[Pair]:
    """Prompts of 1 to 9 tokens, and answers that end early, late or in the last place of a row."""
    drawn = random.Random(3)

    def tokens(most: int) -> list[int]:
        return [drawn.randrange(61) for _ in range(drawn.randint(1, most))]

    prompts = [tokens(9) for _ in range(number)]
    pairs = [{"prompt": prompt, "chosen": tokens(ROW - len(prompt)), "rejected": tokens(ROW - len(prompt))}
             for prompt in prompts]  # fmt: skip
    pairs[0]["chosen"] = [7] * (ROW - len(pairs[0]["prompt"]))
    return pairs


def written(path: Path, *lines: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def on_file(path: Path, *layouts: str, **changes: Any) -> RlJob:
    """A job on 13 pairs, less than those of a step."""
    return dpo(*layouts, data=written(path, *random_pairs(13)), **changes)


def ratio_of(policy: plain.Weights, frozen: plain.Weights, job: RlJob, prompt: list[int], answer: list[int]) -> Any:
    """The log-ratio of an answer in a row without padding."""
    row, first = torch.tensor([prompt + answer]), len(prompt) - 1
    fresh, kept = (plain.log_probs_of(each, job.model, row)[0, first:].sum() for each in (policy, frozen))
    return fresh - kept.detach()


def trained_alone(job: RlJob, pairs: list[Pair]) -> tuple[list[list[float]], plain.Weights]:
    """Loss (TRL's DPOTrainer, loss_type sigmoid) and gradient norm of each step; the weights after them."""
    policy, frozen = (plain.llama_weights(job.model, job.seed, job.model.vocab) for _ in range(2))
    out, momenta = [], plain.Weights()
    for index in range(job.steps):
        of_step = [pairs[place % len(pairs)] for place in range(index * job.prompts, (index + 1) * job.prompts)]
        steps, size = [], len(of_step) // job.updates
        for update in range(job.updates):
            losses = []
            for pair in of_step[update * size : (update + 1) * size]:
                chosen, rejected = (ratio_of(policy, frozen, job, pair["prompt"], pair[name])
                                    for name in ("chosen", "rejected"))  # fmt: skip
                losses.append(-logsigmoid(BETA * (chosen - rejected)))
            steps.append(plain.descend(policy, torch.stack(losses).mean(), momenta, RATE))
        out.append(plain.mean_steps(steps))
    return out, policy


@pytest.mark.parametrize("layouts", [
    ("tp2-pp2-dp1-mbs2-z1-rnone", "dp4-mbs1-z0-rnone"), ("cp2r-dp2-mbs4-z2-rnone", "tp2-pp2-dp1-mbs1-z0-rnone"),
])  # fmt: skip
def test_steps_and_weights_equal_those_of_rows_without_padding(layouts: tuple[str, str], tmp_path: Path) -> None:
    job = on_file(tmp_path / "a.jsonl", *layouts, steps=2)
    every = trained_on_four_ranks(job)
    expected, policy = trained_alone(job, random_pairs(13))
    for event, values in zip(every[0][0], expected, strict=True):
        assert [event["loss"], event["gradient_norm"]] == pytest.approx(values, rel=1e-9, abs=1e-12)
    assert plain.largest_difference(wholes([each[1] for each in every]), policy) < 1e-10


def test_rows_are_prompts_and_answers_with_targets_of_answers_alone(tmp_path: Path) -> None:
    line = {"prompt": [5, 6], "chosen": [7, 8, 0], "rejected": [9]}
    job = dpo("dp1-mbs2-z0-rnone", "dp1-mbs1-z0-rnone", data=written(tmp_path / "a.jsonl", line, ""), prompts=1)
    given = Preferences(job).step(0)
    assert given.tokens.tolist() == [[5, 6, 7, 8, 0] + [0] * 12, [5, 6, 9] + [0] * 14]
    assert [row.nonzero().flatten().tolist() for row in given.counted] == [[1, 2, 3], [1]]


def test_shuffled_pairs_are_the_same_pairs(tmp_path: Path) -> None:
    job = on_file(tmp_path / "a.jsonl", "dp1-mbs2-z0-rnone", "dp1-mbs1-z0-rnone", prompts=13)
    plainly, shuffled = (Preferences(each).step(0).tokens.tolist() for each in (job, replace(job, shuffle=True)))
    assert plainly != shuffled
    assert sorted(plainly[0::2]) == sorted(shuffled[0::2])


def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path: Path) -> None:
    how = {"optimizer": "adamw", "dtype": "bf16", "shuffle": True, "steps": 4}
    job = on_file(tmp_path / "a.jsonl", "pp2-dp1-mbs2-z1-rnone", "dp2-mbs1-z0-rnone", **how)
    whole, expected = lives(job, tmp_path / "whole", job.steps, resume=False)
    lives(replace(job, steps=2), tmp_path / "cut", 2, resume=False)
    resumed, found = lives(job, tmp_path / "cut", job.steps, resume=True)
    assert measures(resumed) == measures(whole)
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    written(tmp_path / "a.jsonl", *random_pairs(12))

    def one(rank: int) -> str:
        with pytest.raises(InputError) as caught:
            Checkpoints(LoopStates(loop_of(job, rank)), tmp_path / "cut", keep=2).resume()
        return caught.value.message

    assert all("is not the data" in text and "a.jsonl: changed" in text for text in fork(2, one))


GOOD = {"prompt": [5], "chosen": [7], "rejected": [9]}
WRONG: list[tuple[Any, str]] = [
    ({"prompt": [5], "chosen": [7]}, "no tokens `rejected`"), ({**GOOD, "prompt": []}, "no tokens `prompt`"),
    ({**GOOD, "chosen": []}, "no tokens `chosen`"), ([5], "no tokens `prompt`"), ("{", "no JSON"),
    ({**GOOD, "prompt": "text"}, "prompt: not a list of token numbers"),
    ({**GOOD, "rejected": [True]}, "rejected: not a list of token numbers"),
    ({**GOOD, "chosen": [61]}, "chosen: token 61, the model knows 0 to 60"),
    ({**GOOD, "prompt": [5] * 9, "rejected": [1] * 9},
     "rejected: 9 tokens of the prompt and 9 are 18, rows of the plan have 17"),
]  # fmt: skip


def test_wrong_lines_are_named_all_at_once(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", GOOD, *(line for line, _ in WRONG))
    written(tmp_path / "b.jsonl", {**GOOD, "chosen": [-1]})
    job = dpo("dp1-mbs2-z0-rnone", "dp1-mbs1-z0-rnone", data=str(tmp_path))
    with pytest.raises(InputError) as caught:
        Preferences(job)
    lines = caught.value.message.splitlines()
    places = [("a.jsonl", number) for number in range(2, 2 + len(WRONG))] + [("b.jsonl", 1)]
    texts = [text for _, text in WRONG] + ["chosen: token -1"]
    assert len(lines) == len(texts)
    for line, (file, number), text in zip(lines, places, texts, strict=True):
        assert f"{file}, line {number}" in line
        assert text in line


def test_files_without_pairs_are_refused(tmp_path: Path) -> None:
    how = ("dp1-mbs2-z0-rnone", "dp1-mbs1-z0-rnone")
    with pytest.raises(InputError, match="no pairs") as caught:
        Preferences(dpo(*how, data=written(tmp_path / "empty.jsonl", "")))
    assert '"rejected"' in caught.value.hint
    with pytest.raises(InputError, match="no such file or folder"):
        Preferences(dpo(*how, data=str(tmp_path / "x.jsonl")))
