"""The plan for documents of mixed lengths as JSON: three policies, and the layout whose groups have unlike degrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ...cost_models.layouts import Layout, parse
from ...errors import FieldProblem, InputError
from .base import DocumentPart
from .sampler_plan import SamplerHeader

KIND = "mixed-lengths-plan"
FORMAT_VERSION = "1.4"


class PolicyPart(DocumentPart):
    """One rule for degrees, over the drawn batches."""

    name: str  # static, adaptive or per sequence
    mean_s: float  # seconds of a step
    p95_s: float  # seconds that 95 % of the steps do not exceed
    degrees: tuple[int, ...]  # of all groups, ascending
    mean_micro_batches: float


class SchemePart(PolicyPart):
    """A published scheme on the same batches."""

    source: str  # paper or code
    basis: Literal["code", "paper", "summary"] | None = None  # of its rule here; None in older plans
    rule: str  # for degrees
    layout: str  # tensor parallelism, algorithm, sharding and recomputation that suit it best, or its pipelines


class RefusedSchemePart(DocumentPart):
    """A published scheme that cannot train the batches."""

    name: str
    rule: str  # for degrees
    reason: str


class CostsPart(DocumentPart):
    """Documents on groups of each degree, as `GroupCosts` of planner/batches/costs.py has them."""

    degrees: tuple[int, ...]  # [D] ascending
    grid: tuple[float, ...]  # [g] lengths, tokens, ascending
    token_s: tuple[tuple[float, ...], ...]  # [g, D] seconds of a token of a document of such a length
    micro_batch_s: float  # seconds of a micro-batch whatever it holds
    once_s: float  # seconds of a step whatever it holds
    ranks: int = 0  # that groups divide among themselves; 0 in older plans: as in the plan
    rank_tokens: int = 0  # of a micro-batch that a rank holds; 0 in older plans: as in the plan


class DegreePolicyPart(PolicyPart):
    """A rule for degrees with the layouts that suit it best; older plans have those of the per-sequence plans for all.
    """

    layout_id: str | None = None  # of its widest groups
    costs: CostsPart | None = None


class LengthsPlan(DocumentPart):
    """The result of `meshwright plan --max-len`."""

    format_version: str = FORMAT_VERSION
    kind: Literal["mixed-lengths-plan"] = "mixed-lengths-plan"
    tool: dict[str, str]  # name and version of the program that wrote it
    request: dict[str, Any]
    request_sha256: str
    layout_id: str  # of groups of the static degree
    widest_layout_id: str  # of the widest groups of the per-sequence plans
    rank_tokens: int  # of a micro-batch that a rank holds
    rule_tokens: int = 0  # on a rank, above which the rule of a framework doubles a degree; 0: planned degrees
    rule: str = "hybrid"  # its name (planner/batches/degree_rules.py)
    one_by_one: bool = True  # whether the documents of a group train one after another by it
    ranks: int  # that groups divide among themselves
    seed: int  # of the draw of the batches
    batches: int  # drawn
    max_gap: float  # of the per-sequence plans to their bounds, relative
    mean_gap: float
    costs: CostsPart  # of the per-sequence plans
    policies: tuple[DegreePolicyPart, ...]
    schemes: tuple[SchemePart, ...] = ()
    refused_schemes: tuple[RefusedSchemePart, ...] = ()
    resolved: dict[str, Any]  # as in the plan of one layout
    warnings: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest document that is trained."""
        return int(self.resolved["workload"]["seq_len"])

    @property
    def header(self) -> SamplerHeader:
        """The first line of its sampler plan."""
        return SamplerHeader(global_batch=int(self.resolved["workload"]["global_batch"]), seed=self.seed,
                             ranks=self.ranks, rank_tokens=self.rule_tokens or self.rank_tokens,
                             one_by_one=self.rule_tokens > 0 and self.one_by_one)  # fmt: skip

    @property
    def widest(self) -> Layout:
        """The layout of the widest groups; the others differ from it in degree only."""
        return parse(self.widest_layout_id)

    def policy(self, name: str) -> DegreePolicyPart:
        """One of the three policies."""
        return next(policy for policy in self.policies if policy.name == name)


def is_lengths_plan(text: str) -> bool:
    """Whether the text of a file is such a plan, perhaps a damaged one."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("kind") == KIND


def load_lengths_plan(path: Path) -> LengthsPlan | None:
    """The plan in a file; None for a file of another kind, or none. Raises InputError naming each damaged field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if not is_lengths_plan(text):
        return None
    try:
        return LengthsPlan.model_validate_json(text)
    except ValidationError as error:
        hint = "the file was edited, or written by another version: plan again"
        raise InputError.of([
            FieldProblem(problem["msg"].lower(), file=path.name, field=".".join(map(str, problem["loc"])), hint=hint)
            for problem in error.errors()
        ]) from None  # fmt: skip
