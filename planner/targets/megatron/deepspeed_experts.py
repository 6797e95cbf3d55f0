"""Experts of Megatron-DeepSpeed: their numbers by layer, a dense block beside them, tokens under tensor parallelism.

Sources: deepspeedai/Megatron-DeepSpeed 4efb479d, megatron/model/transformer.py (get_num_experts_per_layer); deepspeed
0.19.8, moe/layer.py (MoE) and moe/sharded_moe.py: where tokens are whole on all ranks of tp, each sends a part of their
copies (drop_tokens) and gathers what comes back (gather_tokens). Megatron Core has no such layers and layouts.
"""

from __future__ import annotations

import math
from typing import Any

from ....cost_models.techniques.duplicate_token_dropping import TECHNIQUE
from ....errors import FieldProblem
from ..argv import Arguments
from ..options import Facts, Settings
from . import engine_json
from .layer_patterns import pattern_text

# Of no release: set where a script runs DeepSpeed's experts with tensor parallelism and whole sequences, and the number
# of experts of each layer that has some.
DROPS, OF_LAYERS = "--drop-duplicate-tokens", "--num-experts-of-layers"
ENGINE = "experts_of_deepspeed"  # a fact
_NUMBER, _KIND, _RANKS = "--num-experts", "--mlp-type", "--expert-model-parallel-size"
_OLD_RANKS = "--moe-expert-parallel-size"
_OF_EXPERTS = (_NUMBER, _RANKS, "--moe-aux-loss-coeff", "--expert-interval", "--moe-train-capacity-factor",
               "--moe-router-topk", "--enable-expert-tensor-parallelism", "--disable-moe-token-dropping",
               _KIND)  # fmt: skip


def modernise(arguments: Arguments) -> None:
    """Rewrites the experts of a script: a list of counts, 1 for a dense block, in every other layer."""
    given = arguments.settings
    counts = given.get(_NUMBER)
    listed = counts if isinstance(counts, list) else [1 if counts is None else counts]
    if counts is not None:
        given[_NUMBER] = max(listed)
    of_deepspeed = bool(given.get("--deepspeed"))
    if max(listed) < 2 and (of_deepspeed or counts is not None):
        arguments.unclear = [doubt for doubt in arguments.unclear if doubt.field != _OLD_RANKS]
        for name in _OF_EXPERTS:
            given.pop(name, None)
    elif of_deepspeed:
        _engine(arguments, listed)
    else:
        given.pop(_KIND, None)
        if len(set(listed)) > 1:
            arguments.gap(_NUMBER, "layers with different numbers of experts")


def _engine(arguments: Arguments, listed: list[int]) -> None:
    """The experts of DeepSpeed's own layer, MoE."""
    given = arguments.settings
    tp = given.get("--tensor-model-parallel-size", 1)
    if tp > 1 and not given.get("--sequence-parallel"):
        _state(arguments, DROPS, True)
    _layers(arguments, listed)
    given.setdefault("--moe-router-topk", 1)
    split = given.pop("--enable-expert-tensor-parallelism", False)
    given.setdefault("--expert-tensor-parallel-size", tp if split else 1)
    capacity = given.pop("--moe-train-capacity-factor", 1.0)
    if not given.pop("--disable-moe-token-dropping", False):
        given.setdefault("--moe-expert-capacity-factor", capacity)
    if given.get(_KIND, "standard") == "standard":
        given.pop(_KIND, None)
    elif given["--expert-tensor-parallel-size"] != tp:
        arguments.gap(_KIND, f"the dense block beside the experts is whole on every rank of tp {tp}")


def _layers(arguments: Arguments, listed: list[int]) -> None:
    """The layers that have experts, and how many each has where they are unlike."""
    given = arguments.settings
    every, layers = given.pop("--expert-interval", 2), given.get("--num-layers", 0)
    blocks = layers // every
    if not layers:
        return
    if len(listed) not in (1, blocks):
        text = f"{len(listed)} numbers of experts for {layers} layers / interval {every} = {blocks} layers with experts"
        hint = "one number for each of them, or one for all"
        arguments.problems.append(FieldProblem(text, file=arguments.files.get(_NUMBER, ""), field=_NUMBER, hint=hint,
                                               line=arguments.lines.get(_NUMBER, 0)))  # fmt: skip
        return
    counts = listed * blocks if len(listed) == 1 else listed
    routed = [index + 1 for index in range(layers) if (index + 1) % every == 0 and counts[index // every] > 1]
    if len(routed) < layers:
        given["--moe-layer-freq"] = pattern_text([int(index + 1 in routed) for index in range(layers)])
    counts = [count for count in counts if count > 1]
    _state(arguments, OF_LAYERS, counts)
    ranks = given.get(_RANKS, 1)
    if any(count % ranks for count in counts):
        numbers = ", ".join(map(str, dict.fromkeys(count for count in counts if count % ranks)))
        option = _OLD_RANKS if _OLD_RANKS in arguments.lines else _RANKS
        arguments.gap(option, f"DeepSpeed refuses layers of {numbers} experts on ep {ranks}, or, before 0.7.1, makes "
                      f"smaller groups for them: give a divisor of {math.gcd(*counts)}")  # fmt: skip


def _state(arguments: Arguments, name: str, value: Any) -> None:
    """Sets an option of no release, on the line of the experts."""
    arguments.settings[name] = value
    arguments.lines.setdefault(name, arguments.lines[_NUMBER])
    arguments.files.setdefault(name, arguments.files.get(_NUMBER, ""))


def of_layers(settings: Settings, width: int | None) -> Facts:
    """Fields of `moe` in the explicit form of a model that differ from Megatron Core's: the router has no bias, and the
    score of a token's only expert is its weight (moe/sharded_moe.py, TopKGate, top1gating). width: of an expert."""
    if (counts := settings.get(OF_LAYERS)) is None:
        return {}
    out: Facts = {"experts": counts if len(set(counts)) > 1 else counts[0], "router_bias": False,
                  "router_normalised": settings.get("--moe-router-topk", 1) > 1}  # fmt: skip
    return out | ({"residual": True, "shared_ffn": width} if settings.get(_KIND) == "residual" else {})


def techniques(settings: Settings) -> Facts:
    """The technique of the settings, with its knobs."""
    return {TECHNIQUE.name: {}} if settings.get(DROPS) else {}


def compared_fields(facts: Facts) -> dict[str, Any] | None:
    """The fields that layouts are compared with: no target writes DeepSpeed's experts. None for other models."""
    if ENGINE not in facts:
        return None
    drops = TECHNIQUE.name in facts.get("workload.techniques", {})
    held = {"tp": 1} if facts["model.moe"].get("residual") else {"sequence_parallel": False} if drops else {}
    return {**(engine_json.compared_fields(facts) or {}), **held}


OPTIONS = (_KIND, OF_LAYERS)
