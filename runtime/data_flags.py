"""Flags of a run's data, held against its model. No torch here."""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError, UnsupportedError
from .job import Job
from .pairs import START
from .reinforcement.job import RlJob
from .settings import Settings
from .shards import pair_files, token_files


def check_data(job: Job, settings: Settings) -> None:
    """Raises InputError for flags of the data that it or the model has no use for."""
    end = settings.end_token
    stored = [flag for flag, name in (("--data", settings.data), ("--eval-data", settings.eval_data))
              if name not in (None, "synthetic")]  # fmt: skip
    if stored and isinstance(job, RlJob) and settings.scale_down:
        raise UnsupportedError(f"{stored[0]}: a rehearsal has a small model, and pairs of files have the tokens of the "
                               "planned one", hint="leave out `--scale-down`, or the data: synthetic pairs have its "
                               "tokens")  # fmt: skip
    if stored and job.source_len is not None and settings.scale_down:
        raise UnsupportedError(f"{stored[0]}: a rehearsal shortens sources, and pairs of files have planned lengths",
                               hint="leave out `--scale-down`, or the data: synthetic tokens have both")  # fmt: skip
    if end is not None and job.images is not None:
        raise InputError(f"--end-token {end}: not with images, which take places of the documents' tokens",
                         hint="leave it out, or plan without `--images`")  # fmt: skip
    if settings.data == "synthetic" and (settings.shuffle or end is not None):
        flag = "--shuffle" if settings.shuffle else "--end-token"
        raise InputError(f"{flag}: synthetic tokens are random and have no documents", hint="add `--data DIR`")
    if end is not None and not 0 <= end < job.model.vocab:
        raise InputError(f"--end-token {end}: the model has the tokens 0 to {job.model.vocab - 1}",
                         hint="give the end-of-document token of its tokenizer")  # fmt: skip
    if end == START and job.source_len is not None:
        raise InputError(f"--end-token {end}: starts a target, whose first token would have no loss",
                         hint="give the token that ends a target, 1 of T5")  # fmt: skip
    if end is not None and job.model.mtp_layers:
        raise InputError(f"--end-token {end}: not with prediction of more than one token",
                         hint="plan with `--set workload.mtp_layers=0`, or leave it out")  # fmt: skip
    files = pair_files if isinstance(job, RlJob) or job.source_len is not None else token_files
    for name in (settings.data, settings.eval_data):
        if name is not None and name != "synthetic":
            files(Path(name))
