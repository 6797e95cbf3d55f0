"""The model that a request names, describes or points to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cost_models.layer_kinds.compressed_attention import CompressedAttention
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.variants import text_of
from ...errors import UnsupportedError
from ...profiles.model.explicit_form import read_explicit_form
from ...profiles.model.load import load_model
from ...profiles.model.vision import added_by, in_words


def referenced_model(reference: str | Mapping[str, Any]) -> tuple[ModelSpec, list[str]]:
    """The model behind the `model` of a request, and warnings."""
    if isinstance(reference, str):
        return load_model(reference)
    return read_explicit_form(reference, name=str(reference.get("name", "model")), source="request")


def _compresses(model: ModelSpec) -> bool:
    return any(isinstance(kind.mixer, CompressedAttention) for kind in model.kinds)


def text_model(
    reference: str | Mapping[str, Any], *, trains: bool = False, fills: bool = False, sees: bool = False
) -> tuple[ModelSpec, list[str]]:
    """The language model behind the `model` of a request, and warnings: one on a vision tower beside it. trains: the
    request is one of training, which can have images and an encoder. fills: the model may fill in masked tokens. sees:
    it keeps its tower.

    Raises UnsupportedError for an encoder, a model with one, one of diffusion, Gemma 3n, or compressed attention, where
    it is not trained.
    """
    model, warnings = referenced_model(reference)
    kinds = {"has an encoder beside its decoder": model.encoder is not None,
             "is an encoder": model.bidirectional and not model.unmasks,
             "is a classifier": not model.token_head,
             "is a diffusion transformer": model.diffusion is not None and not fills,
             "has embeddings of each layer or streams of AltUp": model.layer_inputs is not None or model.alternates,
             "keeps caches of compressed attention, which are not modelled": _compresses(model),
             "is a graph network": model.graph is not None}  # fmt: skip
    if not trains and (kind := next((kind for kind, applies in kinds.items() if applies), None)):
        raise UnsupportedError(f"{model.name} {kind}: only its training is priced",
                               hint="`meshwright plan` without `--workload`")  # fmt: skip
    if model.unmasks and not trains and not fills:
        raise UnsupportedError(f"{model.name} fills in masked tokens: only its training and its serving are priced",
                               hint="name a decoder here")  # fmt: skip
    if model.tower is None or sees:
        return model, warnings
    added = f"; {added_by(model.tower)}" if trains else ""
    return text_of(model), [*warnings, f"{model.name}: only the text model is planned, {in_words(model.tower)}{added}"]
