"""Layers of a hybrid model by ratios, or by the older name of their pattern -> --hybrid-layer-pattern.

Sources: Megatron-LM core_v0.16.1, core/ssm/mamba_hybrid_layer_allocation.py and pretrain_mamba.py; d98e8a64,
core/models/hybrid/hybrid_layer_allocation.py (pattern_from_ratios). tests/upstream/test_older_hybrids.py compares.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from ....errors import FieldProblem
from ..argv import Arguments
from ..option_lists import Option
from .hybrid import PATTERN

_ATTENTION, _MLP, _OVERRIDE = "--hybrid-attention-ratio", "--hybrid-mlp-ratio", "--hybrid-override-pattern"
_MODULES, _COUNT = "--mtp-hybrid-override-pattern", "--mtp-num-layers"
OPTIONS: Mapping[str, Option] = {
    **{name: Option(name, "float") for name in (_ATTENTION, _MLP)},
    **{name: Option(name, "str") for name in (_OVERRIDE, _MODULES)},
}


def modernise(arguments: Arguments) -> None:
    """Replaces ratios and older names by the pattern. A ratio that is none becomes a problem."""
    given = arguments.settings
    mamba = posixpath.basename(arguments.program) == "pretrain_mamba.py"
    stated = [name for name in (_OVERRIDE, _ATTENTION, _MLP) if name in given]
    if PATTERN in given or "--num-layers" not in given or not (mamba or stated):
        return
    ratios = {name: float(given.pop(name, 0)) for name in (_ATTENTION, _MLP)}
    if wrong := [name for name, ratio in ratios.items() if not 0 <= ratio <= 1]:
        _fail(arguments, wrong[0], f"`{ratios[wrong[0]]:g}` is not between 0 and 1")
        return
    if sum(ratios.values()) > 1:
        _fail(arguments, _MLP, f"{ratios[_MLP]:g} and {_ATTENTION} {ratios[_ATTENTION]:g} are more than all layers")
        return
    text = given.pop(_OVERRIDE, None) or pattern_of(given["--num-layers"], *ratios.values())
    if (module := given.pop(_MODULES, None)) is not None:
        text += f"/{module}" * given.get(_COUNT, 1)
    given[PATTERN] = text
    source = stated[0] if stated else "--num-layers"
    arguments.lines[PATTERN] = arguments.lines.get(source, 0)
    arguments.files[PATTERN] = arguments.files.get(source, "")


def pattern_of(layers: int, attention: float, feed_forward: float) -> str:
    """The symbols of `layers` layers. attention, feed_forward: their share of all layers, from 0 to 1.

    Attention is spread evenly between layers of Mamba-2, which come first and last. Feed-forward blocks then replace
    layers of Mamba-2, spread evenly between those that remain.
    """
    letters = ["M"] * layers
    attentions, blocks = round(layers * attention), round(layers * feed_forward)
    _spread(letters, "*", (layers - attentions) / (attentions + 1))
    if blocks:
        _spread(letters, "-", (layers - attentions - blocks) / blocks)
    return "".join(letters)


def _spread(letters: list[str], symbol: str, between: float) -> None:
    """Replaces a layer of Mamba-2 after each `between` of them; the remainder goes on to the next one."""
    left = between
    for place, letter in enumerate(letters):
        if letter != "M":
            continue
        if left < 0.5:
            letters[place] = symbol
            left += between
        else:
            left -= 1


def _fail(arguments: Arguments, name: str, text: str) -> None:
    arguments.problems.append(FieldProblem(text, name, arguments.files.get(name, ""), arguments.lines.get(name, 0)))
