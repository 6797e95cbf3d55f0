"""The command line: finds the command, runs it, and reports errors in one form.

A command is a module of `cli/commands/` with a function `command`, loaded only when it is called: `meshwright --help`
must not wait for the solvers. The help waits for all that this file imports.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .._version import __version__
from ..errors import MeshwrightError, did_you_mean, nearest, reason
from . import completion
from .console import Terminal
from .settings import HELP, Settings, UsageError, extract

if TYPE_CHECKING:
    import typer
    from typer.core import TyperGroup


class Command(NamedTuple):
    """A line of the top-level help; its code is `commands/<module>.py`."""

    section: str  # of the top-level help
    summary: str
    module: str  # file name in `commands/`, without its suffix


COMMANDS = {
    "plan": Command("Decide", "Find the fastest layout that fits", "plan"),
    "what-if": Command("Decide", "Price a plan under other numbers", "what_if"),
    "memory": Command("Decide", "Show the memory of a layout, per stage and buffer", "memory"),
    "explore": Command("Decide", "A page to change model, cluster and hardware, live", "explore"),
    "explain": Command("Decide", "Explain the time of a layout, and why not another", "explain"),
    "diff": Command("Decide", "Show the changes between two plans", "diff"),
    "cite": Command("Decide", "Print the papers of a plan's techniques", "cite"),
    "report": Command("Decide", "Write one page on a plan, to share", "report"),
    "validate": Command("Know", "Compare predictions with published runs", "validate"),
    "calibrate": Command("Know", "Fit the numbers of your software to your runs", "calibrate"),
    "profile": Command("Know", "Measure this machine", "profile"),
    "profile links": Command("Know", "Measure the links between GPUs and nodes", "profile_links"),
    "profile storage": Command("Know", "Measure host memory, copies to it and drives", "profile_storage"),
    "profile all": Command("Know", "Measure this machine into one cluster file", "profile_all"),
    "profile import": Command("Know", "Make a cluster file from the output of other tools", "profile_import"),
    "launch": Command("Run", "Train a plan with torchrun, or rehearse it here", "launch"),
    "launch export": Command("Run", "Write a checkpoint as a Hugging Face folder", "launch_export"),
    "launch tokens": Command("Run", "Write token shards from text", "launch_tokens"),
    "emit": Command("Run", "Write the files that launch a plan", "emit"),
    "check": Command("Run", "Check launch files, plans and requests", "check"),
    "import": Command("Run", "Price a launch config, and find a faster layout", "import_config"),
    "show": Command("Know", "List GPUs, models, clusters, targets", "show"),
    "schema": Command("Know", "Print the JSON schema of a request or a plan", "schema"),
    "env": Command("Know", "Print versions and paths, for bug reports", "env"),
}

_HEAD = """\
Usage: meshwright COMMAND [OPTIONS]

Find the parallel layout that trains your model fastest on your GPUs. No GPU
needed.

Start here:
  meshwright plan --model llama-3.1-8b --gpu h100-sxm-80gb --gpus 8
  meshwright plan --model llama-3-70b --cluster dgx-h100 --gpus 256 -o plan.json
  meshwright explain plan.json

"""
_HELP_LINE = "  -h, --help        This text; `meshwright COMMAND --help` for more\n"
_COMPLETION = ("--install-completion", "--show-completion")
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
_CLOSED = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)  # paths that Path.exists and its like raise an error for
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def app() -> None:
    """Entry point of the `meshwright` script and of `python -m meshwright`."""
    _open_streams()
    sys.exit(main(sys.argv[1:]))


def _open_streams() -> None:
    """Puts something in place of the streams that the shell closed (`>&-`), which Python gives as None.

    Standard output then refuses what is written to it. A file opened later would otherwise take the number of a closed
    stream, and get what is written there.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # for the life of the process
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # there is nobody to tell


