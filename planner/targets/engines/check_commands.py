"""Compares the command of an instance, and the script around it, with those that the plan writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ....errors import FieldProblem, did_you_mean, nearest
from ..model_names import known_model
from ..shell.script import follow
from ..shell.values import is_mark, shown
from .base import EngineTarget
from .command_line import (
    Words,
    WrittenOption,
    counted_options,
    fact_of,
    known_options,
    not_planned,
    started,
    written_options,
)

_ROUTERS = (("vllm-router",), ("python3", "-m", "sglang_router.launch_router"), ("trtllm-serve", "disaggregated"))
_BY_MPI = "trtllm-llmapi-launch"
# Options and keys that hold addresses, names and images of a user's own.
PLACES = frozenset({
    "--host", "--port", "--node-rank", "--master-addr", "--dist-init-addr", "--config", "--served-model-name",
    "--api-key", "--log-level", "--disaggregation-bootstrap-port", "--data-parallel-address",
    "--data-parallel-rpc-port", *(_ADDRESSES := ("--prefill", "--decode")), "image", "name", "namespace", "hostname",
    "port",
})  # fmt: skip
_HEADS = frozenset({"--master-addr", "--dist-init-addr", "--data-parallel-address"})
_LOOPBACK = re.compile(r"127\.|localhost\b|\[?::1\b")
_NEUTRAL = frozenset({"1", "auto"})  # values that an option of the layout has where the plan leaves it out
# Options of the engines that undo what the plan counts on -> what they do.
_UNDONE: Mapping[str, str] = {
    "--no-enable-chunked-prefill": "prompts in one piece",
    **dict.fromkeys(("--num-gpu-blocks-override", "--kv-cache-memory-bytes", "--max-total-tokens"),
                    "a cache of another size"),
}  # fmt: skip
_WITHOUT_PREFIXES = frozenset({"--no-enable-prefix-caching", "--disable-radix-cache"})
_LONGEST = frozenset({"--max-model-len", "--context-length"})
_COMPUTED_IN = frozenset({"auto", "bfloat16"})  # values of --dtype that the prices hold for
# Variables of a script that a user may give: its arguments, its GPUs, addresses and ports.
_OWN_VARIABLE = re.compile(r"slot|rank|head|port|gpu|here|\w+_(HOST|PORT)")
_UNKNOWN = "unknown option"
_DEVICES = "CUDA_VISIBLE_DEVICES"
_FIRST, _SECOND = ("0", "node0"), ("1", "node0")  # arguments: a slot or a rank, the address of the first node


@dataclass(frozen=True, kw_only=True)
class CheckedService:
    """The result of `check` on files of a deployment."""

    framework: str  # the engine and its release
    deployment_id: str
    problems: list[FieldProblem] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)  # options that neither the plan nor the engine's list covers


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Facts of the plan that its files do not state."""

    engine: EngineTarget
    longest: int  # tokens of the longest prompt and of the longest answer
    reuses_prefixes: bool
    devices: int = 0  # of an instance on a node
    fixed_ports: bool = False  # others of the file name them, too
    further: bool = False  # the program that reads the options has more of them than the engine
    several: bool = False  # the script is started for several instances of a node, or on several nodes


@dataclass(frozen=True)
class _Run:
    """A script followed with its arguments."""

    words: Words
    variables: Mapping[str, str]
    lines: Mapping[str, int]
    exported: frozenset[str]

    def places(self) -> Iterator[tuple[str, str]]:
        """Names and values of places: options, and variables that commands inherit."""
        yield from ((option.name, option.value) for option in written_options(self.words) if option.name in PLACES)
        yield from ((name, self.variables[name]) for name in sorted(self.exported) if _OWN_VARIABLE.fullmatch(name))


