"""A measured run of an inference engine, read from a row of a file of published measurements.

The lengths of rows of InferenceX (one of 1,024 or 8,192 tokens in and out) are nominal: it draws them from
[0.8, 1] times that (RANDOM_RANGE_RATIO of its launch scripts, SemiAnalysisAI/InferenceX@843c6254), 0.9 in the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...cost_models.specs.cluster import GpuSpec
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.variants import text_of
from ...errors import UnknownNameError
from ...profiles.io import registry
from ...profiles.model.load import load_model
from ...profiles.model.releases import number_format
from ...profiles.stack.engines import engine_names
from ..accuracy.row import RowReader
from ..accuracy.unpriced_forms import REQUESTS, form_of, read_unpriced
from .formats import BYTES, cache_format
from .instance import InstanceLayout

_NOMINAL = {(1024, 1024), (1024, 8192), (8192, 1024)}
_NOMINAL_MEAN = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCase:
    """A measured run: its configuration and its measurements (None: not measured or not scored)."""

    id: str
    family: str  # of models
    model: ModelSpec
    gpu: GpuSpec
    engine: str
    version: str  # empty: not stated
    prefill: InstanceLayout
    decode: InstanceLayout
    disaggregated: bool  # prefill and decode have GPUs of their own
    weights: str  # number format of dense weights
    cache: str  # number format of the KV cache
    prompt: float  # tokens, mean
    output: float  # tokens, mean
    concurrency: float  # infinite: as many as there is room for
    rate: float  # requests per second, 0: a closed loop
    burst_share: float  # of requests that come together at the start, NaN: not known
    fits_ttft: bool  # whether the constants are fitted to its time to first token
    ttft_s: float | None
    tpot_s: float | None
    output_tokens_per_s_per_gpu: float | None  # of offline runs
    group: str  # runs of one model, GPU, engine, layout and number format
    compared: str  # runs that differ in the layout alone have the same


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A checked row that gets no prediction."""

    id: str
    reason: str


def read_serving_row(row: RowReader) -> ServingCase | LeftOut | None:
    """The run of a row. None for a faulty row, whose problems `row` holds."""
    if form_of(row) is not REQUESTS:
        row.fail((), "no row of an inference engine", "judge files of other rows by themselves")
        return None
    row_id = row.text("id")
    try:
        registry.gpu_entry(str(row.get("gpu") or ""))
        model = text_of(load_model(row.text("model"))[0])
    except UnknownNameError as error:
        return LeftOut(row_id, error.message)
    read_unpriced(row, REQUESTS)
    if row.problems:
        return None
    reason = _unpredictable(row)
    return LeftOut(row_id, reason) if reason else _case(row, model)


def _unpredictable(row: RowReader) -> str:
    """Why a right row has no prediction; empty: it has one."""
    if row.get("isl") is None:
        return "the lengths of prompts are not stated (a data set)"
    if "evict" in row.text("id"):
        return "prompts share prefixes, and the share that a cache holds is not stated"
    if _weights(row) not in BYTES:
        return f"no bytes are known of weights in {_weights(row)}"
    if row.text("engine") not in engine_names():
        return f"unknown engine `{row.text('engine')}`"
    return ""


