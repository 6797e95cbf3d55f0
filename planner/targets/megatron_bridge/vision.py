"""Qwen3-VL in Megatron-Bridge: Qwen3VLModelProvider and Qwen3VLMoEModelProvider, their tower, and mock images.

The language model has the fields of GPTModelProvider; its layers are all alike, and come from a spec of the class.
Read in Megatron-Bridge 51885cf1, models/qwen_vl/qwen3_vl_provider.py, models/qwen_vl/modelling_qwen3_vl/
{model,transformer_config,rope}.py and data/builders/mock_vlm_sft.py.
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
from ..options import Entry, Facts, NoCounterpartError, Settings
from ..python_values import name_of, value_of
from ..setup import Setup

# Whether layers have experts -> class, all in one module of megatron.bridge.models.
PROVIDERS = {False: "Qwen3VLModelProvider", True: "Qwen3VLMoEModelProvider"}
MODULE = "qwen_vl.qwen3_vl_provider"
EXAMPLE = "dataset.hf_processor_path=... checkpoint.pretrained_checkpoint=..."
STEP_IMPORT = "from megatron.bridge.models.qwen_vl.qwen3_vl_step import forward_step\n"
# The class of a tower's sizes in transformers, and that of synthetic conversations about images.
SIZES = "Qwen3VLVisionConfig"
DATASET = "MockVLMSFTDatasetConfig"
SIZES_IMPORT = f"from transformers.models.qwen3_vl.configuration_qwen3_vl import {SIZES}\n"
DATA_IMPORT = f"from megatron.bridge.data.builders import {DATASET}\n"
_CONFIG, _SECTIONS, _KIND = "model.vision_config", "model.mrope_section", "dataset"
_SIZE, _COUNT, _PADS, _PROCESSOR = (f"dataset.{name}" for name in (
    "image_size", "num_images", "pad_to_max_length", "hf_processor_path"))  # fmt: skip
_LANGUAGE, _TOWER, _PROJECTOR = (f"model.freeze_{part}" for part in (
    "language_model", "vision_model", "vision_projection"))  # fmt: skip
# The processor that cuts images into patches. Those of all Qwen3-VL are equal.
_HUB = "Qwen/Qwen3-VL-8B-Instruct"
# The last of the tokens that stand for images and videos there (video_token_id).
_LAST_TOKEN = 151_656
# Field of Qwen3VLVisionConfig -> that of VisionTower.
_FIELDS = {
    "depth": "layers", "hidden_size": "hidden", "num_heads": "heads", "intermediate_size": "inner",
    "patch_size": "patch", "in_channels": "channels", "temporal_patch_size": "frames", "spatial_merge_size": "merge",
    "num_position_embeddings": "positions", "out_hidden_size": "output",
}  # fmt: skip
_TAPS = "deepstack_visual_indexes"
# Argument of pretrain_gpt.py -> its field, its default in these classes, and that of GPTModelProvider.
_OF_BOTH: Mapping[str, tuple[str, Any, Any]] = {
    "--qk-layernorm": ("model.qk_layernorm", True, False), "--rotary-base": ("model.rotary_base", 5_000_000, 10_000),
}  # fmt: skip
_OF_ROUTED: Mapping[str, tuple[str, Any, Any]] = {
    "--moe-token-dispatcher-type": ("model.moe_token_dispatcher_type", "alltoall", "allgather"),
    "--moe-permute-fusion": ("model.moe_permute_fusion", True, False),
}  # fmt: skip
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
    return None if value == _OF_ROUTED["--moe-token-dispatcher-type"][2] else value


def as_planned(fields: Settings, options: tuple[str, ...], setup: Setup) -> Settings:
    """The fields that one entry writes for these arguments, and those that it leaves out where the class would take
    another value than GPTModelProvider."""
    if not sees(setup):
        return fields
    left = {field: plain for argument, (field, _, plain) in _defaults(routed=setup.model.is_moe).items()
            if argument in options and field not in fields}  # fmt: skip
    return fields | left


def defaults(settings: Mapping[str, Any]) -> Settings:
    """Arguments of pretrain_gpt.py for the defaults of a class that no field overrides."""
    if (name := settings.get("model")) not in PROVIDERS.values():
        return {}
    own = _defaults(routed=name == PROVIDERS[True])
    return {argument: value for argument, (field, value, _) in own.items() if field not in settings}


def _defaults(*, routed: bool) -> Mapping[str, tuple[str, Any, Any]]:
    return {**_OF_BOTH, **(_OF_ROUTED if routed else {})}


def _tower_write(setup: Setup) -> Settings:
    tower = setup.model.tower
    if tower is None:
        return {}
    sizes = {name: getattr(tower, field) for name, field in _FIELDS.items()} | {_TAPS: list(tower.taps)}
    lines = "".join(f"{_INDENT}    {name}={value},\n" for name, value in sizes.items())
    return {
        "model": PROVIDERS[setup.model.is_moe], _CONFIG: f"{SIZES}(\n{lines}{_INDENT})",
        _SECTIONS: list(tower.rope_sections),
    }  # fmt: skip


def _tower_read(settings: Settings, facts: Facts) -> Facts:
    if (text := settings.get(_CONFIG)) is None:
        return {}
    sections = {"mrope_section": settings.get(_SECTIONS, [24, 20, 20])}  # default of the class
    return {"model.tower": {"model_type": "qwen3_vl", "vision_config": _sizes(str(text)),
                            "text_config": {"rope_scaling": sections}}}  # fmt: skip


def _sizes(text: str) -> dict[str, Any]:
    """The fields that `Qwen3VLVisionConfig(...)` sets. Raises InputError for another expression."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or name_of(call.func).rpartition(".")[2] != SIZES or call.args:
        raise InputError(f"{_CONFIG} `{text[:60]}` is not {SIZES}(...)", hint="state the sizes of the tower by name")
    try:
        return {str(keyword.arg): value_of(keyword.value, {}) for keyword in call.keywords}
    except ValueError as error:
        raise InputError(f"{_CONFIG}: `{error}` is no plain value") from None


