"""Every error that a user can meet.

MeshwrightError
├── InputError            the request, a file or a flag is wrong              exit 2
│   ├── UnknownNameError  a model, GPU, node, target ... that is not known    exit 2
│   └── MissingExtraError an optional dependency is not installed             exit 2
├── UnsupportedError      a target cannot express or run this plan            exit 2
├── WorkerLostError       a process or a worker of a cluster died in a search  exit 2
├── NoFeasibleLayoutError the answer is no: nothing fits or nothing is legal  exit 1
└── SearchInterrupted     Ctrl-C before any layout was priced                 exit 130
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


def nearest(name: str, known: Iterable[str], *, limit: int = 1, cutoff: float = 0.55) -> list[str]:
    """Up to `limit` of the `known` names that look most like a misspelt one, the nearest first.

    cutoff: the least similarity, from 0 to 1 (the ratio of difflib).
    """
    import difflib  # only a wrong input needs it, and it loads slowly

    return difflib.get_close_matches(name, list(known), n=limit, cutoff=cutoff)


def listed(items: Sequence[str], last: str = "and") -> str:
    """`a, b and c`."""
    return f"{', '.join(items[:-1])} {last} {items[-1]}" if len(items) > 1 else "".join(items)


def did_you_mean(names: Sequence[str], otherwise: str = "") -> str:
    """The hint that suggests these names; `otherwise` where there are none."""
    return f"did you mean {' or '.join(f'`{name}`' for name in names)}?" if names else otherwise


def reason(error: OSError) -> str:
    """`no space left on device`: the system's words as part of a sentence."""
    return (error.strerror or str(error)).lower()


_QUOTED = 60  # characters


def quoted(value: object) -> str:
    """A value of the input as messages show it: in backticks, cut where it is long."""
    text = str(value)
    return f"`{text[:_QUOTED]}...` ({len(text):,} characters)" if len(text) > _QUOTED else f"`{text}`"


class MeshwrightError(Exception):
    """Base of all errors; `hint` is the one thing to do about it, `code` its stable name in JSON."""

    code = "error"
    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details or {}


class FieldProblem(NamedTuple):
    """One thing wrong in an input: where it stands and what is wrong with it."""

    message: str  # what is wrong
    field: str = ""  # path as `--set` spells it, or a column
    file: str = ""  # as messages name it; empty where the input is no file
    line: int = 0  # from 1; 0: not known
    hint: str = ""  # the one thing to do about it
    missing: tuple[str, ...] = ()  # paths of the fields that are absent, where that is the problem

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.file, f"line {self.line}" if self.line else "", self.field) if part)
        return f"{where}: {self.message}" if where else self.message

    @property
    def with_hint(self) -> FieldProblem:
        """The same with its hint in its message: one at the end of an error is too little for several problems."""
        return self._replace(message=f"{self.message} ({self.hint})", hint="") if self.hint else self


_SHOWN = 12  # problems of a file of many lines


class InputError(MeshwrightError):
    """The input is wrong; all problems of a file are reported together."""

    code = "invalid_input"
    problems: tuple[FieldProblem, ...] = ()  # what `of` was made from

    @classmethod
    def of(cls, problems: Sequence[FieldProblem]) -> InputError:
        """One error out of all `problems` of an input; the hint is the first that any of them carries."""
        hint = next((p.hint for p in problems if p.hint), "")
        message = "\n".join(str(p) for p in problems)
        error = cls(message, hint=hint, details={"problems": [str(p) for p in problems]})
        error.problems = tuple(problems)
        return error

    @classmethod
    def of_some(cls, problems: Sequence[FieldProblem]) -> InputError:
        """The same of a file with a problem in many lines: the first of them, and the number of the others."""
        shown = cls.of(problems[:_SHOWN])
        more = f"\n... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        return cls(shown.message + more, hint=shown.hint)


_LISTED = 40  # known names in a hint


class UnknownNameError(InputError):
    """A name that no catalogue holds; suggests the nearest ones."""

    code = "unknown_name"

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, where: str = "", see: str = "", hint: str = ""
    ) -> None:  # fmt: skip
        known = sorted(set(known))
        near = nearest(name.lower(), known, limit=3)
        hint = hint or did_you_mean(near)
        if see:
            hint = f"{hint} `{see}` lists all {len(known)}".strip()
        elif not hint and known:
            more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
            hint = f"known: {', '.join(known[:_LISTED])}{more}"
        super().__init__(
            f"unknown {kind} `{name}`{f' in {where}' if where else ''}",
            hint=hint,
            details={"kind": kind, "name": name, "near": near},
        )


class MissingExtraError(InputError):
    """An optional dependency is not installed."""

    code = "missing_extra"

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the `{extra}` extra", hint=f"pip install 'meshwright[{extra}]'")


class UnsupportedError(MeshwrightError):
    """A target cannot express or run what was asked."""

    code = "unsupported"


class WorkerLostError(MeshwrightError):
    """Whoever searched died: task `index` has no answer, and perhaps others."""

    code = "worker_lost"

    def __init__(self, where: str, index: int, reason: str) -> None:
        hint = "out of memory, or stopped by whoever runs it: see its log; `--resume FILE` keeps what a sweep has done"
        super().__init__(f"a worker of {where} died in search {index + 1}: {reason}", hint=hint)
        self.where = where
        self.index = index
        self.reason = reason


class NoFeasibleLayoutError(MeshwrightError):
    """No layout fits: an answer, not a failure."""

    code = "no_feasible_layout"
    exit_code = 1


class SearchInterrupted(MeshwrightError):
    """Ctrl-C before any layout had been priced."""

    code = "interrupted"
    exit_code = 130
