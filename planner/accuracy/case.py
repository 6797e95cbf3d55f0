"""One published run as (model, cluster, workload, stack, layout), from its configuration alone.

A missing field gets a labelled assumption; docs/concepts/trust.md explains the labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...cost_models.layouts import RECOMPUTE_MODES, Layout
from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.specs.model import FeedForward, Layer, ModelSpec
from ...cost_models.specs.stack import StackSpec
from ...cost_models.specs.variants import with_capacity
from ...cost_models.specs.workload import Precision, Workload
from ...cost_models.techniques import cpu_offload
from ...cost_models.techniques.base import Applied
from ...cost_models.techniques.registry import applied
from ...errors import InputError
from ...profiles.model.explicit_form import read_explicit_form
from ...profiles.model.load import catalogued
from ...profiles.stack import load as stacks
from ..evaluation.intervals import regime_of
from .case_cluster import read_cluster
from .case_layout import order_of, read_layout, selective
from .remat import sends_outputs
from .row import Case, Measured, RowReader, Unpriced
from .stack_features import capacity_of, has_gpt_defaults, ran_with, switched_layout, with_features
from .tuning import lora_of, of_tuning

_MODEL_FIELDS = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn_hidden", "gated_mlp", "vocab",
                 "tied_embeddings", "sliding_window", "window_layers", "sink_attention", "qkv_bias", "output_bias",
                 "ffn_bias", "bias", "qk_norm", "num_norms")  # fmt: skip
_MOE_FIELDS = ("experts", "topk", "expert_ffn", "shared", "shared_ffn", "moe_layers", "shared_gate")
_NEEDED = (("model", "seq_len"), ("layout", "tp"), ("layout", "pp"), ("layout", "dp"))
_STEP_UNITS = {"step_s": 1.0, "step_ms": 1e-3, "step_us": 1e-6, "step_min": 60.0}
_MEMORY_UNITS = {"peak_memory_gib": 2.0**30, "peak_memory_gb": 1e9, "peak_memory_mib": 2.0**20, "peak_memory_mb": 1e6}
_MLA_FIELDS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_PRECISIONS: Mapping[str, tuple[Precision, bool]] = {
    "bf16": ("bf16", True), "fp16": ("fp16", True), "fp32": ("fp32", True), "fp8": ("fp8", True),
    "mxfp8": ("fp8", True), "tf32": ("fp32", False), "nvfp4": ("fp4", True), "fp4": ("fp4", True),
    "bfloat16": ("bf16", True), "float16": ("fp16", True), "half": ("fp16", True), "int8": ("fp8", False),
}  # fmt: skip


def read_case(row: RowReader) -> Case | Unpriced | None:
    """The run of one row; None with `row.problems` for a faulty row."""
    if not isinstance(row.document.data, Mapping):
        row.fail((), "must be a mapping: one run")
        return None
    name, quality = row.text("id"), row.text("quality", default="B")
    for part in ("model", "cluster", "layout", "measured"):
        row.part(part, required=True)
    stack_name = row.text("stack", default="")
    features = {**row.part("features"), **of_tuning(row), **ran_with(row, stack_name)}
    measured = read_measured(row)
    if not all(isinstance(row.get(part), Mapping) for part in ("cluster", "layout", "model")):
        return None
    num_gpus, cluster = read_cluster(row, features)
    if unpublished := _unpublished(row):
        return _unpriced(row, cluster, measured, unpublished)
    family, warnings = stacks.stack_for(stack_name)
    row.assumptions += warnings
    gpt_defaults = has_gpt_defaults(stack_name, family.name, tied=row.get("model", "tied_embeddings") is True)
    model, workload = _model(row, gpt_defaults, features), _workload(row, features)
    layout, chunks, mode = read_layout(row, family.name, features, num_gpus, cluster)
    if row.problems or model is None or cluster is None:
        return None
    stack, layout = with_features(family, features, row), switched_layout(layout, features)
    if stack.tp_plan == "by-projection" and layout.pp > 1 and layout.sequence_parallel:
        row.assume("no sequence parallelism in pipelines of this stack")
        layout = replace(layout, sequence_parallel=0)
    known, layout = _unknown_recompute(row, mode, layout, stack)
    return Case(
        id=name, source=row.text("source", default="not stated"), stack_name=stack_name or "not stated",
        regime=row.text("regime", default="") or regime_of(model, layout), group=row.text("group", default="") or None,
        core=bool(row.flag("core")), quality=quality, model=model, cluster=cluster, workload=workload, stack=stack,
        features=features, layout=layout, order=order_of(row), sends_outputs=sends_outputs(row),
        chunks=chunks, recompute_known=known, measured=measured,
        assumptions=tuple(dict.fromkeys(row.assumptions)),
    )  # fmt: skip


def _unpublished(row: RowReader) -> list[str]:
    """Required fields that the row states as null, because its source lacks them."""
    parts = {path: row.part(path[0]) for path in _NEEDED}
    return [".".join(path) for path, part in parts.items() if path[1] in part and part[path[1]] is None]


def _unpriced(row: RowReader, cluster: ClusterSpec | None, measured: Measured, fields: list[str]) -> Unpriced | None:
    if row.problems or cluster is None:
        return None
    return Unpriced(
        id=row.text("id"), source=row.text("source", default="not stated"), regime=row.text("regime", default="dense"),
        stack_name=row.text("stack", default="") or "not stated", group=row.text("group", default="") or None,
        core=bool(row.flag("core")), quality=row.text("quality", default="B"), hardware=cluster.gpu.name,
        measured=measured, reason=f"not published: {', '.join(fields)}",
    )  # fmt: skip


def _one_unit(row: RowReader, units: Mapping[str, float]) -> None:
    """A problem where `measured` has one quantity in two units, or not in the first of `units` (name -> its size)."""
    measured, wanted = row.part("measured"), next(iter(units))
    given = {name: value for name in units if isinstance(value := measured.get(name), int | float)}
    for name in list(given)[1:] if wanted in given else given:
        if name != wanted:
            value = given[name] * units[name] / units[wanted]
            also = f", and `{wanted}` is {given[wanted]:g}: one quantity, one unit" if wanted in given else ""
            row.fail(("measured", name), f"{given[name]:g} is {value:g} as `{wanted}`{also}", f"give `{wanted}` alone")


def read_measured(row: RowReader) -> Measured:
    """The measurement of a row. Records a problem for a quantity in another unit."""
    _one_unit(row, _STEP_UNITS)
    _one_unit(row, _MEMORY_UNITS)
    gib = row.number("measured", "peak_memory_gib")
    kind = row.text("measured", "peak_memory_kind", default="nvidia-smi")
    if kind not in ("allocated", "reserved", "nvidia-smi"):
        row.fail(("measured", "peak_memory_kind"), f"`{kind}` is none of allocated, reserved, nvidia-smi")
    if gib is not None and row.get("measured", "peak_memory_kind") is None:
        row.assume("memory kind not stated: nvidia-smi")
    scope = row.text("measured", "peak_memory_scope", default="max over ranks")
    step_s = row.number("measured", "step_s")
    for other in ("mfu", "hfu", "tflops_per_gpu", "tokens_per_s_per_gpu", "peak_reserved_gib"):
        row.number("measured", other)
    return Measured(step_s=step_s, peak_memory_bytes=gib and gib * 2**30, memory_kind=kind, memory_scope=scope)


def _model(row: RowReader, gpt_defaults: bool, features: Mapping[str, Any]) -> ModelSpec | None:
    given = row.part("model")
    data = {key: given[key] for key in _MODEL_FIELDS if given.get(key) is not None}
    for key, known in (("moe", _MOE_FIELDS), ("mla", _MLA_FIELDS)):
        part = row.part("model", key)
        if part:
            data[key] = {name: part[name] for name in known if part.get(name) is not None}
    data |= _windowed(row)
    data["max_positions"] = row.whole("model", "seq_len")
    for key, label in (("kv_heads", "kv_heads = heads"), ("head_dim", "head_dim = hidden / heads"),
                       ("gated_mlp", "gated MLP"), ("tied_embeddings", "untied embeddings")):  # fmt: skip
        if given.get(key) is None and (key != "kv_heads" or not part):
            row.assume(f"{label} (not stated)")
    if features.get("mtp") is True:
        data["mtp_layers"] = 1
    if gpt_defaults and given.get("gated_mlp") is False:
        data |= {"bias": True, "learned_positions": True, "dropout": True}
    try:
        spec, _ = read_explicit_form(data, str(given.get("name", "model")))
    except InputError as error:
        _model_problems(row, error)
        return None
    return with_capacity(_as_catalogued(row, spec), capacity_of(features)) if spec.is_moe else spec


def _windowed(row: RowReader) -> dict[str, int]:
    """Reads `sliding_pattern: 5 local : 1 global`, the layers per period with and without the window."""
    pattern = row.text("model", "sliding_pattern", default="")
    period = re.fullmatch(r"(\d+) local : (\d+) global", pattern)
    if pattern and period is None:
        row.fail(("model", "sliding_pattern"), f"`{pattern}` is not of the form `5 local : 1 global`")
    if period is None:
        return {}
    local, every = int(period[1]), int(period[1]) + int(period[2])
    layers = row.whole("model", "layers", default=1)
    return {"window_layers": layers // every * local + min(layers % every, local)}


def _as_catalogued(row: RowReader, model: ModelSpec) -> ModelSpec:
    """A row of a mixture of experts states shapes. Norms of heads, biases of experts, their groups and the scaling of
    positions are those of the catalogue's model of that name, where its shapes are the same."""
    known = catalogued(model.name)
    if known is None or known.pattern != model.pattern or [*map(_shapes, known.kinds)] != [*map(_shapes, model.kinds)]:
        return model
    if (known.kinds, known.rope_scaling) != (model.kinds, model.rope_scaling):
        row.assume(f"norms, biases, groups of experts and scaling of positions of {known.name} (not stated)")
    return replace(model, kinds=known.kinds, rope_scaling=known.rope_scaling)


