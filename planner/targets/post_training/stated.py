"""The step of post-training that a config states, and its options while they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....errors import FieldProblem, InputError
from ....profiles.io.document import Document, FieldPath
from ..option_lists import Option, OptionList
from ..readers.interpolation import resolved
from .base import RlTarget
from .overrides import Overrides

_DECODE = "`${oc.env:NAME,8}` is text: `${oc.decode:${oc.env:NAME,8}}` is a number, or --arg NAME=VALUE"


@dataclass(frozen=True, kw_only=True)
class StatedStep:
    """The step that a config states."""

    fields: Mapping[str, Any]  # of a request to post-train, flat
    old_logprobs: bool  # whether the trainer scores answers first
    train: Mapping[str, int]  # degrees of the policy
    generate: Mapping[str, int]  # of an instance of the engine
    trainer_gpus: int
    rollout_gpus: int
    disaggregated: bool  # whether the engine has GPUs of its own
    memory_share: float  # of a GPU, for the engine
    memory_option: str  # that states it
    row_tokens: int | None = None  # limit of a prompt and its answer together; None: both have limits, in the fields
    packed_tokens: int | None = None  # of answers that are trained as one sequence, at most; None: not stated
    options: int  # that were read
    assumed: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.trainer_gpus + (self.rollout_gpus if self.disaggregated else 0)


@dataclass(frozen=True)
class StepReader:
    """How configs of a framework are read."""

    target: RlTarget
    overrides: Overrides  # of the files that `emit` writes
    # Files (path -> text), `option=value` or variables of a script, a model in place of its own -> the step. Raises
    # InputError with all problems.
    read: Callable[[Mapping[str, str], Sequence[str], str | None], StatedStep]


@dataclass
class StepConfig:
    """Options by dotted name, and what is wrong with them."""

    options: OptionList
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)  # file and line
    problems: list[FieldProblem] = field(default_factory=list)
    added: set[str] = field(default_factory=set)  # by `+`: the YAML of the framework does not have them
    read: set[str] = field(default_factory=set)
    assumed: list[str] = field(default_factory=list)
    file: str = ""  # named in problems with options that are not given
    miscounted: bool = False  # whether a count is wrong, so that products of counts are not judged

    def get(self, name: str, default: Any) -> Any:
        """A value of its type; the default of the framework's YAML where it is not given."""
        value = self.values.get(name)
        if value is None:
            return default
        return self._checked(self.options.options[name], value, default)

    def within(self, name: str, kind: str, default: Any) -> Any:
        """As `get`, of a block that takes any names. kind: as that of an `Option`."""
        value = self.values.get(name)
        return default if value is None else self._checked(Option(name, kind), value, default)

    def _checked(self, option: Option, value: Any, default: Any) -> Any:
        """The value, or with a problem the default."""
        self.read.add(option.name)
        if isinstance(value, str) and "${" in value:
            self.fail(option.name, f"`{value}` is set when it runs", "give its value: --arg NAME=VALUE")
            return default
        if text := option.wrong_type(value):
            self.fail(option.name, text, _DECODE if isinstance(value, str) and value.isdigit() else "")
            return default
        return value

    def count(self, name: str, default: int, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        value: int = self.get(name, default)
        if value >= minimum:
            return value
        self.fail(name, f"must be {minimum} or more, is {value}")
        self.miscounted = True
        return default

    def share(self, name: str, default: float) -> float:
        """A share in (0, 1], as vLLM and SGLang need it."""
        value: float = self.get(name, default)
        if 0 < value <= 1:
            return value
        self.fail(name, f"must be above 0 and at most 1, is {value}")
        return default

    def fail(self, name: str, text: str, hint: str = "") -> None:
        """A problem at the line of an option."""
        file, line = self.places.get(name, (self.file, 0))
        self.problems.append(FieldProblem(text, file=file, line=line, field=name, hint=hint))

    @property
    def error(self) -> InputError:
        """All problems, each with its own hint."""
        several = len(self.problems) > 1
        return InputError.of([it.with_hint for it in self.problems] if several else self.problems)

    def divides(self, gpus: int, ranks: int, call: str, *names: str) -> None:
        """A problem where the ranks of a copy do not divide the GPUs of a call. names: options of the degrees; the
        problem is that of the largest one given."""
        if not self.miscounted and (ranks < 1 or gpus % ranks):
            largest = max(names, key=lambda name: self.get(name, 0))
            self.fail(largest, f"{gpus} GPUs that {call} are no multiple of {ranks}, the product of its degrees")

    def add_document(self, document: Document, place: Callable[[FieldPath], tuple[str, int]] | None = None) -> None:
        """The options of a document, without references that it resolves itself. place: file and line of a path; None:
        those of the document."""
        known, open_texts = resolved(document)

        def walk(block: Any, path: FieldPath) -> None:
            name = ".".join(map(str, path))
            if isinstance(block, Mapping):
                for key, inner in block.items():
                    walk(inner, (*path, str(key)))
            else:
                text = open_texts.get(tuple(map(str, path)))
                self.values[name] = block if text is None else text
                self.places[name] = (document.name, document.line(path)) if place is None else place(path)

        walk(known.data, ())

    def add_overrides(self, overrides: Overrides, path: str, text: str) -> None:
        """The options of a file that `emit` wrote."""
        given, problems = overrides.read(text)
        self.problems += problems
        for name, option in given.items():
            self.values[name], self.places[name] = option.value, (path, option.line)
