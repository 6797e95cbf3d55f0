"""Stages as text, `Et*19|t*20|t*20|t*19mL`: the parts of the model that each chunk of a pipeline holds.

Grammar and checks: Megatron Core core_v0.16.1, PipelineParallelLayerLayout (`parse_str_to_list`,
`validate_layer_layout`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import InputError

GRAMMAR = "E embedding, t layer, m multi-token prediction, L loss, | next chunk, *n repeats a letter or a (group)"
_PARTS = {"E": "embedding", "t": "layer", "m": "mtp", "L": "loss"}
_REPEATS = (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)")  # a group, then a single letter
_LONGEST = 1 << 16  # letters of an unrolled text: no model has as many layers


def write_stages(sizes: Sequence[int], mtp_layers: int) -> str:
    """The text of chunks of `sizes` layers, in the order of the model. MTP modules sit beside the loss."""
    parts = [f"t*{size}" if size > 1 else "t" * size for size in sizes]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * mtp_layers + "L"
    return "|".join(parts)


def read_stages(text: str) -> list[list[str]]:
    """The parts (embedding, layer, mtp, loss) of each chunk. Raises InputError for an unknown character."""
    flat = text.replace(",", "").replace(" ", "")
    for pattern in _REPEATS:
        if sum(int(times) for _, times in re.findall(pattern, flat)) > _LONGEST:
            raise InputError(f"stages `{text}`: more than {_LONGEST} repetitions", hint=GRAMMAR)
        flat = re.sub(pattern, lambda match: match[1] * int(match[2]), flat)
    if unknown := sorted(set(flat) - {*_PARTS, "|"}):
        raise InputError(f"stages `{text}`: `{unknown[0]}` is no part of a model", hint=GRAMMAR)
    return [[_PARTS[letter] for letter in chunk] for chunk in flat.split("|")]


def misplaced(chunks: Sequence[Sequence[str]], layers: int, mtp_layers: int) -> list[str]:
    """The errors in the parts of the chunks of a model, with the arithmetic."""
    flat = [part for chunk in chunks for part in chunk]
    expected = {"embedding": 1, "loss": 1, "layer": layers, "mtp": mtp_layers}
    counted = {part: flat.count(part) for part in expected}
    wrong = [f"{counted[part]} x {part} instead of {n}" for part, n in expected.items() if counted[part] != n]
    if flat[:1] != ["embedding"] or flat[-1:] != ["loss"]:
        wrong.append("the first part must be E and the last L")
    if "mtp" in flat and "layer" in flat[flat.index("mtp") :]:
        wrong.append("a layer (t) comes after multi-token prediction (m)")
    elif any("mtp" in chunk for chunk in chunks[:-1]):
        wrong.append("multi-token prediction (m) is planned in the chunk of the loss (L) only")
    return wrong
