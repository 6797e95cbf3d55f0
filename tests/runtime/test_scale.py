"""`--scale-down` keeps what makes a layout what it is, and shrinks the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from meshwright.cost_models.specs.model import FeedForward, MixtureOfExperts, ModelSpec
from meshwright.planner import api
from meshwright.runtime.job import Job, job_of
from meshwright.runtime.rehearsal.scale import scale_down

from .jobs import attention, gpt, job, llama, moe


def large(model: ModelSpec, layers: int = 32) -> ModelSpec:
    """The width of an 8B model."""
    heads = attention(heads=32, kv_heads=8, head_dim=128, value_head_dim=128)
    kinds = []
    for kind in model.kinds:
        block = kind.feed_forward
        wide = replace(block, inner=14336) if isinstance(block, FeedForward) else replace(block, expert_inner=14336)
        kinds.append(replace(kind, attention=heads, feed_forward=wide))
    return replace(model, hidden=4096, vocab=128256, kinds=tuple(kinds), pattern=(0,) * layers, max_positions=8192)


def small(layout_id: str, model: ModelSpec | None = None, **changes: Any) -> Job:
    return scale_down(job(layout_id, model or large(llama()), **{"seq_len": 8192, **changes}))[0]


def test_axes_become_two_and_stay() -> None:
    found = small("tp8-pp4-dp16-sh4-mbs1-z3-rnone").layout
    assert (found.tp, found.pp, found.dp, found.shard, found.zero) == (2, 2, 4, 2, 3)
    assert small("dp16-mbs1-z3-rnone").layout.shard == 2
    assert small("tp4-dp1-mbs1-z0-rnone").layout.dp == 1


def test_schedule_and_chunks_stay() -> None:
    found = small("pp4-vpp4-dp2-mbs1-z1-rnone")
    assert (found.layout.vpp, found.schedule, len(found.chunks)) == (4, "interleaved", 8)
    assert found.num_micro_batches == 4


def test_uneven_stays_uneven() -> None:
    found = small("pp2-dp1-mbs1-z0-rnone", large(llama(), 33), sizes=[18, 15])
    sizes = [chunk.layers[1] - chunk.layers[0] + 1 for chunk in found.chunks]
    assert sizes[0] > sizes[1]
    even = small("pp2-dp1-mbs1-z0-rnone", large(llama(), 32))
    assert len({chunk.layers[1] - chunk.layers[0] for chunk in even.chunks}) == 1


def test_fewer_stages_of_an_uneven_pipeline_stay_uneven() -> None:
    found = small("pp5-vpp2-dp1-mbs1-z0-rnone", large(llama(), 32))
    sizes = [chunk.layers[1] - chunk.layers[0] + 1 for chunk in found.chunks]
    assert len(sizes) == 4
    assert len(set(sizes)) == 2


@pytest.mark.parametrize("model", [llama(), gpt(), moe()])
def test_heads_tying_and_kinds_stay(model: ModelSpec) -> None:
    wide = large(model)
    found = small("dp2-mbs1-z0-rnone", wide).model
    one, other = wide.kinds[0].attention, found.kinds[0].attention
    assert one.heads // one.kv_heads == other.heads // other.kv_heads
    assert (found.tied_embeddings, found.is_moe) == (wide.tied_embeddings, wide.is_moe)
    assert found.hidden <= 128


def test_latents_and_groups_of_experts_stay() -> None:
    plan = api.evaluate(None, "tp2-pp2-dp4-ep4-mbs1-z1-rsel(mla)", model="deepseek-v3", cluster="dgx-h100:2",
                        seq_len=4096, global_batch=64)  # fmt: skip
    found = scale_down(job_of(plan, 1))[0].model
    latent, block = found.kinds[1].attention, found.kinds[1].feed_forward
    assert isinstance(block, MixtureOfExperts)
    assert (latent.q_lora_rank, latent.kv_lora_rank, latent.head_dim, latent.rope_head_dim) == (24, 8, 32, 8)
    assert (block.groups, block.top_groups, block.top_k, block.router_scores) == (4, 2, 4, "sigmoid")
    assert (found.mtp_layers, set(found.pattern)) == (1, {0, 1})


def test_recompute_of_a_part_stays_a_part() -> None:
    found = small("pp2-dp1-mbs1-z0-rfull3")
    for chunk in found.chunks:
        assert 0 < chunk.recompute_layers < chunk.layers[1] - chunk.layers[0] + 1
    assert all(c.recompute_layers == c.layers[1] - c.layers[0] + 1 for c in small("pp2-dp1-mbs1-z0-rfull").chunks)


def test_what_was_shrunk_is_said() -> None:
    _, notes = scale_down(job("tp8-dp2-mbs1-z1-rnone", large(llama()), seq_len=8192))
    text = "\n".join(notes)
    for what in ("GPUs 16 -> 4", "hidden 4,096 -> 128", "layers 32 -> 4", "tokens per sequence 8,192 -> 64"):
        assert what in text


def test_a_rank_map_stays_a_rank_map() -> None:
    """Two nodes of four stages change places: of what stays, some rank still acts as another, in the plan's order."""
    layout_id = "tp2-pp8-dp2-mbs1-z1-rnone"
    nodes = (0, 1, 2, 7, 4, 5, 6, 3)  # of four ranks each, one stage
    logical = tuple(4 * nodes.index(node) + local for node in range(8) for local in range(4))
    found = small(layout_id, logical_of_rank=logical)
    assert found.logical_of_rank == (4, 5, 6, 7, 0, 1, 2, 3)
    assert small(layout_id).logical_of_rank is None
    assert small(layout_id, logical_of_rank=tuple(range(32))).logical_of_rank == tuple(range(8))
    _, notes = scale_down(job(layout_id, large(llama()), logical_of_rank=logical))
    assert "rank map kept: ranks 0 to 7 act as 4, 5, 6, 7, 0, 1, 2, 3" in notes
