"""The shape of a request to serve: a model, a cluster, requests per second, and promised latencies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BeforeValidator, Field, WithJsonSchema

from ...cost_models.techniques.registry import SERVING
from ...cost_models.units import parse
from ...errors import InputError
from ...profiles.io.document import FieldPath
from ...profiles.io.reader import read_text
from ..document.serving_plan import ROLES
from .fields import Nodes, Positive, checked, non_negative, parse_factor, parse_images, parse_techniques
from .request_lengths import RequestTokens
from .schema import BaseRequest, ImagesRequest, RequestPart
from .speculation import Speculate

Weights = Literal["bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
_SECONDS_OF = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _seconds(value: Any) -> float:
    """`50ms` -> 0.05."""
    seconds = parse(value, "s")
    if not 0 < seconds < math.inf:
        raise InputError(f"must be more than 0, is {value}", hint="write `50ms`")
    return seconds


def read_rate(value: Any) -> float:
    """`4/s` -> 4.0 requests per second."""
    match = re.fullmatch(r"\s*([0-9.,_eE+-]+)\s*/\s*(s|min|h)\s*", str(value))
    if match is None:
        raise InputError(
            f"`{value}` is no rate", hint="requests per second, minute or hour: `4/s`, `240/min`, `9000/h`"
        )
    return parse_factor(match[1].replace(",", "").replace("_", "")) / _SECONDS_OF[match[2]]


def _hourly(value: Any) -> tuple[float, ...]:
    """`2/s,9/s`, a list, one rate, or a file with a rate a line."""
    if isinstance(value, str) and Path(value).suffix:
        value = [line for line in read_text(Path(value)).splitlines() if line.strip()]
    given = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    rates = list[float]()
    for hour, item in enumerate(given):
        try:
            rates.append(read_rate(item))
        except InputError as error:
            raise InputError(f"hour {hour}: {error.message}", hint="write `2/s,9/s,4/s`") from None
    if not rates:
        raise InputError("no rates", hint="write `2/s,9/s,4/s`")
    return tuple(rates)


def _percentile(value: Any) -> float:
    """`p99`, `99` or `99.9`."""
    number = parse_factor(str(value).strip().removeprefix("p"))
    if not 50 <= number < 100:
        raise InputError(f"percentile {value} is not from 50 to below 100", hint="write `99`: of 100 requests 99")
    return number


def _hit(value: Any) -> float:
    """`0.6` or `60%`."""
    text = str(value).strip()
    share = non_negative(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if share >= 1:
        raise InputError(f"{value} of a prompt cannot be found in the cache: its last token is always prefilled",
                         hint="write a share below 1: `0.6` or `60%`")  # fmt: skip
    return share


def _parse_fix(value: Any) -> dict[str, Any]:
    """`["tp=4", "mode=together"]` or a mapping -> {axis: value}."""
    given = [item if isinstance(item, Mapping) else dict([_pair(str(item))])
             for item in ([value] if isinstance(value, str | Mapping) else value)]  # fmt: skip
    fixed: dict[str, Any] = {}
    for name, text in ((name, text) for item in given for name, text in item.items()):
        if name not in FIXABLE:
            raise InputError(f"serving has no `{name}` to fix",
                             hint=f"it has {', '.join(_AXES)}, and those of one role: `prefill.tp`")  # fmt: skip
        fixed[str(name)] = FIXABLE[name](text)
    return fixed


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise InputError(f"`{text}` is not `field=value`", hint="write `--fix tp=4`")
    return name.strip(), value.strip()


def _degree(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise InputError(f"`{value}` is not a whole number", hint="write `--fix tp=4`") from None
    if number < 1:
        raise InputError(f"must be 1 or more, is {value}")
    return number


_AXES = ("tp", "pp", "ep", "attention_dp", "replicas", "chunk_tokens")
# Axis of the space, or `prefill.tp`: that of disaggregated instances that prefill -> its reader.
FIXABLE: Mapping[str, Callable[[Any], int]] = dict.fromkeys(
    (*_AXES, *(f"{role}.{axis}" for role in ROLES for axis in _AXES)), _degree
)
Seconds = Annotated[
    float, BeforeValidator(checked(_seconds)), WithJsonSchema({"type": "string", "examples": ["50 ms"]})
]
Rate = Annotated[float, BeforeValidator(checked(read_rate)), WithJsonSchema({"type": "string", "examples": ["4/s"]})]
Hit = Annotated[
    float, BeforeValidator(checked(_hit)), WithJsonSchema({"type": "number", "minimum": 0, "examples": [0.6, "60%"]})
]
Hourly = Annotated[
    tuple[float, ...], BeforeValidator(checked(_hourly)),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                    "examples": ["2/s,9/s,4/s"]}),
]  # fmt: skip
Percentile = Annotated[
    float, BeforeValidator(checked(_percentile)), WithJsonSchema({"type": "number", "examples": [90, 99]})
]
ServingFix = Annotated[
    dict[str, int], BeforeValidator(checked(_parse_fix)),
    WithJsonSchema({"type": "object", "propertyNames": {"enum": list(FIXABLE)}}),
]  # fmt: skip

ServingTechniques = Annotated[
    dict[str, dict[str, float]],
    BeforeValidator(checked(lambda value: parse_techniques(value, SERVING))),
    WithJsonSchema({"type": "object", "propertyNames": {"enum": list(SERVING)}}),
]


class ServeWorkload(RequestPart):
    """Requests that an engine answers.

    input, output: tokens of a prompt and of an answer: a number, a distribution, or a trace of both. rate: of an open
    loop; concurrency: requests at any time of a closed one; neither: the rate of the trace, or as much as the GPUs
    carry. ttft, tpot: promised time to first token (queue included) and time per output token after the first, which
    `percentile` % of the requests keep. precision: number format of the weights, None: that of the
    checkpoint. kv_cache: that of the cache, auto: as the checkpoint has it. prefix_hit: share of the prompt tokens that
    are found in the cache of an instance; prefixes: different ones, which the cache of each instance keeps. hourly:
    rates, one for each hour, in place of `rate`. speculate: tokens that a draft proposes, how many are accepted, and
    the draft. passes: that make an answer or an image, where a model fills it in. images: of every request,
    `1@896x896`; their tokens are among those of the prompt. techniques: those that serve, with their knobs.
    """

    kind: Literal["serve"]
    input: RequestTokens
    output: RequestTokens
    rate: Rate | None = None
    concurrency: Positive | None = None
    ttft: Seconds | None = None
    tpot: Seconds | None = None
    percentile: Percentile = 90.0
    prefix_hit: Hit = 0.0
    prefixes: Positive = 1
    hourly: Hourly | None = None
    speculate: Speculate | None = None
    passes: Positive | None = None
    images: Annotated[ImagesRequest, BeforeValidator(checked(parse_images))] | None = None
    techniques: ServingTechniques = Field(default_factory=dict)
    precision: Weights | None = None
    kv_cache: Literal["auto", "bf16", "fp8"] = "auto"


class ServingRequest(BaseRequest):
    """A checked request to serve. target: the engine; stack: a file of `calibrate` with its numbers; fix: axes of the
    space that are given."""

    model: str | dict[str, Any]
    cluster: str | dict[str, Any] | None = None
    gpu: str | None = None
    gpus: Positive | None = None
    exclude: Nodes = ()
    workload: ServeWorkload
    target: str = "vllm"
    stack: str | None = None
    fix: ServingFix = Field(default_factory=dict)
    top: Positive = 5


class ServingFields(TypedDict, total=False):
    """Keywords of `plan_serving`. `model`, `input`, `output`, and either `cluster` or `gpu` and `gpus` are needed."""

    model: str | Path | Mapping[str, Any] | None
    """As in `plan`."""
    cluster: str | Path | Mapping[str, Any] | None
    """As in `plan`. Groups of nodes that differ are pools of their own."""
    gpu: str | None
    """As in `plan`."""
    gpus: int | None
    """As in `plan`."""
    exclude: str | list[str | int] | None
    """As in `plan`."""
    target: str | None
    """The engine: vllm, sglang or tensorrt-llm [vllm]."""
    stack: str | None
    """A file that `calibrate --from-run` wrote from runs of the engine's benchmark [the numbers that ship]."""
    fix: str | list[str] | Mapping[str, Any] | None
    """Axes of the space that are given: `{"tp": 4}` or `["tp=4"]`; `prefill.tp`, `decode.tp` of disaggregated pools."""
    top: int | None
    """How many deployments the plan lists [5]."""
    input: int | str | Mapping[int, float] | Mapping[str, float] | None
    """Tokens of a prompt: `2000`, `"759:rms=926"`, `"759:p90=1547"`, a histogram, or a file of one or of a trace."""
    output: int | str | Mapping[int, float] | Mapping[str, float] | None
    """Tokens of an answer, as `input`. The same trace as `input`: its pairs, in the order in which they came."""
    rate: str | None
    """Requests of an open loop: `4/s` [as many as can be]."""
    concurrency: int | None
    """Requests at any time of a closed loop."""
    ttft: str | None
    """Promised time to first token: `1s` [none]."""
    tpot: str | None
    """Promised time per output token: `50ms` [none]."""
    percentile: float | str | None
    """Percentage of the requests that keep the promises [90]."""
    prefix_hit: float | str | None
    """Share of the prompt tokens that are found in the cache of an instance: `0.6` or `60%` [0]."""
    prefixes: int | None
    """Different prefixes, which the cache of each instance keeps [1]."""
    hourly: str | list[str] | None
    """Rates, one for each hour, in place of `rate`: `["2/s", "9/s"]`, `"2/s,9/s"`, or a file with a rate a line."""
    speculate: str | Mapping[str, Any] | None
    """Proposed tokens, the share of them that is accepted, and the draft: `"3:0.7:llama-3.2-1b"`, `"1:0.8:mtp"`."""
    passes: int | None
    """Passes that make an answer or an image, where a model fills it in [one for each masked token]."""
    images: int | str | Mapping[str, Any] | None
    """Images of every request, whose tokens are among those of the prompt: `1@896x896` [none: the text model]."""
    technique: str | list[str] | Mapping[str, Any] | None
    """Techniques to serve by, with their knobs: `"nexus:prompts=0.5"`."""
    precision: Weights | None
    """Number format of the weights [that of the checkpoint, bf16 where none is known]."""
    dtype: Weights | None
    """The same as `precision`."""
    kv_cache: Literal["auto", "bf16", "fp8"] | None
    """Number format of the KV cache [auto: as the checkpoint has it]."""


# Flat name -> place in the request, of the fields that a training request lacks.
SERVING_FLAT: dict[str, FieldPath] = {
    name: ("workload", name)
    for name in ("input", "output", "rate", "concurrency", "ttft", "tpot", "percentile", "prefix_hit",
                 "prefixes", "hourly", "speculate", "passes", "kv_cache")
}
