"""Models that see in Megatron-Bridge: their towers, mock images, and what trains (vision_classes.py has the classes).

The language model has the fields of GPTModelProvider; its layers come from a spec of the class. Mock images: read in
Megatron-Bridge 51885cf1, data/builders/mock_vlm_sft.py.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.cuda_graphs import GRAPH_CODE
from ....cost_models.layouts import SCHEDULES
from ....cost_models.problem import Problem
from ....cost_models.specs.model import ModelSpec
from ....errors import InputError
from ...space.rules import Columns, Rule
from ..megatron.delta_net import has_delta_nets
from ..options import Entry, Facts, NoCounterpartError, Settings
from ..python_values import name_of, value_of
from ..setup import Setup
from .data_kinds import DataKind
from .vision_classes import BY_NAME, CLASSES, Defaults, SeeingClass, class_of

# Class -> its module in megatron.bridge.models.
MODULES = {name: each.module for name, each in BY_NAME.items()}
# The class of synthetic conversations about images.
DATASET = "MockVLMSFTDatasetConfig"
_CONFIG, _SECTIONS, _KIND = "model.vision_config", "model.mrope_section", "dataset"
_SIZE, _COUNT, _PADS, _PROCESSOR = (f"dataset.{name}" for name in (
    "image_size", "num_images", "pad_to_max_length", "hf_processor_path"))  # fmt: skip
_LANGUAGE, _TOWER, _PROJECTOR = (f"model.freeze_{part}" for part in (
    "language_model", "vision_model", "vision_projection"))  # fmt: skip
_DISPATCHER = "allgather"  # that of GPTModelProvider
ROPE, MROPE = "rope", "mrope"
_INDENT = " " * 12


def sees(setup: Setup) -> bool:
    """Whether the plan trains a tower."""
    return setup.model.tower is not None


def with_sections(arguments: Settings, setup: Setup) -> Settings:
    """Rotary positions by frame, row and column, which pretrain_gpt.py has no word for."""
    name = "--position-embedding-type"
    return {**arguments, name: MROPE} if sees(setup) and arguments.get(name) == ROPE else arguments


def plain_positions(value: Any) -> Any:
    """The word of pretrain_gpt.py for a kind of positions."""
    return ROPE if value == MROPE else value


def dispatcher(value: Any) -> Any:
    """The argument of pretrain_gpt.py for a dispatcher; None for its default."""
    return None if value == _DISPATCHER else value


def data_kind(setup: Setup) -> DataKind:
    """Mock images for a model with a tower, whose class has a step of its own or one of training."""
    kind = class_of(setup.model.tower)
    trains = kind is not None and kind.step.startswith("training")
    step = "" if kind is None else kind.step_import
    return DataKind(
        fields={"dataset.random_seed": 1234, "dataset.dataloader_type": "single"},
        example="dataset.hf_processor_path=... checkpoint.pretrained_checkpoint=...",
        data=f"from megatron.bridge.data.builders import {DATASET}\n",
        sizes="" if kind is None else kind.imports(routed=setup.model.is_moe),
        step="" if trains else step, training_step=step if trains else "",
    )  # fmt: skip


def as_planned(fields: Settings, options: tuple[str, ...], setup: Setup) -> Settings:
    """The fields that one entry writes for these arguments, and those that it leaves out where the class would take
    another value than GPTModelProvider."""
    if not sees(setup):
        return fields
    kind = class_of(setup.model.tower)
    own: Defaults = {} if kind is None else kind.defaults.get(setup.model.is_moe, {})
    left = {field: plain for argument, (field, _, plain) in own.items() if argument in options and field not in fields}
    return fields | left


def defaults(settings: Mapping[str, Any]) -> Settings:
    """Arguments of pretrain_gpt.py for the defaults of a class that no field overrides."""
    name = str(settings.get("model"))
    if (kind := BY_NAME.get(name)) is None:
        return {}
    own = kind.defaults.get(_routed(kind, name), {})
    return {argument: value for argument, (field, value, _) in own.items() if field not in settings}


def spec_of(settings: Mapping[str, Any]) -> str | None:
    """The spec that a class builds its layers by; None: a plain one."""
    kind = BY_NAME.get(str(settings.get("model")))
    return None if kind is None else kind.spec


def _routed(kind: SeeingClass, name: str) -> bool:
    """Whether a class is the one with experts."""
    return name == kind.names.get(True)


def _tower_write(setup: Setup) -> Settings:
    tower, kind = setup.model.tower, class_of(setup.model.tower)
    if tower is None or kind is None:
        return {}
    sizes = {name: getattr(tower, field) for name, field in kind.fields.items()}
    lines = "".join(f"{_INDENT}    {name}={list(value) if isinstance(value, tuple) else value},\n"
                    for name, value in sizes.items())  # fmt: skip
    return {
        "model": kind.names[setup.model.is_moe], _CONFIG: f"{kind.sizes[setup.model.is_moe][0]}(\n{lines}{_INDENT})",
        _SECTIONS: list(tower.rope_sections),
    }  # fmt: skip


def _tower_read(settings: Settings, facts: Facts) -> Facts:
    if (text := settings.get(_CONFIG)) is None:
        return {}
    name = str(settings.get("model"))
    kind = BY_NAME.get(name, CLASSES[0])
    sections = {"mrope_section": settings.get(_SECTIONS, list(kind.sections))}
    sizes = _sizes(kind.sizes[_routed(kind, name)][0], str(text))
    return {"model.tower": {"model_type": kind.tower, "vision_config": sizes,
                            "text_config": {"rope_scaling": sections}}}  # fmt: skip


def _sizes(name: str, text: str) -> dict[str, Any]:
    """The fields that `name(...)` sets. Raises InputError for another expression."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or name_of(call.func).rpartition(".")[2] != name or call.args:
        raise InputError(f"{_CONFIG} `{text[:60]}` is not {name}(...)",
                         hint="state the sizes of the tower by name")  # fmt: skip
    try:
        return {str(keyword.arg): value_of(keyword.value, {}) for keyword in call.keywords}
    except ValueError as error:
        raise InputError(f"{_CONFIG}: `{error}` is no plain value") from None


