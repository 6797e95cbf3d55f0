"""Reads the commands of a deployment: that of its instances, or those of its two pools, distinguished by their
options, by the ports of a router, or by the names of their files."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ....errors import FieldProblem, InputError
from ...document.serving_plan import ROLES
from .command_line import EITHER, CommandLine, Words, commands_after, commands_of, example

# Programs that send requests to disaggregated pools -> their options for the servers of each. The address follows, or a
# list of ports: router of vLLM and of SGLang; toy_proxy_server.py of vLLM's tests,
# load_balance_proxy_server_example.py of vllm-ascend.
_URLS = {"--prefill": "prefill", "--decode": "decode"}
_PORTS = {"--prefiller-ports": "prefill", "--prefiller-port": "prefill", "--decoder-ports": "decode",
          "--decoder-port": "decode"}  # fmt: skip
_ROUTERS = (("vllm-router",), ("-m", "sglang_router.launch_router"), ("toy_proxy_server.py",),
            ("load_balance_proxy_server_example.py",))  # fmt: skip
_ALONE = "disaggregated prefill: the command of one pool; give the file of the other, too"
_UNTOLD = ("disaggregated prefill: nothing shows which pool this is; give the script of the router, too, or name "
           "the files prefill.sh and decode.sh")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ReadService:
    """The commands that start a deployment."""

    commands: tuple[CommandLine, ...]  # of all instances, or of those that prefill and those that decode
    instances: tuple[int, ...]  # of each, as a router has them; empty: there is none
    assumed: tuple[str, ...]

    @property
    def gaps(self) -> list[FieldProblem]:
        return [gap for command in self.commands for gap in command.gaps]


def read_service(engine: str, files: Mapping[str, str], given: Sequence[str] = ()) -> ReadService:
    """The commands in `files` (path -> text). given: positional parameters, or NAME=value.

    Raises InputError: no such command, several different ones of one pool, values that cannot be read.
    """
    found = [command for path, text in files.items() for command in commands_of(engine, path, text, given)]
    if not found:
        raise InputError(f"{', '.join(files)}: no command of {engine} in it", hint=example(engine))
    if problems := [problem for command in found for problem in command.problems]:
        raise InputError.of(problems)
    servers = [server for text in files.values() for words in commands_after(_ROUTERS, text, given)
               for server in _servers(words)]  # fmt: skip
    assumed = list[str]()
    for command in found:
        if command.role == EITHER:
            _find_role(command, servers, assumed)
    pools = {role: _same(engine, [it for it in found if it.role == role])
             for role in dict.fromkeys(command.role for command in found)}  # fmt: skip
    if set(pools) == set(ROLES):
        counts = Counter(role for role, _ in servers)
        return ReadService(commands=tuple(pools[role] for role in ROLES), assumed=tuple(dict.fromkeys(assumed)),
                           instances=tuple(counts[role] for role in ROLES) if servers else ())  # fmt: skip
    for role, command in pools.items():
        if command.disaggregated is not None:
            command.gaps.append(command.disaggregated._replace(message=_UNTOLD if role == EITHER else _ALONE))
    return ReadService(commands=tuple(pools.values()), instances=(), assumed=())


def _servers(words: Words) -> Iterator[tuple[str, str]]:
    """(role, port) of the servers that a router knows."""
    role, many = "", False
    for word, _ in words:
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            role, many = (_URLS | _PORTS).get(name, ""), name in _PORTS
            if not (role and equals):
                continue
            word = value
        if role:
            yield role, word.rstrip("/").rpartition(":")[2]
        role = role if many else ""


def _find_role(command: CommandLine, servers: Sequence[tuple[str, str]], assumed: list[str]) -> None:
    """The role of an instance that may have either."""
    by_port = {role for role, port in servers if port == command.port}
    name = posixpath.basename(command.file)
    by_name = [role for role in ROLES if role in name.lower()]
    if len(by_port) == 1:
        command.role = by_port.pop()
    elif len(by_name) == 1:
        command.role = by_name[0]
        assumed.append(f"{name} starts the pool of its name: {by_name[0]}")


def _same(engine: str, commands: Sequence[CommandLine]) -> CommandLine:
    """The first of commands with the same layout."""
    first, *rest = commands
    others = [it for it in rest if (it.facts, it.unknown.keys()) != (first.facts, first.unknown.keys())]
    if not others or first.role == EITHER:
        return first
    raise InputError.of([FieldProblem(f"starts {len(others) + 1} different commands of {engine}", file=others[0].file,
                                      line=others[0].line, hint="leave one of them in the file")])  # fmt: skip
