"""`--scale-down` keeps what makes a layout what it is, and shrinks the rest."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from meshwright.cost_models.specs.model import FeedForward, MixtureOfExperts, ModelSpec
from meshwright.planner import api
from meshwright.runtime.job import Job, job_of
from meshwright.runtime.preparation import kept_axes
from meshwright.runtime.rehearsal.parity import compare, not_exercised
from meshwright.runtime.rehearsal.scale import scale_down

from meshwright.errors import InputError

from ..jobs import attention, gpt, job, llama, moe
from .test_parity import parity_of


def large(model: ModelSpec, layers: int = 32) -> ModelSpec:
    """The width of an 8B model."""
    heads = attention(heads=32, kv_heads=8, head_dim=128, value_head_dim=128)
    kinds = []
    for kind in model.kinds:
        _, block = kind.transformer_blocks
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


@pytest.mark.parametrize(("layout_id", "keep", "shown"), [
    ("tp8-pp4-dp16-sh4-mbs1-z3-rnone", {"tp": 4, "pp": 3}, "tp4-pp3-dp4-sh2-mbs1-z3-rnone"),
    ("cp4r-dp2-mbs1-z1-rnone", {"cp": 3}, "cp3r-dp2-mbs1-z1-rnone"),
    ("dp16-mbs1-z3-rnone", {"dp": 3}, "dp3-mbs1-z3-rnone"),
    ("dp16-sh4-mbs1-z3-rnone", {"dp": 8}, "dp8-sh2-mbs1-z3-rnone"),
    ("tp3-dp1-mbs1-z0-rnone", {"tp": 3}, "tp3-dp1-mbs1-z0-rnone"),
])  # fmt: skip
def test_axes_stay_on_request(layout_id: str, keep: dict[str, int], shown: str) -> None:
    rehearsal = scale_down(job(layout_id, large(llama()), seq_len=8192), keep)[0]
    assert str(rehearsal.layout) == shown
    assert all(kind.transformer_blocks[0].kv_heads % rehearsal.layout.tp == 0 for kind in rehearsal.model.kinds)
    chunks = 2 * rehearsal.layout.cp if rehearsal.layout.cp > 1 else 1
    assert rehearsal.seq_len % (chunks * rehearsal.layout.tp) == 0


@pytest.mark.parametrize(("layout_id", "keep", "hint"), [
    ("cp4r-dp2-mbs1-z1-rnone", {"cp": 8}, "`--keep cp=4`"), ("dp2-mbs1-z1-rnone", {"cp": 4}, "leave out `--keep cp=4`"),
])  # fmt: skip
def test_the_hint_is_a_number_of_ranks_that_can_stay(layout_id: str, keep: dict[str, int], hint: str) -> None:
    with pytest.raises(InputError) as caught:
        scale_down(job(layout_id, large(llama()), seq_len=8192), keep)
    assert caught.value.hint == hint


def test_experts_stay_whole_on_request() -> None:
    rehearsal = scale_down(job("dp16-ep8-mbs1-z1-rnone", large(moe()), seq_len=8192), {"ep": 3, "dp": 3})[0]
    assert str(rehearsal.layout) == "dp3-ep3-mbs1-z1-rnone"
    block = rehearsal.model.kinds[0].feed_forward
    assert isinstance(block, MixtureOfExperts)
    assert block.experts % 3 == 0


@pytest.mark.parametrize(("layout_id", "keep", "message"), [
    ("cp4r-dp2-mbs1-z1-rnone", {"cp": 8}, "--keep cp=8: the layout has cp 4"),
    ("cp4r-dp2-mbs1-z1-rnone", {"tp": 2}, "--keep tp=2: the layout has tp 1"),
    ("cp4r-dp2-mbs1-z1-rnone", {"cp": 0}, "--keep cp=0: the layout has cp 4"),
    ("cp4r-dp2-mbs1-z1-rnone", {"tp": 1}, "--keep tp=1: the layout has tp 1"),
    ("cp4r-dp2-mbs1-z1-rnone", {"vpp": 2}, "`vpp` is no axis"),
    ("tp2-cp8u-dp1-mbs1-z0-rnone", {"cp": 8}, "16 ranks need a key/value head each, and the model has 8"),
    ("dp8-sh2-mbs1-z1-rnone", {"dp": 3}, "--keep dp=3: the rehearsal shards over 2 ranks, in at most 4 copies"),
    ("dp8-sh4-mbs1-z1-rnone", {"dp": 8}, "--keep dp=8: the rehearsal shards over 2 ranks, in at most 2 copies"),
    ("dp8-ep4-mbs1-z1-rnone", {"ep": 4, "dp": 2}, "ep 4 x etp 1 does not divide the ranks of shard 2 x cp 1 x tp 1"),
    ("dp16-ep8-mbs1-z1-rnone", {"ep": 3}, "ep 3 x etp 1 does not divide the ranks of shard 4 x cp 1 x tp 1"),
])  # fmt: skip
def test_what_cannot_stay_is_refused(layout_id: str, keep: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        scale_down(job(layout_id, large(moe() if "ep" in layout_id else llama()), seq_len=8192), keep)


@pytest.mark.parametrize(("layout_id", "keep"), [
    ("cp4r-dp1-mbs1-z0-rnone", {"cp": 3}), ("pp4-dp1-mbs1-z0-rnone", {"pp": 3}), ("tp4-dp1-mbs1-z0-rnone", {"tp": 3}),
])  # fmt: skip
def test_more_than_two_ranks_train_the_same(layout_id: str, keep: dict[str, int]) -> None:
    """Second hops of a ring, stages in the middle, and sizes that ranks do not divide."""
    rehearsal = scale_down(job(layout_id, large(llama()), seq_len=8192), keep)[0]
    assert rehearsal.world_size == 3
    assert parity_of(replace(rehearsal, seq_len=24, steps=2)).agrees


@pytest.mark.parametrize(("layout_id", "keep", "rehearsed"), [
    ("tp8-pp4-vpp2-dp8-mbs1-z1-rfull", {"tp": 1}, "pp2-vpp2-dp2-mbs1-z1-rfull"),
    ("tp8-pp4-vpp2-dp8-mbs1-z1-rfull", {"pp": 1}, "tp2-dp2-mbs1-z1-rfull"),
    ("pp4-zbv-vpp2-dp8-mbs1-z1-rnone", {"pp": 1}, "dp2-mbs1-z1-rnone"),
    ("cp4u-dp8-mbs1-z1-rnone", {"cp": 1, "dp": 1}, "dp1-mbs1-z1-rnone"),
])  # fmt: skip
def test_an_axis_is_left_out_on_request(layout_id: str, keep: dict[str, int], rehearsed: str) -> None:
    assert str(scale_down(job(layout_id, large(llama(8)), seq_len=8192), keep)[0].layout) == rehearsed


def test_axes_to_keep_are_read_from_words() -> None:
    assert kept_axes("cp=4,tp=3") == {"cp": 4, "tp": 3}
    assert kept_axes("") == {}
    for words, message in (("cp", "is not a whole number"), ("cp=2,cp=3", "is there twice"), ("=2", "is no axis")):
        with pytest.raises(InputError, match=message):
            scale_down(job("cp4r-dp2-mbs1-z1-rnone"), kept_axes(words))


def test_the_verdict_lists_parts_that_did_not_run() -> None:
    planned = job("tp8-pp4-dp16-mbs1-z1-rnone", large(llama()), seq_len=8192, dtype="bf16", optimizer="adamw")
    rehearsed = replace(scale_down(planned, {"pp": 4})[0], dtype="fp64", optimizer="sgd", steps=1)
    verdict = compare([(2.0, 0.5)], [(2.0, 0.5)])
    missing = not_exercised(planned, rehearsed, verdict, as_trained=False)
    assert [part for part in missing if part.startswith(("tp of 8", "dp of 16", "pp of", "bf16", "adamw"))] == [
        "adamw and clipping (the check: sgd)", "bf16 (the check: fp64)", "tp of 8 (the check: 2)",
        "dp of 16 (the check: 2)",
    ]  # fmt: skip
    assert "updates of the weights (one step)" in missing
    as_trained = replace(rehearsed, optimizer="adamw", clip=1.0)
    assert not_exercised(planned, as_trained, verdict, as_trained=True)[:2] == [
        "clipping (no gradient of the check has a norm over 1)", "bf16 (the check: fp64)",
    ]  # fmt: skip
    clipped = replace(as_trained, clip=0.4)
    assert not_exercised(planned, clipped, verdict, as_trained=True)[0] == "bf16 (the check: fp64)"


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
    one, other = wide.kinds[0].transformer_blocks[0], found.kinds[0].transformer_blocks[0]
    assert one.heads // one.kv_heads == other.heads // other.kv_heads
    assert (found.tied_embeddings, found.is_moe) == (wide.tied_embeddings, wide.is_moe)
    assert found.hidden <= 128


def test_latents_and_groups_of_experts_stay() -> None:
    plan = api.evaluate(None, "tp2-pp2-dp4-ep4-mbs1-z1-rsel(mla)", model="deepseek-v3", cluster="dgx-h100:2",
                        seq_len=4096, global_batch=64)  # fmt: skip
    found = scale_down(job_of(plan, 1))[0].model
    latent, block = found.kinds[1].transformer_blocks[0], found.kinds[1].feed_forward
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
