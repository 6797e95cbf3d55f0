"""Hugging Face config.json -> ModelSpec, by the families of `families.py`.

Only the JSON is read; code that a config points to is never executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...cost_models.specs.model import ModelSpec
from ...errors import InputError, UnknownNameError
from ..io.document import LineOf, no_line
from .choice_bias import with_choice_bias
from .families import FAMILIES
from .families_diffusion import DIFFUSERS
from .families_graph import GRAPHS, graph_network
from .fields import Fields
from .numerics import with_numerics
from .unknown_parts import not_understood
from .unmodelled import unmodelled
from .vision import read_tower

_ALL_FAMILIES = "`meshwright show families` lists those with formulas"
_EXPLICIT_FORM = (
    "describe it in a YAML file with hidden, layers, heads, kv_heads, head_dim, ffn_hidden, gated_mlp, vocab, "
    "max_positions, tied_embeddings (and moe, mla where it has them)"
)


def read_config(
    data: Mapping[str, Any], name: str, source: str = "", *, file: str = "", line: LineOf = no_line
) -> tuple[ModelSpec, list[str]]:
    """The text model that a config.json describes, with its vision tower if that has formulas, and warnings on what was
    left out of it.

    `data`: the parsed JSON; `name`: of the model, for output; `source`: where the config comes from, kept in the spec.
    Raises UnknownNameError for a model_type without formulas, InputError with all problems for bad fields.
    """
    if (denoises := DIFFUSERS.get(str(data.get("_class_name")))) is not None:
        fields = Fields(data, file=file, line=line)
        spec = denoises(fields)
        fields.finish()
        return replace(spec, name=name, source=source), []
    if (kind := str(data.get("model_type"))) in GRAPHS:
        fields = Fields(data, file=file, line=line)
        spec = graph_network(fields, kind)
        fields.finish()
        return replace(spec, name=name, source=source), []
    text, prefix, others = _text_part(data)
    model_type = text.get("model_type")
    if not isinstance(model_type, str):
        raise _no_model_type(data, file or name)
    if model_type not in FAMILIES:
        raise _unknown_family(data, text, file or name)
    fields = Fields(text, file=file, prefix=prefix, line=line)
    spec = with_numerics(fields, model_type, FAMILIES[model_type](fields))
    spec = with_choice_bias(fields, model_type, spec)
    spec = replace(spec, unmodelled=(*spec.unmodelled, *unmodelled(fields, spec.family)))
    tower = read_tower(whole := Fields(data, file=file, line=line))
    fields.absorb(whole)
    fields.finish()
    missing = [part for part in others if part != "vision_config" or tower is None]
    left = f"{'' if tower else 'only the text model is planned, '}left out: {', '.join(missing)}"
    warnings = [f"{name}: {left}"] if missing else []
    if data.get("quantization_config") or text.get("quantization_config"):
        warnings.append(f"{name}: quantization_config is ignored, training is planned in the precision of the workload")
    if data.get("auto_map"):
        warnings.append(f"{name}: auto_map is ignored, code that a config names is never executed")
    return replace(spec, name=name, source=source, tower=tower), warnings


# Mappings of a config that are no other part of the model. By the chunks of dual chunk attention an engine serves
# prompts beyond the trained positions (arXiv:2402.17463); training has none.
_NO_PARTS = ("text_config", "quantization_config", "generation_config", "dual_chunk_attention_config")


def _text_part(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...], list[str]]:
    """The config of the language model in `data`, the path to it, and the names of the other parts."""
    others = [key for key in data if key.endswith("_config") and isinstance(data[key], Mapping)]
    others = sorted(key for key in others if key not in _NO_PARTS)
    text = data.get("text_config")
    if not isinstance(text, Mapping):
        return data, (), others
    merged = dict(text)
    if "tie_word_embeddings" in data:
        merged.setdefault("tie_word_embeddings", data["tie_word_embeddings"])
    return merged, ("text_config",), others


def _no_model_type(data: Mapping[str, Any], where: str) -> InputError:
    architectures = data.get("architectures")
    stated = f" (architectures: {architectures})" if architectures else ""
    return InputError(f"{where}: no `model_type`{stated}", hint=_ALL_FAMILIES)


def _unknown_family(data: Mapping[str, Any], text: Mapping[str, Any], where: str) -> UnknownNameError:
    """The error of an unknown family, with the parts of the model without a formula. The same name in another spelling
    is suggested, never a family that only sounds alike."""
    model_type = str(text["model_type"])
    near = families_spelt_as(model_type)
    error = UnknownNameError("model_type", model_type, near, where=where)
    error.message += "" if near else not_understood(text)
    parts = [error.hint or _ALL_FAMILIES, _EXPLICIT_FORM]
    if data.get("auto_map"):
        parts.append("its auto_map names custom code, and code in configs is never executed")
    error.hint = "; ".join(part for part in parts if part)
    return error


def families_spelt_as(model_type: str) -> list[str]:
    """The families of the same letters and digits."""
    return [name for name in FAMILIES if _letters(name) == _letters(model_type)]


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
