"""A run on documents of mixed lengths, read from its plan and its sampler plan. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ...cost_models.degrees import sequence_parts
from ...cost_models.layouts import RECOMPUTE_MODES, Layouts
from ...errors import UnsupportedError
from ...planner.document.candidate import Chunk
from ...planner.document.lengths_plan import LengthsPlan
from ...planner.document.sampler_plan import SamplerBatch, SamplerGroup, read_sampler, sampler_path
from ...planner.document.specs import model_of, stack_of, workload_of
from ...planner.targets.meshwright.techniques import exchanging_technique
from ..job import Job, unsupported


@dataclass(frozen=True, kw_only=True)
class LengthsJob(Job):
    """A run whose groups have unlike degrees. Its layout is that of the widest groups.

    seq_len: tokens of the longest document; global_batch: documents of a step.
    """

    batches: tuple[SamplerBatch, ...]  # steps; after the last one they begin again, with other tokens

    def batch(self, index: int) -> SamplerBatch:
        """The documents of step index, from 0."""
        return self.batches[index % len(self.batches)]

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of the first step."""
        return len(self.batches[0].microbatches)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step, mean."""
        return sum(self._tokens) // len(self.batches)

    def tokens_until(self, steps: int) -> int:
        """Tokens of the first `steps` steps together."""
        rounds, rest = divmod(steps, len(self.batches))
        return rounds * sum(self._tokens) + sum(self._tokens[:rest])

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """Degrees of all groups, ascending."""
        return tuple(sorted({group.cp for group in self._groups}))

    @property
    def fullest_tokens(self) -> int:
        """Tokens of the fullest micro-batch of a rank."""
        return max(sum(-(-batch.lengths[seq] // group.cp) for seq in group.seqs)
                   for batch in self.batches for group in batch.groups)  # fmt: skip

    @property
    def uniform(self) -> Job:
        """A job of its layout with sequences of one length, of as many tokens on each rank as the fullest has."""
        parts = int(sequence_parts(Layouts.of([self.layout]))[1][0])
        seq_len = -(-self.fullest_tokens // parts) * parts
        return replace(self, seq_len=seq_len, global_batch=self.layout.dp * self.layout.micro_batch * 2)

    @cached_property
    def _tokens(self) -> tuple[int, ...]:
        """Tokens by batch."""
        return tuple(batch.num_tokens for batch in self.batches)

    @property
    def _groups(self) -> tuple[SamplerGroup, ...]:
        return tuple(group for batch in self.batches for group in batch.groups)


def lengths_job(plan: LengthsPlan, path: Path) -> LengthsJob:
    """The job of a plan in the file `path`. Raises InputError for a damaged file, UnsupportedError if it cannot run."""
    if plan.rule_tokens:
        raise UnsupportedError(f"{path.name}: a framework with a rule of its own chooses its degrees",
                               hint="`emit` writes its files; `--target meshwright` plans for `launch`")  # fmt: skip
    model, stack = model_of(plan.resolved, path.name), stack_of(plan.resolved, path.name)
    workload, layout = workload_of(plan.resolved, path.name), plan.widest
    reason = unsupported(layout, model, workload, stack)
    if model.mtp_layers:
        reason = "it predicts more than one token, and documents end in the midst of a row"
    if any(kind.mixer is not None for kind in model.kinds):
        reason = "its layers keep a state from one document of a row to the next"
    if (technique := exchanging_technique(workload)) is not None:
        reason = f"replicas that train by {technique[0]} have equal shares of a step"
    if reason is not None:
        hint = "plan it without `--max-len`"
        raise UnsupportedError(f"{path.name}: {model.name} does not train on documents of mixed lengths: {reason}",
                               hint=hint)  # fmt: skip
    full = RECOMPUTE_MODES[layout.recompute] == "full"
    chunk = Chunk(stage=0, chunk=0, layers=(0, model.num_layers - 1), embedding=True, head=True, gpu="",
                  recompute_layers=model.num_layers if full else 0)  # fmt: skip
    job = LengthsJob(
        plan_id=plan.request_sha256[:12], choice=1, model=model, layout=layout, chunks=(chunk,), stack=stack,
        seq_len=workload.seq_len, global_batch=workload.global_batch, optimizer=workload.optimizer, dtype="bf16",
        predicted_step_s=plan.policy("per sequence").mean_s,
        batches=read_sampler(sampler_path(path), plan.header),
    )  # fmt: skip
    job.check_states()
    return job
