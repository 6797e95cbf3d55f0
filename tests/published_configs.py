"""Published configurations of Hugging Face: of `tests/data/published_configs.yaml`, and of the catalogue where that
names a model alone."""

from __future__ import annotations

from typing import Any

import yaml
from meshwright.profiles.io.folders import CATALOGUE

from .snapshots import ROOT


def _whole(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry with the source and the config of the catalogue, where it has none of its own."""
    if "config" in entry:
        return entry
    listed: dict[str, Any] = yaml.safe_load((CATALOGUE / "models" / f"{entry['name']}.yaml").read_text())
    return {**listed, **entry}


# Each has `name`, `source`, `config`, and perhaps `billions` and `refused`.
ENTRIES = [_whole(entry) for entry in yaml.safe_load((ROOT / "tests/data/published_configs.yaml").read_text())]
# Name -> config.
LISTED: dict[str, dict[str, Any]] = {entry["name"]: entry["config"] for entry in ENTRIES}