def _frozen_write(setup: Setup) -> Settings:
    """All three, since the class with experts freezes all but the projector by itself."""
    work = setup.workload
    return {_LANGUAGE: work.freeze_language, _TOWER: work.freeze_tower, _PROJECTOR: False} if sees(setup) else {}


def _frozen_read(settings: Settings, facts: Facts) -> Facts:
    name = str(settings.get("model"))
    by_itself = (kind := BY_NAME.get(name)) is not None and kind.frozen and _routed(kind, name)
    defaults = {_LANGUAGE: by_itself, _TOWER: by_itself, _PROJECTOR: False}
    frozen = {name: bool(settings.get(name, default)) for name, default in defaults.items()}
    if frozen[_PROJECTOR]:
        raise NoCounterpartError(f"{_PROJECTOR} has no counterpart in a plan, whose projector trains",
                                 hint="plans freeze the layers of the tower, and the language model")  # fmt: skip
    fields = {_TOWER: "workload.freeze_tower", _LANGUAGE: "workload.freeze_language"}
    return {field: True for name, field in fields.items() if frozen[name]}


def _images_write(setup: Setup) -> Settings:
    images, kind = setup.workload.images, class_of(setup.model.tower)
    if images is None or kind is None:
        return {}
    return {_KIND: DATASET, _COUNT: images.per_sequence, _SIZE: (images.width, images.height), _PADS: True,
            _PROCESSOR: kind.processor}  # fmt: skip


def _images_read(settings: Settings, facts: Facts) -> Facts:
    """Images of the mock data. Those of other data are in no recipe."""
    if settings.get(_KIND) != DATASET:
        return {}
    size = settings.get(_SIZE, [256, 256])  # defaults of the class
    if len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
        raise InputError(f"{_SIZE} `{size}` is not a width and a height in pixels")
    return {"workload.images": f"{settings.get(_COUNT, 1)}@{size[1]}x{size[0]}"}


ENTRIES = (
    Entry(("model.tower",), (_CONFIG, _SECTIONS, "model"), _tower_write, _tower_read),
    Entry(("workload.freeze_tower", "workload.freeze_language"), (_TOWER, _LANGUAGE, _PROJECTOR), _frozen_write,
          _frozen_read),
    Entry(("workload.images",), (_COUNT, _SIZE, _KIND, _PADS, _PROCESSOR), _images_write, _images_read),
)


