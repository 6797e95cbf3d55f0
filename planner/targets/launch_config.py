"""The launch config of a framework: which files hold its options, how they are read, and the framework's own parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .argv import Arguments
from .framework_parser import FrameworkParser
from .option_lists import OptionList
from .options import Settings, Table
from .reading import Reading, judge


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """The files of a framework that hold options: those that `emit` writes, and those that a team wrote itself."""

    # The file with most options. A folder that holds it is one of this target.
    main_file: str
    # Further files of an emitted folder that hold options.
    more_files: tuple[str, ...] = ()
    # (path, text, options of the release) -> the settings of one file. Raises InputError for broken syntax.
    read: Callable[[str, str, OptionList], Arguments]
    # The options of a release, in both directions.
    table: Callable[[OptionList], Table]
    # Prefix of the settings in a file that no release knows, because it is for the user's script; "" without one.
    script_prefix: str = ""
    # Settings and environment -> (option, sentence) for each rule that no single option breaks.
    conflicts: Callable[[Settings, Mapping[str, str]], list[tuple[str, str]]] = lambda settings, environment: []
    # Its name for `meshwright import`, "" for files that are only written.
    import_format: str = ""
    # The files that this format covers, for an error about a file without options; "" if its name says so.
    import_hint: str = ""
    # Option that no fact is read from -> what it changes in price or memory, "" for nothing; by regular expressions.
    prices: Mapping[str, str] = field(default_factory=dict)
    # What an import knows beside the table.
    reading: Reading = field(default_factory=Reading)
    # (path -> text, options, positional parameters and variables, options of the table) -> the settings of files that
    # refer to one another; None: each file is read by itself.
    read_together: Callable[[Mapping[str, str], OptionList, Sequence[str], frozenset[str]], Arguments] | None = None
    parser: FrameworkParser

    def for_script(self, option: str) -> bool:
        """Whether an option is for the user's script, so that no release lists it."""
        return self.script_prefix != "" and option.startswith(self.script_prefix)

    def judged(self, option: str) -> str:
        """What an option changes that no fact is read from, "" for nothing: layout, model, batch, price or memory."""
        priced = (text for pattern, text in self.prices.items() if re.fullmatch(pattern, option))
        return self.reading.change_of(option) or next(priced, "")

    def read_files(self, files: Mapping[str, str], options: OptionList) -> Arguments:
        """The settings in `files` (path -> text). Raises InputError for broken syntax."""
        arguments = Arguments()
        for path, text in files.items():
            arguments.add(self.read(path, text, options), path)
        return arguments

    def import_files(self, files: Mapping[str, str], options: OptionList, given: Sequence[str]) -> Arguments:
        """The settings in other people's files, with what is not understood in `gaps`. given: as for `read_together`.

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
        """The settings of an emitted folder (name -> text): those of its main file and of the further files."""
        names = (self.main_file, *self.more_files)
        return self.read_files({name: files[name] for name in names if name in files}, options)
