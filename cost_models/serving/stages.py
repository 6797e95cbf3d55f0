"""Prompts in the stages of a pipeline, in closed form: how long they hold up iterations, and wait for one another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array, Mask
from .pool import Pool
from .service import Load
from .shared_iterations import BUSIEST, SharedIterations

# Of waits in pipelines, out of simulated instances of 4 and 8 stages (tests/cost_models/serving/test_simulation.py).
_TOGETHER, _UNLIKE = 2.5, 1.6


def prompt_seconds(mixed_s: Array, chunks: Array, prefill: Pool) -> Array:
    """[n] of a prompt that does not wait: each of its chunks begins when the one before it has left the first stage
    (vLLM 0.32, Scheduler._update_after_schedule). mixed_s: of an iteration in all stages."""
    return np.asarray(mixed_s * (1.0 + (chunks - 1.0) / prefill.pp))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds of a pipeline, each with an iteration of every lane, and the prompts in them, columns [n]."""

    together: Mask  # answers decode beside prompts in several stages: else prompts hold up one stage alone
    added_s: Array  # for which a prompt holds up the iterations of all lanes, mean
    longest_s: Array  # for which the prompts of an iteration do that have none before them
    most_s: Array  # that prompts add to a round at most; infinite where not together
    blocked: Array  # share of the time in which prompts hold up the lanes, as those that come find it
    full_s: Array  # of a prompt, where all iterations have full chunks; 0 where not together

    @classmethod
    def of(
        cls, stage_s: Array, rate: Array, mixed_s: Array, alone_s: Array, chunk_s: Array, chunks: Array, number: Array,
        prefill: Pool, disagg: Mask, load: Load,
    ) -> Rounds:  # fmt: skip
        """A round takes as long as the longest of its iterations alone (`simulated_pipeline`), so a chunk alone holds
        up all of them in every stage. A chunk that begins within a round behind another one adds the seconds of one
        stage: the others are held up already. Chunks of a prompt follow one another, so that the first of them alone
        may hold up the others: where no prompt came while the chunks of another one were in the first stage. That is
        an M/G/1 queue found empty, 1 - rho, where a chunk holds one prompt; where it holds all that come, none of a
        Poisson number, exp(-rho); between them (1 - rho / k)^k.

        stage_s: that a prompt adds to one stage. rate: prompts per second. mixed_s, alone_s: of an iteration with
        prompts and without. chunk_s: of one with a full chunk. number: prompts of one.
        """
        if not prefill.staged:
            none = np.zeros_like(stage_s)
            return cls(together=np.zeros_like(disagg), added_s=stage_s, longest_s=stage_s * number,
                       most_s=none + np.inf, blocked=none, full_s=none)  # fmt: skip
        stages, together = prefill.pp, ~disagg & (prefill.pp > 1)
        first_s = mixed_s * chunks / stages
        held = np.maximum(prefill.chunk_tokens / load.prefilled, 1.0)
        empty = np.maximum(1.0 - rate * first_s / held, 0.0) ** held
        further_s = np.where(together, stage_s * (stages - 1.0) / np.maximum(chunks, 1.0), 0.0)
        most_s = np.maximum(chunk_s - alone_s, 0.0)
        full_s = np.where(together, (alone_s + most_s) / held * np.maximum(chunks, 1.0) / stages, 0.0)
        # No rounds take longer than those whose iterations all have prompts.
        all_s = np.maximum(mixed_s - alone_s, 0.0) / mixed_s / np.maximum(rate, 1e-12)
        added_s = stage_s + further_s * empty
        blocked = np.minimum(rate * added_s, most_s / (alone_s + most_s))
        added_s = np.minimum(added_s, all_s)
        return cls(together=together, added_s=np.maximum(np.where(together, added_s, stage_s), stage_s),
                   longest_s=(stage_s + further_s) * number, most_s=np.where(together, most_s, np.inf),
                   blocked=blocked, full_s=full_s)  # fmt: skip

    def queue_s(self, rate: Array, mixed_s: Array, unevenness: Array) -> Array:
        """[n] mean wait of a prompt where together: until the lanes that others hold up are free, at most for the rest
        of a round with prompts, and behind prompts that the lanes have not taken (Pollaczek and Khinchine)."""
        blocked_s = unevenness / 2.0 * self.longest_s * self.blocked / np.maximum(1.0 - self.blocked, 1.0 - BUSIEST)
        full = np.minimum(rate * self.full_s, BUSIEST)
        return np.minimum(blocked_s, mixed_s / 2.0) + unevenness / 2.0 * self.full_s * full / (1.0 - full)


def pipeline_s(
    prefill: Pool, load: Load, added_s: Array, prompt_load: Array, prompt_scv: Array, shared: SharedIterations
) -> Array:  # fmt: skip
    """[n] mean wait in the stages after the first, where no answers decode. Prompts that wait together are one
    iteration, which takes longer in every stage, and a short one that follows a long one waits for it in every stage.
    So the longest iteration of a busy time sets the pace. It has more than one prompt by _TOGETHER rho^2 / (1 - rho^2),
    where lengths are equal (an iteration has rho times the prompts of the one before it), and by _UNLIKE log(1 / (1 -
    rho)) deviations of a prompt, where they are not; at most by as many as a chunk holds. The others in the iteration
    of a prompt lengthen that in every stage already."""
    longer = _TOGETHER * prompt_load**2 / (1.0 - prompt_load**2) - shared.others * shared.more_s / added_s
    longer = np.maximum(longer, 0.0)
    longer = longer - _UNLIKE * np.sqrt(prompt_scv) * np.log1p(-prompt_load)
    most = np.maximum(prefill.chunk_tokens / load.prefilled - 1.0, 1e-9)
    return np.asarray((prefill.pp - 1.0) * added_s * longer / (1.0 + longer / most))