def cannot_see(model: ModelSpec) -> list[str]:
    """One sentence per part of a model with a tower that its class lacks."""
    tower, kind = model.tower, class_of(model.tower)
    if tower is None:
        return []
    if kind is None:
        known = "{} and {}".format(", ".join(each.model for each in CLASSES[:-1]), CLASSES[-1].model)
        return [f"model.tower: towers other than those of {known} are not written for it"]
    reasons = {
        f"model.kinds: {kind.model} has no class with experts": model.is_moe not in kind.names,
        f"model.kinds: layers of {kind.model} have attention alone": kind.spec is None and has_delta_nets(model),
        f"model.tower: its activation is {kind.activation}, not {tower.activation}":
            tower.activation != kind.activation,
        f"model.tower: it has a width of {tower.output} for a language model of {model.hidden}":
            tower.output != model.hidden,
        f"model.kinds: layers of {kind.model} are alike": kind.alike and len({each.is_moe for each in model.kinds}) > 1,
        f"model.mtp_layers: {kind.model} predicts no further tokens": kind.alike and model.mtp_layers > 0,
        "model.rope_scaling: positions of a model that sees are not scaled": model.trained_scaling is not None,
        f"model.vocab: {model.vocab} tokens lack those of images, up to {kind.last_token}":
            model.vocab <= kind.last_token,
    }  # fmt: skip
    return [text for text, applies in reasons.items() if applies]


def conflicts(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Fields that go with one kind of class only, and sizes that their asserts compare."""
    name, out = settings.get("model"), list[tuple[str, str]]()
    if not name:
        return out
    if (kind := BY_NAME.get(name)) is None:
        own = [field for field in (_CONFIG, _LANGUAGE, _TOWER, _PROJECTOR) if field in settings]
        out += [(field, f"is a field of {' and '.join(BY_NAME)}, not of {name}") for field in own]
        if settings.get("model.position_embedding_type") == MROPE:
            out.append(("model.position_embedding_type", f"{MROPE} goes with {' or '.join(BY_NAME)}"))
        return out
    if _routed(kind, name) != bool(settings.get("model.num_moe_experts")):
        out.append(("model", f"{name} has {'experts' if _routed(kind, name) else 'no experts'}"))
    if settings.get("model.apply_rope_fusion"):
        out.append(("model.apply_rope_fusion", "no fused kernel turns positions by frame, row and column"))
    if not kind.context and (settings.get("model.context_parallel_size") or 1) > 1:
        out.append(("model.context_parallel_size", f"{name} does not deal out the tokens of a sequence"))
    if not kind.virtual_stages and (settings.get("model.virtual_pipeline_model_parallel_size") or 1) > 1:
        out.append(("model.virtual_pipeline_model_parallel_size", f"{name} builds no virtual stages"))
    return out


def _class(problem: Problem) -> SeeingClass | None:
    return None if problem.workload.images is None else class_of(problem.model.tower)


def _plain_stages(columns: Columns, problem: Problem) -> Mask:
    # `provide` passes no vp_stage to Qwen3VLModel, without which the core builds no chunk.
    kind = _class(problem)
    return np.asarray((columns["schedule"] != SCHEDULES.index("interleaved")) | (kind is None or kind.virtual_stages))


def _whole_sequences(columns: Columns, problem: Problem) -> Mask:
    # Qwen25VLModel gives the embeddings of whole sequences to its language model, whatever the rank:
    # training/vlm_step.py leaves it to the model to deal them out.
    kind = _class(problem)
    return np.asarray((columns["cp"] == 1) | (kind is None or kind.context))


def _one_batch_at_a_time(columns: Columns, problem: Problem) -> Mask:
    # Qwen3VLModel has no build_schedule_plan, which the step calls for it.
    return np.asarray((columns["ep_overlap"] == 0) | (problem.workload.images is None))


def _no_whole_graph(columns: Columns, problem: Problem) -> Mask:
    # Grids of images are read on the host in each step (get_rope_index, and fast_pos_embed_interpolate of the tower).
    whole = columns["cuda_graphs"] == GRAPH_CODE["full_iteration"]
    return np.asarray(~whole | (problem.workload.images is None))


RULES = (
    Rule("megatron-bridge: graphs of models that see", ("cuda_graphs",), _no_whole_graph,
         "model.cuda_graph_impl full_iteration: sizes of images are read on the host in each step"),
    Rule("megatron-bridge: virtual stages of models that see", ("schedule",), _plain_stages,
         "Qwen3VLModelProvider and Qwen3VLMoEModelProvider build no virtual stages: plan with vpp 1"),
    Rule("megatron-bridge: context parallelism of models that see", ("cp",), _whole_sequences,
         "model.context_parallel_size: Qwen25VLModel does not deal out the tokens of a sequence"),
    Rule("megatron-bridge: ep_overlap of models that see", ("ep_overlap",), _one_batch_at_a_time,
         "model.overlap_moe_expert_parallel_comm: Qwen3VLModel does not compute beside the messages of experts"),
)  # fmt: skip
