"""Pairs of sources and targets from JSON lines."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.runtime.data import counted_targets, open_evaluated, open_source
from meshwright.runtime.data_flags import check_data
from meshwright.runtime.micro_batches import MicroBatches
from meshwright.runtime.pairs import PairShape, shape_of
from meshwright.runtime.reference_data import num_targets
from meshwright.runtime.settings import Settings

from meshwright.errors import InputError, UnsupportedError

from .jobs import with_source
from .rehearsal.test_parity import parity_of

END = 1
SHAPE = PairShape(source_len=4, target_len=5, vocab=61, end_token=END)


def written(path: Path, *lines: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def pair(source: Any, target: Any) -> dict[str, Any]:
    return {"source": source, "target": target}


def opened(path: str, shape: PairShape = SHAPE, batch: int = 2, **how: Any) -> list[list[int]]:
    return open_source(path, 61, 9, batch, 0, pairs=shape, **how).batch(0).tolist()


def random_pairs(path: Path, number: int) -> str:
    """Pairs for `with_source`, whose sources have 5 to 24 tokens, and targets 3 to 16 with the end."""
    drawn = random.Random(5)
    tokens = [[drawn.randrange(2, 61) for _ in range(24 + drawn.randrange(2, 16))] for _ in range(number)]
    lengths = [24, *(drawn.randrange(5, 25) for _ in range(number - 1))]
    return written(path, *(pair(each[:length], each[24:]) for each, length in zip(tokens, lengths, strict=True)))


def test_a_row_is_source_start_target_and_ends(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", pair([5, 6, 7, 8], [9, 10]), "", pair([8, 7, 6, 5], [9, 9, 9, 9, END]))
    rows = opened(path)
    assert rows == [[5, 6, 7, 8, 0, 9, 10, END, END, END], [8, 7, 6, 5, 0, 9, 9, 9, 9, END]]
    # Losses: 9, 10 and the end of the first pair, five of the second one. The ends behind an end have none.
    tokens = open_source(path, 61, 9, 2, 0, pairs=SHAPE).batch(0)
    assert counted_targets(tokens, 5, END) == 3 + 5
    with_end = replace(with_source("dp1-mbs1-z0-rnone"), source_len=4, seq_len=5, end_token=END)
    assert num_targets([tokens], with_end, 1) == 3 + 5
    assert shape_of(with_end) == SHAPE


def test_a_shorter_source_is_padded_and_the_places_are_known(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", pair([5, 0], [9, 9, 9, 9, END]), pair([5, 6, 7, 8], [9, 9, 9, 9, END]))
    source, tokens, targets, padding = MicroBatches(torch.tensor(opened(path)), 2, end_token=END, source_len=4)(0)
    assert source.tolist() == [[5, 0, 0, 0], [5, 6, 7, 8]]
    assert padding.tolist() == [[False, False, True, True], [False] * 4]  # token 0 of a source is one
    assert (tokens.tolist(), targets.tolist()) == ([[0, 9, 9, 9, 9]] * 2, [[9, 9, 9, 9, END]] * 2)
    whole = written(tmp_path / "b.jsonl", pair([5, 6, 7, 8], [9, 9, 9, 9, END]))
    assert len(MicroBatches(torch.tensor(opened(whole)), 2, end_token=END, source_len=4)(0)) == 3


def test_files_of_a_folder_are_read_in_order_and_again(tmp_path: Path) -> None:
    for name, token in (("b.jsonl", 8), ("a.jsonl", 7)):
        written(tmp_path / name, pair([token] * 4, [2, 3, 4, 5, 6]))
    exact = replace(SHAPE, end_token=None)
    rows = opened(str(tmp_path), exact, 3)
    assert [row[0] for row in rows] == [7, 8, 7]
    assert sorted(row[0] for row in opened(str(tmp_path), exact, 2, shuffle=True)) == [7, 8]
    assert open_evaluated(str(tmp_path), 61, 9, 1, 0, 1, exact).num_batches == 2
    assert set(open_source(str(tmp_path), 61, 9, 1, 0, pairs=exact).digests()) == {"a.jsonl", "b.jsonl"}


@pytest.mark.parametrize(
    ("line", "end", "problem"),
    [
        ({"source": [5, 6, 7, 8]}, END, "no tokens `target`"),
        (pair([5, 6, 7, 8], []), END, "no tokens `target`"),
        (pair([], [9]), END, "no tokens `source`"),
        ([5, 6], END, "no tokens `source`"),
        ("{", END, "no JSON"),
        ("[" * 100_000, END, "no JSON"),
        (pair("text", [9]), END, "source: not a list of token numbers"),
        (pair([5, 6, 7, 8], [9.5]), END, "target: not a list of token numbers"),
        (pair([5, 6, 7, 61], [9]), END, "source: token 61, the model knows 0 to 60"),
        (pair([5, 6, 7, 8], [9, -1]), END, "target: token -1, the model knows 0 to 60"),
        (pair([5, 6, 7, 8, 9], [9]), END, "source: 5 tokens, the encoder of the plan reads 4"),
        (pair([5, 6, 7, 8], [9, 9, 9, 9, 9]), END, "target: 6 tokens with its end, the decoder of the plan has 5"),
        (pair([5, 6, 7, 8], [9, END, 9]), END, f"target: tokens behind token {END}, the end, would have no loss"),
        (pair([5, 6, 7, 8], [9, 9, 9, 9]), None, "target: 4 tokens, the decoder of the plan has 5"),
    ],
)
def test_wrong_lines_are_named_all_at_once(tmp_path: Path, line: Any, end: int | None, problem: str) -> None:
    path = written(tmp_path / "a.jsonl", line, pair([5, 6, 7, 8], [9, 9, 9, 9, END]), line)
    with pytest.raises(InputError) as caught:
        opened(path, replace(SHAPE, end_token=end))
    lines = caught.value.message.splitlines()
    assert len(lines) == 2
    assert all(problem in each for each in lines)
    assert [f"a.jsonl, line {number}" in each for number, each in zip((1, 3), lines, strict=True)] == [True, True]


def test_files_without_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"empty\.jsonl: no pairs"):
        opened(written(tmp_path / "empty.jsonl"))
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match=r"no JSON lines \(\.jsonl\) in it"):
        opened(str(tmp_path / "none"))
    with pytest.raises(InputError, match="no such file or folder"):
        opened(str(tmp_path / "x.jsonl"))
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="bytes"):
        opened(str(tmp_path / "bytes.jsonl"))
    with pytest.raises(UnsupportedError, match="--data: a rehearsal shortens sources"):
        check_data(with_source("dp1-mbs1-z0-rnone"), Settings("plan.json", data="x", scale_down=True))
    with pytest.raises(InputError, match="--end-token 0: starts a target"):
        check_data(with_source("dp1-mbs1-z0-rnone"), Settings("plan.json", data="x", end_token=0))


@pytest.mark.parametrize(
    "layout_id",
    ["dp2-mbs1-z3-rfull", pytest.param("tp2-pp2-dp1-mbs1-z1-rnone", marks=pytest.mark.slow)],
)
def test_trains_on_pairs_what_one_process_trains(layout_id: str, tmp_path: Path) -> None:
    data = random_pairs(tmp_path / "pairs.jsonl", 11)
    verdict = parity_of(with_source(layout_id, data=data, end_token=END, shuffle=True))
    assert verdict.agrees, verdict.first_difference
