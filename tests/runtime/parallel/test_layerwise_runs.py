"""Layers with strategies of their own train what one process trains; faults planted between them are noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from meshwright.cost_models.layouts import parse
from meshwright.runtime.job import Job
from meshwright.runtime.parallel.resharding import Resharding
from meshwright.runtime.rehearsal import dry_run
from meshwright.runtime.rehearsal.pricing import predicted_bytes
from meshwright.runtime.rehearsal.scale import scale_down
from meshwright.runtime.trainer import Trainer

from ..fork import Break
from ..jobs import gpt, llama, mixed
from ..rehearsal.test_parity import parity_of
from ..rehearsal.test_scale import large

MODELS = {"llama": llama, "gpt": gpt}
# Embedding, layers and head: degrees, ZeRO stages, recomputation; Ulysses and tied embeddings; a pipeline whose stages
# meet under different degrees; three degrees on one stage.
RUNS = [
    "llama:dp2-mbs1-z0-rnone tp2-dp1-mbs2-z0-rnone dp2-mbs1-z3-rfull dp2-mbs1-z2-rsel(norm+act) tp2-dp1-mbs2-z0-rnone",
    "gpt:tp2-dp1-mbs2-z0-rnone cp2u-dp1-mbs2-z1-rnone dp2-mbs1-z3-rnone tp2-dp1-mbs2-z0-rnone",
    "llama:pp2-dp2-mbs1-z1-rnone pp2-dp2-mbs1-z3-rfull tp2-pp2-dp1-mbs2-z0-rnone cp2u-pp2-dp1-mbs2-z3-rnone "
    "pp2-dp2-mbs1-z0-rsel pp2-dp2-mbs1-z2-rnone",
    "gpt:dp4-mbs1-z2-rnone tp4-dp1-mbs4-z0-rnone tp2-dp2-mbs2-z3-rfull dp4-mbs1-z0-rnone dp4-mbs1-z2-rnone",
]


@pytest.mark.parametrize("text", RUNS)
def test_strategies_of_their_own(text: str) -> None:
    name, _, strategies = text.partition(":")
    wanted = mixed(strategies, MODELS[name](len(strategies.split()) - 2), stack_changes={"sharded_states": "zero"})
    verdict = parity_of(wanted)
    assert verdict.agrees, verdict.as_dict()
    assert verdict.least_change > 0.01


def gradients_that_stay(trainer: Trainer, rank: int) -> None:
    """Backward nothing is moved: every rank takes its own gradients for those of its new share."""
    Resharding.back = lambda self, x: x.reshape(self.shapes[0])  # type: ignore[method-assign]


def rows_of_another_rank(trainer: Trainer, rank: int) -> None:
    """One rank puts what arrived into the wrong places."""
    there = Resharding.there
    if rank == 0:
        Resharding.there = lambda self, x: there(self, x).roll(1, 1)  # type: ignore[method-assign]


@pytest.mark.parametrize("broken", [gradients_that_stay, rows_of_another_rank])
def test_planted_faults_are_noticed(broken: Break) -> None:
    assert not parity_of(mixed("dp2-mbs1-z0-rnone tp2-dp1-mbs2-z0-rnone dp2-mbs1-z0-rnone"), broken).agrees


PIPELINE = " ".join([
    "pp2-dp4-mbs1-z1-rnone", *5 * ["pp2-dp4-mbs1-z3-rfull"], *4 * ["tp4-pp2-dp1-mbs4-z0-rnone"],
    *4 * ["cp2u-pp2-dp2-mbs2-z2-rsel(act)"], *3 * ["pp2-dp4-mbs1-z1-rnone"], "tp4-pp2-dp1-mbs4-z0-rnone",
])  # fmt: skip


def wide(strategies: str) -> Job:
    """Half the width of an 8B model."""
    model = large(llama(), len(strategies.split()) - 2)
    return mixed(strategies, replace(model, vocab=32000), seq_len=4096, dtype="bf16", optimizer="adamw",
                 stack_changes={"sharded_states": "zero"})  # fmt: skip


@pytest.mark.parametrize("stage", [0, 1])
def test_traced_bytes_are_those_of_the_planner(stage: int) -> None:
    wanted = wide(PIPELINE)
    planned = predicted_bytes(wanted)[stage]["allocated"]
    assert planned == pytest.approx(dry_run.trace(wanted, stage).allocated_bytes, rel=0.05)


def test_a_rehearsal_keeps_degrees_neighbours_and_states() -> None:
    small, notes = scale_down(wide(PIPELINE))
    assert small.strategies is not None
    kept = [str(each) for each in small.strategies.in_order]
    assert kept == [
        "pp2-dp4-mbs1-z1-rnone", "pp2-dp4-mbs1-z3-rfull", "pp2-dp4-mbs1-z3-rfull", "tp4-pp2-dp1-mbs4-z0-rnone",
        "tp4-pp2-dp1-mbs4-z0-rnone", "tp4-pp2-dp1-mbs4-z0-rnone", "cp2u-pp2-dp2-mbs2-z2-rsel(act)",
        "cp2u-pp2-dp2-mbs2-z2-rsel(act)", "pp2-dp4-mbs1-z1-rnone", "pp2-dp4-mbs1-z1-rnone",
        "tp4-pp2-dp1-mbs4-z0-rnone",
    ]  # fmt: skip
    assert (small.world_size, small.model.num_layers, small.global_batch) == (8, 9, 16)
    assert "layers 0-1 pp2-dp4-mbs1-z3-rfull, layers 2-4 tp4-pp2-dp1-mbs4-z0-rnone" in notes[-1]


def test_a_rehearsal_has_at_most_eight_ranks() -> None:
    small, _ = scale_down(wide("tp8-pp4-dp2-mbs2-z1-rnone " + 8 * "tp4-pp4-dp4-mbs1-z1-rnone "
                               + "tp4-pp4-dp4-mbs1-z1-rnone"))  # fmt: skip
    assert small.strategies is not None
    assert small.strategies.distinct == tuple(map(parse, ("tp4-pp2-dp1-mbs2-z1-rnone", "tp2-pp2-dp2-mbs1-z1-rnone")))
