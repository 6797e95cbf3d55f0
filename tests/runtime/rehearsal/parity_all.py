"""`make parity`: what test_parity.py leaves out. Not collected by `make test`.

Every schedule with every ZeRO stage, tp and recompute mode, three axes at once, uneven stages, other models; every
algorithm of context parallelism with all of these, its peak memory, and up to 16 ranks.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from meshwright.cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from meshwright.runtime.parallel.schedules import custom_order
from meshwright.runtime.rehearsal import dry_run
from meshwright.runtime.rehearsal.pricing import predicted_bytes
from meshwright.runtime.rehearsal.scale import scale_down

from ..jobs import gpt, job, llama, mixed
from .test_memory import rehearsal
from .test_parity import MODELS as MODELS_BY_NAME
from .test_parity import model_for, parity_of
from .test_scale import large

SCHEDULES = ("", "-gpipe", "-vpp2")
SPLIT = ("-zbh1", "-zbv-vpp2", "-dpv-vpp2")  # states stay whole in their pipelines: ZeRO 2 and 3 are 1
RECOMPUTES = ("rnone", "rfull", "rfull1", "rsel", "rsel(norm)", "rsel(act)", "rsel(attn+norm+act)")
GRID = [
    f"pp2{schedule}-dp2-mbs1-z{zero}-{recompute}"
    for schedule, zero, recompute in itertools.product(SCHEDULES, range(4), ("rnone", "rfull", "rsel(norm+act)"))
]
TENSOR = [f"tp2-dp2-mbs1-z{zero}-{recompute}" for zero, recompute in itertools.product(range(4), RECOMPUTES)]
SPLIT_GRID = [
    f"pp2{schedule}-dp2-mbs1-z{zero}-{recompute}"
    for schedule, zero, recompute in itertools.product(SPLIT, (0, 1), ("rnone", "rfull", "rsel(norm+act)"))
]
SPLIT_MORE = [f"{name}:tp2-pp2{schedule}-dp2-mbs1-z1-rfull1" for name in ("llama", "gpt", "moe") for schedule in SPLIT]
SPLIT_MORE += ["llama:pp4-zbh1-dp1-mbs1-z0-rnone", "llama:pp4-zbv-vpp2-dp1-mbs1-z0-rnone",
               "moe:pp2-dpv-vpp2-dp2-ep2-mbs2-z0-rfull",
               "shared:tp2-pp2-zbv-vpp2-dp2-ep2-mbs1-z1-rsel(act+moe)"]  # fmt: skip
THREE = [f"tp2-pp2{schedule}-dp2-mbs1-z{zero}-rnone" for schedule, zero in itertools.product(SCHEDULES, range(4))]
HYBRID = [f"dp4-sh2-mbs2-z{zero}-{recompute}" for zero, recompute in itertools.product((1, 2, 3), RECOMPUTES)]
MORE = ["pp4-dp1-mbs1-z0-rnone", "pp4-vpp2-dp1-mbs1-z0-rnone", "pp2-vpp4-dp1-mbs2-z0-rnone", "tp4-dp1-mbs1-z0-rnone",
        "dp8-sh4-mbs1-z3-rnone", "tp2-pp2-dp2-mbs2-z3-rfull1"]  # fmt: skip
MODELS = [
    f"{name}:{each}"
    for name in ("gpt", "moe")
    for each in ("tp2-pp2-dp2-mbs1-z3-rnone", "tp2-pp2-vpp2-dp2-mbs1-z1-rsel(norm+act)", "dp4-sh2-mbs1-z2-rfull",
                 "tp2-dp4-sh2-mbs1-z3-rnone", "pp2-gpipe-dp2-mbs1-z2-rnone", "tp2-pp2-dp2-mbs1-z0-rnone")
]  # fmt: skip

EXPERTS = [
    f"{name}:{each}"
    for name in ("moe", "shared")
    for each in ("tp2-dp4-sh2-ep4-mbs1-z3-rnone", "tp2-pp2-dp2-ep2-mbs1-z1-rsel(act+moe)", "dp4-ep4-mbs1-z2-rfull",
                 "tp2-pp2-vpp2-dp2-ep4-mbs1-z0-rnone", "dp8-sh4-ep2-mbs1-z3-rsel(moe)",
                 "pp2-gpipe-dp2-ep2-mbs2-z3-rnone", "dp8-sh4-ep2-etp2-mbs1-z3-rsel(moe)",
                 "tp2-pp2-dp2-ep2-etp2-mbs1-z0-rfull")
]  # fmt: skip


LATENT = [
    f"deepseek:{each}"
    for each in ("tp4-dp1-ep4-mbs1-z0-rnone", "tp2-pp2-dp2-ep2-mbs1-z3-rsel(mla+moe)", "pp2-zbh1-dp1-mbs1-z0-rfull",
                 "tp2-dp1-mbs1-z0-rsel(norm+mla)", "pp2-dpv-vpp2-dp1-mbs1-z0-rnone")
]  # fmt: skip


EVERY = [*(f"llama:{each}" for each in GRID + TENSOR + THREE + HYBRID + MORE + SPLIT_GRID), *SPLIT_MORE, *MODELS,
         *EXPERTS, *LATENT]  # fmt: skip


@pytest.mark.parametrize("text", EVERY)
@pytest.mark.filterwarnings("default")
def test_trains_the_same_model(text: str) -> None:
    name, _, layout_id = text.partition(":")
    # tp 4 needs four key/value heads
    layers = "gpt" if name == "llama" and layout_id.startswith("tp4") else name
    wanted = job(layout_id, model_for(layers, layout_id), stack_changes={"sharded_states": "zero"},
                 extra=4 if layout_id.startswith("pp4-vpp") else 2)  # fmt: skip
    verdict = parity_of(wanted)
    assert verdict.agrees, verdict.as_dict()


@pytest.mark.parametrize("text", EVERY)
def test_peak_memory_within_five_percent(text: str) -> None:
    """Traced, at the size of a rehearsal: of few layers, where a buffer that is forgotten is a large part."""
    name, _, layout_id = text.partition(":")
    model = replace(large(MODELS_BY_NAME[name]()), learned_positions=8192 if name == "gpt" else 0)
    wanted, _ = scale_down(job(layout_id, model, seq_len=8192, stack_changes={"sharded_states": "zero"}))
    for stage, planned in enumerate(predicted_bytes(wanted)):
        traced = dry_run.trace(wanted, stage)
        assert planned["allocated"] == pytest.approx(traced.allocated_bytes, rel=0.05), traced


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("zero", [2, 3])
def test_states_that_stay_whole(schedule: str, zero: int) -> None:
    layout_id = f"pp2{schedule}-dp2-mbs1-z{zero}-rnone"
    assert parity_of(job(layout_id, model_for("llama", layout_id))).agrees


@pytest.mark.parametrize("name", ["zb-h2", "v-half", "v-min"])
@pytest.mark.parametrize("recompute", ["rnone", "rfull"])
def test_orders_of_ones_own(name: str, recompute: str) -> None:
    layout_id = f"pp2{'-zbv-vpp2' if name.startswith('v') else ''}-dp2-mbs1-z1-{recompute}"
    wanted = job(layout_id, model_for("llama", layout_id))
    assert parity_of(replace(wanted, custom_order=custom_order(name, wanted))).agrees


@pytest.mark.parametrize("sizes", [[1, 5], [5, 1], [3, 3], [0, 6]])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_uneven_stages(sizes: list[int], zero: int) -> None:
    wanted = job(f"pp2-dp2-mbs1-z{zero}-rnone", llama(6), sizes=sizes, stack_changes={"sharded_states": "zero"})
    assert parity_of(wanted).agrees


STAGE = ["dp4-mbs1", "tp2-dp2-mbs2", "tp4-dp1-mbs4", "cp2u-dp2-mbs2", "cp4u-dp1-mbs4"]
OWN = [
    *(" ".join(f"{each}-z{zero}-{recompute}" for each in (STAGE[0], first, second, second, first, STAGE[1]))
      for zero, recompute, (first, second) in zip(
          itertools.cycle(range(4)), itertools.cycle(RECOMPUTES), itertools.combinations(STAGE, 2), strict=False)),
    *(" ".join(f"pp2-dp2-mbs1-z{zero}-{recompute}" for zero, recompute in zip(order, RECOMPUTES, strict=False))
      for order in ((0, 1, 2, 3, 3, 2), (3, 3, 2, 1, 0, 0), (1, 0, 3, 0, 2, 1))),
    "tp2-pp2-dp4-mbs2-z1-rnone cp4u-pp2-dp2-mbs4-z3-rfull pp2-dp8-mbs1-z3-rnone tp8-pp2-dp1-mbs8-z0-rsel "
    "tp4-pp2-dp2-mbs4-z2-rnone pp2-dp8-mbs1-z2-rnone",
]  # fmt: skip
SIXTHS = ["dp6-mbs1-z3-rnone", "tp2-dp3-mbs2-z0-rfull", "tp3-dp2-mbs3-z1-rnone", "cp2u-dp3-mbs2-z2-rnone",
          "tp6-dp1-mbs6-z0-rnone", "cp3u-dp2-mbs3-z3-rsel", "tp2-dp3-mbs2-z1-rnone"]  # fmt: skip


def heads(number: int, layers: int) -> ModelSpec:
    """As GPT-2, with `number` heads."""
    model = gpt(layers, vocab=60, max_positions=24, learned_positions=24)
    wide = replace(model.kinds[0].transformer_blocks[0], heads=number, kv_heads=number)
    return replace(model, kinds=(replace(model.kinds[0], attention=wide),), tied_embeddings=False)


@pytest.mark.parametrize("text", OWN)
@pytest.mark.filterwarnings("default")
def test_strategies_of_their_own(text: str) -> None:
    wanted = mixed(text, heads(8, 4), stack_changes={"sharded_states": "zero"})
    verdict = parity_of(wanted)
    assert verdict.agrees, verdict.as_dict()


@pytest.mark.filterwarnings("default")
def test_parts_that_do_not_nest() -> None:
    """2 and 3 parts on a stage of 6: blocks of 6 ranks exchange unequal shares."""
    wanted = mixed(" ".join(SIXTHS), heads(6, 5), seq_len=24)
    assert parity_of(wanted).agrees


WITH_CONTEXT = [
    *(f"llama:cp2{{}}-dp1-mbs1-z0-{recompute}" for recompute in RECOMPUTES),
    *(f"llama:cp2{{}}-dp2-mbs1-z{zero}-rnone" for zero in range(4)),
    *(f"llama:cp2{{}}-dp4-sh2-mbs1-z{zero}-rnone" for zero in (1, 2, 3)),
    *(f"llama:cp2{{}}-pp2{schedule}-dp1-mbs1-z0-rnone" for schedule in SCHEDULES),
    *(f"llama:tp2-cp2{{}}-dp1-mbs1-z{zero}-rnone" for zero in range(4)),
    "llama:tp2-cp2{}-dp1-mbs2-z1-rsel", "llama:tp2-cp2{}-pp2-dp1-mbs1-z1-rfull1",
    "llama:cp2{}-pp2-vpp2-dp2-mbs1-z3-rsel", "moe:cp2{}-dp1-ep2-mbs1-z0-rnone", "moe:cp2{}-dp2-ep2-mbs1-z3-rsel(moe)",
    "moe:tp2-cp2{}-dp1-ep2-mbs1-z1-rnone",
]  # fmt: skip
SIXTEEN = [
    "llama:tp2-cp2r-pp2-dp2-mbs1-z1-rnone", "gpt:tp2-cp2u-pp2-dp2-mbs1-z3-rnone", "llama:tp2-cp4g-dp2-mbs1-z3-rsel",
    "moe:tp2-cp2g-pp2-dp2-ep4-mbs1-z1-rnone", "moe:tp2-cp2r-pp2-dp2-ep2-etp4-mbs1-z1-rnone",
    "moe:tp2-cp2r-dp4-sh2-ep4-mbs1-z2-rfull", "gpt:cp8r-dp2-mbs1-z1-rnone",
    "gpt:cp4u-pp2-vpp2-dp2-mbs1-z1-rnone",
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ["r", "g", "u"])
@pytest.mark.parametrize("text", WITH_CONTEXT)
def test_context_parallelism(text: str, algorithm: str) -> None:
    name, _, layout_id = text.format(algorithm).partition(":")
    wanted = replace(rehearsal(layout_id, name), steps=3)
    verdict = parity_of(wanted)
    assert verdict.agrees, verdict.as_dict()


@pytest.mark.parametrize("algorithm", ["r", "g", "u"])
@pytest.mark.parametrize("text", WITH_CONTEXT)
def test_peak_memory_with_context_parallelism(text: str, algorithm: str) -> None:
    """Traced, which is to the byte what a run holds (test_dry_run.py): with 16 layers, of which one more or less at the
    peak is no twentieth of all."""
    name, _, layout_id = text.format(algorithm).partition(":")
    wanted = job(layout_id, middling(model_for(name, layout_id)), seq_len=4096, dtype="bf16", optimizer="adamw")
    for stage, planned in enumerate(predicted_bytes(wanted)):
        traced = dry_run.trace(wanted, stage).allocated_bytes
        assert planned["allocated"] == pytest.approx(traced, rel=0.05), f"stage {stage}"


def middling(model: ModelSpec) -> ModelSpec:
    """A fourth of the width of an 8B model, half as many layers."""
    wide = large(model, 16)
    heads = replace(wide.kinds[0].transformer_blocks[0], heads=16, head_dim=64, value_head_dim=64)
    kinds = tuple(replace(each, attention=heads, feed_forward=block)
                  for each, block in zip(wide.kinds, map(_narrow, wide.kinds), strict=True))  # fmt: skip
    return replace(wide, hidden=1024, vocab=16384, kinds=kinds)


def _narrow(kind: Layer) -> FeedForward | MixtureOfExperts:
    _, block = kind.transformer_blocks
    return replace(block, inner=2816) if isinstance(block, FeedForward) else replace(block, expert_inner=2816)


@pytest.mark.parametrize("text", SIXTEEN)
@pytest.mark.filterwarnings("default")
def test_sixteen_ranks(text: str) -> None:
    name, _, layout_id = text.partition(":")
    verdict = parity_of(job(layout_id, model_for(name, layout_id)))
    assert verdict.agrees, verdict.as_dict()
