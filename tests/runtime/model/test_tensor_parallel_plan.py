"""How weights are split over tensor-parallel ranks, beside the plans that transformers has for its families.

The rule is Redco's (arXiv 2310.16355): of two products one after another the first is split by outputs, the second by
inputs, and all else is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.planner.document.candidate import Chunk
from meshwright.runtime.checkpoint.huggingface import sources
from meshwright.runtime.model.block import Context, Numerics, named_splits
from meshwright.runtime.model.decoder import DecoderChunk
from meshwright.runtime.model.dispatch import ExpertGroup
from meshwright.runtime.parallel.comm import Group
from meshwright.runtime.status import Status

from .families import LENGTH, spec_of
from .test_families import CASES

# Word of transformers -> the dim of a weight [out, in] that is split. `packed`: two weights side by side. Others gather
# what they split at once (colwise_gather_output), look tokens up, or place experts.
_DIMS: Mapping[str, int] = {"colwise": 0, "packed_colwise": 0, "rowwise": 1, "packed_rowwise": 1}
# Megatron-LM's splits (arXiv 1909.08053, 3) of families without a plan in transformers 5.24.
_MEGATRON: Mapping[str, Mapping[str, str]] = {
    "gpt2": {"h.*.attn.c_attn": "colwise", "h.*.attn.c_proj": "rowwise", "h.*.mlp.c_fc": "colwise",
             "h.*.mlp.c_proj": "rowwise"},
    "opt": {**{f"layers.*.self_attn.{part}_proj": "colwise" for part in "qkv"},
            "layers.*.self_attn.out_proj": "rowwise", "layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"},
}  # fmt: skip


def split_dims(model: ModelSpec) -> dict[str, int | None]:
    """Weight by its name in files -> the dim that two ranks split, None: whole; without routed experts."""
    group, alone = (Group("tp", range(ranks), 0, None, Status()) for ranks in (2, 1))
    context = Context(group, ExpertGroup(alone, alone), torch.float32, torch.device("meta"), Numerics.of(model))
    chunk = Chunk(stage=0, chunk=0, layers=(0, model.num_layers - 1), embedding=True, head=True, gpu="",
                  recompute_layers=0)  # fmt: skip
    theirs, out = sources(model), dict[str, int | None]()
    for name, _, split in named_splits(DecoderChunk(context, model, chunk, LENGTH)):
        if name in theirs and not split.expert:
            assert len(split.firsts) <= 1
            out[theirs[name].name] = split.firsts[0][0] if split.firsts else None
    return out


def plan_of(model_type: str) -> Mapping[str, str]:
    """Product of a layer -> word of transformers."""
    transformers = pytest.importorskip("transformers")
    plan = transformers.CONFIG_MAPPING[model_type].base_model_tp_plan or _MEGATRON.get(model_type, {})
    return {name: word for name, word in plan.items() if word in _DIMS}


def pairs(family: str) -> Iterator[tuple[str, int | None, int]]:
    """(product, our dim, that of the plan) for every one that the plan names."""
    data = CASES[family].data()
    plan = plan_of(data["model_type"])
    for name, dim in split_dims(spec_of(data)).items():
        product = re.sub(r"\.\d+\.", ".*.", re.sub(r"^.*?(?=(layers|h)\.\d)", "", name)).removesuffix(".weight")
        if product in plan:
            yield name, dim, _DIMS[plan[product]]


@pytest.mark.parametrize("family", sorted(CASES))
def test_weights_are_split_as_transformers_splits_them(family: str) -> None:
    compared = list(pairs(family))
    if not compared:
        pytest.skip("neither transformers nor Megatron-LM names its products")
    assert [(name, ours) for name, ours, planned in compared if ours != planned] == []


def test_most_families_are_compared() -> None:
    """Plans of which no name is ours would pass."""
    compared = {family.partition(",")[0] for family in CASES if any(pairs(family))}
    assert len(compared) >= 35
    assert {"llama", "gpt2", "gpt_neox", "opt", "mixtral", "deepseek_v3"} <= compared
