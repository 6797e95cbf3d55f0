"""Options that every command takes, before or after its name, and the environment variables behind them.

They are taken out of the arguments before any command is loaded, so that they need to be declared only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import InputError

COLORS = ("auto", "always", "never")
_SWITCHES = {
    "--json": "json",
    "--quiet": "quiet",
    "-q": "quiet",
    "--verbose": "verbose",
    "-v": "verbose",
    "--no-progress": "no_progress",
    "--version": "version",
    "-V": "version",
}
_VALUES = {"--color": "color", "--profiles-path": "profiles_path"}

HELP = """\
  --json            One JSON document on stdout
  -q, --quiet       Only errors
  -v, --verbose     Search log on stderr
  --no-progress     No bar or lines of progress
  --color WHEN      auto, always or never [default: auto]
  --profiles-path DIR
                    More GPUs, nodes, models and stacks, before the built-in ones
  -V, --version     Print the version
"""


class UsageError(InputError):
    """The command line itself is wrong."""

    code = "usage"


class Settings(NamedTuple):
    """The global options, with the environment behind them."""

    json: bool = False  # one document on stdout, and no screen
    quiet: bool = False  # errors only
    verbose: bool = False  # a log of the search on stderr
    no_progress: bool = False
    version: bool = False
    color: str = "auto"  # one of COLORS
    profiles_path: str | None = None  # folders of a user's own entries, separated as in PATH


def extract(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Splits `argv` into the global settings and the rest, in order. Nothing after `--` is taken.

    Raises UsageError for a missing value or an unknown colour mode.
    """
    values: dict[str, str | bool] = {
        "no_progress": environ.get("MESHWRIGHT_NO_PROGRESS", "") not in ("", "0"),
        "color": environ.get("MESHWRIGHT_COLOR") or "auto",
        "profiles_path": environ.get("MESHWRIGHT_PROFILES_PATH", ""),
    }
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif word in _SWITCHES:
            values[_SWITCHES[word]] = True
        elif len(word) > 2 and word[0] == "-" and set(word[1:]) <= set("qvV"):
            values.update({_SWITCHES[f"-{letter}"]: True for letter in word[1:]})
        elif name in _VALUES:
            values[_VALUES[name]] = value if equals else _value(name, next(words, None))
        else:
            rest.append(word)
    return _checked(values), rest


def _value(name: str, value: str | None) -> str:
    if value is None:
        raise UsageError(f"option `{name}` needs a value", hint="`meshwright --help` shows the options")
    return value


def _checked(values: Mapping[str, str | bool]) -> Settings:
    color = str(values["color"])
    if color not in COLORS:
        raise UsageError(f"`{color}` is not a colour mode", hint="write `--color auto`, `always` or `never`")
    flags = {name: bool(values.get(name)) for name in set(_SWITCHES.values())}
    return Settings(**flags, color=color, profiles_path=str(values["profiles_path"]) or None)
