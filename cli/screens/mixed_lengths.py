"""The screen of `meshwright plan --max-len`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from ...planner.drivers.mixed_lengths import MixedLengthsPlan, Policy
    from .parts import Part

_RULES = {"static": "one for all batches", "adaptive": "one per batch", "per sequence": "one per document"}


def screen(planned: MixedLengthsPlan, saved_as: str | None, sampler: str | None) -> list[Part]:
    """The three policies side by side, their common layout, and the proven gap."""
    resolved, costs = planned.resolved, planned.costs
    group = resolved.cluster.groups[0]
    work = resolved.workload
    gap = f"at most {text.percent(planned.max_gap)} %, on average {text.percent(planned.mean_gap)} %"
    saved = f"Wrote {saved_as}, and {sampler} for a sampler" if saved_as else "Next: add `-o plan.json` to keep it"
    return [
        text.wrapped(f"{resolved.model.name} on {group.num_nodes} x {group.gpus_per_node} {group.gpu.name}, "
                     f"{work.global_batch:,} documents of up to {work.seq_len:,} tokens per step, {work.precision}"),
        "",
        table("plan", "degree", "degrees used", "micro-batches", "mean step s", "p95 s", "speedup",
              rows=[_row(policy, planned.static) for policy in planned.policies],
              right=("micro-batches", "mean step s", "p95 s", "speedup")),
        "",
        text.wrapped(f"Layout of the static plan: {planned.static_layout}, but a micro-batch holds tokens: "
                     f"{costs.rank_tokens:,} on each of {costs.num_ranks} ranks"),
        text.wrapped(f"Gap of the per-sequence plans to a proven bound: {gap} ({len(planned.batches)} batches, "
                     f"seed {planned.seed})"),
        "",
        saved,
    ]  # fmt: skip


def _row(policy: Policy, static: Policy) -> list[str]:
    degrees = ", ".join(map(str, policy.degrees))
    return [policy.name, _RULES[policy.name], degrees, text.fixed(policy.mean_micro_batches, 1),
            text.significant(policy.mean_s), text.significant(policy.p95_s),
            f"{text.fixed(policy.speedup_over(static), 2)}x"]  # fmt: skip
