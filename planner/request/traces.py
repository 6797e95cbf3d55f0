"""Traces of requests: arrival, tokens of the prompt and of the answer, one request a line (CSV or JSON lines)."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...cost_models.serving.lengths import RequestLengths
from ...errors import FieldProblem, InputError, quoted
from ...profiles.io.document import file_error
from ...profiles.io.json_syntax import parse_json_line
from ...profiles.io.reader import read_text

SUFFIXES = (".csv", ".jsonl")
_SHOWN = 5  # problems of a file
# Names of columns, in lower case: of Azure's traces (Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and
# 2024.md), BurstGPT (HPMLL/BurstGPT, data/BurstGPT_1.csv), DistServe (simdistserve/benchmarks/alignment at 20a1633) and
# Mooncake (kvcache-ai/Mooncake, mooncake_trace.jsonl).
_ARRIVAL = ("timestamp", "arrival_s", "start_time")
_PROMPT = ("contexttokens", "request tokens", "prompt_len", "input_length", "prompt_tokens", "input_tokens")
_ANSWER = ("generatedtokens", "response tokens", "output_len", "output_length", "output_tokens", "completion_tokens")
_MILLISECONDS = "hash_ids"  # a field of Mooncake's traces, whose times are in milliseconds


@dataclass(frozen=True)
class _Columns:
    arrival: str
    prompt: str
    answer: str
    unit_s: float  # of arrivals that are numbers

    @classmethod
    def of(cls, names: list[str]) -> _Columns | None:
        """None where no column holds prompts, or none answers."""
        lower = {str(name).strip().lower(): name for name in names}
        arrival, prompt, answer = (next((lower[name] for name in known if name in lower), "")
                                   for known in (_ARRIVAL, _PROMPT, _ANSWER))  # fmt: skip
        return cls(arrival, prompt, answer, 1e-3 if _MILLISECONDS in lower else 1.0) if prompt and answer else None


def is_trace(path: Path) -> bool:
    """Whether a file has columns of prompts and of answers."""
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return False
    try:
        return _Columns.of(_names(path)) is not None
    except InputError:
        return False


def read_trace(path: Path) -> RequestLengths:
    """The requests of a trace. Those without an answer (failed ones of BurstGPT have 0 tokens) are left out.

    Raises InputError with the first problems of the file.
    """
    return _read(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=4)
def _read(path: Path, changed_ns: int) -> RequestLengths:
    """changed_ns: of the file, so that a changed one is read again."""
    rows, columns = list(_rows(path)), _Columns.of(_names(path))
    if columns is None:
        raise InputError(f"{path}: no columns of prompts and answers",
                         hint="columns such as `arrival_s`, `prompt_tokens` and `output_tokens`")  # fmt: skip
    if not columns.arrival:
        raise InputError(f"{path}: no column of arrival times", hint=f"name it {', '.join(_ARRIVAL)}")
    problems, requests = list[FieldProblem](), list[tuple[float, float, float]]()
    for line, row in rows:
        arrival = _arrival(row.get(columns.arrival), columns.unit_s)
        prompt, answer = _tokens(row.get(columns.prompt)), _tokens(row.get(columns.answer))
        faults = [(columns.arrival, "a time") if arrival is None else None,
                  (columns.prompt, "a number of tokens") if prompt is None or prompt < 1 else None,
                  (columns.answer, "a number of tokens") if answer is None else None]  # fmt: skip
        problems += [FieldProblem(f"lacks {kind}" if row.get(name) is None else f"{quoted(row[name])} is not {kind}",
                                  name, str(path), line)
                     for name, kind in filter(None, faults)]  # fmt: skip
        if arrival is not None and prompt is not None and answer:
            requests.append((arrival, prompt, answer))
    if problems:
        more = len(problems) - _SHOWN
        raise InputError.of([*problems[:_SHOWN], *([FieldProblem(f"{more} more", file=str(path))] if more > 0 else [])])
    return _trace(path, requests)


def _trace(path: Path, requests: list[tuple[float, float, float]]) -> RequestLengths:
    arrivals, prompts, answers = np.array(sorted(requests)).reshape(-1, 3).T
    if len(arrivals) < 2 or arrivals[-1] <= arrivals[0]:
        raise InputError(f"{path}: {len(arrivals)} requests with answers, which come at one time",
                         hint="a trace has two requests or more, at different times")  # fmt: skip
    return RequestLengths(prompts, answers, np.full(len(prompts), 1.0 / len(prompts)), arrivals - arrivals[0])


def _names(path: Path) -> list[str]:
    """Columns of a table, or fields of the first request."""
    if path.suffix.lower() != ".csv":
        return list(next(_rows(path), (0, {}))[1])
    with _table(path) as reader:
        return list(reader.fieldnames or ())


@contextmanager
def _table(path: Path) -> Iterator[csv.DictReader[str]]:
    """The rows of a table. Raises InputError for a field longer than they may be."""
    reader = csv.DictReader(read_text(path).splitlines())
    try:
        yield reader
    except csv.Error:
        fault = f"a field of more than {csv.field_size_limit():,} characters"
        raise file_error(str(path), reader.line_num + 1, fault, "is this a table of requests?") from None


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line and fields of every request."""
    if path.suffix.lower() == ".csv":
        with _table(path) as reader:
            yield from ((reader.line_num, row) for row in reader)
        return
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            row = parse_json_line(str(path), number, line)
            if not isinstance(row, Mapping):
                raise InputError.of([FieldProblem("not an object of fields", file=str(path), line=number)])
            yield number, row


def _arrival(value: Any, unit_s: float) -> float | None:
    """Seconds: a finite number, or a date and time."""
    number = _number(value)
    if number is not None:
        return number * unit_s if math.isfinite(number) else None
    try:
        return datetime.fromisoformat(str(value).strip()).timestamp()
    except (ValueError, OverflowError):
        return None


def _tokens(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and 0 <= number < float("inf") else None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
