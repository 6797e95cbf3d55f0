"""Overrides of verl against the composition of its own config, by Hydra; the recorded list against its tree."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest
from meshwright.planner.targets.post_training.check import check_rl
from meshwright.planner.targets.post_training.emit import emit_rl

from ..planner.targets.drawn_placements import drawn, planned
from ..table import Row
from .pythons import has, python_of

COUNT = 200
_COMPOSE = Path(__file__).with_name("verl_compose.py")
_FILE = "verl.overrides"


def verdicts(cases: list[list[str]]) -> list[str | None]:
    """None, or what Hydra says."""
    text = "".join(json.dumps(words) + "\n" for words in cases)
    done = subprocess.run([python_of("verl"), str(_COMPOSE)], input=text, text=True, capture_output=True, check=False)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(cases), done.stderr[-2000:]
    return said


def misspelt(words: list[str], numbers: random.Random) -> list[str]:
    """One option of the tree with its last letter twice."""
    at = numbers.choice([i for i, word in enumerate(words) if not word.startswith("+")])
    name, _, value = words[at].partition("=")
    return [*words[:at], f"{name}{name[-1]}={value}", *words[at + 1 :]]


def test_hydra_composes_every_plan_and_no_misspelt_one(row: Row) -> None:
    if not has("verl", "hydra"):
        row("verl", "Hydra composes", "not run")
        pytest.skip("hydra is not there")
    plans = drawn(planned(experts=True), "verl", COUNT)
    written = [emit_rl(plan, "verl", plan.best.choice).files for plan in plans]
    texts = [files[_FILE] for files in written]
    right = [[line for line in text.splitlines() if not line.startswith("#")] for text in texts]
    numbers = random.Random(1)
    wrong = [misspelt(words, numbers) for words in right]
    said = verdicts([*right, *wrong])
    accepted, refused = said[:COUNT].count(None), COUNT - said[COUNT:].count(None)
    row("verl", "Hydra composes", f"{accepted} of {COUNT} plans of post-training")
    row("verl", "Hydra refuses misspelt", f"{refused} of {COUNT}")
    found = sum(bool(check_rl(plan, {**files, _FILE: "\n".join([*text.splitlines()[:2], *words])}).problems)
                for plan, files, text, words in zip(plans, written, texts, wrong, strict=True))  # fmt: skip
    row("verl", "`check` refuses misspelt", f"{found} of {COUNT}")
    assert [each for each in said[:COUNT] if each is not None] == []
    assert (refused, found) == (COUNT, COUNT)
