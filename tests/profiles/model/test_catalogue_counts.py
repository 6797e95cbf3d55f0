"""Entries of the catalogue have the parameters of the class of their `model_type` in transformers, on meta tensors."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.profiles.io.folders import CATALOGUE
from meshwright.profiles.io.reader import read_document
from meshwright.profiles.model.load import load_model
from transformers import CONFIG_MAPPING

from ...meta_models import assert_equal_counts

# transformers 5 ties all heads of these; test_encoder_decoder.py counts one apart.
TIED = {"t5", "mt5"}

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"),
              pytest.mark.filterwarnings("ignore::FutureWarning"),
              pytest.mark.filterwarnings("ignore::UserWarning:transformers")]  # fmt: skip


def _configs() -> dict[str, dict[str, Any]]:
    """Those of language models that transformers has a class for; towers are counted in test_vision.py."""
    found = {path.stem: read_document(path).data.get("config") for path in (CATALOGUE / "models").glob("[!_]*.yaml")}
    return {name: dict(config) for name, config in sorted(found.items()) if config and _model_type(config) is not None}


def _model_type(config: dict[str, Any]) -> str | None:
    named = dict(config.get("text_config", config)).get("model_type")
    return named if named in CONFIG_MAPPING else None


CONFIGS = _configs()


@pytest.mark.parametrize("name", [name for name in CONFIGS if load_model(name)[0].tower is None])
def test_an_entry_has_the_parameters_of_transformers(name: str) -> None:
    config = CONFIGS[name]
    assert_equal_counts({**config, "tie_word_embeddings": True} if _model_type(config) in TIED else config)
