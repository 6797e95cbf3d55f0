"""A reader: the files of a framework that is imported from. Its options are a table that is only read."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ....errors import FieldProblem, InputError
from ....profiles.io.document import Document
from ....profiles.io.reader import read_document
from ..argv import Arguments
from ..documents import read_blocks
from ..import_format import Compared, Format
from ..option_lists import Option, OptionList
from ..options import Entry, Facts, NoCounterpartError, Settings, Table
from ..reading import DEGREES, Reading, judge
from ..shell.nearby import is_script
from .layered import stacked


def reads(fields: tuple[str, ...], options: tuple[str, ...], read: Callable[[Settings, Facts], Facts]) -> Entry:
    """An entry that is only read."""
    return Entry(fields, options, lambda setup: {}, read)


def states(**facts: Any) -> Entry:
    """Facts that hold for every file of a framework."""
    return reads(tuple(facts), (), lambda settings, known: dict(facts))


def value(fact: str, option: str, default: Any = None, also: tuple[str, ...] = ()) -> Entry:
    """A fact under one option, or under an older name of it; without them the default, None: the fact stays open."""

    def read(settings: Settings, facts: Facts) -> Facts:
        given = next((settings[name] for name in (option, *also) if settings.get(name) is not None), default)
        return {} if given is None else {fact: given}

    return reads((fact,), (option, *also), read)


def translated(table: Table, to_arguments: Callable[[Settings], Settings], names: Mapping[str, str]) -> Iterator[Entry]:
    """The entries of another framework's table in the names of this one.

    to_arguments: settings of this framework -> those of the other; names: option here -> the option there that it sets.
    Errors name the options of this framework.
    """
    here = {theirs: ours for ours, theirs in reversed([*names.items()])}

    def named(text: str) -> str:
        return re.sub(r"--[a-z][\w-]*", lambda word: here.get(word[0], word[0]), text)

    def reading(entry: Entry) -> Callable[[Settings, Facts], Facts]:
        def read(settings: Settings, facts: Facts) -> Facts:
            try:
                return entry.read(to_arguments(settings), facts)
            except InputError as error:
                kind = NoCounterpartError if isinstance(error, NoCounterpartError) else InputError
                raise kind(named(error.message), hint=named(error.hint or "")) from None

        return read

    for entry in table.entries:
        options = tuple(ours for ours, theirs in names.items() if theirs in entry.options)
        yield reads(entry.fields, options, reading(entry))


def noted(facts: Facts, note: str) -> Facts:
    """A sentence beside those of the entries before."""
    return {"notes": [*facts.get("notes", []), note]}


def precision_by(option: str) -> Entry:
    """The entry of an option that names a number format as torch does, bfloat16 where it is left out."""
    known = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

    def read(settings: Settings, facts: Facts) -> Facts:
        if (name := str(settings.get(option, "bfloat16"))) not in known:
            raise NoCounterpartError(f"{option} `{name}` has no counterpart in a plan",
                                     hint=f"known: {', '.join(known)}")  # fmt: skip
        return {"precision": known[name]}

    return reads(("precision",), (option,), read)


def whole_micro_batch(limit: int, sequences: int, ranks: int) -> int:
    """The largest micro-batch of at most `limit` sequences that divides a step of `sequences` over `ranks` copies."""
    share = max(sequences // max(ranks, 1), 1)
    return next(size for size in range(min(max(limit, 1), share), 0, -1) if share % size == 0)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A framework that is read and not written."""

    # The format for `meshwright import`.
    name: str
    framework: str
    # The release and the commit where its options were read.
    version: str
    commit: str
    # Option (dotted) -> kind of its value, of all options that a fact is read from.
    kinds: Mapping[str, str]
    entries: tuple[Entry, ...]
    reading: Reading = field(default_factory=Reading)
    # (path, text) -> the settings of a file of another kind that is given beside it, None for one of its own.
    beside: Callable[[str, str], Arguments | None] = lambda path, text: None
    # (path, text, words of --arg) -> the document of a file of its own.
    document: Callable[[str, str, Sequence[str]], Document] = lambda path, text, given: read_document(path, text)
    # Whether a word of --arg without a dot sets a variable of a script; that of no option, where a file is a script. A
    # word without `=` is a positional parameter there.
    variables: bool = False
    commands: bool = False
    # The options with the files that a file changes, where files build on one another.
    base: tuple[str, ...] = ()
    # Brings a document into the form that the options describe.
    prepared: Callable[[Document, Arguments], Document] = lambda document, arguments: document
    compared: Callable[[Facts], Compared] = lambda facts: Compared("any")

    @property
    def format(self) -> Format:
        """It as a format."""
        return Format(
            name=self.name, framework=self.framework, option_list=self._options, read=self._read,
            table=lambda options: Table(self.entries), compared=self.compared,
            hint=f"is it a file of {self.framework}?",
        )  # fmt: skip

    def _options(self, version: str | None) -> tuple[OptionList, str]:
        options = {name: Option(name, kind) for name, kind in self.kinds.items()}
        other = f"{self.framework} {version}: read by the options of {self.version}"
        return OptionList(self.name, self.version, self.commit, options), other if version not in (
            None, self.version) else ""  # fmt: skip

    def _read(self, files: Mapping[str, str], options: OptionList, given: Sequence[str]) -> Arguments:
        arguments, others, documents = Arguments(), dict[str, Arguments](), dict[str, Document]()
        unreadable = list[FieldProblem]()
        scripts = self.commands and any(is_script(path, text) for path, text in files.items())
        overrides = self._overrides(arguments, given, options, variables=scripts)
        for path, text in files.items():
            script = self.commands and is_script(path, text)  # which may write such a file itself
            if not script and (other := self.beside(path, text)) is not None:
                others[path] = other
            else:
                unreadable += _loaded(documents, path, partial(self.document, path, text, given))
        if unreadable:
            raise InputError.of([*unreadable, *arguments.problems])
        for document in stacked(documents, self.base, lambda path, text: self.document(path, text, given)):
            arguments.add(self._own(_overridden(document, overrides), options), document.name)
        for path, other in others.items():  # after the file that names them
            arguments.add(other, path)
        self.reading.modernise(arguments)
        judge(arguments, self.reading, Table(self.entries))
        return arguments

    def _overrides(self, arguments: Arguments, given: Sequence[str], options: OptionList, *,
                   variables: bool) -> dict[str, Any]:  # fmt: skip
        """Option -> value of each `option=value`, as the command line of the framework states it."""
        out = {}
        for word in given:
            name, equals, text = word.lstrip("+").partition("=")
            if not equals and (variables or self.variables):  # a positional parameter
                continue
            if equals and self.variables and "." not in name:
                continue
            if equals and name in options.options:
                try:
                    out[name] = read_document("--arg", text).data
                except InputError as error:
                    arguments.problems += error.problems
                continue
            if equals and variables and "." not in name:
                continue
            hint = "give an option and its value: --arg OPTION=VALUE"
            arguments.problems.append(FieldProblem(f"`{word}` states no option that is read", file="--arg", hint=hint))
        return out

    def _own(self, given: Document, options: OptionList) -> Arguments:
        before = Arguments()
        document = self.prepared(given, before)
        arguments = read_blocks(document, options)
        arguments.add(before, document.name)
        for name in list(arguments.unknown):
            stated = document.at(tuple(name.split(".")))
            if _off(stated) or self.reading.says_nothing(name):
                arguments.settings[name] = False if _off(stated) else stated
                del arguments.unknown[name]
            elif _holds_degrees(stated):
                arguments.open_fields |= DEGREES
        return arguments


def _loaded(documents: dict[str, Document], path: str, load: Callable[[], Document]) -> Sequence[FieldProblem]:
    """Puts the document of a file among `documents`; the problems of one that cannot be read."""
    try:
        documents[path] = load()
    except InputError as error:
        if not error.problems:
            raise
        return error.problems
    return ()


def _overridden(document: Document, overrides: Mapping[str, Any]) -> Document:
    """The document with the values of dotted options replaced."""
    data = copy.deepcopy(document.data)
    for name, given in overrides.items():
        holder, (*blocks, last) = data, name.split(".")
        for block in blocks:
            holder = holder.setdefault(block, {})
        holder[last] = given
    return replace(document, data=data)


def _holds_degrees(given: Any) -> bool:
    """Whether a block that is not understood has degrees of a layout in it."""
    return isinstance(given, Mapping) and any(
        re.search(r"parallel\w*_(size|degree)", str(name)) or _holds_degrees(inner) for name, inner in given.items())


def _off(given: Any) -> bool:
    """Whether an option is not set or switched off."""
    return given in (None, False, "", "none", "no", "off") or given == [] or given == {}