def compare_scripts(checked: CheckedService, wanted: Wanted, name: str, text: str, expected: str) -> None:
    """The command and the variables of a script beside those of the plan."""
    start = (_BY_MPI, *wanted.engine.start) if _BY_MPI in expected else wanted.engine.start
    found = [_followed(start, text, given) for given in (_FIRST, _SECOND)]
    planned = [_followed(start, expected, given) for given in (_FIRST, _SECOND)]
    if found[0] is None:
        checked.problems.append(FieldProblem(f"no command of {wanted.engine.name} in it", file=name,
                                             hint=f"a line with `{' '.join(start)}`"))  # fmt: skip
        return
    first, second = ((run, want) for run, want in zip(found, planned, strict=True) if run and want)
    run, want = second if wanted.several else first
    compare_words(checked, wanted, name, run.words, want.words, router=name == "router.sh")
    problems = [*_variables(wanted, run, want), *(_fixed(first, second) if wanted.several else ())]
    checked.problems.extend(problem._replace(file=name) for problem in problems)


def _followed(start: tuple[str, ...], text: str, given: tuple[str, ...]) -> _Run | None:
    """None: no command of the engine or of a router."""
    followed = follow(text, {}, given)
    commands = started((start, *_ROUTERS), followed)
    variables = {name: value for name, value in followed.variables.values.items() if isinstance(value, str)}
    exported = frozenset(followed.variables.exported & set(variables))
    return _Run(commands[-1], variables, followed.lines, exported) if commands else None


def _variables(wanted: Wanted, run: _Run, want: _Run) -> Iterator[FieldProblem]:
    """Variables that the command inherits."""
    for name in sorted(want.exported):
        planned, value = want.variables[name], run.variables.get(name)
        at = FieldProblem("", line=run.lines.get(name, 0), field=name)
        if value is None or name not in run.exported:
            if name != _DEVICES or wanted.several:
                yield at._replace(message=f"is missing: the plan has `{name}={shown(planned)}`")
        elif name == _DEVICES:
            if re.fullmatch(r"\d+(,\d+)*", value) and (number := len(set(value.split(",")))) != wanted.devices:
                yield at._replace(message=f"is `{value}`, {number} of {wanted.devices} GPUs of an instance")
            elif not is_mark(value) and wanted.several:
                yield at._replace(message=f"is `{value}` for all instances of a node")
        elif value != planned and not _OWN_VARIABLE.fullmatch(name):
            yield at._replace(message=f"is `{shown(value)}`, the plan has `{shown(planned)}`")


def _fixed(first: tuple[_Run, _Run], second: tuple[_Run, _Run]) -> Iterator[FieldProblem]:
    """Places that depend on the arguments in the plan, and do not in the script."""
    before, after, planned = dict(first[0].places()), dict(second[0].places()), dict(second[1].places())
    line = second[0].words[0][1]
    for name, value in first[1].places():
        if value == planned.get(name) or (name not in after and not name.startswith("-")):
            continue  # an absent variable is named among the others
        if name not in after:
            yield FieldProblem(f"is missing: the plan has `{name} {value}` and `{planned[name]}`", line=line,
                               field=name)  # fmt: skip
        elif before.get(name) == after[name]:
            yield FieldProblem(f"is `{shown(after[name])}` for every argument of the script: the plan has `{value}` "
                               f"and `{planned[name]}`", line=second[0].lines.get(name, line), field=name)  # fmt: skip


def compare_words(
    checked: CheckedService, wanted: Wanted, name: str, words: Words, expected: Words, *, router: bool = False
) -> None:  # fmt: skip
    """Words of a command beside those of the plan. router: they are of another program than the engine."""
    engine = "" if router else wanted.engine.name
    flags = {option.name for option in written_options(expected) if not option.value}
    options, planned = (counted_options(wanted.engine.name, each, flags) for each in (words, expected))
    by_identity = {_identity(engine, option): option for option in planned}
    problems = [*_first_word(words, expected), *_addresses(options, planned)]
    for option in options:
        message = _against(wanted, engine, option, by_identity.get(_identity(engine, option)))
        if message is None:
            checked.not_judged.append(option.name)
        elif message:
            hint = _near(engine, option.name) if message == _UNKNOWN else ""
            problems.append(FieldProblem(message, line=option.line, field=option.written, hint=hint))
    line, seen = words[0][1] if words else 0, {_identity(engine, option) for option in options}
    absent = [f"{option.name} {option.value}".strip() for identity, option in by_identity.items()
              if identity not in seen and option.name not in PLACES]  # fmt: skip
    absent += [shown(word) for word, _ in expected if is_mark(word) and word not in dict(words)]
    problems += [FieldProblem(f"is missing: the plan has `{text}`", line=line,
                              field=text.split(" ")[0] if text[0] == "-" else "") for text in absent]  # fmt: skip
    checked.problems.extend(problem._replace(file=name) for problem in problems)


