"""Stages of DeepSpeed's pipeline.

Sources: DeepSpeed edaa7221 (2026-08-22), runtime/pipe/module.py (_partition_layers) and runtime/utils.py
(partition_uniform; partition_balanced: the least difference between the heaviest and the lightest stage; of equal ones
the last); deepspeedai/Megatron-DeepSpeed 4efb479d, megatron/model/gpt_model.py (GPTModelPipe).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..argv import Arguments
from .layer_patterns import stages_text

METHOD = "--pp-partition-method"
_BY_LAYERS, _UNIFORM = ("type:transformer", "type:transformer|embedding"), "uniform"


def modernise(arguments: Arguments) -> None:
    """Rewrites Megatron-DeepSpeed's own pipeline: whether it is used, and the partition of its layers."""
    given = arguments.settings
    if given.pop("--no-pipeline-parallel", None):
        given["--pipeline-model-parallel-size"] = 1
    method = str(given.pop(METHOD, "")).strip("'\"").lower()
    layers, stages = given.get("--num-layers", 0), given.get("--pipeline-model-parallel-size", 1)
    if not 1 < stages < layers or not (method or given.get("--deepspeed")):
        return
    method = method or _BY_LAYERS[0]
    if method not in (*_BY_LAYERS, _UNIFORM):
        arguments.gap(METHOD, f"`{method}` is no division of a plan")
        return
    counts = _uniform(arguments, layers, stages) if method == _UNIFORM else balanced(
        layers, stages, ends=_ends(arguments) if "embedding" in method else (0, 0))  # fmt: skip
    if len(set(counts)) > 1:
        given["--pipeline-model-parallel-layout"] = stages_text(counts)
        numbers = " or ".join(map(str, sorted(set(counts), reverse=True)))
        arguments.notes.append(f"{layers} layers over pp {stages}: {numbers} a stage, as DeepSpeed divides them")


def _ends(arguments: Arguments) -> tuple[int, int]:
    """Modules before and after the layers whose class is that of the embedding: a tied head is, another is not."""
    return 1, int(not arguments.settings.get("--untie-embeddings-and-output-weights"))


def _uniform(arguments: Arguments, layers: int, stages: int) -> list[int]:
    """The layers of each stage that has as many modules as the others, the first ones one more of those left."""
    given = arguments.settings
    casts, experts = given.get("--fp16") or given.get("--bf16"), given.get("--num-experts", 1) > 1
    # In front: the cast of inputs and the embedding; behind: the sum of balancing losses, norm, head, cast of logits.
    holds = [0, 0, *[1] * layers, *[0] * (2 + bool(experts) + bool(casts))]
    share, rest = divmod(len(holds), stages)
    sums = np.cumsum([0, *holds])
    places = np.cumsum([0, *(share + int(stage < rest) for stage in range(stages))])
    return [int(sums[end] - sums[start]) for start, end in pairwise(places)]


def balanced(layers: int, stages: int, ends: tuple[int, int] = (0, 0)) -> list[int]:
    """The layers of each stage where layers weigh 1. ends: weights of the modules before and after them."""
    holds = [0, 0, *[1] * layers, 0, 0]
    sums = np.cumsum([0, 0, ends[0], *[1] * layers, 0, ends[1]])
    items = len(sums) - 1
    heaviest, lightest, cost = (np.full((items + 1, stages + 1), np.inf) for _ in range(3))
    place = np.zeros((items + 1, stages + 1), dtype=int)
    heaviest[0, 0] = cost[0, 0] = 0
    for end in range(1, items + 1):
        last = sums[end] - sums[:end]
        for stage in range(1, min(end, stages) + 1):
            most, least = np.maximum(heaviest[:end, stage - 1], last), np.minimum(lightest[:end, stage - 1], last)
            differences = most - least
            start = end - 1 - int(np.argmin(differences[::-1]))
            cost[end, stage], place[end, stage] = differences[start], start
            heaviest[end, stage], lightest[end, stage] = most[start], least[start]
    bounds = [items]
    for stage in range(stages, 0, -1):
        bounds.append(int(place[bounds[-1], stage]))
    bounds.reverse()
    return [sum(holds[start:end]) for start, end in pairwise(bounds)]
