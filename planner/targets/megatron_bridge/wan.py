"""Wan in Megatron-Bridge: WanModelProvider, its mock latents, and the layouts that its model runs.

Read in Megatron-Bridge 51885cf1, diffusion/models/wan/{wan_provider,wan_model,wan_step,utils}.py and
diffusion/data/wan/{wan_energon_datamodule,wan_mock_datamodule}.py; its files are those of 067f987d.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import CP_ALGORITHMS, RECOMPUTE_MODES, module_mask
from ....cost_models.problem import Problem
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Images, Workload
from ....errors import InputError
from ....profiles.model.load import load_model
from ...space.rules import Columns, Rule
from ..options import Entry, Facts, NoCounterpartError, Settings
from ..setup import Setup
from .data_kinds import DataKind

FAMILY, PROVIDER, DATASET = "wan", "WanModelProvider", "WanDatasetConfig"
MODULE = "megatron.bridge.diffusion.models.wan.wan_provider"
NOTE = ("the encoder of text and the autoencoder run before training: Bridge trains on latents, mock ones until "
        "`dataset.path` names others")  # fmt: skip
DATA = DataKind(
    fields={"dataset.packing_buffer_size": 200},  # default of its class, which refuses None
    example="dataset.path=...",
    data=f"from megatron.bridge.diffusion.data.wan.wan_energon_datamodule import {DATASET}\n",
    step="from megatron.bridge.diffusion.models.wan.wan_step import WanForwardStep\n",
    forward="WanForwardStep()",
    notes=(NOTE,),
)
_PIXELS, _FRAMES = 8, 4  # of a latent: pixels of a side, frames after the first one
_CATALOGUED = "wan2.1-t2v-14b"
_LATENTS = ("dataset.F_latents", "dataset.H_latents", "dataset.W_latents")
_OF_MOCK = (24, 104, 60)  # defaults of WanDatasetConfig
MOCK_VIDEO = "1@{1}x{2}x{0}".format(1 + (_OF_MOCK[0] - 1) * _FRAMES, *(side * _PIXELS for side in _OF_MOCK[1:]))
_TEXT, _WIDTH = "dataset.context_seq_len", "model.crossattn_emb_size"
_PACKED = "dataset.number_packed_samples"
_BATCHES = {f"dataset.{name}": f"train.{name}" for name in ("micro_batch_size", "global_batch_size")}
# Set by the class for its model, and named by pretrain_gpt.py.
_OF_CLASS = ("model.normalization", "model.position_embedding_type", "model.vocab_size", "model.kv_channels",
             "model.qk_layernorm", "model.share_embeddings_and_output_weights", "model.attention_dropout",
             "model.hidden_dropout", "model.layernorm_epsilon")  # fmt: skip
# Sizes by which a model of the catalogue is known -> their defaults in the class.
_SIZES = {"model.num_layers": 30, "model.hidden_size": 1536, "model.ffn_hidden_size": 8960,
          "model.num_attention_heads": 12, _WIDTH: 1536}  # fmt: skip
_TEXT_BY_DEFAULT = 512  # tokens, of WanDatasetConfig


def denoises(setup: Setup) -> bool:
    """Whether the plan trains a diffusion transformer."""
    return setup.model.diffusion is not None


def as_planned(fields: Settings, setup: Setup) -> Settings:
    """The fields that one entry writes, without those that the class sets by itself."""
    return {name: value for name, value in fields.items() if not (denoises(setup) and name in _OF_CLASS)}


def without_sizes(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields without the sizes of the class, which make no layers of a language model; with the default of layers."""
    if settings.get("model") != PROVIDER:
        return settings
    others = {*_SIZES, *_OF_CLASS, "model.seq_length", "dataset.seq_length"} - {"model.num_layers"}
    layers = {"model.num_layers": _SIZES["model.num_layers"]}
    return layers | {name: value for name, value in settings.items() if name not in others}


def latents_of(images: Images) -> tuple[int, int, int]:
    """Frames, rows and columns of the latents of a video."""
    return 1 + (images.num_frames - 1) // _FRAMES, images.height // _PIXELS, images.width // _PIXELS


def _write(setup: Setup) -> Settings:
    diffusion, images = setup.model.diffusion, setup.workload.images
    if diffusion is None or images is None:
        return {}
    return {
        "model": PROVIDER, "dataset": DATASET, **dict(zip(_LATENTS, latents_of(images), strict=True)),
        _TEXT: diffusion.text_tokens, _WIDTH: setup.model.hidden,
        "dataset.micro_batch_size": setup.layout.micro_batch, "dataset.global_batch_size": setup.workload.global_batch,
    }  # fmt: skip