def _shapes(kind: Layer) -> tuple[int | None, ...]:
    """The fields of a layer that rows state."""
    attention, block = kind.transformer_blocks
    heads = (attention.heads, attention.kv_heads, attention.head_dim, attention.value_head_dim, attention.window)
    latents = (attention.q_lora_rank, attention.kv_lora_rank, attention.rope_head_dim)
    if isinstance(block, FeedForward):
        return (*heads, *latents, block.inner, block.gated)
    return (*heads, *latents, block.experts, block.top_k, block.expert_inner, block.shared_inner, block.gated)


def _model_problems(row: RowReader, error: InputError) -> None:
    """The problems of the model reader. It reports all missing fields as one problem, with paths inside the model."""
    for problem in error.problems:
        for name in problem.missing:
            row.fail(("model", *name.split(".")), f"`model.{name}` is missing")
        if not problem.missing:
            row.fail(("model", *problem.field.split(".")), problem.message, error.hint)


def _workload(row: RowReader, features: Mapping[str, Any]) -> Workload:
    stated = row.get("layout", "precision")
    if stated is None:
        row.assume("precision bf16 (not stated)")
    text = str(stated or "bf16").lower()
    if text not in _PRECISIONS:
        row.fail(("layout", "precision"), f"`{text}` is none of {', '.join(_PRECISIONS)}")
    precision, exact = _PRECISIONS.get(text, ("bf16", True))
    if not exact:
        row.assume(f"{text} priced as {precision} (approximation)")
    return Workload(
        seq_len=row.whole("model", "seq_len", default=1),
        global_batch=row.whole("layout", "global_batch"),
        precision=precision,
        lora=lora_of(row, features),
        techniques=_techniques(row),
    )


def _techniques(row: RowReader) -> Applied:
    """CPU offload where the weights are on the host."""
    if row.get("layout", "offload") != "params":
        return ()
    if row.get("layout", "zero_stage") != 3:
        row.fail(("layout", "offload"), "params needs zero_stage 3: only shards of weights live on the host")
    return applied({cpu_offload.TECHNIQUE.name: {}})


def _unknown_recompute(row: RowReader, mode: str, layout: Layout, stack: StackSpec) -> tuple[bool, Layout]:
    """The default recomputation: none, or core attention where its scores would be kept in full."""
    if mode != "unknown":
        return True, layout
    if "maxtext" in row.text("stack", default=""):
        row.assume("recompute unknown: full, the default of MaxText (base.yml, remat_policy)")
        return False, replace(layout, recompute=RECOMPUTE_MODES.index("full"))
    if layout.recompute == RECOMPUTE_MODES.index("none") and stack.attention == "unfused":
        row.assume("recompute unknown: core attention, as scores are kept whole")
        return False, selective(layout, ("attn",))
    row.assume("recompute unknown: none" if not layout.recompute else "recompute modules unknown: core attention")
    return False, layout
