"""Lengths of documents: the shipped sample, every kind of file, and what is wrong with them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meshwright.planner import api
from meshwright.planner.request.lengths import parse_lengths, parse_tokens
from meshwright.planner.request.load import load_request, request_to_dict
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.emit import emit

from meshwright.errors import InputError

BASIC: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100:2"}


def test_wikipedia_has_the_percentiles_of_its_sample() -> None:
    """Percentiles, mean and share of tokens of the million documents, counted once from the sample itself."""
    histogram = parse_lengths("wikipedia")
    lengths, shares = np.array(list(histogram)), np.array(list(histogram.values()))
    reached = np.cumsum(shares)
    for share, measured in ((0.5, 347), (0.9, 2112), (0.99, 10919), (0.999, 37353)):
        assert lengths[np.searchsorted(reached, share)] == pytest.approx(measured, rel=0.03)
    assert lengths @ shares == pytest.approx(1013.65, rel=2e-3)
    assert lengths.max() == 1_823_777
    assert (lengths * shares)[lengths <= 1024].sum() / (lengths @ shares) == pytest.approx(0.249, abs=0.01)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lengths.jsonl", "2048\n" * 7 + '{"length": 8192}\n' * 3),
        ("lengths.yaml", "upper_edges: [1024, 4096, 16384]\ndocs: [0, 7, 3]\ntokens: [0, 14336, 24576]\n"),
    ],
)
def test_lengths_come_from_files(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert parse_lengths(str(path)) == {2048: 0.7, 8192: 0.3}


def test_lengths_come_from_arrays(tmp_path: Path) -> None:
    array = np.array([2048] * 7 + [8192] * 3)
    np.save(tmp_path / "lengths.npy", array)
    np.savez_compressed(tmp_path / "lengths.npz", other=array[:2], lengths=array)
    for name in ("lengths.npy", "lengths.npz"):
        assert parse_lengths(str(tmp_path / name)) == {2048: 0.7, 8192: 0.3}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bins.yaml", "upper_edges: [1024]\ndocs: [7]\n", "`upper_edges` have no unit, and `tokens` is missing"),
        ("bins.yaml", "upper_edges: [1024]\ndocs: [7, 3]\ntokens: [9, 9]\n", "not lists of one length"),
        ("lengths.jsonl", '2048\n{"text": 5}\n', "line 2: no length"),
        ("lengths.jsonl", "2048\nx\n", "line 2: not JSON"),
        ("lengths.txt", "2048\n0\n", "lengths are 1 or more"),
        ("lengths.jsonl", "2048\n" + "[" * 100_000 + "\n", "line 2: not JSON"),
        ("lengths.npz", "no array", r"cannot be read \(not a whole array of numbers\)$"),
        ("lengths.npz", "", "the file is empty"),
        ("lengths.npy", "", "the file is empty"),
        ("lengths.idx", "", "no index of a dataset"),
        ("lengths.csv", "1 " + "2" * 200_000, "lengths are 1 or more, weights 0 or more$"),
        ("lengths.csv", "1\n" + "x" * 200_000, r"`x{60}...` \(200,000 characters\) is not a whole number$"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        parse_lengths(str(path))


def test_unknown_samples_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="`wikipeda` is no sample of lengths") as error:
        parse_lengths("wikipeda")
    assert "known: wikipedia" in error.value.hint


def test_tokens_count_k_as_1024() -> None:
    assert (parse_tokens("192K"), parse_tokens(196_608), parse_tokens("1_000")) == (196_608, 196_608, 1000)
    for bad, message in (("192 Q", "is not a number of tokens"), ("0", "must be 1 or more"), (True, "not a number")):
        with pytest.raises(InputError, match=message):
            parse_tokens(bad)


def test_max_len_leaves_longer_documents_out() -> None:
    request = load_request(None, {**BASIC, "lengths": "1024:6,2048:2,8192:2", "max_len": "2K"})
    work = request.to_workload()
    assert dict(work.lengths) == pytest.approx({1024: 0.75, 2048: 0.25})
    assert (work.seq_len, work.global_batch) == (2048, 512)
    assert "max_len" not in request_to_dict(load_request(None, BASIC))["workload"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_len": "2K"}, "max_len and no lengths"),
        ({"max_len": "2K", "lengths": "1024:1", "seq_len": 2048}, "max_len and seq_len"),
        ({"max_len": 100, "lengths": "1024:1"}, "shorter than every document"),
    ],
)
def test_max_len_needs_lengths_alone(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_request(None, {**BASIC, **fields}).to_workload()


def megatron_index(path: Path, sequences: list[int], edges: list[int]) -> None:
    """An index as Megatron-LM's `_IndexWriter` writes it."""
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(sequences), len(edges))
    places = np.cumsum([0, *sequences[:-1]]) * 2
    path.write_bytes(header + np.array(sequences, "<i4").tobytes() + places.astype("<i8").tobytes()
                     + np.array(edges, "<i8").tobytes())  # fmt: skip


def test_lengths_come_from_tokenised_datasets(tmp_path: Path) -> None:
    """A document of Megatron may have several sequences; an empty one counts for nothing."""
    megatron_index(tmp_path / "text.idx", [1000, 1048, 2048, 8192], [0, 2, 3, 3, 4])
    assert parse_lengths(str(tmp_path / "text.idx")) == pytest.approx({2048: 2 / 3, 8192: 1 / 3}, abs=1e-8)
    np.savez(tmp_path / "documents.npz", lengths=np.array([2048, 8192, 2048]))
    assert parse_lengths(str(tmp_path)) == parse_lengths(str(tmp_path / "text.idx"))


@pytest.mark.parametrize(("damage", "message"), [
    (lambda data: b"PK" + data[2:], "is no index of a dataset of Megatron"),
    (lambda data: data[:-3], "is cut off: 95 bytes, its header states 34 + 12 x 2 + 8 x 5 bytes"),
    (lambda data: data[:26] + struct.pack("<Q", 1) + data[34:], "holds no documents"),
])  # fmt: skip
def test_damaged_indices_are_refused(damage: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    path = tmp_path / "text.idx"
    megatron_index(path, [1000, 1048], [0, 1, 1, 1, 2])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError) as error:
        parse_lengths(str(path))
    assert message in str(error.value)


def test_a_folder_without_the_lengths_of_its_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a folder without documents.npz") as error:
        parse_lengths(str(tmp_path))
    assert "`launch tokens` writes it" in error.value.hint


def test_sequences_may_exceed_positions_that_are_not_learned() -> None:
    def asked(model: str, seq_len: int) -> dict[str, Any]:
        return {"model": model, "cluster": "dgx-h100:1", "seq_len": seq_len, "global_batch": 8, "target": "megatron"}

    long = api.evaluate(None, "tp8-dp1-mbs1-z1-rfull", **asked("qwen3-8b", 65536))
    stretched = "qwen3-8b has 40,960 positions, sequences up to 65,536 tokens: its rotary positions must be stretched"
    assert [text for text in long.warnings if "positions" in text] == [stretched]
    assert "--max-position-embeddings 65536" in emit(long, "megatron", "torchrun").files["megatron.args"]
    short = api.evaluate(None, "tp8-dp1-mbs1-z1-rfull", **asked("qwen3-8b", 8192))
    assert not [text for text in short.warnings if "positions" in text]
    assert "--max-position-embeddings 40960" in emit(short, "megatron", "torchrun").files["megatron.args"]
    for name in ("gpt2", "t5-base"):  # a table of positions, and biases by distance
        with pytest.raises(InputError, match="seq_len 4096 is longer than the"):
            resolve(load_request(None, asked(name, 4096)))