def _read(settings: Settings, facts: Facts) -> Facts:
    """The model of the catalogue with these sizes, and the video of the mock latents. Tokens follow from it."""
    if settings.get("model") != PROVIDER:
        return {}
    frames, rows, columns = (settings.get(name, mock) for name, mock in zip(_LATENTS, _OF_MOCK, strict=True))
    if settings.get(_PACKED, 1) != 1:
        raise NoCounterpartError(f"{_PACKED} {settings[_PACKED]} has no counterpart in a plan: a step has one video",
                                 hint="leave it out")  # fmt: skip
    if (text := settings.get(_TEXT, _TEXT_BY_DEFAULT)) != _TEXT_BY_DEFAULT:
        raise NoCounterpartError(f"{_TEXT} {text} has no counterpart in a plan: Wan reads {_TEXT_BY_DEFAULT} tokens")
    if min(frames, rows, columns) < 1:
        raise InputError(f"{_LATENTS[0]} {frames} x {rows} x {columns} latents are not 1 or more of each")
    video = f"1@{rows * _PIXELS}x{columns * _PIXELS}x{1 + (frames - 1) * _FRAMES}"
    return {"workload.images": video, "workload.seq_len": None, **_named(settings),
            "notes": [*facts.get("notes", []), NOTE]}  # fmt: skip


def _named(settings: Settings) -> Facts:
    known = load_model(_CATALOGUED)[0]
    given = tuple(settings.get(name, default) for name, default in _SIZES.items())
    attention, block = known.kinds[0].transformer_blocks
    same = given == (known.num_layers, known.hidden, getattr(block, "inner", 0), attention.heads, known.hidden)
    return {"model_name": _CATALOGUED} if same else {"model_name": f"Wan of {given[0]} layers x {given[1]}"}


ENTRY = Entry(("workload.images",), (*_LATENTS, _TEXT, _WIDTH, *_BATCHES, "model", "dataset"), _write, _read)


def conflicts(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Fields that must agree, and those of another class."""
    if settings.get("model") != PROVIDER:
        return [("dataset", f"{DATASET} goes with {PROVIDER}")] if settings.get("dataset") == DATASET else []
    out = [(name, f"is {settings[name]}, {twin} {settings[twin]}") for name, twin in _BATCHES.items()
           if name in settings and twin in settings and settings[name] != settings[twin]]  # fmt: skip
    width, hidden = (settings.get(name, _SIZES[name]) for name in (_WIDTH, "model.hidden_size"))
    if width != hidden:
        out.append((_WIDTH, f"is {width}, model.hidden_size {hidden}"))
    return out


def cannot(model: ModelSpec, workload: Workload) -> list[str]:
    """One sentence per part of a diffusion transformer and its training that Bridge lacks."""
    if model.family != FAMILY:
        return ["model.diffusion: of diffusion transformers only Wan is written for it"]
    images = workload.images
    reasons = {
        "workload.images: latents have two rows and two columns for each token":
            images is not None and any(side % 2 for side in latents_of(images)[1:]),
        f"workload.optimizer: {workload.optimizer} is not written for Wan": workload.optimizer == "muon",
        "workload.lora: adapters of Wan are not written": workload.lora is not None,
    }  # fmt: skip
    return [text for text, applies in reasons.items() if applies]


def _only_for(problem: Problem, mask: Mask) -> Mask:
    return np.asarray(mask | (problem.model.diffusion is None))


def _one_stage(columns: Columns, problem: Problem) -> Mask:
    # WanModel makes the embedders of the text and of the time step on each stage; a plan has them on the first one.
    return _only_for(problem, columns["pp"] == 1)


def _one_video(columns: Columns, problem: Problem) -> Mask:
    # mock_batch makes number_packed_samples videos, whatever the micro-batch; packed rows have one each.
    return _only_for(problem, columns["micro_batch"] == 1)


def _ring(columns: Columns, problem: Problem) -> Mask:
    # thd_split_inputs_cp gives a rank two of 2 cp parts of a video, as a ring of causal text has them.
    return _only_for(problem, (columns["cp"] == 1) | (columns["cp_algorithm"] == CP_ALGORITHMS.index("ring")))


def _whole_layers(columns: Columns, problem: Problem) -> Mask:
    # WanLayerWithAdaLN has a forward pass of its own, in which the core recomputes its attention alone.
    attention = columns["recompute_modules"] == module_mask(("attn",))
    return _only_for(problem, (columns["recompute"] != RECOMPUTE_MODES.index("selective")) | attention)


def _not_fsdp(columns: Columns, problem: Problem) -> Mask:
    return _only_for(problem, columns["zero"] <= 1)


RULES = (
    Rule("megatron-bridge: stages of Wan", ("pp",), _one_stage,
         "WanModel has the embedders of text and time on each of pp {pp} stages, plans on the first"),
    Rule("megatron-bridge: micro-batches of Wan", ("micro_batch",), _one_video,
         "a micro-batch of Wan is one video, not {micro_batch}"),
    Rule("megatron-bridge: context parallelism of Wan", ("cp", "cp_algorithm"), _ring,
         "tokens of Wan are dealt out for a ring, cp_comm_type p2p, not for {algorithm}"),
    Rule("megatron-bridge: recomputation of Wan", ("recompute", "recompute_modules"), _whole_layers,
         "layers of Wan are recomputed as a whole, in their attention, or not at all"),
    Rule("megatron-bridge: shards of Wan", ("zero",), _not_fsdp,
         "Wan is written with a distributed optimizer, z1, not with Megatron-FSDP, z{zero}"),
)  # fmt: skip
