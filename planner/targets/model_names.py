"""Maps model names of the Hugging Face Hub to models of the catalogue with the same shapes."""

from __future__ import annotations

import re

from ...cost_models.specs.model import ModelSpec
from ...profiles.model.load import catalogued

# Suffixes of fine-tuned models, which keep their shapes.
_FURTHER = r"[-_](instruct|base|chat|hf|it|pt|sft|dpo|instruct-\d{4}|v0\.1|bf16|bnb-4bit|unsloth-bnb-4bit)$"


def known_model(name: str) -> ModelSpec | None:
    """The model of the catalogue with the shapes of `name` (`NousResearch/Meta-Llama-3-8B-Instruct`)."""
    if (spec := catalogued(name)) is not None:
        return spec
    short = name.rstrip("/").rpartition("/")[2]
    while True:
        for candidate in (short, re.sub(r"^meta-", "", short, flags=re.IGNORECASE)):
            if (spec := catalogued(candidate)) is not None:
                return spec
        shorter = re.sub(_FURTHER, "", short, flags=re.IGNORECASE)
        if shorter == short:
            return None
        short = shorter
