"""An encoder and the decoder behind it train under layouts what one process trains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from meshwright.cost_models.quantities.stacks import message_bytes, sent_bytes
from meshwright.planner import api
from meshwright.runtime.job import job_of
from meshwright.runtime.model.two_stacks import EncoderDecoderChunk
from meshwright.runtime.parallel.comm import Group
from meshwright.runtime.parallel.encoder_stages import stages_with_copies, tokens_sent
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.rehearsal.parity import LEAST_CHANGE
from meshwright.runtime.rehearsal.pricing import ledger_of
from meshwright.runtime.rehearsal.scale import scale_down
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from ..fork import fork
from ..jobs import t5, with_source
from .test_parity import parity_of

FEW = [("dp2-mbs1-z3-rfull", False), ("tp2-dp2-mbs1-z3-rsel", True), ("pp2-dp1-mbs1-z1-rnone", True),
       ("tp2-pp2-zbh1-dp1-mbs1-z0-rfull", False)]  # fmt: skip
MORE = [("dp4-sh2-mbs2-z2-rsel(norm+act)", True), ("tp4-dp1-mbs1-z0-rnone", False), ("pp2-dp2-mbs1-z3-rfull", False),
        ("pp4-gpipe-dp1-mbs1-z1-rnone", True), ("dp2-mbs1-z1-rnone-oact", True)]  # fmt: skip


@pytest.mark.parametrize(("layout_id", "tied"), [*FEW, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE)])
def test_trains_what_one_process_trains(layout_id: str, tied: bool) -> None:
    verdict = parity_of(with_source(layout_id, t5(tied_embeddings=tied)))
    assert verdict.agrees, verdict.first_difference
    assert verdict.least_change > LEAST_CHANGE


@pytest.mark.parametrize(("sizes", "sent"), [([3, 1, 2], [24, 40]), ([1, 1, 4], [24, 24]), ([1, 5, 0], [24, 16]),
                                             ([0, 4, 2], [24, 40])])  # fmt: skip
def test_stages_of_ones_own(sizes: list[int], sent: list[int]) -> None:
    """A stage of both stacks, several of one, and one with the embedding or the head alone. 24 tokens of the source are
    sent inside the encoder, and 16 of the target, too, where a layer of the decoder follows."""
    wanted = with_source("pp3-dp1-mbs1-z1-rnone", t5(6, tied_embeddings=True), sizes=sizes)
    assert tokens_sent(wanted)[:-1] == sent
    assert parity_of(wanted).agrees


@pytest.mark.parametrize("sizes", [[3, 3, 0], [1, 4, 1]])
def test_stages_send_as_many_bytes_as_are_priced(sizes: list[int]) -> None:
    wanted = with_source("tp2-pp3-dp1-mbs1-z1-rnone", t5(6), sizes=sizes, dtype="fp32")

    def sent(rank: int) -> dict[int, int]:
        """Bytes of a step, by the rank that gets them."""
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), 60.0), torch.device("cpu"))
        by_rank, send = dict[int, int](), Group.send

        def counted(self: Group, tensor: torch.Tensor, to: int, tag: int) -> Any:
            by_rank[to] = by_rank.get(to, 0) + tensor.nbytes
            return send(self, tensor, to, tag)

        Group.send = counted  # type: ignore[method-assign]
        trainer.step(0)
        return by_rank

    ledger = ledger_of(wanted)
    priced = wanted.num_micro_batches * sent_bytes(ledger, ledger.splits.counts[0])
    for rank, of_rank in enumerate(fork(wanted.world_size, sent)):
        stage = rank // 2
        forward = {rank + 2: priced[stage]} if stage < 2 else {}
        assert of_rank == forward | ({rank - 2: priced[stage - 1]} if stage > 0 else {})
    assert 2 * wanted.num_micro_batches * float(message_bytes(ledger)[0]) == pytest.approx(priced[:-1].sum())


def test_stages_with_copies() -> None:
    wanted = with_source("pp4-dp1-mbs1-z0-rnone", t5(8, tied_embeddings=True))
    assert stages_with_copies(wanted) == {"embedding": (0, 2, 3), "head": (0, 2, 3), "encoder_bias": (0, 1),
                                          "decoder_bias": (2, 3)}  # fmt: skip
    untied = replace(wanted, model=replace(wanted.model, tied_embeddings=False))
    assert stages_with_copies(untied)["embedding"] == (0, 2)
    assert "embedding" not in stages_with_copies(with_source("dp2-mbs1-z0-rnone"))


@pytest.mark.parametrize("changes", [{"optimizer": "adamw", "learning_rate": 0.01, "clip": 0.1},
                                     {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.5,
                                      "no_decay": frozenset({"norms", "embeddings"})}])  # fmt: skip
def test_optimizer(changes: dict[str, Any]) -> None:
    assert parity_of(with_source("tp2-pp2-dp1-mbs1-z1-rnone", **changes)).agrees


@pytest.mark.parametrize("layout_id", [
    "tp2-pp2-dp2-mbs1-z1-rnone", pytest.param("tp4-dp2-mbs1-z1-rfull", marks=pytest.mark.slow),
    pytest.param("pp4-dp2-mbs2-z1-rnone", marks=pytest.mark.slow)])  # fmt: skip
def test_a_rehearsal_has_both_stacks(layout_id: str) -> None:
    plan = api.evaluate(None, layout_id, model="t5-11b", cluster="dgx-h100:1", source_len=512, seq_len=128,
                        global_batch=64, target="meshwright")  # fmt: skip
    small, notes = scale_down(job_of(plan, 1))
    encoder = small.model.encoder
    assert encoder is not None
    kinds = [small.model.kinds[kind] for kind in small.model.pattern]
    assert [kind.encodes for kind in kinds] == [True] * encoder.layers + [False] * (len(kinds) - encoder.layers)
    assert [i for i, kind in enumerate(kinds) if kind.starts] == [0, encoder.layers]
    assert small.source_len != small.seq_len
    assert f"tokens of the source 512 -> {small.source_len}" in notes
    assert parity_of(replace(small, dtype="fp64", clip=None, learning_rate=0.3, steps=2, optimizer="sgd")).agrees


def _bias_of_this_stage_alone(trainer: Trainer, rank: int) -> None:
    """The gradient of a table of biases is not summed over the stages of its stack."""
    for unit in trainer.units:
        if unit.name == "decoder_bias tied":
            unit.groups = replace(unit.groups, tied=None)


def _no_norm_of_the_encoder(trainer: Trainer, rank: int) -> None:
    for chunk in trainer.chunks:
        if isinstance(chunk, EncoderDecoderChunk) and chunk.encoder_norm is not None:
            chunk.encoder_norm.forward = lambda x: x * 1  # type: ignore[method-assign]


def _no_gradient_of_the_encoder(trainer: Trainer, rank: int) -> None:
    """A stage sends the gradient of the target alone."""
    for chunk in trainer.chunks:
        if isinstance(chunk, EncoderDecoderChunk) and chunk.encoder_norm is None and chunk.embedding is None:
            chunk._parted = lambda x: (x[:, :24].detach(), x[:, 24:])  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", [_bias_of_this_stage_alone, _no_norm_of_the_encoder, _no_gradient_of_the_encoder])
def test_planted_faults_are_noticed(fault: Any) -> None:
    assert not parity_of(with_source("pp3-dp1-mbs1-z0-rnone", t5(6), sizes=[3, 1, 2]), fault).agrees