def _frozen_write(setup: Setup) -> Settings:
    """All three, since the class with experts freezes all but the projector by itself."""
    work = setup.workload
    return {_LANGUAGE: work.freeze_language, _TOWER: work.freeze_tower, _PROJECTOR: False} if sees(setup) else {}


def _frozen_read(settings: Settings, facts: Facts) -> Facts:
    by_itself = settings.get("model") == PROVIDERS[True]
    defaults = {_LANGUAGE: by_itself, _TOWER: by_itself, _PROJECTOR: False}
    frozen = {name: bool(settings.get(name, default)) for name, default in defaults.items()}
    if frozen[_PROJECTOR]:
        raise NoCounterpartError(f"{_PROJECTOR} has no counterpart in a plan, whose projector trains",
                                 hint="plans freeze the layers of the tower, and the language model")  # fmt: skip
    fields = {_TOWER: "workload.freeze_tower", _LANGUAGE: "workload.freeze_language"}
    return {field: True for name, field in fields.items() if frozen[name]}


def _images_write(setup: Setup) -> Settings:
    images = setup.workload.images
    if images is None:
        return {}
    return {_KIND: DATASET, _COUNT: images.per_sequence, _SIZE: (images.width, images.height), _PADS: True,
            _PROCESSOR: _HUB}  # fmt: skip


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
    """One sentence per part of a model with a tower that the two classes lack."""
    tower = model.tower
    if tower is None:
        return []
    if tower.merger != "mlp" or not tower.taps:
        return ["model.tower: towers other than that of Qwen3-VL are not written for it"]
    reasons = {
        f"model.tower: its activation is gelu_tanh, not {tower.activation}": tower.activation != "gelu_tanh",
        f"model.tower: it has a width of {tower.output} for a language model of {model.hidden}":
            tower.output != model.hidden,
        "model.kinds: layers of a model that sees are alike": len({kind.is_moe for kind in model.kinds}) > 1,
        "model.mtp_layers: a model that sees predicts no further tokens": model.mtp_layers > 0,
        "model.rope_scaling: positions of a model that sees are not scaled": model.trained_scaling is not None,
        f"model.vocab: {model.vocab} tokens lack those of images, up to {_LAST_TOKEN}": model.vocab <= _LAST_TOKEN,
    }  # fmt: skip
    return [text for text, applies in reasons.items() if applies]


def conflicts(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Fields that go with one kind of class only, and sizes that their asserts compare."""
    name, out = settings.get("model"), list[tuple[str, str]]()
    if not name:
        return out
    if name not in PROVIDERS.values():
        own = [field for field in (_CONFIG, _LANGUAGE, _TOWER, _PROJECTOR) if field in settings]
        out += [(field, f"is a field of {' and '.join(PROVIDERS.values())}, not of {name}") for field in own]
        if settings.get("model.position_embedding_type") == MROPE:
            out.append(("model.position_embedding_type", f"{MROPE} goes with {' or '.join(PROVIDERS.values())}"))
        return out
    if (name == PROVIDERS[True]) != bool(settings.get("model.num_moe_experts")):
        out.append(("model", f"{PROVIDERS[True]} has experts, {PROVIDERS[False]} has none"))
    if settings.get("model.apply_rope_fusion"):
        out.append(("model.apply_rope_fusion", "no fused kernel turns positions by frame, row and column"))
    if (settings.get("model.virtual_pipeline_model_parallel_size") or 1) > 1:
        out.append(("model.virtual_pipeline_model_parallel_size", f"{name} builds no virtual stages"))
    return out


def _plain_stages(columns: Columns, problem: Problem) -> Mask:
    # `provide` passes no vp_stage to Qwen3VLModel, without which the core builds no chunk.
    return np.asarray((columns["schedule"] != SCHEDULES.index("interleaved")) | (problem.workload.images is None))


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
         f"{PROVIDERS[False]} and {PROVIDERS[True]} build no virtual stages: plan with vpp 1"),
    Rule("megatron-bridge: ep_overlap of models that see", ("ep_overlap",), _one_batch_at_a_time,
         "model.overlap_moe_expert_parallel_comm: Qwen3VLModel does not compute beside the messages of experts"),
)  # fmt: skip