def main(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code (0 done, 1 no, 2 input, 3 our bug, 130 interrupted)."""
    try:
        code = _answer(argv)
        sys.stdout.flush()
        return code
    except OSError as error:
        # Python flushes stdout at exit, and would report the same error once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader (`| head`) has seen enough
            return 0
        sys.stderr.write(f"error: cannot write to standard output: {error.strerror}\n")
        return 2


def _answer(argv: Sequence[str]) -> int:
    """Runs the command line and reports errors. Raises OSError where stdout takes no more output."""
    terminal = Terminal(Settings(json="--json" in argv))
    try:
        settings, words = extract(argv, os.environ)
        terminal = Terminal(settings)
        return _run(terminal, words)
    except MeshwrightError as error:
        terminal.error(error.code, error.message, error.hint, error.details)
        return error.exit_code
    except KeyboardInterrupt:
        return _interrupted(terminal)
    except Exception as error:
        # Files are written by `write_file`, which knows their names: what is left is stdout.
        if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and error.errno in _FULL):
            raise
        if isinstance(error, OSError) and error.errno in _CLOSED and error.filename is not None:
            return _closed(terminal, error)
        return _our_bug(terminal, argv)


def _run(terminal: Terminal, words: list[str]) -> int:
    if terminal.settings.version:
        sys.stdout.write(f"meshwright {__version__}\n")
        return 0
    if "_MESHWRIGHT_COMPLETE" in os.environ or (words and words[0] in _COMPLETION):
        return _complete(words)
    if not words and terminal.settings.json:
        raise UsageError("no command given", hint="`meshwright --help` lists them")
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(top_level_help())
        return 0 if words else 2
    name, *rest = words
    if rest and f"{name} {rest[0]}" in COMMANDS:
        name, rest = f"{name} {rest[0]}", rest[1:]
    if name not in COMMANDS:
        raise _unknown(name)
    if terminal.settings.profiles_path is None:
        return _invoke(terminal, name, rest)
    # The catalogues import numpy, which help texts do not wait for.
    from ..profiles.io import registry

    with registry.searching(terminal.settings.profiles_path):
        return _invoke(terminal, name, rest)


def top_level_help() -> str:
    """The text of `meshwright --help`."""
    sections: dict[str, list[str]] = {}
    for name, command in COMMANDS.items():
        if " " not in name:  # a command of two words is in the help of its first
            sections.setdefault(command.section, []).append(name)
    lines = [f"{section + ':':<9}  {'  '.join(names)}\n" for section, names in sections.items()]
    return f"{_HEAD}{''.join(lines)}\nOptions:\n{HELP}{_HELP_LINE}"


def _unknown(name: str) -> UsageError:
    if name.startswith("-"):
        hint = "options of a command come after it: `meshwright plan ...`"
        return UsageError(f"unknown option `{name}` before the command", hint=hint)
    hint = did_you_mean(nearest(name, COMMANDS, limit=2), otherwise="`meshwright --help` lists them")
    return UsageError(f"unknown command `{name}`", hint=hint)


def load(name: str) -> Callable[..., Any]:
    """The function behind a command."""
    function: Callable[..., Any] = import_module(f".commands.{COMMANDS[name].module}", __package__).command
    return function


def command_app(names: Sequence[str], *, completion: bool = False) -> typer.Typer:
    """A Typer app with these commands; with one, and no completion, it is that command itself."""
    import typer

    result = typer.Typer(
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    )
    for name in names:
        epilog = "Options of all commands (--json, --quiet, --color, ...): `meshwright --help`"
        result.command(name, short_help=COMMANDS[name].summary, epilog=epilog)(load(name))
    return result


def _invoke(terminal: Terminal, name: str, words: list[str]) -> int:
    import typer

    # `launch` draws no bar, so that its steps may be silent on a terminal too; `explore` waits for its page.
    beat = nullcontext() if name == "explore" else terminal.heartbeat(name, on_terminal=name == "launch")
    try:
        with beat:
            result = command_app([name])(words, prog_name=f"meshwright {name}", standalone_mode=False, obj=terminal)
    except typer.Abort:
        return _interrupted(terminal)
    except SystemExit as exited:  # what Typer makes of a broken pipe, even outside its standalone mode
        raise BrokenPipeError from exited
    except Exception as error:
        # Typer's own errors: their classes moved between its versions, their shape did not.
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        raise _usage_error(name, str(error.format_message())) from error
    # Typer turns Ctrl-C into its exit code and returns it.
    return _interrupted(terminal) if result == 130 and not terminal.interruption_shown else int(result or 0)


def _usage_error(name: str, message: str) -> UsageError:
    """Typer's complaint in our form; its wording differs between versions, so only what is known is rewritten."""
    guesses = re.search(r"[ .(]*(?:Did you mean|Possible options:?) (.+?)[?)]*$", message)
    if guesses:
        message = message[: guesses.start()]
    message = " ".join(message.split()).rstrip(".").replace("'", "`")
    message = re.sub(r"^Invalid value for (`[^`]+`): ", r"\1: ", message)
    number = r"Input should be a valid int.*|`\S*` is not a valid int(eger)?$"
    message = re.sub(number, "must be a whole number", message)
    message = message.replace("Value error, ", "").replace("option: --", "option --")
    hint = f"`meshwright {name} --help` shows how it is called"
    if guesses:
        names = re.findall(r"[\w-]+", guesses[1])
        hint = did_you_mean(names, otherwise=hint)
    if name in ("emit", "launch tokens") and re.search(r"such option:? `?(-o|--out[\w-]*)`?$", message):
        hint = did_you_mean(["--directory"])
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def _complete(words: list[str]) -> int:
    """Completion: the script of a shell, its installation, or the answer to a shell that asks (by the environment)."""
    option, *shells = words or ["", ""]
    if option == "--install-completion" and shells:
        hint = f"`meshwright --show-completion {shells[0]}` prints the script of another shell"
        raise UsageError("--install-completion takes no value: it installs for the shell that runs it", hint=hint)
    if option == "--show-completion" and shells:
        if shells[0] not in _SHELLS:
            raise UsageError(f"--show-completion: `{shells[0]}` is not one of {', '.join(_SHELLS)}")
        os.environ["_MESHWRIGHT_COMPLETE"] = f"source_{shells[0]}"  # click reads what to print from there
        words = []
    import typer

    pairs = [name for name in COMMANDS if " " in name]
    completion.join_words(os.environ, pairs)
    app = command_app([name for name in COMMANDS if " " not in name], completion=True)
    for name in pairs:
        app.command(completion.joined(name), hidden=True)(load(name))
    group = completion.with_plain_help(cast("TyperGroup", typer.main.get_command(app)))
    group(words, prog_name="meshwright", standalone_mode=False)
    return 0


def _interrupted(terminal: Terminal) -> int:
    terminal.error("interrupted", "interrupted", "", {})
    return 130


def _closed(terminal: Terminal, error: OSError) -> int:
    """Exit 2: a path that the system does not let this user look at."""
    path, hint = os.fsdecode(error.filename), "its folders need the permission to enter: `ls -ld` shows them"
    if error.errno == errno.ENAMETOOLONG:
        path, hint = f"{os.path.basename(path)[:40]}...", "name a file or a folder that is there"
    terminal.error("invalid_input", f"{path}: {reason(error)}", hint, {})
    return 2


def _our_bug(terminal: Terminal, argv: Sequence[str]) -> int:
    """Exit 3: the traceback goes to a file, because it does not help the user."""
    import tempfile
    import traceback

    handle, path = tempfile.mkstemp(prefix="meshwright-", suffix=".txt")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(f"meshwright {__version__}, Python {sys.version}\n")
        file.write(f"arguments: {list(argv)}\n\n{traceback.format_exc()}")
    what = traceback.format_exc(limit=0).strip().splitlines()[-1]
    message = f"meshwright broke: {what}\n\nthe traceback is in {path}"
    hint = "please report this with that file; it is our bug, not yours"
    terminal.error("internal_error", message, hint, {"traceback": path})
    return 3
