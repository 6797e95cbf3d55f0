"""Names of releases that keep the shapes of a model: fine-tuned, quantised, dated, or another organisation's copy.

A release may have other rotary positions and more of them; its own config.json states these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# What a release adds at the end of the model's name: how it was trained on, its number format, its date.
_ADDED = re.compile(
    r"[-_.](instruct|base|chat|thinking|it|pt|sft|dpo|hf|checkpoints|rope-\d+k|v0\.1|\d{4}"
    r"|bf16|fp8|fp8-(kv|dynamic|block)|fp4|mxfp4|nvfp4|fp4-v\d|nvfp4-v\d|int[48]|w\da\d+|quantized|awq|gptq|gguf"
    r"|(unsloth-)?bnb-4bit)$",
    re.IGNORECASE,
)
# What one adds before it.
_MAKERS = re.compile(r"^(meta|nvidia)-", re.IGNORECASE)
# Trained further for code or mathematics, of the shapes of the general model (arXiv:2409.12186 table 1,
# arXiv:2409.12122 section 2).
_SUBJECTS = re.compile(r"(?<=^qwen2\.5)-(coder|math)(?=-)", re.IGNORECASE)


def names_of_models(release: str) -> Iterator[str]:
    """Names that the model of `release` may have, the longest first: of `NousResearch/Meta-Llama-3-8B-Instruct` also
    `Meta-Llama-3-8B` and `Llama-3-8B`."""
    name = _SUBJECTS.sub("", release.rstrip("/").rpartition("/")[2])
    while True:
        yield from dict.fromkeys((name, _MAKERS.sub("", name)))
        shorter = _ADDED.sub("", name)
        if shorter == name:
            return
        name = shorter
