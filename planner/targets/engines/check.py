"""Compares edited files of a deployment with those that its plan writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ....errors import FieldProblem, InputError, MeshwrightError
from ....profiles.io.document import FieldPath, dotted
from ....profiles.io.reader import read_document
from ...document.serving_plan import ServingPlan
from .base import TRANSFERS
from .check_commands import PLACES, CheckedService, Wanted, compare_scripts, compare_words
from .command_line import Words, not_planned
from .emit import emit_serving
from .registry import SERVING_LAUNCHERS, engine_target

_GUIDE = re.compile(r"^ *llm-d\.ai/guide: (\S+)$", re.MULTILINE)
# Words of an engine in the name of an image.
_IN_IMAGES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "tensorrt|trtllm"}


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
        compare = compare_scripts if name.endswith(".sh") else _documents
        compare(checked, _wanted(plan, choice, name), name, text, expected[name])
    if len(names := sorted(set(_GUIDE.findall("\n".join(compared.values()))))) > 1:
        message = f"is {' and '.join(f'`{name}`' for name in names)}: the router finds servers by one name"
        checked.problems.append(FieldProblem(message, field="llm-d.ai/guide"))
    return checked


def _wanted(plan: ServingPlan, choice: int, name: str) -> Wanted:
    """The facts of the plan for a file; those of an instance where the file starts one."""
    lengths, engine = plan.lengths, engine_target(str(plan.resolved["engine"]))
    wanted = Wanted(engine=engine, longest=int(lengths.prompt.most + lengths.output.most),
                    reuses_prefixes=plan.request["workload"]["prefix_hit"] > 0,
                    further=name == "dynamo.yaml")  # fmt: skip
    for pool in plan.candidate(choice).pools:
        if name == ("serve.sh" if pool.role == "both" else f"{pool.role}.sh"):
            gpus, node = pool.gpus // pool.instances, pool.gpus_per_node
            several = not engine.by_mpi if gpus > node else min(node // gpus, pool.instances) > 1
            return replace(wanted, devices=min(gpus, node), several=several)
    return wanted


def _expected(plan: ServingPlan, choice: int, files: Mapping[str, str], text: str) -> Mapping[str, str]:
    """The files of the launcher that wrote `files`, which has most of their names."""
    transfer = max(TRANSFERS, key=lambda name: len(re.findall(name, text, re.IGNORECASE)))
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


def _documents(checked: CheckedService, wanted: Wanted, name: str, text: str, expected: str) -> None:
    """Values of YAML beside those of the plan; lists of arguments as options."""
    planned, found = dict(_leaves(name, expected)), dict(_leaves(name, text))
    for path, (value, line) in found.items():
        want = planned[path][0] if path in planned else None
        if path[-1] == "args" and isinstance(value, list) and isinstance(want, list):
            of = replace(wanted, fixed_ports=True, further=wanted.further or "initContainers" in path)
            compare_words(checked, of, name, _with_line(value, line), _with_line(want, line))
        elif (message := _fault(wanted, path, value, want)) is None:
            checked.not_judged.append(dotted(path[1:]))
        elif message:
            checked.problems.append(FieldProblem(message, file=name, line=line, field=dotted(path[1:])))
    checked.problems.extend(
        FieldProblem(f"is missing: the plan has `{value}`", file=name, field=dotted(path[1:]))
        for path, (value, _) in planned.items() if path not in found and path[-1] not in PLACES
    )  # fmt: skip


def _fault(wanted: Wanted, path: FieldPath, value: Any, planned: Any) -> str | None:
    """The fault of a value, empty for nothing; None: not judged. planned: None where the plan lacks the key."""
    key = str(path[-1])
    if key == "image":
        return _other_engine(wanted.engine.name, str(value))
    if key in PLACES or ({"labels", "matchLabels"} & set(path) and not key.endswith("/role")):
        return ""
    if key == "urls" and isinstance(value, list) and isinstance(planned, list):
        number = len(set(value))
        return "" if number == len(planned) else f"names {number} instances, the plan has {len(planned)}"
    if planned is not None:
        return "" if value == planned else f"is `{value}`, the plan has `{planned}`"
    effects = (not_planned(f"--{str(part).replace('_', '-')}") for part in path)
    what = next((effect for effect in effects if effect), None)
    return None if what is None or value in (1, None) else f"{what}: the plan does not have it"


def _other_engine(engine: str, image: str) -> str:
    """A fault where an image has the name of another engine and not that of this one."""
    named = [name for name, words in _IN_IMAGES.items() if re.search(words, image, re.IGNORECASE)]
    return "" if not named or engine in named else f"is an image of {' and '.join(named)}, the plan has {engine}"


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
