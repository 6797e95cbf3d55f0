"""Compares edited files of a deployment with those that its plan writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....errors import FieldProblem, InputError, MeshwrightError, did_you_mean, nearest
from ....profiles.io.document import FieldPath, dotted
from ....profiles.io.reader import read_document
from ...document.serving_plan import ServingPlan
from .base import TRANSFERS, EngineTarget
from .command_line import (
    READ_ENGINES,
    Words,
    WrittenOption,
    commands_after,
    fact_of,
    known_options,
    not_planned,
    written_options,
)
from .emit import emit_serving
from .registry import SERVING_LAUNCHERS, engine_target

_ROUTERS = (("vllm-router",), ("python3", "-m", "sglang_router.launch_router"), ("trtllm-serve", "disaggregated"))
# Options and keys that hold addresses, names and images of a user's own.
_PLACES = frozenset({
    "--host", "--port", "--node-rank", "--master-addr", "--dist-init-addr", "--config", "--served-model-name",
    "--api-key", "--log-level", "--prefill", "--decode", "image", "name", "namespace", "hostname", "port", "urls",
})  # fmt: skip
_NEUTRAL = frozenset({"1", "auto"})  # values that an option of the layout has where the plan leaves it out


@dataclass(frozen=True, kw_only=True)
class CheckedService:
    """The result of `check` on files of a deployment."""

    framework: str  # the engine and its release
    deployment_id: str
    problems: list[FieldProblem] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)  # options that neither the plan nor the engine's list covers


def check_service(plan: ServingPlan, files: Mapping[str, str]) -> CheckedService:
    """The files (name -> text) beside those that `emit` writes for the deployment that their headers name.

    Raises InputError where no file is one that `emit` writes.
    """
    engine = engine_target(str(plan.resolved["engine"]))
    text = "\n".join(files.values())
    choice = next((it.choice for it in plan.candidates if f"# {it.deployment_id}:" in text
                   or f"# {it.deployment_id}." in text), 1)  # fmt: skip
    expected = _expected(plan, choice, files, text)
    checked = CheckedService(framework=f"{engine.name} {engine.release}",
                             deployment_id=plan.candidate(choice).deployment_id)  # fmt: skip
    compared = {name: text for name, text in files.items() if name in expected and name != "plan.json"}
    if not compared:
        written = ", ".join(name for name in expected if name != "plan.json")
        raise InputError(f"{', '.join(files)}: no file of this plan", hint=f"`emit` writes {written}")
    for name, text in compared.items():
        compare = _scripts if name.endswith(".sh") else _documents
        compare(checked, engine, name, text, expected[name])
    return checked


def _expected(plan: ServingPlan, choice: int, files: Mapping[str, str], text: str) -> Mapping[str, str]:
    """The files of the launcher that wrote `files`, which has most of their names."""
    transfer = next((name for name in TRANSFERS[1:] if re.search(name, text, re.IGNORECASE)), TRANSFERS[0])
    every = []
    for launcher in SERVING_LAUNCHERS:
        try:
            every.append(emit_serving(plan, str(plan.resolved["engine"]), choice, launcher, transfer).files)
        except MeshwrightError:
            continue  # this launcher cannot have written them
    if not every:
        raise InputError(f"no launcher runs deployment {choice} of the plan with {transfer}",
                         hint="`emit` names the reason")  # fmt: skip
    return max(every, key=lambda names: len((set(names) & set(files)) - {"plan.json"}))


def _scripts(checked: CheckedService, engine: EngineTarget, name: str, text: str, expected: str) -> None:
    """The command of a script beside that of the plan."""
    programs = (engine.start, *_ROUTERS)
    found, planned = commands_after(programs, text), commands_after(programs, expected)
    if not found:
        checked.problems.append(FieldProblem(f"no command of {engine.name} in it", file=name,
                                             hint=f"a line with `{' '.join(engine.start)}`"))  # fmt: skip
        return
    own = "" if name == "router.sh" else engine.name
    _words(checked, own, name, found[-1], planned[-1])


def _words(checked: CheckedService, engine: str, name: str, words: Words, expected: Words) -> None:
    """Options of a command. engine: whose options they are; empty: of another program."""
    flags = {option.name for option in written_options(expected) if not option.value}
    planned = {_identity(engine, option): option for option in written_options(expected, flags)}
    seen = set[str]()
    for option in written_options(words, flags):
        identity = _identity(engine, option)
        seen.add(identity)
        message = _against(engine, option, planned.get(identity))
        if message is None:
            checked.not_judged.append(option.name)
        elif message:
            hint = _near(engine, option.name) if message == "unknown option" else ""
            checked.problems.append(
                FieldProblem(message, file=name, line=option.line, field=option.written, hint=hint)
            )
    line = words[0][1] if words else 0
    checked.problems.extend(
        FieldProblem(f"is missing: the plan has `{option.name} {option.value}`".rstrip(" `") + "`", file=name,
                     line=line, field=option.name)
        for identity, option in planned.items() if identity not in seen and option.name not in _PLACES
    )  # fmt: skip


def _identity(engine: str, option: WrittenOption) -> str:
    """Equal for the spellings of an option."""
    return fact_of(engine, option.name) or option.name


def _near(engine: str, name: str) -> str:
    return did_you_mean(nearest(name, sorted(known_options(engine))))


def _against(engine: str, option: WrittenOption, planned: WrittenOption | None) -> str | None:
    """The fault of an option, empty for nothing; None: not judged."""
    if option.name in _PLACES:
        return ""
    if planned is not None:
        return "" if option.value == planned.value else f"is `{option.value}`, the plan has `{planned.value}`"
    if engine in READ_ENGINES and option.name not in known_options(engine):
        return "unknown option"
    if (what := not_planned(option.name)) is not None:
        return f"{what}: the plan does not have it"
    if fact_of(engine, option.name) is None:
        return None
    return "" if option.value in _NEUTRAL else "the plan does not have it"


def _documents(checked: CheckedService, engine: EngineTarget, name: str, text: str, expected: str) -> None:
    """Values of YAML beside those of the plan; lists of arguments as options."""
    planned = dict(_leaves(name, expected))
    found = dict(_leaves(name, text))
    for path, (value, line) in found.items():
        if path[-1] in _PLACES or "labels" in path or "matchLabels" in path:
            continue
        if path not in planned:
            checked.not_judged.append(dotted(path[1:]))
        elif path[-1] == "args" and isinstance(value, list):
            _words(checked, engine.name, name, _with_line(value, line), _with_line(planned[path][0], line))
        elif value != planned[path][0]:
            message = f"is `{value}`, the plan has `{planned[path][0]}`"
            checked.problems.append(FieldProblem(message, file=name, line=line, field=dotted(path[1:])))
    checked.problems.extend(
        FieldProblem(f"is missing: the plan has `{value}`", file=name, field=dotted(path[1:]))
        for path, (value, _) in planned.items() if path not in found and path[-1] not in _PLACES
    )  # fmt: skip


def _with_line(words: Sequence[Any], line: int) -> Words:
    return [(str(word), line) for word in words]


def _leaves(name: str, text: str) -> Iterator[tuple[FieldPath, tuple[Any, int]]]:
    """(number of the document and path, (value, line)) of the values of all documents of a file."""
    start = 0
    for number, part in enumerate(re.split(r"^---\n", text, flags=re.MULTILINE)):
        document = read_document(name, "\n" * start + part)
        start += part.count("\n") + 1
        for path, value in _walk(document.data):
            line = document.line(path)
            if isinstance(value, str) and str(path[-1]).endswith(".yaml"):  # a file of a ConfigMap, below its name
                inner = read_document(name, "\n" * line + value)
                yield from (((number, *path, *at), (it, inner.line(at))) for at, it in _walk(inner.data))
            else:
                yield (number, *path), (value, line)


def _walk(value: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Paths and values of what is no mapping or list of mappings."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, (*path, str(key)))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _walk(item, (*path, index))
    else:
        yield path, value
