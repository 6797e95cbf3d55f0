"""Documents of mixed lengths: groups of unlike degrees in one step train what one process trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meshwright.planner.document.sampler_plan import SamplerBatch
from meshwright.runtime import reference
from meshwright.runtime.job import Job
from meshwright.runtime.mixed_lengths.job import LengthsJob
from meshwright.runtime.mixed_lengths.rehearsal import rehearsed
from meshwright.runtime.mixed_lengths.tokens import DocumentTokens
from meshwright.runtime.mixed_lengths.trainer import LengthsTrainer
from meshwright.runtime.parallel.documents import Documents
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.rehearsal.parity import Parity, compare
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Step

from .fork import fork
from .jobs import gpt, job, llama

# Degrees 4, 2 and 1; a micro-batch with all but one rank, in which rank 3 waits; documents of 1 token.
MICRO_BATCHES = (
    ({"cp": 4, "ranks": (0, 1, 2, 3), "seqs": (0, 5)},),
    ({"cp": 2, "ranks": (0, 1), "seqs": (1, 2)}, {"cp": 1, "ranks": (2,), "seqs": (3, 6, 7)}),
    ({"cp": 1, "ranks": (0,), "seqs": (4,)}, {"cp": 2, "ranks": (2, 3), "seqs": (8,)}),
)
BATCH = SamplerBatch.model_validate(
    {"batch": 0, "lengths": (16, 11, 3, 9, 1, 7, 2, 5, 13), "microbatches": MICRO_BATCHES}
)
SHORT = SamplerBatch.model_validate(
    {"batch": 1, "lengths": (4, 6), "microbatches": (({"cp": 4, "ranks": (0, 1, 2, 3), "seqs": (0, 1)},),)}
)


def lengths_job(layout_id: str, model: str = "llama", batches: tuple[SamplerBatch, ...] = (BATCH, SHORT)) -> LengthsJob:
    small = job(layout_id, {"llama": llama, "gpt": gpt}[model]())
    fields = {name: getattr(small, name) for name in Job.__dataclass_fields__}
    return LengthsJob(**{**fields, "seq_len": 16, "global_batch": 9, "steps": 3}, batches=batches)


def trained(wanted: LengthsJob) -> list[Step]:
    def one(rank: int) -> list[Step]:
        mesh = build_mesh(wanted.layout, rank, Status(), 60.0)
        trainer = LengthsTrainer(wanted, mesh, torch.device("cpu"))
        return [trainer.step(index) for index in range(wanted.steps)]

    steps: list[Step] = fork(wanted.world_size, one)[0]
    return steps


def parity_of(wanted: LengthsJob) -> Parity:
    run, alone = ([(step.loss, step.gradient_norm) for step in steps]
                  for steps in (trained(wanted), reference.train(wanted)))  # fmt: skip
    return compare(run, alone)


@pytest.mark.parametrize(("layout_id", "model"), [
    ("cp4g-dp1-mbs4-z3-rsel", "llama"), ("cp4r-dp1-mbs4-z3-rfull", "llama"), ("cp4r-dp1-mbs4-z0-rnone", "llama"),
    ("cp4g-dp1-mbs4-z2-rnone", "gpt"), ("cp4u-dp1-mbs4-z1-rnone", "gpt"),
])  # fmt: skip
def test_three_degrees_in_a_step_train_as_one_process(layout_id: str, model: str) -> None:
    verdict = parity_of(lengths_job(layout_id, model))
    assert verdict.agrees, verdict.as_dict()
    assert max(step.loss_difference for step in verdict.steps) <= 1e-12
    assert max(step.norm_difference for step in verdict.steps) <= 1e-12
    assert verdict.least_change > 0.01


def test_attention_across_documents_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of the group is taken for one document."""
    shares = Documents.shares
    monkeypatch.setattr(Documents, "shares", lambda self, size: (sum(shares(self, size)),))
    assert not parity_of(replace(lengths_job("cp4g-dp1-mbs4-z0-rnone"), steps=1)).agrees


