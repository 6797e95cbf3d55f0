"""Lengths of requests as users give them, and traces in the formats of public ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from meshwright.planner.request.request_lengths import parse_request_tokens, request_lengths

from meshwright.errors import InputError

# Columns and first lines as the public traces have them; the numbers are made up.
TRACES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
                 "2023-11-16 18:15:50.9951690,396,109\n",
    "burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                    "5,ChatGPT,374,44,418,Conversation log\n7,ChatGPT,100,0,100,API log\n"
                    "9.314579,GPT-4,396,109,505,API log\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [0]}\n'
                      '{"timestamp": 4314.579, "input_length": 396, "output_length": 109, "hash_ids": [0, 1]}\n',
    "own.jsonl": '{"arrival_s": 0, "prompt_tokens": 374, "output_tokens": 44}\n\n'
                 '{"arrival_s": 4.314579, "prompt_tokens": 396, "output_tokens": 109}\n',
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_public_traces_are_read(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(TRACES[name])
    parsed = parse_request_tokens(str(file))
    assert parsed == {"trace": str(file)}
    trace = request_lengths(parsed, parsed)
    assert list(trace.prompts) == [374, 396]
    assert list(trace.answers) == [44, 109]
    assert trace.arrivals_s is not None
    assert trace.arrivals_s == pytest.approx([0, 4.314579], abs=1e-6)
    prompts_alone = request_lengths(parsed, 300)
    assert prompts_alone.arrivals_s is None
    assert prompts_alone.prompt == pytest.approx(385)
    assert prompts_alone.output == 300


def test_the_columns_of_a_trace_are_distributions_by_themselves(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(TRACES["own.jsonl"])
    answers = request_lengths(1000, parse_request_tokens(str(file)))
    assert answers.prompt == 1000
    assert answers.output == pytest.approx(76.5)


@pytest.mark.parametrize(("value", "mean", "p90"), [
    (2000, 2000, 2000), ("2K", 2048, 2048), ("759:p90=1547", 759, 1547), ({"mean": 200, "rms": 310}, 200, None),
    ("512:0.7,4096:0.3", 0.7 * 512 + 0.3 * 4096, 4096), ({512: 7, "4096": 3}, 0.7 * 512 + 0.3 * 4096, 4096),
])  # fmt: skip
def test_distributions(value: object, mean: float, p90: float | None) -> None:
    found = request_lengths(parse_request_tokens(value), 300).prompt_lengths
    assert found.mean == pytest.approx(mean, rel=0.005)
    if p90 is not None:
        assert found.at(np.array([0.9]))[0] == pytest.approx(p90, rel=0.01)
    again = parse_request_tokens(parse_request_tokens(value))
    assert again == parse_request_tokens(value)


def test_a_histogram_file(tmp_path: Path) -> None:
    file = tmp_path / "answers.csv"
    file.write_text("tokens,requests\n100,3\n1000,1\n")
    assert request_lengths(50, parse_request_tokens(str(file))).output == pytest.approx(325)


@pytest.mark.parametrize(("value", "says"), [
    ("-5", "must be 1 or more"), ("0", "1 or more"), ("759:rms=500", "less than the mean"),
    ("759:p90=2000", "2.27 times its mean"), ("759:p95=2000", "p90 and rms"), ("nothing.csv", "no such file"),
    ({"mean": 10, "p90": 12, "rms": 11}, "one of p90 and rms"), ("512:-1", "weights 0 or more"), ("abc", "abc"),
])  # fmt: skip
def test_wrong_lengths_are_named(value: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_request_tokens(value)


@pytest.mark.parametrize(("text", "says"), [
    ("timestamp,prompt_tokens,output_tokens\n0,10,5\nsoon,10,5\n1,-3,x\n",
     ["line 3, timestamp: `soon` is not a time", "line 4, prompt_tokens: `-3`", "line 4, output_tokens: `x`"]),
    ("timestamp,prompt_tokens,output_tokens\n0,10,5\n1,10\n", ["line 3, output_tokens: lacks a number of tokens"]),
    ("timestamp,prompt_tokens,output_tokens\n7,10,5\n7,12,6\n", ["at one time"]),
    ("prompt_tokens,output_tokens\n10,5\n12,6\n", ["no column of arrival times"]),
    ("timestamp,prompt_tokens,output_tokens\nnan,10,5\n1,10,5\n2,10,5\ninf,10,5\n1e999,10,5\n",
     ["line 2, timestamp: `nan` is not a time", "line 5, timestamp: `inf`", "line 6, timestamp: `1e999`"]),
    ("timestamp,prompt_tokens,output_tokens\n0,10,5\n1," + "1" * 200_000 + ",5\n",
     ["trace.csv, line 3: a field of more than 131,072 characters"]),
    ("timestamp,prompt_tokens,output_tokens\n", ["0 requests with answers"]),
    ("timestamp,prompt_tokens,output_tokens\n0," + "x" * 1000 + ",5\n", [f"`{'x' * 60}...` (1,000 characters) is"]),
    ("timestamp,prompt_tokens,output_tokens\n1,10,0\n2,12,0\n", ["0 requests with answers"]),
])  # fmt: skip
def test_all_problems_of_a_trace_are_named(text: str, says: list[str], tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        parse_request_tokens(str(file))
    for words in says:
        assert words in str(caught.value)


def test_a_broken_line_of_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"arrival_s": 0, "prompt_tokens": 374, "output_tokens": 44}\n{"arrival_s": \n')
    with pytest.raises(InputError, match="line 2"):
        parse_request_tokens(str(file))
