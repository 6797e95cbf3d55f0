"""Schedules as CSV, in the format of torch.distributed.pipelining: a row per device, a cell per operation.

Cells: `0F3` forward of stage 0, micro-batch 3; `0B3` its backward; `0I3` and `0W3` the gradients of inputs and of
weights; `(0F4;1B3)OVERLAP_F_B` two as one; empty: idle. A `B` whose stage and micro-batch also has a `W` is an `I`.
Communication that torch inserts (SEND_F, RECV_B, UNSHARD, REDUCE_GRAD, ...) is skipped: `simulate` has its own.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import FieldProblem, InputError
from .orders import LETTERS, B, F, I, Schedule, W, assemble

_CELL = re.compile(r"(\d+)([FBIW])(\d+)")
_PAIR = re.compile(r"\((.+);(.+)\)OVERLAP_F_B")
_COMMUNICATION = re.compile(r"\d+(SEND_[FB]|RECV_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)\d*")
_MOST = 1 << 20  # stages or micro-batches: a longer number is a slip of the pen
_SHOWN = 20  # missing operations that are named


@dataclass(frozen=True)
class _Op:
    stage: int
    kind: int
    micro_batch: int
    row: int
    column: int
    fused: bool = False

    @property
    def text(self) -> str:
        return f"{self.stage}{LETTERS[self.kind]}{self.micro_batch}"


def from_csv(text: str, name: str = "schedule.csv") -> Schedule:
    """The schedule in `text`. Raises InputError with row and column of every cell that is wrong."""
    problems: list[FieldProblem] = []
    rows = [row for row in csv.reader(io.StringIO(text))]
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    if not rows:
        raise InputError(f"{name}: no operations", hint="a row per device, cells like `0F0`")
    ops = [_row(cells, number, name, problems) for number, cells in enumerate(rows, start=1)]
    if not problems:
        _check(ops, name, problems)
    if problems:
        raise InputError.of(problems)
    return _assemble(ops, name)


def to_csv(schedule: Schedule) -> str:
    """The inverse of `from_csv`. DualPipe cannot be written: a stage of it is on two devices."""
    if len(set(schedule.part.tolist())) < schedule.num_chunks:
        raise InputError(f"{schedule.name} holds each stage on two devices, CSV on one", hint="use dualpipe-v")
    lines = []
    for d in range(schedule.num_devices):
        cells: list[str] = []
        ops = iter(range(schedule.first[d], schedule.first[d + 1]))
        for op in ops:
            text = schedule.label(op)
            cells.append(f"({text};{schedule.label(next(ops))})OVERLAP_F_B" if schedule.fused[op] else text)
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def _problem(message: str, name: str, row: int, column: int, hint: str = "") -> FieldProblem:
    return FieldProblem(message, file=name, line=row, field=f"column {column}", hint=hint)


def _row(cells: Sequence[str], row: int, name: str, problems: list[FieldProblem]) -> list[_Op]:
    ops = []
    for column, cell in enumerate((text.strip() for text in cells), start=1):
        pair = _PAIR.fullmatch(cell)
        texts = [part.strip() for part in pair.groups()] if pair else [cell]
        matches = [_CELL.fullmatch(part) for part in texts]
        if not cell or _COMMUNICATION.fullmatch(cell):
            continue
        if not all(matches) or any(int(match[i]) > _MOST for match in matches if match for i in (1, 3)):
            problems.append(_problem(f"`{cell}` is not an operation", name, row, column,
                                     "cells are stage, kind, micro-batch: `0F3`, `0B3`, `0I3`, `0W3`"))  # fmt: skip
            continue
        made = [
            _Op(int(match[1]), LETTERS.index(match[2]), int(match[3]), row, column, pair is not None and i == 0)
            for i, match in enumerate(matches)
            if match
        ]
        if pair and [op.kind for op in made] != [F, B]:
            problems.append(_problem(f"`{cell}` is not a forward with a backward", name, row, column))
            continue
        ops += made
    return ops


def _check(rows: list[list[_Op]], name: str, problems: list[FieldProblem]) -> None:
    """Each stage on one device; every micro-batch once through F and B (or I and W), in this order."""
    every = [op for row in rows for op in row]
    if not every:
        problems.append(FieldProblem("no operations", file=name, hint="cells like `0F0`"))
        return
    home: dict[int, _Op] = {}
    seen: dict[tuple[int, int, int], _Op] = {}
    weights = {(op.stage, op.micro_batch) for op in every if op.kind == W}
    for op in every:
        first = home.setdefault(op.stage, op)
        if first.row != op.row:
            problems.append(_problem(f"`{op.text}`: stage {op.stage} is on row {first.row}", name, op.row, op.column))
        kind = I if op.kind == B and (op.stage, op.micro_batch) in weights else op.kind
        before = {F: None, W: I}.get(kind, F)
        twice = seen.setdefault((op.stage, kind, op.micro_batch), op)
        if twice is not op:
            where = f"row {twice.row}, column {twice.column}"
            problems.append(_problem(f"`{op.text}` is already in {where}", name, op.row, op.column))
        elif before is not None and (op.stage, before, op.micro_batch) not in seen:
            missing = f"{op.stage}{LETTERS[before]}{op.micro_batch}"
            problems.append(_problem(f"`{op.text}` before `{missing}`", name, op.row, op.column))
    if problems:
        return
    stages, micro_batches = max(home) + 1, max(op.micro_batch for op in every) + 1
    _complete(stages, micro_batches, home, seen, name, problems)


def _complete(
    stages: int, micro_batches: int, home: dict[int, _Op], seen: dict[tuple[int, int, int], _Op], name: str,
    problems: list[FieldProblem],
) -> None:  # fmt: skip
    """A problem for each operation that is nowhere, at most _SHOWN."""
    for stage in range(stages):
        if stage not in home:
            problems.append(FieldProblem(f"no row has stage {stage}", file=name))
        for j in range(micro_batches if stage in home else 0):
            missing = "F" if (stage, F, j) not in seen else "W" if (stage, I, j) in seen else "B"
            done = (stage, B, j) in seen or (stage, W, j) in seen
            if missing == "F" or not done:
                problems.append(FieldProblem(f"no `{stage}{missing}{j}`", file=name, line=home[stage].row))
            if len(problems) >= _SHOWN:
                return
        if len(problems) >= _SHOWN:
            return


def _assemble(rows: list[list[_Op]], name: str) -> Schedule:
    every = [op for row in rows for op in row]
    stages, micro_batches = max(op.stage for op in every) + 1, max(op.micro_batch for op in every) + 1
    weights = {(op.stage, op.micro_batch) for op in every if op.kind == W}
    device = [0] * stages
    for op in every:
        device[op.stage] = op.row - 1
    made = []
    for row in rows:
        kinds = [I if op.kind == B and (op.stage, op.micro_batch) in weights else op.kind for op in row]
        made.append(np.array([(op.micro_batch * stages + op.stage) * 4 + kind
                              for op, kind in zip(row, kinds, strict=True)], dtype=np.int64))  # fmt: skip
    return assemble(name, device, micro_batches, made, fused=[np.array([op.fused for op in row], bool) for row in rows],
                    columns=[np.array([op.column for op in row], dtype=np.int64) for row in rows])  # fmt: skip
