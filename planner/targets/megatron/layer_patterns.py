"""Patterns of layers in the form of --moe-layer-freq and --window-attn-skip-freq (`([0]*3+[1]*58)`), and of stages."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from ....errors import InputError


def pattern_text(pattern: list[int]) -> str:
    """The 0/1 of every layer as runs."""
    return "(" + "+".join(f"[{value}]*{len(list(run))}" for value, run in groupby(pattern)) + ")"


def stages_text(sizes: list[int]) -> str:
    """Layers of each stage in the form of --pipeline-model-parallel-layout: `Et*3|t*2L`."""
    return "E" + "|".join(f"t*{size}" if size else "" for size in sizes) + "L"


def read_pattern(option: str, text: Any, layers: int) -> list[int]:
    """The 0/1 of every layer. Raises InputError for another form or length."""
    if isinstance(text, int) or str(text).isdigit():
        every = int(text)
        return [int(index % every == 0) for index in range(layers)]
    flat = re.fullmatch(r"\(?((?:\[[01](?:,[01])*\](?:\*\d+)?\+?)+)\)?(?:\*(\d+))?", str(text).replace(" ", ""))
    if flat is None:
        raise InputError(f"{option} `{text}` is no pattern of layers", hint="write `([0]*3+[1]*58)`")
    pattern: list[int] = []
    for values, times in re.findall(r"\[([01,]+)\](?:\*(\d+))?", flat[1]):
        pattern += [int(value) for value in values.split(",")] * int(times or 1)
    pattern *= int(flat[2] or 1)
    if len(pattern) != layers:
        counted = f"{option} {text} has {len(pattern)} layers, --num-layers {layers}"
        raise InputError(counted, hint="one 0 or 1 per layer")
    return pattern
