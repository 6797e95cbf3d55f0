"""Stages of DeepSpeed's pipeline: by layers, by layers and embeddings, and uniform over modules."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.targets.megatron.deepspeed_stages import balanced

from meshwright.errors import InputError

COMMAND = ("deepspeed --num_nodes 1 --num_gpus 8 pretrain_gpt.py --hidden-size 512 --num-attention-heads 8 "
           "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16 --bf16 "
           "--vocab-size 50257 --num-layers 7 --pipeline-model-parallel-size 4 ")  # fmt: skip
ENGINE = "--deepspeed --zero-stage 1 "


def imported(folder: Path, text: str) -> Imported:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"})


@pytest.mark.parametrize(("layers", "stages", "ends"), [
    (126, 64, ([2, 2, 2], [2, 1, 1])), (70, 36, ([2, 2, 2], [2, 1, 1])), (10, 4, ([3, 3, 2], [3, 2, 2])),
    (7, 3, ([3, 2, 2], [3, 2, 2])), (31, 4, ([8, 8, 8], [8, 8, 7])), (8, 4, ([2, 2, 2], [2, 2, 2])),
])  # fmt: skip
def test_stages_by_layers(layers: int, stages: int, ends: tuple[list[int], list[int]]) -> None:
    """Numbers that partition_balanced of DeepSpeed edaa7221 gives for two modules of no weight at each end."""
    sizes = balanced(layers, stages)
    assert (sizes[:3], sizes[-3:], sum(sizes), len(sizes)) == (*ends, layers, stages)


@pytest.mark.parametrize(("layers", "stages"), [(30, 8), (24, 5), (70, 12), (62, 8), (7, 3)])
@pytest.mark.parametrize("ends", [(0, 0), (1, 1), (1, 0)])
def test_stages_are_those_of_deepspeed(layers: int, stages: int, ends: tuple[int, int]) -> None:
    """However many modules of no weight are around the layers: releases differ in them."""
    utils: Any = pytest.importorskip("deepspeed.runtime.utils")
    for front, back in ((0, 0), (1, 2)):
        around = [0] * front, [0] * back
        weights = [*around[0], 0, ends[0], *[1] * layers, 0, ends[1], *around[1]]
        holds = [*around[0], 0, 0, *[1] * layers, 0, 0, *around[1]]
        places = utils.partition_balanced(weights, stages)
        theirs = [sum(holds[start:end]) for start, end in pairwise(places)]
        assert balanced(layers, stages, ends) == theirs


def test_layers_that_deepspeed_divides(tmp_path: Path) -> None:
    found = imported(tmp_path, COMMAND + ENGINE)
    assert (found.gaps, found.stages) == ((), (2, 2, 2, 1))
    assert "7 layers over pp 4: 2 or 1 a stage, as DeepSpeed divides them" in found.assumed
    with pytest.raises(InputError, match="7 layers do not split over pp 4"):
        imported(tmp_path, COMMAND)


@pytest.mark.parametrize(("method", "more", "stages"), [
    ("type:transformer", "", (2, 2, 2, 1)),
    # Embedding and tied head weigh as a layer each: 9 / 4. A head of its own has another class: 8 / 4.
    ("type:transformer|embedding", "", (2, 2, 2, 1)),
    ("type:transformer|embedding", "--untie-embeddings-and-output-weights", (1, 2, 2, 2)),
    # 2 + 7 + 3 modules: cast and embedding in front; norm, head and cast of logits behind.
    ("uniform", "", (1, 3, 3, 0)),
])  # fmt: skip
def test_methods_of_a_script(tmp_path: Path, method: str, more: str, stages: tuple[int, ...]) -> None:
    found = imported(tmp_path, f"{COMMAND} {ENGINE} --pp-partition-method '{method}' {more}")
    assert (found.gaps, found.stages) == ((), stages)


def test_uniform_stages_are_those_of_deepspeed(tmp_path: Path) -> None:
    utils: Any = pytest.importorskip("deepspeed.runtime.utils")
    for layers, pp in ((24, 4), (30, 8), (12, 8)):
        text = COMMAND.replace("layers 7", f"layers {layers}").replace("parallel-size 4", f"parallel-size {pp}")
        holds = [0, 0, *[1] * layers, 0, 0, 0]
        places = utils.partition_uniform(len(holds), pp)
        theirs = tuple(sum(holds[start:end]) for start, end in pairwise(places))
        assert imported(tmp_path, f"{text} {ENGINE} --pp-partition-method uniform").stages == theirs


def test_a_method_that_counts_parameters_is_a_gap(tmp_path: Path) -> None:
    found = imported(tmp_path, f"{COMMAND} {ENGINE} --num-layers 8 --pp-partition-method parameters")
    assert [gap.field for gap in found.gaps] == ["--pp-partition-method"]
