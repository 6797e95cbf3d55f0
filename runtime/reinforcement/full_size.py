"""A run of DPO at the size of its plan. Pairs are padded to rows of one length. No torch here.

Calls of other algorithms generate, and generation without a cache is for rehearsals only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ...cost_models.degrees import sequence_parts
from ...cost_models.layouts import Layouts
from ...errors import InputError, UnsupportedError
from .job import RlJob, chunks_of
from .places import check_place, whole

_HINT = "plan with `--trainer meshwright` for layouts that run here, or take another `--choice`"


def at_full_size(job: RlJob) -> tuple[RlJob, list[str]]:
    """The job on all GPUs of its plan, and one line per difference from the plan. Raises UnsupportedError for calls
    and layouts that do not run here, InputError for pairs that do not divide."""
    if job.engine is not None:
        raise UnsupportedError("a plan of post-training is only rehearsed: generation has no cache here",
                               hint="add `--scale-down`")  # fmt: skip
    if moving := [call.name for call in job.planned if call.moves_s]:
        raise UnsupportedError(f"{', '.join(moving)}: planned with models that move to the host and back, and here "
                               "all of them stay on their GPUs", hint="plan for more GPUs")  # fmt: skip
    model = replace(job.model, mtp_layers=0, mtp_pattern=(), moe_aux_loss_coeff=0.0)
    scores = tuple(replace(place, layout=whole(place.layout)) for place in job.scores)
    length = _row_len(job)
    large = replace(job, model=model, scores=scores, seq_len=length, answer_len=job.answer_len + length - job.seq_len)
    layout = replace(job.layout, micro_batch=2 * _pairs(large))
    large = replace(large, layout=layout, chunks=chunks_of(layout, model), train=replace(job.train, layout=layout))
    for place in large.places:
        check_place(large, place, "run", _HINT)
    return large, list(_notes(job, large))


def _row_len(job: RlJob) -> int:
    """Tokens of a padded row, without the last one: those of the longest answer and its prompt, rounded up so that all
    layouts divide them."""
    unit = math.lcm(*(int(each) for each in sequence_parts(Layouts.of([place.layout for place in job.places]))[1]))
    return -(-job.seq_len // unit) * unit


def _pairs(job: RlJob) -> int:
    """Pairs of a micro-batch: as many as fit into the tokens of a planned one, at least one, in equal parts. Raises
    InputError for answers that the ranks of a call do not divide."""
    layout, pairs = job.layout, job.global_batch // 2
    if pairs % layout.dp:
        raise InputError(f"{pairs:,} pairs of an update on dp {layout.dp}: {pairs % layout.dp} are left over",
                         hint=f"plan with `--prompts` of a multiple of {layout.dp * job.updates:,}")  # fmt: skip
    for place in job.scores:
        if job.answers % place.layout.dp:
            raise InputError(f"{place.name}: {job.answers:,} answers of a step on dp {place.layout.dp}: "
                             f"{job.answers % place.layout.dp} are left over", hint=_HINT)  # fmt: skip
    of_rank, room = pairs // layout.dp, _planned_tokens(job) // (2 * job.seq_len)
    group = layout.pp if layout.vpp > 1 else 1  # interleaved stages take micro-batches in rounds
    sizes = [size for size in range(1, max(room, 1) + 1) if of_rank % (size * group) == 0]
    return max(sizes, default=1)


def _planned_tokens(job: RlJob) -> int:
    """Tokens of a planned micro-batch, at most."""
    return max(call.micro_batch_tokens for call in job.planned)


def _notes(planned: RlJob, large: RlJob) -> Iterator[str]:
    tokens = large.layout.micro_batch * large.seq_len
    yield (f"answers are padded to {large.seq_len + 1:,} tokens, not packed: a micro-batch has {tokens:,} tokens, "
           f"{_planned_tokens(planned):,} in the plan")  # fmt: skip
    if planned.model.mtp_layers:
        yield "left out: predictions of more than one token"
    if planned.model.moe_aux_loss_coeff:
        yield "left out: the balancing loss of experts"
