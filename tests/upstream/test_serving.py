"""Commands of serving plans against the parsers of vLLM and SGLang themselves."""

from __future__ import annotations

import json
import os
import random
import subprocess
from functools import cache
from pathlib import Path

import pytest
from meshwright.planner.targets.engines.emit import emit_serving

from ..planner.targets.drawn_services import drawn, for_engine, planned
from ..table import Row
from .pythons import has, python_of

COUNT = 200
_PARSER = Path(__file__).with_name("serving_parser.py")


@cache
def commands(engine: str) -> list[list[str]]:
    """The words that the scripts of drawn plans give to the engine's parser."""
    plans = [for_engine(plan, engine) for plan in drawn(planned(), COUNT)]
    return [words for plan in plans for name, text in emit_serving(plan, engine).files.items()
            if name.endswith(".sh") and name != "router.sh" for words in [words_of(text)]]  # fmt: skip


def words_of(script: str) -> list[str]:
    """The words of the command that a script starts, by bash, after `serve` and, for vLLM, the model."""
    text = script.replace("exec vllm serve", "shown").replace("exec sglang serve", "show")
    function = "show() { printf '%s\\0' \"$@\"; }\nshown() { shift; show \"$@\"; }\n"
    done = subprocess.run(["bash", "-c", function + text, "script", "0", "node0"], capture_output=True, check=True,
                          text=True, env={"PATH": os.environ["PATH"]})  # fmt: skip
    return done.stdout.split("\0")[:-1]


def misspelt(words: list[str], numbers: random.Random) -> list[str]:
    """One option with a letter twice."""
    at = numbers.choice([i for i, word in enumerate(words) if word.startswith("--")])
    letter = numbers.choice([i for i, it in enumerate(words[at]) if it.isalpha()])
    wrong = words[at][:letter] + words[at][letter] + words[at][letter:]
    return [*words[:at], wrong, *words[at + 1 :]]


def verdicts(engine: str, cases: list[list[str]]) -> list[str | None]:
    """None, or what the engine's parser says."""
    text = "".join(json.dumps(words) + "\n" for words in cases)
    done = subprocess.run([python_of("serving"), str(_PARSER), engine], input=text, text=True, capture_output=True,
                          check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"})  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(cases), done.stderr[-2000:]
    return said


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_engine_takes_every_command_and_no_misspelt_one(engine: str, row: Row) -> None:
    if not has("serving", engine):
        row(engine, "own parser accepts", "not run")
        pytest.skip(f"{engine} is not there")
    numbers = random.Random(1)
    right = commands(engine)
    wrong = [misspelt(words, numbers) for words in right]
    said = verdicts(engine, [*right, *wrong])
    accepted, refused = said[: len(right)].count(None), len(wrong) - said[len(right) :].count(None)
    row(engine, "own parser accepts", f"{accepted} of {len(right)} commands of {COUNT} serving plans")
    row(engine, "own parser refuses misspelt", f"{refused} of {len(wrong)}")
    assert [each for each in said[: len(right)] if each is not None] == []
    assert refused == len(wrong)