def _case(row: RowReader, model: ModelSpec) -> ServingCase | LeftOut:
    parallel, measured, load = row.part("parallel"), row.part("measured"), row.part("load")
    disaggregated = "prefill" in parallel
    decode = _layout(parallel["decode"] if disaggregated else parallel, row.whole("num_gpus"))
    prefill = _layout(parallel["prefill"], row.whole("num_gpus")) if disaggregated else decode
    if (used := decode.gpus + disaggregated * prefill.gpus) != row.whole("num_gpus"):
        return LeftOut(row.text("id"), f"the layout has {used} GPUs, the row {row.whole('num_gpus')}")
    prompt, output = float(row.number("isl") or 0), float(row.number("osl") or 0)
    nominal = _NOMINAL_MEAN if (prompt, output) in _NOMINAL and load["mode"] == "closed" else 1.0
    concurrency, prompts = row.number("load", "concurrency"), row.number("load", "num_prompts")
    speculative = row.get("speculative") is not None
    offline = load["mode"] in ("infinite", "offline")
    return ServingCase(
        id=row.text("id"), family=row.text("family", default=row.text("model")), model=model,
        gpu=registry.gpu_entry(row.text("gpu")).spec, engine=row.text("engine"),
        version=str(row.get("engine_version") or ""), prefill=prefill, decode=decode, disaggregated=disaggregated,
        weights=_weights(row), cache=cache_format(model, _weights(row), _cache(row, model)),
        prompt=prompt * nominal, output=output * nominal,
        concurrency=concurrency or float("inf"), rate=row.number("load", "rate_req_s") or 0.0,
        burst_share=_burst_share(concurrency, prompts, random_lengths=nominal < 1),
        fits_ttft=not row.text("id").startswith("inferencex-"),
        ttft_s=_seconds(measured, "ttft_ms"), tpot_s=None if speculative else _seconds(measured, "tpot_ms"),
        output_tokens_per_s_per_gpu=measured.get("output_tok_s_per_gpu") if offline else None,
        group=str(row.get("group") or row.text("id")),
        compared=str((row.text("model"), row.text("gpu"), row.text("engine"), str(row.get("precision")), prompt,
                      output, sorted((key, str(value)) for key, value in load.items()))),
    )  # fmt: skip


def _layout(parallel: Mapping[str, Any], num_gpus: int) -> InstanceLayout:
    """Degrees of attention, of `tp` GPUs that share it, or of tp = attention_dp GPUs of one instance (the second is how
    TensorRT-LLM counts). Degrees that are not stated are 1."""
    degree = {name: int(parallel.get(name) or 1) for name in ("tp", "attn_dp", "pp", "ep")}
    instances = int(parallel.get("workers") or parallel.get("replicas") or 1)
    tp, groups = degree["tp"], degree["attn_dp"]
    if groups > 1 and tp % groups == 0 and tp * degree["pp"] * instances <= num_gpus < tp * groups * instances:
        tp //= groups
    ep = min(degree["ep"], tp * groups)
    return InstanceLayout(tp=tp, attention_dp=groups, pp=degree["pp"], ep=ep, instances=instances)


def _weights(row: RowReader) -> str:
    """Number format of the weights; where it is not stated, that in the model's name, else bf16."""
    if stated := row.get("precision", "w"):
        return str(stated)
    return number_format(row.text("model")) or "bf16"


def _cache(row: RowReader, model: ModelSpec) -> str:
    """Number format of the cache, or `auto`. Scripts of InferenceX set fp8 for DeepSeek, and for gpt-oss on Blackwell
    (dsr1_*.sh, gptoss_fp4_b200*.sh of SemiAnalysisAI/InferenceX@34bc7c40); the rows do not state it."""
    stated = row.get("precision", "kv")
    if stated is None and "InferenceX" in row.text("source"):
        blackwell = "blackwell" in registry.gpu_entry(row.text("gpu")).spec.arch
        if model.name.startswith("deepseek") or (blackwell and model.family == "gpt_oss"):
            return "fp8"
    return str(stated or "auto")


def _burst_share(concurrency: float | None, prompts: float | None, *, random_lengths: bool) -> float:
    """Share of the requests that come together at the start. InferenceX sends ten times the concurrency (num_prompts of
    its launch scripts), of unequal lengths, which part soon."""
    if concurrency and prompts:
        return concurrency / prompts
    return 0.1 if random_lengths else float("nan")


def _seconds(measured: Mapping[str, Any], stem: str) -> float | None:
    """The mean, else the median, of a duration in milliseconds."""
    value = next((measured[name] for name in (stem, f"{stem}_mean", f"{stem}_p50") if name in measured), None)
    return None if value is None else float(value) / 1e3