def _near(engine: str, name: str) -> str:
    return did_you_mean(nearest(name, sorted(known_options(engine))))


def _identity(engine: str, option: WrittenOption) -> str:
    """Equal for the spellings of an option."""
    return fact_of(engine, option.name) or option.name


def _first_word(words: Words, expected: Words) -> list[FieldProblem]:
    """The model in front of the options."""
    if not words or not expected or expected[0][0].startswith("-") or words[0][0].startswith("-"):
        return []
    (name, line), planned = words[0], expected[0][0]
    return [FieldProblem(message, line=line, field="model")] if (message := _other_model(name, planned)) else []


def _other_model(name: str, planned: str) -> str:
    """A fault where a name is that of another known model; folders and names of a user's own have none."""
    found = None if name == planned else known_model(name)
    return "" if found is None or found == known_model(planned) else f"is `{name}`, the plan has `{planned}`"


def _addresses(options: list[WrittenOption], planned: list[WrittenOption]) -> Iterator[FieldProblem]:
    """Instances that a router knows: as many as the plan has, each once."""
    given = [option for option in options if option.name in _ADDRESSES]
    for name in _ADDRESSES:
        number, wanted = (sum(option.name == name for option in each) for each in (options, planned))
        if number != wanted:
            yield FieldProblem(f"names {number} instances, the plan has {wanted}", field=name,
                               line=next((option.line for option in given if option.name == name), 0))  # fmt: skip
    for address, number in Counter(option.value for option in given).items():
        if number > 1:
            last = next(option for option in reversed(given) if option.value == address)
            yield FieldProblem(f"`{address}` stands {number} times", field=last.name, line=last.line)


def _against(wanted: Wanted, engine: str, option: WrittenOption, planned: WrittenOption | None) -> str | None:
    """The fault of an option, empty for nothing; None: not judged."""
    name, value = option.name, option.value
    if name in PLACES and not (name == "--port" and wanted.fixed_ports):
        alone = planned is not None and name in _HEADS and _LOOPBACK.match(value) and not _LOOPBACK.match(planned.value)
        return f"is `{value}`, which every node has: the first node of the instance must be named" if alone else ""
    if planned is not None:
        if fact_of(engine, name) == "model":
            return _other_model(value, planned.value)
        return "" if value == planned.value else f"is `{shown(value)}`, the plan has `{planned.value}`"
    if engine and not wanted.further and name not in known_options(engine):
        return _UNKNOWN
    if (what := not_planned(name) or _UNDONE.get(name)) is not None:
        return f"{what}: the plan does not have it"
    if fact_of(engine, name) is None:
        return _by_value(wanted, name, value)
    return "" if value in _NEUTRAL else "the plan does not have it"


def _by_value(wanted: Wanted, name: str, value: str) -> str | None:
    """The fault of an option that some values make one; as in `_against`."""
    if name in _WITHOUT_PREFIXES:
        return "the plan finds parts of prompts in the cache" if wanted.reuses_prefixes else ""
    if name in _LONGEST and value.isdecimal():
        return "" if int(value) >= wanted.longest else f"is `{value}`: a request has up to {wanted.longest:,} tokens"
    if name == "--dtype":
        return "" if value in _COMPUTED_IN else f"is `{value}`, the plan computes in bf16"
    if name == "--optimization-level" and value == "0":
        return "no compilation and no CUDA graphs: the plan does not have it"
    if name == "--load-format" and value == "dummy":
        return "weights that are drawn, not read"
    return None
