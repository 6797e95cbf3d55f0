"""Names of releases that keep the shapes of a model: fine-tuned, quantised, dated, or another organisation's copy.

A release may have other rotary positions and more of them; its own config.json states these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_FORMATS = r"bf16|fp8|fp4|mxfp4|nvfp4|int[48]|w\da\d+|awq|gptq|gguf|(?:unsloth-)?bnb-4bit"
# Endings of a release: the number format of its weights, how its model was trained on, its date. A bare number may be a
# length, so it is a date in names of DeepSeek alone.
_ENDING = re.compile(
    rf"[-_.]((?:{_FORMATS})(?:-(?:kv|dynamic|block|v\d))?|quantized|(?:instruct|thinking|chat)-\d{{4}}|0324|0528|instruct"
    r"|base|chat|thinking|it|pt|sft|dpo|hf|checkpoints|rope-\d+k|v0\.1)$",
    re.IGNORECASE,
)
_FORMAT = re.compile(rf"[-_.]({_FORMATS})(?=[-_.]|$)", re.IGNORECASE)
# Beginnings that makers add.
_MAKERS = re.compile(r"^(meta|nvidia)-", re.IGNORECASE)
# Trained further for code or mathematics, with the shapes of the general model (arXiv:2409.12186 table 1,
# arXiv:2409.12122 section 2).
_SUBJECTS = re.compile(r"(?<=^qwen2\.5)-(coder|math)(?=-)", re.IGNORECASE)
# Trained further under another name (arXiv:2501.12948 section 2.4; the model cards of the others). The distilled
# 1.5B is not here: its table of output tokens is its own, that of Qwen2.5-1.5B is tied.
_TRAINED_FROM = {
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.3-70b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "glm-4.7": "glm-4.5",
    "qwq-32b": "qwen2.5-32b",
}


def names_of_models(release: str) -> Iterator[str]:
    """Names that the model of a release may have, the longest first: `NousResearch/Meta-Llama-3-8B-Instruct` may be
    `Meta-Llama-3-8B` or `Llama-3-8B`."""
    name = _SUBJECTS.sub("", release.rstrip("/").rpartition("/")[2])
    while True:
        yield from dict.fromkeys((name, _MAKERS.sub("", name)))
        if (origin := _TRAINED_FROM.get(name.lower())) is not None:
            yield origin
        shorter = _ENDING.sub("", name)
        if shorter == name:
            return
        name = shorter


def number_format(release: str) -> str | None:
    """The number format of the weights that the name states (`fp8`, `awq`), in lower case; None: it states none."""
    found = _FORMAT.findall(release.rpartition("/")[2])
    return found[-1].lower() if found else None
