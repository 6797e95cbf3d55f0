"""Published configurations: each is read with all of its parameters, or refused for the reason that it states."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.specs.variants import text_of
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model, model_names
from transformers import CONFIG_MAPPING

from meshwright.errors import InputError

from ...meta_models import assert_equal_counts
from ...published_configs import ENTRIES

NEAR = 0.01  # of a published number that is rounded

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:transformers"),
]


def model_type(entry: dict[str, Any]) -> str:
    config = entry["config"]
    return str(config.get("text_config", config)["model_type"])


def in_transformers(entry: dict[str, Any]) -> bool:
    return model_type(entry) in CONFIG_MAPPING or model_type(entry) == "kimi_k2"


def named(entries: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", entries, ids=[entry["name"] for entry in entries])


def test_the_list_has_seventy_two_models_with_a_source() -> None:
    assert len({entry["name"] for entry in ENTRIES}) == len(ENTRIES) == 72
    assert all(entry["source"] for entry in ENTRIES)


@named([entry for entry in ENTRIES if "refused" in entry])
def test_a_refused_config_says_what_is_not_understood(entry: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        read_config(entry["config"], entry["name"])

    assert all(part in caught.value.message for part in entry["refused"].split(", "))
    assert "did you mean" not in caught.value.hint


@named([entry for entry in ENTRIES if "refused" not in entry and in_transformers(entry)])
def test_a_config_has_the_parameters_of_transformers(entry: dict[str, Any]) -> None:
    assert_equal_counts(entry["config"])


@named([entry for entry in ENTRIES if "refused" not in entry and "billions" in entry])
def test_a_config_has_the_published_parameters(entry: dict[str, Any]) -> None:
    spec, _ = read_config(entry["config"], entry["name"])

    assert total_parameters(spec) / 1e9 == pytest.approx(entry["billions"], rel=NEAR)


@named([entry for entry in ENTRIES if "refused" not in entry and entry["name"] in model_names()])
def test_the_catalogue_has_the_parameters_of_the_published_config(entry: dict[str, Any]) -> None:
    """Of its language model: some of these configs are without the tower."""
    published, listed = (text_of(model) for model in (read_config(entry["config"], entry["name"])[0],
                                                      load_model(entry["name"])[0]))  # fmt: skip
    assert total_parameters(listed) == total_parameters(published)


def test_every_config_is_checked_against_something() -> None:
    assert all("refused" in entry or in_transformers(entry) or "billions" in entry for entry in ENTRIES)
