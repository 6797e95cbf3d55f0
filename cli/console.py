"""Output to the user: data on stdout, messages on stderr.

rich is loaded on first use only: `--help`, `--json` and errors do without it.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

from .files import reason
from .settings import Settings

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

FORMAT_VERSION = "1.0"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_BEFORE_PROGRESS_S, _BETWEEN_LINES_S = 0.5, 5.0  # of a bar; of a log where there is no terminal


def use_color(color: str, stream: IO[str], environ: Mapping[str, str] | None = None) -> bool:
    """Whether escape codes go to `stream`: the flag, then NO_COLOR, then FORCE_COLOR, then whether it is a terminal."""
    environ = os.environ if environ is None else environ
    if color != "auto":
        return color == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and environ.get("TERM", "") not in ("dumb", "unknown")


class Terminal:
    """The two streams and how to write on them, as the settings say."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # Whether the user was told of Ctrl-C already: Typer reports it a second time, as an exit code.
        self.interruption_shown = False
        self._outlives_streams = False

    @cached_property
    def out(self) -> Console:
        return make_console(self.settings.color, sys.stdout)

    @property
    def unicode(self) -> bool:
        """Whether stdout can write bars of eighth blocks."""
        return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"

    def show(self, screen: Iterable[RenderableType]) -> None:
        """Prints the parts of a screen; nothing under --json, where only the document may stand on stdout."""
        if self.settings.json or self.settings.quiet:
            return
        with self._writing(sys.stdout):
            for part in screen:
                print_part(self.out, part)

    def show_line(self, text: str) -> None:
        """A line of what is under way: on stdout, but on stderr under --json, where stdout has the document only."""
        if self.settings.json:
            self.talk(text)
        else:
            self.show([text])

    def write_json(self, document: Mapping[str, Any]) -> None:
        """One JSON document on stdout."""
        self.write(to_json(document))

    def write(self, text: str) -> None:
        """Text on stdout, as it is."""
        with self._writing(sys.stdout):
            sys.stdout.write(text)

    def talk(self, text: str) -> None:
        """A line on stderr that is not an error."""
        if not self.settings.quiet:
            with self._writing(sys.stderr):
                sys.stderr.write(f"{text}\n")

    def verbose(self, text: str) -> None:
        if self.settings.verbose:
            self.talk(text)

    def warn(self, message: str, hint: str = "") -> None:
        """A warning on stderr, in the form of an error."""
        if not self.settings.quiet:
            self._write_problem("warning", "33", message, hint)

    def error(self, code: str, message: str, hint: str, details: Mapping[str, Any]) -> None:
        """An error: on stderr for people and, under --json, as the one document on stdout."""
        self.interruption_shown = True
        problems = details.get("problems", ())
        shown = message
        if len(problems) > 1:
            shown = f"{len(problems)} things are wrong\n\n" + "\n".join(str(problem) for problem in problems)
        sys.stdout.flush()
        self._write_problem("error", "31", shown, hint)
        if self.settings.json:
            document = {"format_version": FORMAT_VERSION, "kind": "error", "code": code, "message": message}
            self.write_json({**document, "hint": hint, "details": dict(details)})

    def _write_problem(self, label: str, color: str, message: str, hint: str) -> None:
        first, *more = message.splitlines() or [""]
        lines = [f"{self._styled(label, color)}: {first}"]
        lines += [f"  {line}" if line and not line.startswith("  ") else line for line in more]
        if hint:
            lines += ["", f"{self._styled('hint', '36')}: {hint}"]
        with self._writing(sys.stderr):
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()

    def outlive_streams(self) -> None:
        """From now on, a stream that takes no more (its reader is gone, its disk is full) is left out: for commands
        whose work is worth more than their lines."""
        self._outlives_streams = True

    @contextmanager
    def _writing(self, stream: IO[str]) -> Iterator[None]:
        try:
            yield
            if self._outlives_streams:
                stream.flush()  # else it may fail later, elsewhere
        except OSError as error:
            if not self._outlives_streams:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout:
                self.warn(f"cannot write to standard output: {reason(error)}; going on without it")

    def _styled(self, text: str, color: str) -> str:
        return f"\x1b[1;{color}m{text}\x1b[0m" if use_color(self.settings.color, sys.stderr) else text

    @contextmanager
    def progress(self, label: str, *, lines: bool = False) -> Iterator[Progress]:
        """A bar on stderr: only on a terminal, only after half a second, gone at the end. Under --verbose a log. lines:
        a log of a line now and then where there is no terminal, of what may take minutes."""
        silent = self.settings.quiet or self.settings.json or self.settings.no_progress
        drawn = not silent and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        started = time.monotonic()
        log = self.talk if self.settings.verbose or (lines and not silent and not drawn) else None
        bar = Progress(label, enabled=drawn, log=log, every_s=_BETWEEN_LINES_S if lines else 0.0)
        try:
            yield bar
        finally:
            bar.clear()
            self.verbose(f"{label}: {time.monotonic() - started:.2f} s elapsed")


class Progress:
    """Called with (done, total) and an optional note; draws on one line of stderr."""

    def __init__(
        self, label: str, *, enabled: bool = False, log: Callable[[str], None] | None = None, every_s: float = 0.0
    ) -> None:
        self._label, self._enabled, self._log = label, enabled and log is None, log
        self._every_s = self._next_log_s = every_s
        self._started = time.monotonic()
        self._next_s, self._drawn = _BEFORE_PROGRESS_S, False

    def __call__(self, done: float, total: float, note: str = "") -> None:
        elapsed = time.monotonic() - self._started
        if self._log is not None and elapsed >= self._next_log_s:
            self._next_log_s = elapsed + self._every_s
            self._log(f"{self._label}: {done:,.0f} of {total:,.0f} {note}".rstrip())
        if not self._enabled or elapsed < self._next_s:
            return
        self._next_s = elapsed + 0.1  # ten times a second: more is flicker
        self._drawn = True
        share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
        sys.stderr.write(f"\r\x1b[K{self._label} {bar(share, 24, unicode=True):<24} {share:4.0%} {note}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def make_console(color: str, stream: IO[str]) -> Console:
    """A rich console that writes escape codes only where use_color says so, and changes no text on its own.

    It is wider than any table: at the terminal's width rich would silently cut numbers and drop columns.
    """
    from rich.console import Console

    colored = use_color(color, stream)
    return Console(
        file=stream,
        force_terminal=colored,
        color_system="standard" if colored else None,
        width=10_000,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_part(console: Console, part: RenderableType) -> None:
    """Prints a text as it is or a table at its natural width, without blanks at the ends of lines."""
    with console.capture() as capture:
        console.print(part)
    for line in capture.get().splitlines():
        console.file.write(re.sub(r" +(\x1b\[0m)?$", r"\1", line) + "\n")


def table(*columns: str, rows: Iterable[Sequence[Any]], right: Iterable[str] = ()) -> Table:
    """A table without lines. `right`: the columns of numbers."""
    from rich.table import Table

    aligned = set(right)
    result = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=any(columns), header_style="bold")
    for column in columns:
        result.add_column(column, justify="right" if column in aligned else "left", no_wrap=True)
    for row in rows:
        result.add_row(*row)
    return result


def bar(share: float, width: int, *, unicode: bool) -> str:
    """A bar of `share` (0..1) of `width` cells, in eighths of a cell; in `#` where the encoding has no blocks."""
    if not unicode:
        return "#" * round(share * width)
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def to_json(document: Mapping[str, Any]) -> str:
    """Canonical JSON: sorted keys, floats to 9 significant digits, a newline at the end."""
    return json.dumps(_rounded(document), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
