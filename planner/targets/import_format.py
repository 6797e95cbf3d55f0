"""A format of `meshwright import`: its software, its reader, and the layouts that its files are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .adapters import LORA
from .argv import Arguments
from .base import Target
from .option_lists import OptionList, option_list
from .options import Facts, Table

# The fact of quantisation-aware training, which no target writes.
ROUNDING = "workload.rounding"


@dataclass(frozen=True)
class Compared:
    """The layouts that a file is compared with."""

    # The target whose rules they obey.
    target: str
    # Further fields of a request: `fix` for the degrees that the software lacks, `stack`.
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format."""

    name: str
    # As in `Axolotl`.
    framework: str
    # Release -> its options, and a warning where they are those of another release.
    option_list: Callable[[str | None], tuple[OptionList, str]]
    # (path -> text, options, positional parameters and variables) -> the settings. `gaps` holds the options that are
    # not understood.
    # Raises InputError for broken syntax.
    read: Callable[[Mapping[str, str], OptionList, Sequence[str]], Arguments]
    table: Callable[[OptionList], Table]
    compared: Callable[[Facts], Compared]
    # The files that it covers, for the error about a file without options.
    hint: str = ""


def on_stack(stack: str) -> Compared:
    """Any layout on a stack, for adapters that no target of it trains."""
    return Compared("any", {"stack": stack})


def of_target(target: Target) -> Format | None:
    """The format of a target's files; None where they hold no options."""
    config = target.config
    if config is None or not config.import_format:
        return None

    def compared(facts: Facts) -> Compared:
        stack = config.stack_of(facts) or target.stack
        if (fixed := config.read_only(facts)) is not None:
            return Compared("any", {"stack": stack, "fix": fixed})
        return on_stack(stack) if facts.keys() & {LORA, ROUNDING} else Compared(target.name)

    return Format(
        name=config.import_format, framework=target.framework, read=config.import_files, table=config.table,
        option_list=lambda version: option_list(target.name, version), compared=compared,
        hint=config.import_hint or f"is it a config of {target.name}?",
    )  # fmt: skip