@pytest.mark.parametrize("multiple", [1, 8])
def test_padding_has_no_target_and_stays_behind_its_document(multiple: int) -> None:
    row = Documents((5, 8, 1), multiple)
    documents = [torch.arange(10, 10 + length + 1) for length in (5, 8)]
    inputs, targets = row.row(documents)
    assert inputs.shape == targets.shape == (1, sum(row.padded))
    for document, (place, _) in zip(documents, row.placed(), strict=False):
        assert inputs[0, place : place + len(document) - 1].tolist() == document[:-1].tolist()
        assert targets[0, place : place + len(document) - 1].tolist() == document[1:].tolist()
    assert int((targets >= 0).sum()) == 13
    assert row.positions().max() == 7


def test_stored_tokens_are_cut_one_piece_after_another(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(400, dtype=np.int64) % 61)
    tokens = DocumentTokens(replace(lengths_job("cp4g-dp1-mbs4-z0-rnone"), data=str(tmp_path / "tokens.npy")))
    first, second = tokens.documents(0), tokens.documents(1)
    assert [len(piece) - 1 for piece in first] == list(BATCH.lengths)
    assert first[1][0] == first[0][-1] == 16  # the last target of a document is the first token of the next
    assert second[0][0] == first[-1][-1] == BATCH.num_tokens % 61
    assert tokens.documents(2)[0][0] == (BATCH.num_tokens + SHORT.num_tokens) % 61  # lengths again, other tokens


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stored=st.integers(17, 90), steps=st.integers(1, 12), split=st.integers(1, 16))
def test_every_stored_token_is_trained_once_an_epoch(stored: int, steps: int, split: int, tmp_path: Path) -> None:
    """As input and as target, over the ends of shards and of rounds of the sampler plan, however long the data is."""
    for name, part in zip("ab", np.split(np.arange(stored, dtype=np.int64), [split]), strict=True):
        np.save(tmp_path / f"{name}.npy", part)
    wanted = lengths_job("cp4g-dp1-mbs4-z0-rnone")
    wanted = replace(wanted, data=str(tmp_path), model=replace(wanted.model, vocab=stored))
    tokens = DocumentTokens(wanted)
    pieces = [piece for step in range(steps) for piece in tokens.documents(step)]
    assert [len(piece) - 1 for piece in pieces] == [length for step in range(steps)
                                                    for length in wanted.batch(step).lengths]  # fmt: skip
    inputs, targets = torch.cat([piece[:-1] for piece in pieces]), torch.cat([piece[1:] for piece in pieces])
    assert inputs.tolist() == [place % stored for place in range(len(inputs))]
    assert targets.tolist() == [place % stored for place in range(1, len(inputs) + 1)]


def test_tokens_are_those_of_the_steps_that_were_trained() -> None:
    """Steps have tokens of their own, and the batches begin again after the last one."""
    wanted, tokens = lengths_job("cp4r-dp1-mbs4-z2-rnone"), [BATCH.num_tokens, SHORT.num_tokens]
    assert tokens[0] != tokens[1]
    assert [wanted.tokens_until(steps) for steps in range(4)] == [0, tokens[0], sum(tokens), sum(tokens) + tokens[0]]
    assert wanted.tokens_until(2 * 10**18 + 1) == 10**18 * sum(tokens) + tokens[0]  # in no more time


def test_a_rehearsal_keeps_unlike_degrees_side_by_side() -> None:
    wide = SamplerBatch.model_validate({"batch": 0, "lengths": (4000, 900, 800, 30, 20), "microbatches": (
        ({"cp": 8, "ranks": tuple(range(8)), "seqs": (0,)},),
        ({"cp": 4, "ranks": (0, 1, 2, 3), "seqs": (1,)}, {"cp": 2, "ranks": (4, 5), "seqs": (2,)},
         {"cp": 1, "ranks": (6,), "seqs": (3, 4)}),
    )})  # fmt: skip
    planned = replace(lengths_job("cp8g-dp1-mbs8-z3-rnone", batches=(wide,)), seq_len=4000)
    small, notes = rehearsed(planned, {})
    assert small.world_size == 4
    assert small.degrees == (1, 2, 4)
    assert any(len({group.cp for group in groups}) > 1 for groups in small.batches[0].microbatches)
    assert "degrees 8 -> 4, 4 -> 2, 2 -> 1, 1 -> 1" in notes
    assert max(small.batches[0].lengths) <= small.seq_len
