"""Lengths of the requests that an engine answers, as users give them: a mean, a distribution, or a trace."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from ...cost_models.serving.lengths import Lengths, RequestLengths
from ...errors import InputError
from .fields import checked, parse_factor
from .lengths import parse_lengths, parse_tokens
from .traces import is_trace, read_trace

_HINT = "write `2000`, `759:rms=926`, `759:p90=1547`, `512:0.7,4096:0.3` or a file"
_P90 = NormalDist().inv_cdf(0.9)
# A number of tokens, a mean with its spread, a histogram {tokens: share}, or the file of a trace.
RequestTokens = Annotated[
    int | dict[int, float] | dict[str, float] | dict[str, str],
    BeforeValidator(checked(lambda value: parse_request_tokens(value))),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}, {"type": "object"}],
         "examples": [2000, "759:rms=926", {"mean": 759, "p90": 1547}, {"512": 0.7, "4096": 0.3}, "trace.csv"]}
    ),
]  # fmt: skip


def parse_request_tokens(value: Any) -> int | dict[int, float] | dict[str, float] | dict[str, str]:
    """`2000`; `759:rms=926` or `759:p90=1547`, log-normal; a histogram or a file of one, as `parse_lengths` reads them;
    a trace. Raises InputError."""
    if isinstance(value, Mapping):
        if "trace" in value:
            return _trace(str(value["trace"]))
        named = [str(key) for key in value if not re.fullmatch(r"\d+", str(key))]
        return _spread(dict(value)) if named else parse_lengths(value)
    text = str(value).strip()
    if spread := re.fullmatch(r"([^:]+):\s*(\w+)\s*=\s*(.+)", text):
        return _spread({"mean": spread[1], spread[2]: spread[3]})
    if Path(text).suffix:
        return _trace(text) if is_trace(Path(text)) else parse_lengths(text)
    return parse_lengths(text) if ":" in text or text.isidentifier() else parse_tokens(value)


def _trace(name: str) -> dict[str, str]:
    read_trace(Path(name))
    return {"trace": name}


def _spread(value: dict[Any, Any]) -> dict[str, float]:
    """A mean with its 90th percentile or its root mean square, checked."""
    kinds = [name for name in ("p90", "rms") if name in value]
    if len(kinds) != 1 or set(value) != {"mean", *kinds}:
        raise InputError(f"a distribution has `mean` and one of p90 and rms, not {', '.join(map(str, value))}",
                         hint=_HINT)  # fmt: skip
    kind = kinds[0]
    mean, other = parse_factor(value["mean"]), parse_factor(value[kind])
    if mean < 1:
        raise InputError(f"the mean must be 1 token or more, is {mean:g}", hint=_HINT)
    if other < mean:
        raise InputError(f"{kind} {other:g} is less than the mean {mean:g}", hint=_HINT)
    if kind == "p90" and math.log(other / mean) > _P90**2 / 2:
        text = f"no log-normal distribution has a p90 of more than {math.exp(_P90**2 / 2):.3g} times its mean"
        raise InputError(f"{text}: {other:g} is {other / mean:.3g} times {mean:g}",
                         hint="give `rms`, or a histogram")  # fmt: skip
    return {"mean": mean, kind: other}


def request_lengths(prompt: Any, answer: Any) -> RequestLengths:
    """The requests of two parsed values. Prompts and answers depend on each other where both are of one trace."""
    if isinstance(prompt, Mapping) and prompt == answer and "trace" in prompt:
        return read_trace(Path(str(prompt["trace"])))
    return RequestLengths.independent(_lengths(prompt, answers=False), _lengths(answer, answers=True))


def _lengths(value: Any, *, answers: bool) -> Lengths:
    if not isinstance(value, Mapping):
        return Lengths.constant(value)
    if "trace" in value:
        trace = read_trace(Path(str(value["trace"])))
        return trace.output_lengths if answers else trace.prompt_lengths
    if "rms" in value:
        return Lengths.lognormal(value["mean"], value["rms"])
    if "p90" in value:
        # p90 = mean exp(z s - s^2/2), s the deviation of the logarithm: the smaller root.
        deviation = _P90 - math.sqrt(max(_P90**2 - 2.0 * math.log(value["p90"] / value["mean"]), 0.0))
        return Lengths.lognormal(value["mean"], value["mean"] * math.exp(deviation**2 / 2))
    return Lengths.of({int(tokens): float(share) for tokens, share in value.items()})
