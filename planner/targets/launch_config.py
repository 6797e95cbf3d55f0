"""The launch config of a framework: its files, their readers, and the framework's own parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .argv import Arguments
from .framework_parser import FrameworkParser
from .option_lists import OptionList
from .options import Facts, Settings, Table
from .reading import Reading, judge
from .setup import Setup


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """The files of a framework that hold options. `emit` or a team wrote them."""

    # The file with most options. A folder with this file belongs to this target.
    main_file: str
    # Further files of an emitted folder that hold options.
    more_files: tuple[str, ...] = ()
    # (path, text, options of the release) -> the settings of one file. Raises InputError for broken syntax.
    read: Callable[[str, str, OptionList], Arguments]
    # The options of a release, in both directions.
    table: Callable[[OptionList], Table]
    # The release that a plan needs where the newest one cannot run it; None: the newest.
    release: Callable[[Setup], str | None] = lambda setup: None
    # File -> regular expressions of lines that state values of the plan beside options; the group is the value.
    stated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Prefix of the settings in the file of the user's script, which no release knows; "" without such a file.
    script_prefix: str = ""
    # Settings and environment -> (option, sentence) per rule that options break in combination.
    conflicts: Callable[[Settings, Mapping[str, str]], list[tuple[str, str]]] = lambda settings, environment: []
    # Its name for `meshwright import`, "" for files that are only written.
    import_format: str = ""
    # The files that this format covers, for the error about a file without options; "" if the name suffices.
    import_hint: str = ""
    # Regular expression of options without an entry -> their effect on price or memory, "" for none.
    prices: Mapping[str, str] = field(default_factory=dict)
    # The knowledge of an import beyond the table.
    reading: Reading = field(default_factory=Reading)
    # (path -> text, options, positional parameters and variables, options of the table) -> the settings of files that
    # refer to one another. None: each file is read separately.
    read_together: Callable[[Mapping[str, str], OptionList, Sequence[str], frozenset[str]], Arguments] | None = None
    # Facts -> the fixed fields of the layouts that a model is compared with which the framework trains and `emit` does
    # not write; None for a model that it writes.
    read_only: Callable[[Facts], Mapping[str, Any] | None] = lambda facts: None
    # The stack of a config that another engine runs; "": that of the target.
    stack_of: Callable[[Facts], str] = lambda facts: ""
    parser: FrameworkParser

    def for_script(self, option: str) -> bool:
        """Whether an option belongs to the user's script. No release lists such an option."""
        return self.script_prefix != "" and option.startswith(self.script_prefix)

    def judged(self, option: str) -> str:
        """The effect of an option without an entry on layout, model, batch, price or memory; "" for none."""
        priced = (text for pattern, text in self.prices.items() if re.fullmatch(pattern, option))
        return self.reading.change_of(option) or next(priced, "")

    def read_files(self, files: Mapping[str, str], options: OptionList) -> Arguments:
        """The settings in `files` (path -> text). Raises InputError for broken syntax."""
        arguments = Arguments()
        for path, text in files.items():
            arguments.add(self.read(path, text, options), path)
        return arguments

    def import_files(self, files: Mapping[str, str], options: OptionList, given: Sequence[str]) -> Arguments:
        """The settings in other people's files. `gaps` holds options not understood. given: see `read_together`.

        Raises InputError for broken syntax.
        """
        known = replace(options, options={**options.options, **self.reading.older})
        table = self.table(options)
        if self.read_together is None:
            arguments = self.read_files(files, known)
        else:
            arguments = self.read_together(files, known, given, table.options | frozenset(self.reading.older))
        self.reading.modernise(arguments)
        judge(arguments, self.reading, table)
        return arguments

    def read_folder(self, files: Mapping[str, str], options: OptionList) -> Arguments:
        """The settings of an emitted folder (name -> text): its main file and the further files."""
        names = (self.main_file, *self.more_files)
        return self.read_files({name: files[name] for name in names if name in files}, options)
