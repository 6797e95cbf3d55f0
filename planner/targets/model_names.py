"""Finds the model of a launch config: described by its sizes, or named as on the Hugging Face Hub or in a framework."""

from __future__ import annotations

import re
from typing import Any

from ...cost_models.quantities.params import total_parameters
from ...cost_models.specs.model import ModelSpec
from ...errors import InputError
from ...profiles.model.load import catalogued, load_model, model_names, release_of
from ...profiles.model.releases import number_format
from .facts import request_part
from .option_lists import OptionList
from .options import Facts

# Number formats in the names of releases that recipes train: full precision, and the base weights of adapters that they
# quantise themselves.
_TRAINED_IN = (None, "bf16", "fp16", "bnb-4bit", "unsloth-bnb-4bit")
# Folder of a model in the cache of huggingface_hub 1.0 (constants.py, REPO_ID_SEPARATOR).
_CACHED = re.compile(r"(?:^|/)models--([^/]+?)--([^/]+)(?:/|$)")


def known_model(name: str) -> ModelSpec | None:
    """The model of the catalogue with the shapes of `name` (`NousResearch/Meta-Llama-3-8B-Instruct`), also of its
    folder in the Hub's cache (`models--Qwen--Qwen2.5-14B/snapshots/97e1e763`); None for one in a number format that
    plans do not train."""
    name = name.replace("\\", "/")  # a folder of Windows
    if cached := _CACHED.search(name):
        name = f"{cached[1]}/{cached[2]}"
    return catalogued(name) or (release_of(name) if number_format(name) in _TRAINED_IN else None)


def model_of(facts: Facts, options: OptionList, assumed: list[str]) -> dict[str, Any] | str | None:
    """The model, described or by name, with a sentence in `assumed` for each fact that is taken; None: not stated."""
    described = request_part(facts, "model")
    if "hidden" in described and "layers" in described:
        if "vocab" not in described:
            described["vocab"] = 128256
            assumed.append("the vocabulary is the tokenizer's: 128,256 taken; `--model` names another")
        described.setdefault("max_positions", facts.get("workload.seq_len", 4096))
        return _catalogued(described)
    if (hub := facts.get("model_name")) and (spec := known_model(hub)) is not None:
        if catalogued(hub) is None:
            assumed.append(f"{hub} is taken for {spec.name}: `--model` names another")
        if described.get("vocab", spec.vocab) != spec.vocab:
            assumed.append(f"the vocabulary of {described['vocab']:,} is priced as the {spec.vocab:,} of {spec.name}")
        return spec.name
    name = facts.get("registered")
    entry = next((model for model in options.models if model.name == name), None)
    if entry is None:
        if not name or (other := catalogued(name) or catalogued(name.replace("/", "-"))) is None:
            return None
        assumed.append(f"{name} is {other.name} of the catalogue: `--model` names another")
        return other.name
    specs = [load_model(known)[0] for known in model_names()]
    same_shapes = [spec for spec in specs if (spec.num_layers, spec.hidden, total_parameters(spec))
                   == (entry.layers, entry.hidden, entry.parameters)]  # fmt: skip
    if not same_shapes:
        return None
    # Llama 3 and 3.1 have the same shapes, and torchtitan's flavours scale their rotary positions.
    taken = max(same_shapes, key=lambda spec: spec.rope_scaling is not None)
    assumed.append(f"{name} is taken for {taken.name}, with its rotary positions: `--model` names another")
    return taken.name


def no_model(name: str | None) -> InputError:
    """The error of a config without a model, or with one that is not in the catalogue."""
    if name is None:
        return InputError("the config does not name its model", hint="add `--model NAME` (`show models`)")
    return InputError(f"the model {name} is not in the catalogue",
                      hint="add `--model FOLDER` with its config.json, or the name of one of its shapes")  # fmt: skip


def _catalogued(described: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"{described['layers']} layers x {described['hidden']}", **described}
