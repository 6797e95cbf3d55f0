"""The screens of a plan for documents of mixed lengths: the three rules for degrees, and what groups wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .facts import Facts
from .header import cluster_text

if TYPE_CHECKING:
    from ...planner.document.lengths_plan import LengthsPlan, PolicyPart, SchemePart
    from ...planner.explain.mixed_lengths import LengthsExplanation, MicroBatchLoad
    from .parts import Part

_RULES = {"static": "one for all batches", "adaptive": "one per batch", "per sequence": "one per document"}
_MOST_DEGREES = 12  # that are listed: the powers of two up to 2,048
Rows = list[list[str]]


def screen(plan: LengthsPlan, saved_as: str | None, sampler: str | None) -> list[Part]:
    """The three policies side by side, their common layout, and the proven gap."""
    saved = f"Wrote {saved_as}, and {sampler} for a sampler" if saved_as else "Next: add `-o plan.json` to keep it"
    columns, rows = policy_cells(plan)
    return [
        text.wrapped(header(plan)),
        "",
        table(*columns, rows=rows, right=columns[3:]),
        "",
        *map(text.wrapped, layout_lines(plan)),
        "",
        saved,
    ]


def explain_screen(plan: LengthsPlan, explanation: LengthsExplanation) -> list[Part]:
    """The policies with their waiting, lengths, degrees, and one step by its micro-batches."""
    parts: list[Part] = [text.wrapped(header(plan))]
    for title, (columns, rows), numbers in (
        ("Plans", policy_cells(plan, explanation), slice(3, None)),
        (f"Documents of {plan.batches} batches, and their degrees in the per-sequence plans",
         length_cells(explanation), slice(3)),
        ("Groups of the per-sequence plans, in a step", degree_cells(explanation), slice(None)),
        (step_title(explanation), step_cells(explanation), slice(None)),
    ):  # fmt: skip
        parts += ["", title, table(*columns, rows=rows, right=columns[numbers])]
    return [*parts, "", *map(text.wrapped, layout_lines(plan))]


def header(plan: LengthsPlan) -> str:
    """`llama-2-7b on 8 x 8 a100-sxm-40gb, 512 documents of up to 196,608 tokens per step, bf16`."""
    facts = Facts.of(plan)
    return (f"{facts.model} on {cluster_text(facts)}, {facts.work.global_batch:,} documents of up to "
            f"{facts.work.seq_len:,} tokens per step, {facts.work.precision}")  # fmt: skip


def policy_cells(plan: LengthsPlan, explanation: LengthsExplanation | None = None) -> tuple[list[str], Rows]:
    """(columns, rows) of the policies, and of published schemes; the explanation adds how long ranks wait."""
    columns = ["plan", "degree", "degrees used", "micro-batches", "mean step s", "p95 s", "speedup"]
    static = plan.policy("static")
    rows = [_policy_row(policy, _RULES[policy.name], static) for policy in plan.policies]
    rows += [_policy_row(scheme, scheme.rule, static) for scheme in plan.schemes]
    rows += [[scheme.name, scheme.rule, "refused", "", "", "", ""] for scheme in plan.refused_schemes]
    if explanation is not None:
        columns.append("ranks wait %")
        waits = [text.percent(policy.idle) for policy in explanation.policies]
        waits += [""] * (len(rows) - len(waits))
        rows = [[*row, share] for row, share in zip(rows, waits, strict=True)]
    return columns, rows


def _policy_row(policy: PolicyPart, rule: str, static: PolicyPart) -> list[str]:
    return [policy.name, rule, _degrees(policy.degrees), text.fixed(policy.mean_micro_batches, 1),
            text.significant(policy.mean_s), text.significant(policy.p95_s),
            f"{text.fixed(static.mean_s / policy.mean_s, 2)}x"]  # fmt: skip


def _degrees(degrees: Sequence[int]) -> str:
    if len(degrees) > _MOST_DEGREES:
        return f"{degrees[0]} - {degrees[-1]}"
    return ", ".join(map(str, degrees))


def layout_lines(plan: LengthsPlan) -> Iterator[str]:
    """The layout that the degrees belong to, the rule of a framework that chooses them, and the proof."""
    from ...planner.batches.degree_rules import RULES

    layouts = (f"{policy.name} {policy.layout_id}" for policy in plan.policies if policy.layout_id)
    yield f"Layouts of the widest groups: {', '.join(layouts) or plan.layout_id}"
    yield (f"A micro-batch holds tokens, not sequences: {plan.rank_tokens:,} on each of {plan.ranks:,} ranks where "
           "every document has its degree")  # fmt: skip
    if plan.rule_tokens:
        yield f"{plan.resolved['target']} {RULES[plan.rule].words.format(tokens=plan.rule_tokens)}"
    yield (f"Gap of the per-sequence plans to a proven bound: at most {text.percent(plan.max_gap)} %, on average "
           f"{text.percent(plan.mean_gap)} % ({plan.batches} batches, seed {plan.seed})")  # fmt: skip
    yield from map(_scheme_line, plan.schemes)
    yield from (f"{scheme.name} is refused: {scheme.reason}" for scheme in plan.refused_schemes)


def _scheme_line(scheme: SchemePart) -> str:
    simplified = ", simplified" if scheme.basis == "summary" else ""
    return f"{scheme.name} ({scheme.source}{simplified}): priced with {scheme.layout}"


def length_cells(explanation: LengthsExplanation) -> tuple[list[str], Rows]:
    """(columns, rows) of documents by length."""
    rows = [[f"{row.longest:,}", text.percent(row.documents), text.percent(row.tokens), _degrees(row.degrees)]
            for row in explanation.lengths]  # fmt: skip
    return ["tokens up to", "documents %", "tokens %", "degrees"], rows


def degree_cells(explanation: LengthsExplanation) -> tuple[list[str], Rows]:
    """(columns, rows) of the groups of each degree."""
    rows = [[str(row.degree), text.fixed(row.groups, 1), text.fixed(row.documents, 1), text.percent(row.tokens),
             text.fixed(row.busy_s, 3), text.fixed(row.waits_s, 3), text.percent(row.slowest)]
            for row in explanation.degrees]  # fmt: skip
    return ["degree", "groups", "documents", "tokens %", "busy s", "waits s", "slowest in %"], rows


def step_title(explanation: LengthsExplanation) -> str:
    """`Step 1: 1,234,567 tokens in 3.38 s, 0.3 s of them beside ...`."""
    step = explanation.step
    beside_s = step.seconds - sum(micro_batch.seconds for micro_batch in step.micro_batches)
    return (f"Step {step.number}: {step.tokens:,} tokens in {text.significant(step.seconds)} s, "
            f"{text.significant(beside_s)} s of them beside these micro-batches (their starts, optimizer, exchanges "
            f"once a step); groups of a degree together, from the least to the most seconds")  # fmt: skip


def step_cells(explanation: LengthsExplanation) -> tuple[list[str], Rows]:
    """(columns, rows) of the micro-batches of the step, one row for the groups of a degree."""
    columns = ["micro-batch", "takes s", "degree", "groups", "documents", "tokens", "longest", "busy s", "waits s"]
    return columns, [row for number, micro_batch in enumerate(explanation.step.micro_batches, 1)
                     for row in _micro_batch_rows(number, micro_batch)]  # fmt: skip


def _micro_batch_rows(number: int, micro_batch: MicroBatchLoad) -> Rows:
    rows: Rows = []
    for degree in dict.fromkeys(group.degree for group in micro_batch.groups):
        groups = [group for group in micro_batch.groups if group.degree == degree]
        rows.append([
            *(["", ""] if rows else [str(number), text.fixed(micro_batch.seconds, 3)]), str(degree),
            str(len(groups)), str(sum(group.documents for group in groups)),
            f"{sum(group.tokens for group in groups):,}", f"{max(group.longest for group in groups):,}",
            _span([group.busy_s for group in groups]), _span([group.waits_s for group in groups]),
        ])  # fmt: skip
    if micro_batch.free_ranks:
        ranks = f"{micro_batch.free_ranks} rank{'s' if micro_batch.free_ranks > 1 else ''}"
        rows.append(["", "", ranks, "none", "", "", "", "", text.fixed(micro_batch.seconds, 3)])
    return rows


def _span(values: Sequence[float]) -> str:
    least, most = text.fixed(min(values), 3), text.fixed(max(values), 3)
    return least if least == most else f"{least} - {most}"
