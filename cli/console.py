"""Output to the user: data on stdout, messages on stderr.

Each output loads its own means on first use: rich, json, progress. `--help` and errors do without them.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

from ..errors import reason
from .settings import Settings

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from ..planner.drivers.heartbeat import Heartbeat
    from .progress import Progress

FORMAT_VERSION = "1.0"


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
        self._heartbeat: Heartbeat | None = None

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

    def write_json(self, document: Mapping[str, object]) -> None:
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
        if self._heartbeat is not None:
            self._heartbeat.spoke()
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
    def progress(self, label: str, *, bar: bool = True) -> Iterator[Progress]:
        """A bar on stderr: only on a terminal, only after half a second, gone at the end. Under --verbose a log; else,
        without a terminal or with `bar` false, the text of the heartbeat."""
        from .progress import Progress

        silent = self.settings.quiet or self.settings.json or self.settings.no_progress or not bar
        drawn = not silent and self._on_terminal()
        started = time.monotonic()
        progress = Progress(label, enabled=drawn, log=self.talk if self.settings.verbose else None)
        doing = self._heartbeat.doing if self._heartbeat else []
        doing.append(progress)
        try:
            yield progress
        finally:
            doing.remove(progress)
            progress.clear()
            self.verbose(f"{label}: {time.monotonic() - started:.2f} s elapsed")

    @contextmanager
    def heartbeat(self, name: str, *, on_terminal: bool = False) -> Iterator[None]:
        """A line on stderr after 10 s of silence, `plan: searching: 12 of 80, 20 s so far`: without a terminal, and on
        one for commands that draw no bar (`on_terminal`)."""
        if self.settings.quiet or self.settings.no_progress or (self._on_terminal() and not on_terminal):
            yield
            return
        from ..planner.drivers.heartbeat import Heartbeat

        self._heartbeat = Heartbeat(lambda text: self.talk(f"{name}: {text}"), "at work")
        with self._heartbeat.beating():
            yield

    def _on_terminal(self) -> bool:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


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


def table(*columns: str, rows: Iterable[Sequence[RenderableType]], right: Iterable[str] = ()) -> Table:
    """A table without lines. `right`: the columns of numbers."""
    from rich.table import Table

    aligned = set(right)
    result = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=any(columns), header_style="bold")
    for column in columns:
        result.add_column(column, justify="right" if column in aligned else "left", no_wrap=True)
    for row in rows:
        result.add_row(*row)
    return result


def to_json(document: Mapping[str, object]) -> str:
    """Canonical JSON: sorted keys, floats to 9 significant digits, a newline at the end."""
    import json

    return json.dumps(_rounded(document), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
