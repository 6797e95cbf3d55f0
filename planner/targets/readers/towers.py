"""Names of modules beside the language model: towers, and what joins them to it."""

from __future__ import annotations

import re
from typing import Any

TOWERS = re.compile(r"vision|visual|audio|vit\b|tower|aligner|merger|projector|mlp1|resampler")


def are_towers(names: Any) -> bool:
    """Whether a list of names, or a pattern of several with `|` between them, has towers alone."""
    parts = names.split("|") if isinstance(names, str) else names if isinstance(names, list) else []
    return bool(parts) and all(TOWERS.search(str(part)) for part in parts)
