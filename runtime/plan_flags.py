"""Flags of a run, held against the kind of its plan. No torch here."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError
from .reinforcement.job import RlJob
from .settings import Settings

_NOT_OF_LENGTHS = ("choice", "eval_data", "order", "planned_dtype", "compile")  # settings
_OF_PAIRS = ("shuffle", "data", "init_from")  # of post-training on pairs that are given
_NOT_OF_POST_TRAINING = ("eval_data", "order", "planned_dtype", "compile", "end_token", "check_parity", "copy_every",
                         "balance_experts")  # fmt: skip


def _refuse(settings: Settings, names: Sequence[str], plan: str) -> None:
    """Raises InputError where a setting is not at its default."""
    if given := [name for name in names if getattr(settings, name) != getattr(type(settings), name)]:
        raise InputError(f"--{given[0].replace('_', '-')}: not with a plan {plan}", hint="leave it out")


def check_post_training(job: RlJob, settings: Settings) -> None:
    """Raises InputError for a flag of pretraining."""
    _refuse(settings, _NOT_OF_POST_TRAINING, "of post-training")
    if job.engine is not None:
        _refuse(settings, _OF_PAIRS, f"of {job.algorithm}, which generates its answers")


def check_lengths_flags(settings: Settings) -> None:
    """Raises InputError for a flag that needs sequences of one length."""
    _refuse(settings, _NOT_OF_LENGTHS, "for documents of mixed lengths")
    if settings.shuffle and settings.end_token is None:
        raise InputError("--shuffle: pieces of stored tokens are read in the order of the data",
                         hint="add `--end-token ID`: whole documents are shuffled")  # fmt: skip
    if settings.end_token is not None and settings.scale_down:
        raise InputError("--end-token: a rehearsal shrinks documents, and data has none of these lengths",
                         hint="leave out `--scale-down`, or `--end-token`")  # fmt: skip
