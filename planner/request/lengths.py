"""Lengths of documents as users give them: a named sample, text, or a file, to a histogram in tokens."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...cost_models.specs.model import ModelSpec
from ...cost_models.units import whole_number
from ...errors import InputError, quoted
from ...profiles.io.folders import CATALOGUE
from ...profiles.io.json_syntax import parse_json_line
from ...profiles.io.reader import read_bytes, read_document, read_text
from ..document.array_file import reading_array
from ..document.sampler_plan import DOCUMENTS

SAMPLES = CATALOGUE / "lengths"
_EXAMPLE = "write `2048:0.7,8192:0.3`"
_INDEX_MAGIC, _INDEX_HEADER = b"MMIDIDX\x00\x00", 34  # bytes
_K = 1024  # tokens of the K of context lengths: 192K tokens are 196,608
Pairs = Sequence[tuple[Any, Any]]  # of length and weight


def sample_names() -> list[str]:
    """The samples of lengths that ship."""
    return sorted(path.stem for path in SAMPLES.glob("*.yaml"))


def parse_tokens(value: Any) -> int:
    """`196608` or `192K` tokens; K is 1,024, as in names of context lengths."""
    match = re.fullmatch(r"(-?[0-9][0-9_,]*)\s*([Kk]?)", str(value).strip())
    number = whole_number(match[1].replace(",", "").replace("_", "")) if match and not isinstance(value, bool) else None
    if number is None or match is None:
        raise InputError(f"`{value}` is not a number of tokens", hint="write `192K` (K is 1,024) or `196608`")
    if number < 1:
        raise InputError(f"must be 1 or more, is {value}")
    return number * (_K if match[2] else 1)


def parse_lengths(value: Any) -> dict[int, float]:
    """Histogram of document lengths {tokens: share}, shares summing to 1, out of a mapping, text, a name or a file.

    Text: `2048:0.7,8192:0.3`. A name: one of `sample_names`. A file: a YAML or JSON mapping of lengths to weights, or
    of `upper_edges`, `docs` and `tokens` per bin; lines `length,weight` or `length` (.csv, .txt); JSON lines of numbers
    or of objects with `length`; an array (.npz, .npy); a folder of token shards that `launch tokens` wrote; the index
    (.idx) of a dataset that Megatron tokenised. Raises InputError.
    """
    pairs = list(value.items()) if isinstance(value, Mapping) else _pairs(str(value))
    counts: dict[int, float] = {}
    for length, weight in pairs:
        tokens = whole_number(length)
        if tokens is None:
            raise InputError(f"{quoted(length)} is not a whole number", hint="write `2048: 0.7`")
        try:
            share = float(weight)
        except (TypeError, ValueError):
            message = f"weight {quoted(weight)} of length {tokens} is not a number"
            raise InputError(message, hint="write `2048: 0.7`") from None
        if tokens < 1 or not 0 <= share < float("inf"):
            raise InputError(f"length {tokens} with weight {quoted(weight)}: lengths are 1 or more, weights 0 or more")
        counts[tokens] = counts.get(tokens, 0.0) + share
    total = sum(counts.values())
    if total <= 0:
        raise InputError("no length has a weight", hint=_EXAMPLE)
    return {tokens: float(f"{share / total:.9g}") for tokens, share in sorted(counts.items()) if share > 0}


def _pairs(text: str) -> Pairs:
    if re.fullmatch(r"\s*[0-9]+\s*:.*", text):
        return [(length, weight or 1) for length, _, weight in (part.partition(":") for part in text.split(","))]
    if text in sample_names():
        return list(read_document(SAMPLES / f"{text}.yaml").data.items())
    path = Path(text)
    if path.is_dir():
        return _folder(path)
    if not path.suffix and not path.exists():
        hint = f"known: {', '.join(sample_names())}; or a file, or {_EXAMPLE.removeprefix('write ')}"
        raise InputError(f"`{text}` is no sample of lengths", hint=hint)
    reader = {".csv": _lines, ".txt": _lines, ".jsonl": _json_lines, ".npz": _array, ".npy": _array,
              ".idx": _index}  # fmt: skip
    return reader.get(path.suffix.lower(), _mapping)(path)


def _mapping(path: Path) -> Pairs:
    data = read_document(path).data
    if not isinstance(data, Mapping):
        raise InputError(f"{path} holds no mapping of lengths to weights", hint="write lines such as `2048: 0.7`")
    return _bins(path, data) if "upper_edges" in data else list(data.items())


def _bins(path: Path, data: Mapping[Any, Any]) -> Pairs:
    """The mean length of each bin and its documents."""
    if data.get("tokens") is None:
        hint = "add `tokens`, the sum of each bin: edges may count characters or bytes as well"
        raise InputError(f"{path}: `upper_edges` have no unit, and `tokens` is missing", hint=hint)
    lists = [data.get(name) for name in ("upper_edges", "docs", "tokens")]
    edges, docs, tokens = (items if isinstance(items, list) else [] for items in lists)
    if not len(edges) == len(docs) == len(tokens) > 0:
        raise InputError(f"{path}: `upper_edges`, `docs` and `tokens` are not lists of one length")
    if not all(isinstance(x, int | float) and x >= 0 for items in (edges, docs, tokens) for x in items):
        raise InputError(f"{path}: `upper_edges`, `docs` and `tokens` are not all numbers of 0 or more")
    return [(max(1, round(sum_ / count)), count) for sum_, count in zip(tokens, docs, strict=True) if count]


def _lines(path: Path) -> Pairs:
    lines = read_text(path).splitlines()
    rows = [re.split(r"[,;\s]+", line.strip()) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if rows and not rows[0][0].isdigit():
        rows = rows[1:]  # a header
    return [(row[0], row[1] if len(row) > 1 else 1) for row in rows]


def _json_lines(path: Path) -> Pairs:
    out: list[tuple[Any, Any]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        item = parse_json_line(str(path), number, line)
        length = item.get("length") if isinstance(item, Mapping) else item
        if isinstance(length, bool) or not isinstance(length, int):
            hint = 'a line is a number of tokens, or `{"length": 2048}`'
            raise InputError(f"{path}, line {number}: no length", hint=hint)
        out.append((length, 1))
    return out


def _array(path: Path) -> Pairs:
    hint = "an array `lengths` of tokens per document, as `numpy.savez` writes it"
    with reading_array(path, hint):
        loaded = np.load(path, allow_pickle=False)
        names = getattr(loaded, "files", None)
        array = loaded if names is None else loaded["lengths" if "lengths" in names else names[0]]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{path} holds no list of whole numbers", hint=hint)
    lengths, counts = np.unique(array, return_counts=True)
    return list(zip(lengths.tolist(), counts.tolist(), strict=True))


def _folder(path: Path) -> Pairs:
    if not (path / DOCUMENTS).is_file():
        hint = f"`launch tokens` writes it beside token shards; or `np.savez(\"{DOCUMENTS}\", lengths=...)`"
        raise InputError(f"{path}: a folder without {DOCUMENTS}, the tokens of each document", hint=hint)
    return _array(path / DOCUMENTS)


def _index(path: Path) -> Pairs:
    """Documents of an index of Megatron-LM d98e8a64 (`_IndexReader` of its core): a header of 34 bytes, tokens of each
    sequence as int32, its place as int64, and where documents begin among the sequences as int64."""
    data = read_bytes(path)
    if data[: len(_INDEX_MAGIC)] != _INDEX_MAGIC or len(data) < _INDEX_HEADER:
        raise InputError(f"{path} is no index of a dataset of Megatron", hint="its preprocessing writes one")
    sequences, edges = struct.unpack_from("<QQ", data, _INDEX_HEADER - 16)
    if len(data) < _INDEX_HEADER + 12 * sequences + 8 * edges:
        needed = f"{_INDEX_HEADER} + 12 x {sequences:,} + 8 x {edges:,} bytes"
        raise InputError(f"{path} is cut off: {len(data):,} bytes, its header states {needed}")
    tokens = np.frombuffer(data, "<i4", sequences, _INDEX_HEADER)
    starts = np.frombuffer(data, "<i8", edges, _INDEX_HEADER + 12 * sequences)
    sums = np.concatenate([[0], np.cumsum(tokens, dtype=np.int64)])
    if edges < 2 or starts.min() < 0 or starts.max() > sequences:
        raise InputError(f"{path} holds no documents")
    lengths, counts = np.unique(np.diff(sums[starts]), return_counts=True)
    return [(length, count) for length, count in zip(lengths.tolist(), counts.tolist(), strict=True) if length]


def check_positions(model: ModelSpec, longest: int) -> list[str]:
    """Warnings where sequences of `longest` tokens exceed the model's positions. Raises InputError for learned
    positions, which end."""
    if longest <= model.max_positions:
        return []
    learned = model.learned_positions or any(attention.relative_bias for attention in model.attentions)
    if not learned:
        stretched = "its rotary positions must be stretched" if model.rope_theta is not None else "none are learned"
        return [f"{model.name} has {model.max_positions:,} positions, sequences up to {longest:,} tokens: {stretched}"]
    raise InputError(
        f"seq_len {longest} is longer than the {model.max_positions} positions of {model.name}",
        hint=f"`--seq-len {model.max_positions}` or less: its positions are learned",
    )
