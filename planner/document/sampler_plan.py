"""The sampler plan: which documents train together in each batch, on which ranks. JSON lines, read and checked.

The first line is the header. Each further line is a batch: the lengths of its documents, and its micro-batches, which
are lists of groups. The groups of a micro-batch train side by side, and each trains whole documents on all its ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, RootModel, ValidationError

from ...errors import FieldProblem, InputError
from .base import DocumentPart

FORMAT_VERSION = "1.0"
DOCUMENTS = "documents.npz"  # beside token shards: `lengths`, tokens of each document without the one that ends it
_HINT = "`meshwright plan --max-len ... -o plan.json` writes both files"
Line = TypeVar("Line", bound=DocumentPart)


class SamplerGroup(DocumentPart):
    """Ranks that share documents."""

    cp: int = Field(ge=1)  # number of the ranks
    ranks: tuple[int, ...]  # consecutive, from a multiple of `cp`; a rank has all its tensor-parallel GPUs
    seqs: tuple[int, ...] = Field(min_length=1)  # documents, as `lengths` of the batch numbers them


class SamplerBatch(DocumentPart):
    """A step."""

    batch: int
    lengths: tuple[int, ...]  # tokens of the documents
    microbatches: tuple[tuple[SamplerGroup, ...], ...]  # one after another

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def groups(self) -> Iterator[SamplerGroup]:
        """All groups of all micro-batches."""
        return (group for groups in self.microbatches for group in groups)

    def group_of(self, micro_batch: int, rank: int) -> SamplerGroup | None:
        """The group of a rank; None while it waits."""
        return next((group for group in self.microbatches[micro_batch] if rank in group.ranks), None)


class SamplerHeader(DocumentPart):
    """The plan that the batches belong to."""

    kind: Literal["sampler-plan"] = "sampler-plan"
    format_version: str = FORMAT_VERSION
    global_batch: int  # documents of a batch
    seed: int  # of the draw of the batches
    ranks: int  # that groups divide among themselves
    rank_tokens: int  # of a micro-batch that a rank holds
    one_by_one: bool = False  # whether the documents of a group train one after another


class SamplerLine(RootModel[SamplerHeader | SamplerBatch]):
    """A line of the file."""


def sampler_path(plan: Path) -> Path:
    """The file of the batches beside the file of their plan."""
    return plan.with_suffix(".batches.jsonl")


def read_sampler(path: Path, planned: SamplerHeader) -> tuple[SamplerBatch, ...]:
    """The batches in a file. Raises InputError for another plan's, and for each batch that does not fit the ranks."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"{path}: {reason}", hint=_HINT) from None
    if len(lines) < 2:
        raise InputError(f"{path}: no batches", hint=_HINT)
    header, problems = _read(SamplerHeader, lines[0], path.name, 1)
    if problems:
        raise InputError.of(problems)
    for name, wanted in planned.model_dump(exclude={"kind", "format_version"}).items():
        if header is not None and (found := getattr(header, name)) != wanted:
            text = f"is {found:,}, the plan has {wanted:,}: these are batches of another plan"
            problems.append(FieldProblem(text, file=f"{path.name}, line 1", field=name, hint=_HINT))
    batches = list[SamplerBatch]()
    for number, line in enumerate(lines[1:], 2):
        batch, wrong = _read(SamplerBatch, line, path.name, number)
        problems += wrong
        if batch is not None:
            batches.append(batch)
            where = f"{path.name}, line {number}"
            problems += [FieldProblem(text, file=where, field=field, hint=_HINT) for field, text in
                         _contradictions(batch, planned)]  # fmt: skip
    if problems:
        raise InputError.of(problems)
    return tuple(batches)


def _read(kind: type[Line], text: str, name: str, number: int) -> tuple[Line | None, list[FieldProblem]]:
    where = f"{name}, line {number}"
    try:
        return kind.model_validate_json(text), []
    except ValidationError as error:
        return None, [FieldProblem(problem["msg"].lower(), file=where, hint=_HINT,
                                   field=".".join(map(str, problem["loc"]))) for problem in error.errors()]  # fmt: skip


def _contradictions(batch: SamplerBatch, planned: SamplerHeader) -> Iterator[tuple[str, str]]:
    """(field, text) of each part of a batch that does not fit the plan or the other parts."""
    if len(batch.lengths) != planned.global_batch:
        yield "lengths", f"{len(batch.lengths):,} documents, the plan has {planned.global_batch:,} in a batch"
    if min(batch.lengths, default=1) < 1:
        yield "lengths", f"a document of {min(batch.lengths)} tokens"
    if sorted(seq for group in batch.groups for seq in group.seqs) != list(range(len(batch.lengths))):
        yield "microbatches", "do not hold every document once"
        return
    for number, groups in enumerate(batch.microbatches):
        field, ranks = f"microbatches.{number}", [rank for group in groups for rank in group.ranks]
        if len(set(ranks)) < len(ranks):
            yield field, "a rank is in two groups"
        if max(ranks, default=0) >= planned.ranks:
            yield field, f"rank {max(ranks)}, the plan has {planned.ranks}"
        for at, group in enumerate(groups):
            first = group.ranks[0] if group.ranks else 0
            if list(group.ranks) != list(range(first, first + group.cp)) or first % group.cp:
                yield f"{field}.{at}.ranks", f"are not {group.cp} consecutive ranks from a multiple of {group.cp}"
            lengths = [batch.lengths[seq] for seq in group.seqs]
            if (tokens := max(lengths) if planned.one_by_one else sum(lengths)) > group.cp * planned.rank_tokens:
                room = f"{group.cp} ranks hold {group.cp} x {planned.rank_tokens:,}"
                yield f"{field}.{at}.seqs", f"have {tokens:,} tokens, {room}"
