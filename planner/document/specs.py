"""The model, workload and stack that a plan was made for, as the dataclasses of `cost_models` again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

from ...cost_models.layer_kinds.base import least
from ...cost_models.layer_kinds.registry import BY_NAME as MIXER_KINDS
from ...cost_models.specs.diffusion import Diffusion, Modulation
from ...cost_models.specs.encoder import Encoder
from ...cost_models.specs.graph import Graph
from ...cost_models.specs.layer_inputs import LayerInputs
from ...cost_models.specs.model import Attention, FeedForward, Layer, Mixer, MixtureOfExperts, ModelSpec
from ...cost_models.specs.rope_scaling import RopeScaling
from ...cost_models.specs.sparse_index import SparseIndex
from ...cost_models.specs.stack import StackSpec
from ...cost_models.specs.vision import VisionTower
from ...cost_models.specs.workload import Images, Lora, LoraTarget, Workload
from ...errors import FieldProblem, InputError

# Numbers of a model that are above 0 where they are there.
_POSITIVE = ("rope_theta", "window_rope_theta", "norm_epsilon", "partial_rotary_factor", "embedding_scale",
             "residual_scale", "logit_scale", "logit_softcap")  # fmt: skip


def part(resolved: Mapping[str, Any], field: str, name: str) -> dict[str, Any]:
    """The object `field` of what a plan resolved. Raises InputError if it is damaged; `name`: the file."""
    data = resolved.get(field)
    if not isinstance(data, dict):
        raise InputError.of([FieldProblem("missing, or not an object", file=name, field=f"resolved.{field}")])
    return data


def build(kind: type[Any], data: Mapping[str, Any], where: str, name: str) -> Any:
    """An instance of the dataclass `kind`; unknown, missing and mistyped fields are named."""
    known = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
    hint = "the file was edited, or written by another version: plan again"
    problems = [
        FieldProblem("unknown", file=name, field=f"{where}.{key}", hint=hint) for key in sorted(set(data) - known)
    ]
    problems += [
        FieldProblem("missing", file=name, field=f"{where}.{key}", hint=hint) for key in sorted(needed - set(data))
    ]
    if problems:
        raise InputError.of(problems)
    try:
        return kind(**data)
    except TypeError as error:
        raise InputError.of([FieldProblem(str(error), file=name, field=where)]) from None


def hub_name(model: Mapping[str, Any]) -> str:
    """The name of a resolved model on the Hugging Face Hub where its source has it, else in the catalogue."""
    match = re.search(r"huggingface\.co/([\w.-]+/[\w.-]+)", str(model.get("source") or ""))
    return match[1] if match else str(model["name"])


def model_of(resolved: Mapping[str, Any], name: str) -> ModelSpec:
    """The model of a plan."""
    data = part(resolved, "model", name)
    kinds = data.get("kinds")
    if not isinstance(kinds, list) or not kinds:
        raise InputError.of([FieldProblem("missing, or not a list", file=name, field="resolved.model.kinds")])
    layers = []
    for index, kind in enumerate(kinds):
        where = f"resolved.model.kinds.{index}"
        layers.append(build(Layer, {**kind, **_blocks(kind, where, name)}, where, name))
    pattern = tuple(data.get("pattern", ()))
    if not pattern or not all(isinstance(kind_index, int) and 0 <= kind_index < len(layers) for kind_index in pattern):
        raise InputError.of([FieldProblem("must index `kinds`", file=name, field="resolved.model.pattern")])
    mtp_pattern = tuple(data.get("mtp_pattern", ()))
    if not all(isinstance(kind_index, int) and 0 <= kind_index < len(layers) for kind_index in mtp_pattern):
        raise InputError.of([FieldProblem("must index `kinds`", file=name, field="resolved.model.mtp_pattern")])
    values = {**data, **_numerics(data, layers), **_scaling(data, name), **_tower(data, name),
              **_encoder(data, len(pattern), name), **_graph(data, name),
              **_sizes(data, "diffusion", Diffusion, ("side", "inputs", "embedders", "ends"), name),
              **_sizes(data, "layer_inputs", LayerInputs, ("rows", "width"), name),
              "kinds": tuple(layers), "pattern": pattern, "mtp_pattern": mtp_pattern,
             "unmodelled": tuple(data.get("unmodelled", ()))}  # fmt: skip
    model: ModelSpec = build(ModelSpec, values, "resolved.model", name)
    _positive(vars(model), ("hidden", "vocab", "max_positions"), "resolved.model", name)
    coefficient = model.moe_aux_loss_coeff
    if isinstance(coefficient, bool) or not isinstance(coefficient, int | float) or not 0 <= coefficient < float("inf"):
        text = f"`{coefficient}` is not a number of at least 0"
        raise InputError.of([FieldProblem(text, file=name, field="resolved.model.moe_aux_loss_coeff")])
    numbers = {name: 1.0 if (value := getattr(model, name)) is None else value for name in _POSITIVE}
    if model.rope_scaling is not None:
        numbers["rope_scaling.factor"] = model.rope_scaling.factor
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
            problem = FieldProblem(f"`{value}` is not a positive number", file=name, field=f"resolved.model.{key}")
            raise InputError.of([problem])
    return model


def _blocks(kind: Mapping[str, Any], where: str, name: str) -> dict[str, Any]:
    """The blocks of a layer; null where it lacks one."""
    attention, mixer = kind.get("attention", {}), kind.get("mixer")
    block = kind.get("feed_forward", {})
    parts: dict[str, Any] = {"attention": None, "feed_forward": None, "mixer": None, "cross_attention": None}
    if (modulation := kind.get("modulation")) is not None:
        parts["modulation"] = build(Modulation, modulation, f"{where}.modulation", name)
    if (cross := kind.get("cross_attention")) is not None:
        at = f"{where}.cross_attention"
        parts["cross_attention"] = build(Attention, cross, at, name)
        _positive(vars_of(parts["cross_attention"]), ("heads", "kv_heads", "head_dim"), at, name)
    if attention is not None:
        index = attention.get("index")
        chosen = {} if index is None else {"index": build(SparseIndex, index, f"{where}.attention.index", name)}
        parts["attention"] = build(Attention, {**attention, **chosen}, f"{where}.attention", name)
        _positive(vars_of(parts["attention"]), ("heads", "kv_heads", "head_dim"), f"{where}.attention", name)
    if block is not None:
        of = MixtureOfExperts if "experts" in block else FeedForward
        parts["feed_forward"] = build(of, block, f"{where}.feed_forward", name)
        if "experts" in block:
            _capacity(parts["feed_forward"], f"{where}.feed_forward.capacity_factor", name)
    if mixer is not None:
        parts["mixer"] = _mixer(mixer, f"{where}.mixer", name)
    return parts  # none of a layer that passes its input on, as some of Llama-Nemotron Ultra


def _mixer(data: Mapping[str, Any], where: str, name: str) -> Mixer:
    """Raises InputError for a kind that is not known, and for sizes that are no positive numbers."""
    kind = MIXER_KINDS.get(str(data.get("kind")))
    if kind is None:
        text = f"`{data.get('kind')}` is none of {', '.join(MIXER_KINDS)}"
        raise InputError.of([FieldProblem(text, file=name, field=f"{where}.kind")])
    mixer: Mixer = build(kind.spec, {key: value for key, value in data.items() if key != "kind"}, where, name)
    values, kinds = vars_of(mixer), get_type_hints(kind.spec)
    absent = [field.name for field in fields(kind.spec) if least(field) == 0]
    counts = (key for key in values if kinds[key] is int and not (key in absent and values[key] == 0))
    _positive(values, tuple(counts), where, name)
    for key, word in values.items():
        if (words := get_args(kinds[key])) and word not in words:
            text = f"`{word}` is none of {', '.join(words)}"
            raise InputError.of([FieldProblem(text, file=name, field=f"{where}.{key}")])
    numbers = [key for key in values if kinds[key] is float]
    bad = [key for key in numbers if not isinstance(values[key], int | float) or values[key] < 0]
    if bad:
        raise InputError.of([FieldProblem(f"`{values[key]}` is not a number of at least 0", file=name,
                                          field=f"{where}.{key}") for key in bad])  # fmt: skip
    return mixer


def _object(data: Mapping[str, Any], key: str, where: str, name: str) -> dict[str, Any] | None:
    """The fields of a part that may be absent. Raises InputError for another value."""
    given = data.get(key)
    if given is not None and not isinstance(given, dict):
        raise InputError.of([FieldProblem("not an object", file=name, field=where)])
    return given


def _scaling(data: Mapping[str, Any], name: str) -> dict[str, RopeScaling]:
    where = "resolved.model.rope_scaling"
    if (given := _object(data, "rope_scaling", where, name)) is None:
        return {}
    scaling: RopeScaling = build(RopeScaling, given, where, name)
    numbers = [value for key, value in vars_of(scaling).items() if key != "kind"]
    known = get_args(get_type_hints(RopeScaling)["kind"])
    if scaling.kind not in known or not all(isinstance(value, float | int | None) for value in numbers):
        raise InputError.of([FieldProblem("no scaling of positions that is known", file=name, field=where)])
    return {"rope_scaling": scaling}


def _tower(data: Mapping[str, Any], name: str) -> dict[str, VisionTower]:
    where = "resolved.model.tower"
    if (given := _object(data, "tower", where, name)) is None:
        return {}
    rows = {key: tuple(given[key]) for key in ("taps", "rope_sections", "whole") if isinstance(given.get(key), list)}
    tower: VisionTower = build(VisionTower, {**given, **rows}, where, name)
    values, kinds = vars_of(tower), get_type_hints(VisionTower)
    optional = ("class_tokens", "adapter", "positions", "window", "tiles", "idle_layers", "least_pixels", "most_pixels",
                "crops")
    _positive(values, tuple(key for key in values if kinds[key] is int and key not in optional), where, name)
    for key, row in (("taps", tower.taps), ("rope_sections", tower.rope_sections), ("whole", tower.whole)):
        if not isinstance(row, tuple) or not all(type(number) is int and number >= 0 for number in row):
            raise InputError.of([FieldProblem("must be a list of whole numbers", file=name, field=f"{where}.{key}")])
    mergers = get_args(kinds["merger"])
    if tower.merger not in mergers:
        text = f"`{tower.merger}` is none of {', '.join(mergers)}"
        raise InputError.of([FieldProblem(text, file=name, field=f"{where}.merger")])
    return {"tower": tower}


def _encoder(data: Mapping[str, Any], num_layers: int, name: str) -> dict[str, Encoder]:
    where = "resolved.model.encoder"
    if (given := _object(data, "encoder", where, name)) is None:
        return {}
    encoder: Encoder = build(Encoder, given, where, name)
    _positive(vars_of(encoder), ("layers", "max_positions", *(["mel_bins"] if encoder.mel_bins else [])), where, name)
    if encoder.layers >= num_layers:
        text = f"{encoder.layers} of {num_layers} layers leave none to the decoder"
        raise InputError.of([FieldProblem(text, file=name, field=f"{where}.layers")])
    return {"encoder": encoder}


def _sizes(data: Mapping[str, Any], key: str, kind: type[Any], positive: tuple[str, ...], name: str) -> dict[str, Any]:
    """A part of a model that may be absent, by its name. positive: its sizes that are above 0."""
    where = f"resolved.model.{key}"
    if (given := _object(data, key, where, name)) is None:
        return {}
    sizes = build(kind, given, where, name)
    _positive(vars_of(sizes), positive, where, name)
    return {key: sizes}


def _graph(data: Mapping[str, Any], name: str) -> dict[str, Graph]:
    where = "resolved.model.graph"
    if (given := _object(data, "graph", where, name)) is None:
        return {}
    copies = given.get("copies", [])
    if not isinstance(copies, list) or not all(isinstance(pair, list) for pair in copies):
        raise InputError.of([FieldProblem("must be pairs of numbers", file=name, field=f"{where}.copies")])
    graph: Graph = build(Graph, {**given, "copies": tuple(map(tuple, copies))}, where, name)
    _positive(vars_of(graph), ("vertices", "edges", "features"), where, name)
    return {"graph": graph}


def _images(workload: Mapping[str, Any], name: str) -> Images | None:
    where = "resolved.workload.images"
    if (given := _object(workload, "images", where, name)) is None:
        return None
    images: Images = build(Images, given, where, name)
    _positive(vars(images), ("per_sequence", "height", "width"), where, name)
    return images


def _capacity(block: MixtureOfExperts, where: str, name: str) -> None:
    factor, most = block.capacity_factor, block.experts / block.top_k
    if factor is None:
        return
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= most:
        text = f"`{factor}` is no number above 0 and up to {most:g}"
        raise InputError.of([FieldProblem(text, file=name, field=where)])


def _numerics(data: Mapping[str, Any], layers: Sequence[Layer]) -> dict[str, Any]:
    """Fields that plans of older versions lack: the values with which those versions trained."""
    rotary = data.get("rope_theta", 10_000.0) is not None and not data.get("learned_positions")
    unsaid = ("rope_scaling",) if rotary and "rope_scaling" not in data else ()
    if "activation" in data:
        return {"assumed": (*data.get("assumed", ()), *unsaid)}
    gated = next((kind.feed_forward.gated for kind in layers if kind.feed_forward is not None), True)
    names = ("rope_theta", "norm_epsilon", "activation", *unsaid)
    return {"activation": "silu" if gated else "gelu", "assumed": names}


def lora_of(workload: Mapping[str, Any], name: str) -> Lora | None:
    """The adapters of the workload of a plan."""
    where = "resolved.workload.lora"
    if (data := _object(workload, "lora", where, name)) is None:
        return None
    lora: Lora = build(Lora, {**data, "targets": tuple(data.get("targets", ()))}, where, name)
    _positive(vars(lora), ("rank",), where, name)
    known = get_args(LoraTarget)
    if not lora.targets or (unknown := [target for target in lora.targets if target not in known]):
        text = f"`{unknown[0]}` is none of {', '.join(known)}" if lora.targets else "names no projection"
        raise InputError.of([FieldProblem(text, file=name, field=f"{where}.targets")])
    return lora


def workload_of(resolved: Mapping[str, Any], name: str) -> Workload:
    """The workload of a plan."""
    data = dict(part(resolved, "workload", name))
    data["lora"] = lora_of(data, name)
    data["images"] = _images(data, name)
    data["lengths"] = tuple((int(length), float(share)) for length, share in data.get("lengths", ()))
    techniques = ((name, tuple((knob, value) for knob, value in knobs)) for name, knobs in data.get("techniques", ()))
    data["techniques"] = tuple(techniques)
    workload: Workload = build(Workload, data, "resolved.workload", name)
    _positive(vars(workload), ("seq_len", "global_batch"), "resolved.workload", name)
    return workload


def stack_of(resolved: Mapping[str, Any], name: str) -> StackSpec:
    """The software stack of a plan."""
    stack: StackSpec = build(StackSpec, part(resolved, "stack", name), "resolved.stack", name)
    return stack


def vars_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass with slots."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _positive(values: Mapping[str, Any], names: tuple[str, ...], where: str, name: str) -> None:
    bad = [key for key in names if not isinstance(values[key], int) or values[key] < 1]
    if bad:
        raise InputError.of([
            FieldProblem(f"`{values[key]}` is not a positive whole number", file=name, field=f"{where}.{key}")
            for key in bad
        ])  # fmt: skip
