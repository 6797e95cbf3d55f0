"""The JSON of vLLM's own benchmark (`vllm bench serve --save-result`) as a measured run.

Fields: the module vllm.benchmarks.serve of vLLM 0.32 (`BenchmarkMetrics`, `main_async`). A time per output token is
(latency - TTFT) / (tokens - 1) of a request, the same as in a plan; milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import FieldProblem, InputError
from ...profiles.io.reader import read_document
from ..accuracy.row import RowReader

_LEAST = 20  # requests, below which a mean is a matter of chance
_WRITES_ONE = "`vllm bench serve --save-result --max-concurrency 16` writes one"


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """A run of the benchmark."""

    file: str
    requests: int  # that were answered
    failed: int
    prompt: float  # tokens of a request, mean
    output: float  # tokens of its answer, mean
    concurrency: float | None  # requests at any time at most; None: an open loop
    rate: float  # requests per second that came, of an open loop; 0 in a closed one
    ttft_s: float  # mean
    tpot_s: float  # mean
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    output_tokens_per_s: float

    @property
    def doubts(self) -> list[str]:
        """Reasons to trust it less."""
        out = [f"{self.file}: {self.failed} requests failed"] if self.failed else []
        if self.requests < _LEAST:
            out.append(f"{self.file}: {self.requests} requests are few: means of {_LEAST} or more are steadier")
        return out


def read_benches(paths: Sequence[Path]) -> list[BenchRun]:
    """The runs of all files. Raises InputError with all their problems."""
    problems = list[FieldProblem]()
    runs = list[BenchRun]()
    for path in paths:
        try:
            reader = RowReader(read_document(path))
        except InputError as error:
            problems += error.problems or [FieldProblem(error.message, hint=error.hint)]
            continue
        run = _run(reader, str(path))
        problems += reader.problems
        runs += [run] if run is not None else []
    if problems:
        raise InputError.of(problems)
    return runs


def _run(reader: RowReader, file: str) -> BenchRun | None:
    """None with problems."""
    if not isinstance(reader.document.data, Mapping) or reader.get("mean_ttft_ms") is None:
        reader.fail((), "is no result of vLLM's benchmark", _WRITES_ONE)
        return None
    requests = reader.whole("completed")
    failed = reader.whole("failed", default=0, least=0)
    prompts = reader.whole("total_input_tokens")
    answers = reader.whole("total_output_tokens")
    seconds = {name: (reader.number(f"mean_{name}_ms"), reader.number(f"p99_{name}_ms")) for name in ("ttft", "tpot")}
    duration = reader.number("duration")
    concurrency = None if reader.get("max_concurrency") is None else reader.whole("max_concurrency")
    rate = reader.get("request_rate")
    unlimited = rate is None or (isinstance(rate, str) and rate == "inf") or rate == math.inf
    if not unlimited:
        reader.number("request_rate")
    elif concurrency is None:
        reader.fail(("max_concurrency",), "all requests came at once, which is no steady load",
                    "run it with `--max-concurrency 16` or `--request-rate 4`")  # fmt: skip
    for name in ("mean_tpot_ms", "duration"):
        if reader.get(name) is None:
            reader.fail((name,), "is missing", _WRITES_ONE)
    if not reader.problems and answers < 2 * requests:
        reader.fail(("total_output_tokens",), f"{answers} of {requests} requests: an answer has fewer than 2 tokens",
                    "run it with `--random-output-len 128`")  # fmt: skip
    (ttft, ttft_p99), (tpot, tpot_p99) = seconds["ttft"], seconds["tpot"]
    if reader.problems or ttft is None or tpot is None or duration is None:
        return None
    # A limit on the requests at any time that a finite rate never reaches is no closed loop.
    opened = not unlimited and (concurrency is None or requests / duration >= 0.9 * float(rate))
    return BenchRun(
        file=file, requests=requests, failed=failed, prompt=prompts / requests, output=answers / requests,
        concurrency=None if opened else float(concurrency or 0), rate=requests / duration if opened else 0.0,
        ttft_s=ttft / 1e3, tpot_s=tpot / 1e3, ttft_p99_s=_seconds(ttft_p99), tpot_p99_s=_seconds(tpot_p99),
        output_tokens_per_s=answers / duration,
    )  # fmt: skip


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
