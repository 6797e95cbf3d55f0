"""Documents of stored tokens by the sampler plan: whole, in turns, equal under any groups; other data is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from meshwright.planner import api
from meshwright.planner.document.sampler_plan import read_sampler, sampler_path
from meshwright.planner.request.load import request_from_dict
from meshwright.runtime.data import Stored, WrongTokens
from meshwright.runtime.mixed_lengths.job import LengthsJob
from meshwright.runtime.mixed_lengths.tokens import DocumentTokens
from meshwright.runtime.plan_flags import check_lengths_flags
from meshwright.runtime.settings import Settings

from meshwright.errors import InputError

from .launched import finish, start
from .test_mixed_lengths import BATCH, SHORT, lengths_job, parity_of

END = 60
LENGTHS = (*BATCH.lengths, *SHORT.lengths, *BATCH.lengths, 3)  # 3 tokens three times
MODEL = {"hidden": 64, "layers": 2, "heads": 4, "ffn_hidden": 128, "vocab": 61, "max_positions": 64}


def stored(folder: Path, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Writes documents, each begun by its number, in two shards, and returns them with the tokens that end them."""
    rng = np.random.default_rng(0)
    documents = [[number % END, *rng.integers(0, END, length - 1).tolist(), END]
                 for number, length in enumerate(lengths)]  # fmt: skip
    row = np.array([token for document in documents for token in document], dtype=np.uint16)
    folder.mkdir(exist_ok=True)
    for name, part in zip("ab", np.split(row, [len(row) // 3]), strict=True):
        np.save(folder / f"tokens-{name}.npy", part)
    np.savez(folder / "documents.npz", lengths=np.array(lengths))
    return documents


def job_on(folder: Path, end_token: int = END) -> LengthsJob:
    return replace(lengths_job("cp4g-dp1-mbs4-z3-rnone"), data=str(folder), end_token=end_token)


def test_documents_of_a_length_are_trained_whole_and_in_turns(tmp_path: Path) -> None:
    documents = stored(tmp_path / "tokens")
    tokens = DocumentTokens(job_on(tmp_path / "tokens"))
    steps = [[row.tolist() for row in tokens.documents(step)] for step in range(5)]
    assert [len(row) - 1 for row in steps[0]] == list(BATCH.lengths)
    assert all(row in documents for rows in steps for row in rows)
    threes = [row for rows in (steps[0], steps[2], steps[4]) for row in rows if len(row) == 4]
    assert threes == [document for document in documents if len(document) == 4]  # none twice before all were once
    assert steps[1] == [document for document in documents if len(document) - 1 in SHORT.lengths]


def test_shuffled_documents_of_a_length_come_once_an_epoch_in_another_order(tmp_path: Path) -> None:
    lengths = (*LENGTHS, *[3] * 40)
    documents = [document for document in stored(tmp_path / "tokens", lengths) if len(document) == 4]
    of_step = [batch.lengths.count(3) for batch in (BATCH, SHORT)]
    assert of_step == [1, 0]
    tokens = DocumentTokens(replace(job_on(tmp_path / "tokens"), shuffle=True))
    threes = [row.tolist() for step in range(0, 6 * len(documents), 2) for row in tokens.documents(step)
              if len(row) == 4]  # fmt: skip
    epochs = [threes[first : first + len(documents)] for first in range(0, len(threes), len(documents))]
    assert len(epochs) == 3
    assert all(sorted(epoch) == sorted(documents) for epoch in epochs)
    assert len({str(epoch) for epoch in (*epochs, documents)}) == 4


def test_ranks_train_them_as_one_process(tmp_path: Path) -> None:
    stored(tmp_path / "tokens")
    verdict = parity_of(replace(job_on(tmp_path / "tokens"), steps=2))
    assert verdict.agrees, verdict.as_dict()
    assert max(step.loss_difference for step in verdict.steps) <= 1e-12


@pytest.mark.parametrize(("change", "message"), [
    ("lacking", "no document has 1 tokens, the length of one in the sampler plan (9 more lengths are lacking)"),
    ("other shards", "its 21 documents have 168 tokens, the shards 173"),
    ("no index", "documents.npz: cannot be read"),
    ("no lengths", "holds no list of tokens per document"),
])  # fmt: skip
def test_other_data_is_refused(change: str, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    stored(folder, (20, 16) if change == "lacking" else LENGTHS)
    if change == "other shards":
        np.save(folder / "tokens-c.npy", np.zeros(5, dtype=np.uint16))
    if change == "no index":
        (folder / "documents.npz").unlink()
    if change == "no lengths":
        np.savez(folder / "documents.npz", lengths=np.array([[1.5]]))
    with pytest.raises(InputError) as error:
        DocumentTokens(job_on(folder))
    assert message in str(error.value)


def test_a_document_that_ends_otherwise_is_refused(tmp_path: Path) -> None:
    stored(tmp_path / "tokens")
    tokens = DocumentTokens(job_on(tmp_path / "tokens", end_token=7))
    with pytest.raises(WrongTokens, match="ends with token 60, not 7"):
        tokens.documents(0)
    tokens = DocumentTokens(job_on(tmp_path / "tokens"))
    assert isinstance(tokens.source, Stored)
    tokens.source.vocab = END
    with pytest.raises(WrongTokens, match="has token 60, the model knows 0 to 59"):
        tokens.documents(0)


def test_torchrun_trains_the_documents_that_the_plan_counted(tmp_path: Path) -> None:
    stored(tmp_path / "tokens")
    planned = api.plan_documents(request_from_dict({
        "model": MODEL, "gpu": "h100-sxm-80gb", "gpus": 2, "target": "meshwright",
        "workload": {"lengths": str(tmp_path / "tokens"), "max_len": 16, "global_batch": 6},
    }), num_batches=2)  # fmt: skip
    path = tmp_path / "plan.json"
    path.write_text(planned.document().model_dump_json(), encoding="utf-8")
    sampler_path(path).write_text("\n".join(planned.sampler_lines()), encoding="utf-8")
    batches = read_sampler(sampler_path(path), planned.document().header)
    assert {length for batch in batches for length in batch.lengths} <= set(LENGTHS)
    words = (str(path), "--data", str(tmp_path / "tokens"), "--end-token", str(END), "--device", "cpu", "--steps", "2",
             "--shuffle")  # fmt: skip
    code, out, err = finish(start(*words))
    assert code == 0, out + err
    assert "step 2/2" in out
    assert f"trained steps 1 to 2: {sum(batch.num_tokens for batch in batches)} tokens in " in " ".join(out.split())


def test_pieces_are_not_shuffled() -> None:
    with pytest.raises(InputError, match="--shuffle: pieces of stored tokens are read in the order of the data"):
        check_lengths_flags(Settings(plan="plan.json", data="tokens", shuffle=True))


def test_a_rehearsal_has_no_documents_of_the_data() -> None:
    with pytest.raises(InputError, match="a rehearsal shrinks documents"):
        check_lengths_flags(Settings(plan="plan.json", end_token=END, scale_down=True))
