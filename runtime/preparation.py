"""The job of a run: that of its plan, as its flags change it. No torch here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from ..cost_models.specs.model import MixtureOfExperts
from ..errors import InputError
from ..planner.document.lengths_plan import load_lengths_plan
from ..planner.document.reading import load_plan, rl_plan_in
from .checkpoint.manifest import check_resumable
from .compiling import check_compiled
from .data_flags import check_data
from .evaluation import evaluation_of
from .job import Job, job_of
from .learning_rate import RateSchedule
from .mixed_lengths.job import LengthsJob, lengths_job
from .mixed_lengths.rehearsal import rehearsed
from .parallel.schedules import custom_order
from .plan_flags import check_lengths_flags, check_post_training
from .rehearsal.parity import makes_products_of_one_process
from .rehearsal.scale import scale_down
from .reinforcement.full_size import at_full_size
from .reinforcement.job import RlJob, rl_job
from .reinforcement.rehearsal import rehearsed as rehearsed_calls
from .settings import Settings
from .technique_checks import check_technique
from .weight_decay import excluded_kinds

# The check uses SGD, because AdamW is invariant to scaled gradients and would hide such an error. The rate changes the
# loss by more than 1 % per step, so that a wrong update shows in the next loss.
PARITY_RATE = 1.0
# AdamW moves a weight by about the rate per step for any gradient: here by half the deviation of initial weights
# (0.02). The loss of small models then changes by 1 % or more per step; 3e-4 changes it by 0.1 %.
AS_TRAINED_RATE = 0.01


def planned_job(settings: Settings) -> Job:
    """The job as planned, before any flag changes it."""
    path = Path(settings.plan)
    if (lengths := load_lengths_plan(path)) is not None:
        check_lengths_flags(settings)
        return lengths_job(lengths, path)
    if (graph := rl_plan_in(path)) is not None:
        asked = rl_job(graph, settings.choice, path)
        check_post_training(asked, settings)
        return asked
    return job_of(load_plan(path), settings.choice, path.name)


def _resized(job: Job, settings: Settings) -> tuple[Job, list[str]]:
    """The job as it runs, and where its sizes differ from those of the plan."""
    kept = kept_axes(settings.keep_axes)
    if isinstance(job, RlJob):
        return rehearsed_calls(job, kept, settings.steps) if settings.scale_down else at_full_size(job)
    return rehearsed(job, kept) if isinstance(job, LengthsJob) else scale_down(job, kept)


def prepare(settings: Settings) -> tuple[Job, list[str]]:
    """The job of the flags, and notes on shrunk parts."""
    check_numbers(settings)
    job, notes = planned_job(settings), list[str]()
    if settings.resume and settings.checkpoint is not None:
        check_resumable(Path(settings.checkpoint))
    if settings.init_from is not None and settings.scale_down:
        raise InputError(f"--init-from {settings.init_from}: a rehearsal trains a small model, of other shapes",
                         hint="leave out `--scale-down`, or `--init-from`")  # fmt: skip
    if settings.scale_down or isinstance(job, RlJob):
        job, notes = _resized(job, settings)
    if settings.order is not None:
        job = replace(job, custom_order=custom_order(settings.order, job), predicted_step_s=None)
        job.check_states()
    if settings.lora_alpha is not None and job.lora is None:
        raise InputError(f"--lora-alpha {settings.lora_alpha:g}: this plan trains no adapters",
                         hint="plan with `--lora RANK`, or leave it out")  # fmt: skip
    if settings.balance_experts:
        check_balancing(job, settings)
    if settings.compile:
        check_compiled(job)
    check_data(job, settings)
    rates = RateSchedule(settings.learning_rate, settings.steps, settings.schedule, settings.warmup,
                         settings.min_learning_rate, settings.decay_steps)  # fmt: skip
    rates.check()
    if settings.check_parity and (rates.kind != "constant" or rates.warmup):
        raise InputError("--check-parity trains at a constant rate", hint="leave out `--schedule` and `--warmup`")
    if job.optimizer != "adamw" and (settings.no_decay or settings.weight_decay != Settings.weight_decay):
        raise InputError(f"--weight-decay, --no-decay: the plan trains with {job.optimizer}, which has none here",
                         hint="leave them out")  # fmt: skip
    job = replace(job, weight_decay=settings.weight_decay, no_decay=excluded_kinds(settings.no_decay))
    job = replace(job, rates=rates, steps=settings.steps, seed=settings.seed, learning_rate=settings.learning_rate,
                  clip=settings.clip or None, init_from=settings.init_from, data=settings.data,
                  shuffle=settings.shuffle, end_token=settings.end_token,
                  evaluation=evaluation_of(settings.eval_data, settings.eval_every, settings.eval_batches),
                  lora_alpha=settings.lora_alpha, balances_experts=settings.balance_experts)  # fmt: skip
    check_technique(job, check_parity=settings.check_parity)
    if not settings.check_parity:
        return job, notes
    return for_parity(job, as_trained=settings.as_trained, planned_dtype=settings.planned_dtype), notes


def check_numbers(settings: Settings) -> None:
    """Raises InputError for invalid values of flags."""
    if not 0 <= settings.seed < 1 << 32:
        raise InputError(f"--seed {settings.seed}: must be 0 to {(1 << 32) - 1}", hint="`--seed 0`")
    rules = (("--timeout", settings.timeout_s, "above 0", "leave it out for 600 s, 60 s in a rehearsal"),
             ("--lr", settings.learning_rate, "0 or more", "`--lr 3e-4`"),
             ("--weight-decay", settings.weight_decay, "0 or more", "`--weight-decay 0.1`"),
             ("--clip", settings.clip, "0 or more", "`--clip 0` clips nothing"),
             ("--lora-alpha", settings.lora_alpha, "above 0", "leave it out for the rank"))  # fmt: skip
    for name, value, bounds, hint in rules:
        if value is not None and not (value > 0 if bounds == "above 0" else value >= 0):
            raise InputError(f"{name} {value:g}: must be {bounds}", hint=hint)
        if value is not None and math.isinf(value):
            raise InputError(f"{name} {value:g}: must be finite", hint=hint)


def for_parity(job: Job, *, as_trained: bool, planned_dtype: bool = False) -> Job:
    """The job as the check trains it. as_trained: with its optimizer and clipping; planned_dtype: and in its dtype.

    Raises InputError where that dtype cannot be compared.
    """
    if planned_dtype and not makes_products_of_one_process(job):
        raise InputError(
            f"--planned-dtype: {job.layout_id} has products in {job.dtype} that one process sums in another order",
            hint="rehearse the other axes: `--keep tp=1`, and likewise cp, ep, etp, and pp where embeddings are tied",
        )
    if as_trained:
        rate = AS_TRAINED_RATE if job.optimizer == "adamw" else PARITY_RATE
        return replace(job, dtype=job.dtype if planned_dtype else "fp64", learning_rate=rate, rates=None)
    return replace(job, dtype="fp64", optimizer="sgd", learning_rate=PARITY_RATE, rates=None, clip=None)


def kept_axes(text: str) -> dict[str, int]:
    """Ranks per axis from "cp=4,tp=3". Raises InputError for any other form."""
    kept: dict[str, int] = {}
    for part in text.split(",") if text else ():
        axis, _, number = part.partition("=")
        if not number.isdecimal() or axis in kept:
            problem = "is there twice" if axis in kept else f"`{number}` is not a whole number"
            raise InputError(f"--keep {part}: {problem}", hint="`--keep cp=4 --keep tp=3`")
        kept[axis] = int(number)
    return kept


def check_balancing(job: Job, settings: Settings) -> None:
    """Raises InputError where a run cannot, or must not, assign tokens to experts round-robin."""
    if not any(isinstance(block, MixtureOfExperts) for block in job.model.feed_forwards):
        raise InputError(f"--balance-experts: {job.model.name} has no experts", hint="leave it out")
    if settings.check_parity:
        raise InputError("--balance-experts: which experts a token gets depends on the layout, so no run equals it",
                         hint="compare without it: `--check-parity` alone")  # fmt: skip
