"""Names of releases that keep the shapes of a model: fine-tuned, quantised, dated, or another organisation's copy.

A release may have other rotary positions and more of them; its own config.json states these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_FORMATS = r"bf16|fp16|fp8|fp4|mxfp4|nvfp4|int[48]|w\da\d+|awq|gptq|gguf|(?:unsloth-)?bnb-4bit"
# Endings of a release: the number format of its weights, how its model was trained on, its date. A bare number may be a
# length, so it is a date in names of DeepSeek alone.
_ENDING = re.compile(
    rf"[-_.]((?:{_FORMATS})(?:-(?:kv|dynamic|block|v\d))?|quantized|(?:instruct|thinking|chat)-\d{{4}}|0324|0528|instruct"
    r"|base|chat|thinking|it|pt|sft|dpo|rlhf|ppo|grpo|orpo|simpo|kto|mixture|lora|merged|finetuned?|hf|checkpoints|rope-\d+k|v0\.1)$",
    re.IGNORECASE,
)
_FORMAT = re.compile(rf"[-_.]({_FORMATS})(?=[-_.]|$)", re.IGNORECASE)
# Folders of a run below that of its model, as trainers name them.
_FOLDER = re.compile(r"(checkpoint|global_step|step|epoch|iter)[-_]?\d*|pt|hf|hf_export|final|merged|best|last",
                     re.IGNORECASE)
# Beginnings that makers add.
_MAKERS = re.compile(r"^(meta|nvidia)-", re.IGNORECASE)
# Trained further for code or mathematics, with the shapes of the general model (arXiv:2409.12186 table 1,
# arXiv:2409.12122 section 2).
_SUBJECTS = re.compile(r"(?<=^qwen2\.5)-(coder|math)(?=-)", re.IGNORECASE)
# Trained further under another name, by the model card where no other source is named. The distilled 1.5B is not here:
# its table of output tokens is its own, that of Qwen2.5-1.5B is tied.
_TRAINED_FROM = {
    # arXiv:2501.12948 sections 2.2 and 2.4
    "deepseek-r1-zero": "deepseek-v3",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-70b": "llama-3.3-70b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-0528-qwen3-8b": "qwen3-8b",
    # config.json compared field by field: ai-dynamo/aiconfigurator@095f58a5
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3.1-terminus": "deepseek-v3",
    "kimi-k2.6": "kimi-k2.5",
    "kimi-k2.7-code": "kimi-k2.5",
    "minimax-m2.7": "minimax-m2.5",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
    # sizes compared: Lightning-AI/litgpt@26857050
    "codegemma-7b": "gemma-7b",
    "llama-3.1-nemotron-70b": "llama-3.1-70b",
    "phi-4-reasoning": "phi-4",
    "phi-4-reasoning-plus": "phi-4",
    "qwen2.5-7b-instruct-1m": "qwen2.5-7b",
    "qwen2.5-14b-instruct-1m": "qwen2.5-14b",
    "qwq-32b": "qwen2.5-32b",
    "qwq-32b-preview": "qwen2.5-32b",
    # arXiv:2406.11931 section 3, of DeepSeek-V2 and its Lite
    "deepseek-coder-v2": "deepseek-v2",
    "deepseek-coder-v2-lite": "deepseek-v2-lite",
    "deepseek-v2.5": "deepseek-v2",
    "gemma-1.1-2b": "gemma-2b",
    "gemma-1.1-7b": "gemma-7b",
    "intellect-3": "glm-4.5-air",
    "qwen3-coder-next": "qwen3-next-80b-a3b",
    # arXiv:2408.11857 section 2
    "hermes-3-llama-3.1-8b": "llama-3.1-8b",
    "hermes-3-llama-3.1-70b": "llama-3.1-70b",
    "hermes-3-llama-3.1-405b": "llama-3.1-405b",
    "llama-3.1-nemotron-nano-8b-v1": "llama-3.1-8b",
    "llama-guard-3-8b": "llama-3.1-8b",
    # arXiv:2411.15124 section 2
    "llama-3.1-tulu-3-8b": "llama-3.1-8b",
    "llama-3.1-tulu-3-70b": "llama-3.1-70b",
    "llama-3.1-tulu-3-405b": "llama-3.1-405b",
    # lm-sys/FastChat, the table of Vicuna's weights
    "vicuna-7b-v1.3": "llama-7b",
    "vicuna-13b-v1.3": "llama-13b",
    "vicuna-33b-v1.3": "llama-30b",
    "vicuna-7b-v1.5": "llama-2-7b",
    "vicuna-13b-v1.5": "llama-2-13b",
    # arXiv:2310.16944, arXiv:2310.10631
    "zephyr-7b-beta": "mistral-7b",
    "llemma_7b": "codellama-7b",
    # arXiv:2210.11416, arXiv:2110.08207: of T5 1.1 on whole sentences
    **{f"flan-t5-{size}": f"t5-v1.1-{size}" for size in ("small", "base", "large", "xl", "xxl")},
    "t0_3b": "t5-v1.1-xl",
    "t0pp": "t5-v1.1-xxl",
    # arXiv:2211.01786, arXiv:2402.07827
    **{f"mt0-{size}": f"mt5-{size}" for size in ("small", "base", "large", "xl", "xxl")},
    "aya-101": "mt5-xxl",
    "bloomz": "bloom-176b",
    "bloomz-560m": "bloom-560m",
    "bloomz-7b1": "bloom-7b1",
    # arXiv:2408.12570 section 2
    "ai21-jamba-1.5-mini": "jamba-v0.1",
    "ai21-jamba-mini-1.5": "jamba-v0.1",
}


def names_of_models(release: str) -> Iterator[str]:
    """Names that the model of a release may have, the longest first: `NousResearch/Meta-Llama-3-8B-Instruct` may be
    `NousResearch/Meta-Llama-3-8B`, `Meta-Llama-3-8B` or `Llama-3-8B`."""
    parts = release.rstrip("/").split("/")
    while len(parts) > 1 and _FOLDER.fullmatch(parts[-1]):
        parts.pop()
    maker, slash, last = "/".join(parts).rpartition("/")
    name = _SUBJECTS.sub("", last)
    while True:
        yield from dict.fromkeys((maker + slash + name, name, _MAKERS.sub("", name)))
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
