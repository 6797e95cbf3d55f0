"""What a study changes: `path=value` and `path=a..b` as a user writes them, checked, and applied to a resolved request.

Two kinds of paths: numbers of the hardware and the software (`knobs`), turned in place, and fields of the request,
which is resolved again with them. A value is a quantity with its unit, or `x2`: so many times what it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...cost_models import units
from ...cost_models.layouts import FIELD_NAMES
from ...cost_models.techniques.registry import TECHNIQUES
from ...errors import InputError, did_you_mean, nearest
from ...profiles.io.document import FieldPath
from ...profiles.io.reader import read_document
from ..request.load import Request, changed_request
from ..request.resolve import Resolved, resolve
from ..request.schema import LoraRequest, Train, WorkloadRequest
from .knobs import KNOBS, Knob, per_in_text

MOST_POINTS = 10_000
_POINTS_PER_OCTAVE, _LINEAR_POINTS = 4, 11

# Fields of a request that are numbers: their dimension; `whole` ones are written without a unit.
_TECHNIQUE_KNOBS = {
    f"workload.techniques.{name}.{knob.name}": knob for name, each in TECHNIQUES.items() for knob in each.knobs
}
_WHOLE = (
    "gpus", "workload.seq_len", "workload.global_batch", "workload.train.last_layers", "workload.train.lora.rank",
    *(path for path, knob in _TECHNIQUE_KNOBS.items() if knob.whole),
)  # fmt: skip
_QUANTITIES: dict[str, units.Dimension] = {
    **{path: "count" for path, knob in _TECHNIQUE_KNOBS.items() if not knob.whole},
    "workload.max_memory": "B", "workload.total_tokens": "count",
    "workload.expert_capacity_factor": "count",
    "cluster.links.intra_node.bandwidth": "B/s", "cluster.links.intra_node.latency": "s",
    "cluster.links.inter_node.bandwidth": "B/s", "cluster.links.inter_node.latency": "s",
    "cluster.wan.bandwidth": "B/s", "cluster.wan.latency": "s",
}  # fmt: skip
_WORDS = (
    "model", "cluster", "gpu", "target", "stack", "cluster.links.intra_node.topology", "cluster.links.intra_node.kind",
    "cluster.links.inter_node.kind", "cluster.links.inter_node.per", "cluster.fabric", "cluster.fabric.type",
    "cluster.fabric.ratio", "cluster.fabric.pod_nodes", "cluster.groups", "cluster.sites", "cluster.wan.per",
)  # fmt: skip
_DECIMAL = r"[0-9]+\.?[0-9]*|\.[0-9]+"
_FACTOR = re.compile(rf"\s*(?:[x×]\s*((?:{_DECIMAL})(?:e[-+]?[0-9]+)?)|({_DECIMAL})\s*[x×])\s*", re.IGNORECASE)

Value = str | float  # text as given, or a number in base units
Values = Mapping[str, Value]  # path -> value


@cache
def known_paths() -> tuple[str, ...]:
    """Every path that a study can change."""
    work = [f"workload.{name}" for name in WorkloadRequest.model_fields if name not in ("kind", "train")]
    work += [f"workload.train.{name}" for name in Train.model_fields if name != "lora"]
    work += [f"workload.train.lora.{name}" for name in LoraRequest.model_fields] + ["workload.train.lora"]
    fixes = [f"fix.{name}" for name in FIELD_NAMES]
    return tuple(dict.fromkeys([*work, *_WHOLE, *_QUANTITIES, *_WORDS, *KNOBS, *fixes]))


def dimension_of(path: str) -> units.Dimension | None:
    """The dimension of the number at `path`; "count" for whole numbers, None for words."""
    if path in KNOBS:
        return KNOBS[path].dimension
    return "count" if path in _WHOLE else _QUANTITIES.get(path)


def parse_sets(texts: Sequence[str]) -> dict[str, Value]:
    """`path=value` each. Raises InputError naming every unknown path with the nearest known one."""
    found: dict[str, Value] = {}
    for text in texts:
        path, value = _split(text, "--set", "gpu.memory.bandwidth=4.8 TB/s")
        if path in found and found[path] != value:
            raise InputError(f"--set {path} is given twice: {found[path]} and {value}", hint="keep one of them")
        found[path] = _checked(path, value, "--set")
    return found


def _split(text: str, flag: str, example: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    path, value = path.strip(), value.strip()
    if not equals or not path or not value:
        raise InputError(f"{flag} `{text}` is not `path=value`", hint=f"write `{flag} {example}`")
    if path not in known_paths():
        last = [known for known in known_paths() if known.rpartition(".")[2] == path]
        guesses = list(dict.fromkeys([*last, *nearest(path, known_paths())]))[:4]
        hint = did_you_mean(guesses, otherwise=_known_under(path))
        raise InputError(f"{flag} {path}: no such field", hint=hint)
    return path, value


def _known_under(path: str) -> str:
    """The known paths of the same part of the request, else the parts."""
    head = path.partition(".")[0]
    under = [known for known in known_paths() if known.startswith(f"{head}.")]
    return f"known: {', '.join(sorted(under or {known.partition('.')[0] for known in known_paths()}))}"


def _checked(path: str, text: str, flag: str) -> Value:
    """A quantity in base units, where the path is one; a factor or a word stays text."""
    dimension = dimension_of(path)
    if _FACTOR.fullmatch(text):
        if path not in KNOBS:
            raise InputError(f"{flag} {path}: `{text}` is a factor, which only numbers of hardware and software take",
                             hint="write the value itself")  # fmt: skip
        return text
    if dimension is None or path in _WHOLE or (path not in KNOBS and " per " in text):
        return text
    try:
        return units.parse(text, dimension)
    except InputError as error:
        plain = path in KNOBS and dimension == "count"
        hint = f"it must be {KNOBS[path].range.text}" if plain else error.hint
        raise InputError(f"{flag} {path}: {error.message}", hint=hint) from None


@dataclass(frozen=True)
class Axis:
    """A path and the values it takes, in order; `log`: evenly spaced in their logarithm."""

    path: str
    values: tuple[Value, ...]
    log: bool


def parse_vary(text: str) -> Axis:
    """`path=a..b`, `path=a..b:9`, `path=a..b:linear:9` or `path=a,b,c`.

    A range is spaced by a constant factor (whole numbers: doubled) unless it says `linear`.
    Raises InputError for an unknown path, a missing unit, ends in the wrong order, and more than MOST_POINTS points.
    """
    path, value = _split(text, "--vary", "cluster.links.inter_node.bandwidth=100Gb/s..3.2Tb/s")
    if ".." not in value:
        values = [_checked(path, part.strip(), "--vary") for part in value.split(",") if part.strip()]
        if len(values) > MOST_POINTS:
            raise InputError(f"--vary {path}: {len(values):,} points", hint=f"at most {MOST_POINTS:,}")
        return Axis(path, tuple(dict.fromkeys(values)), log=False)
    ends, *options = value.split(":")
    numbers = [_end(path, each) for each in ends.split("..")]
    if len(numbers) != 2:
        raise InputError(f"--vary {path}: `{ends}` is not `a..b`", hint="write `1..8`")
    low, high = numbers
    if not 0 < low < high:
        raise InputError(f"--vary {path}: `{ends}` does not run from a smaller to a larger number above 0",
                         hint="write the smaller one first")  # fmt: skip
    linear, count = _spacing(path, options)
    if path in _WHOLE:
        return _whole_range(path, round(low), round(high), linear, count)
    factor = isinstance(_checked(path, ends.split("..")[0], "--vary"), str)
    points = _spaced(low, high, linear, count or _usual_count(low, high, linear))
    return Axis(path, tuple(f"x{each:.9g}" if factor else each for each in points), log=not linear)


def _end(path: str, text: str) -> float:
    if path in _WHOLE:
        try:
            return units.parse(text, "count")
        except InputError as error:
            raise InputError(f"--vary {path}: {error.message}", hint="write `8..256`") from None
    if dimension_of(path) is None:
        raise InputError(f"--vary {path}: `{text}` is no number, so it has no range", hint="list them: `a,b,c`")
    value = _checked(path, text, "--vary")
    return factor_of(value) if isinstance(value, str) else value


def factor_of(text: str) -> float:
    """`x2` or `2x` -> 2.0."""
    match = _FACTOR.fullmatch(text)
    if match is None:
        raise InputError(f"`{text}` is no factor", hint="write `x2`")
    return float(match[1] or match[2])


def number_of(value: Value) -> float:
    """A value as a number to place it on an axis. Raises InputError for words."""
    if isinstance(value, float):
        return value
    return factor_of(value) if _FACTOR.fullmatch(value) else units.parse(value, "count")


def _spacing(path: str, options: Sequence[str]) -> tuple[bool, int]:
    linear, count = False, 0
    for option in options:
        if option in ("log", "linear"):
            linear = option == "linear"
        elif re.fullmatch(r"[0-9][0-9_,]*", option):
            count = int(option.replace(",", "").replace("_", ""))
        else:
            hint = "after the range comes `log` or `linear`, and how many points: `1..8:linear:9`"
            raise InputError(f"--vary {path}: `{option}` is no spacing", hint=hint)
    if count > MOST_POINTS:
        raise InputError(f"--vary {path}: {count:,} points", hint=f"at most {MOST_POINTS:,}; a curve needs some 20")
    if options and count == 1:
        raise InputError(f"--vary {path}: a range has 2 points or more", hint="`--set` changes one value")
    return linear, count


def _usual_count(low: float, high: float, linear: bool) -> int:
    return _LINEAR_POINTS if linear else min(max(round(_POINTS_PER_OCTAVE * math.log2(high / low)) + 1, 5), 65)


def _spaced(low: float, high: float, linear: bool, count: int) -> list[float]:
    """`count` points from low to high, both exactly."""
    share = [i / (count - 1) for i in range(count)]
    inner = [low + (high - low) * s if linear else low * (high / low) ** s for s in share[1:-1]]
    return [low, *inner, high]


def _whole_range(path: str, low: int, high: int, linear: bool, count: int) -> Axis:
    """Whole numbers: all of them (`linear`), so many, or each twice the last."""
    if count:
        points = [round(each) for each in _spaced(low, high, linear, count)]
    elif linear:
        if high - low >= MOST_POINTS:
            raise InputError(f"--vary {path}: {high - low + 1:,} points", hint=f"at most {MOST_POINTS:,}")
        points = list(range(low, high + 1))
    else:
        points = [low * 2**i for i in range(int(math.log2(high / low) + 1e-9) + 1)]
        points += [] if points[-1] == high else [high]
    return Axis(path, tuple(str(each) for each in dict.fromkeys(points)), log=not linear)


def apply(base: Resolved, values: Values) -> Resolved:
    """`base` with the values. Fields of the request first (they are resolved anew), then the knobs.

    Raises InputError as reading a request does.
    """
    fields = {path: value for path, value in values.items() if not _is_knob(path, value)}
    found = resolve(_request_with(base, fields)) if fields else base
    for path, value in values.items():
        if path in fields:
            continue
        knob = KNOBS[path]
        if knob.read(found) is None and (isinstance(value, str) or path.startswith("cluster.links")):
            raise InputError(f"{path}: {found.cluster.name} has no {knob.label}", hint="give it a value with a unit")
        found = knob.set(found, _in_range(knob, value, knob.read(found)))
    return found


def _in_range(knob: Knob, value: Value, now: float | None) -> float:
    """The number that `value` makes of `now`. Raises InputError where it may not be that."""
    number = (now or 0.0) * factor_of(value) if isinstance(value, str) else value
    if knob.range.holds(number):
        return number
    unit = "" if knob.dimension == "count" else f" {knob.dimension}"
    made = f" ({value} of {now:g}{unit})" if isinstance(value, str) else ""
    hint = "" if now is None else f"it is {now:g}{unit} now"
    raise InputError(f"{knob.path}: must be {knob.range.text}, is {number:g}{unit}{made}", hint=hint)


def _is_knob(path: str, value: Value) -> bool:
    """Links given as a value go through the cluster's description, which knows of pods, oversubscription and sites."""
    return path in KNOBS and (isinstance(value, str) or path not in _QUANTITIES) and not (
        isinstance(value, str) and _FACTOR.fullmatch(value) is None
    )  # fmt: skip


_UNITS = {"B": "B", "B/s": "B/s", "s": "s", "count": ""}


def _request_with(base: Resolved, fields: Values) -> Request:
    request = base.request
    for path, changed in (("cluster", _elsewhere), ("gpu", _other_gpu), ("gpus", _with_gpus)):
        if path in fields:
            request = changed_request(request, changed(base, str(fields[path])))
            base = resolve(request)
    in_parts = any(path.startswith("cluster.") for path in fields)
    places: dict[FieldPath, Any] = _written_out(base) if in_parts else {}
    for path, value in fields.items():
        if path in ("cluster", "gpu", "gpus"):
            continue
        place = tuple(path.split("."))
        if isinstance(value, float):
            per = per_in_text(base, place[-2]) if place[-1] == "bandwidth" else ""
            places[place] = f"{value:.12g} {_UNITS[_QUANTITIES[path]]}{f' per {per}' if per else ''}"
        else:
            places[place] = read_document("--set", text=value).data
    return changed_request(request, places)


def _elsewhere(base: Resolved, text: str) -> dict[FieldPath, Any]:
    """Another cluster, with as many GPUs as now if it does not say how many."""
    counted = ":" in text or "+" in text or re.match(r"\s*\d+\s*[x*]", text) or Path(text).suffix
    return {("cluster",): text, ("gpu",): None, ("gpus",): None if counted else base.cluster.num_gpus}


def _other_gpu(base: Resolved, text: str) -> dict[FieldPath, Any]:
    """Other GPUs: in the nodes they are usually built into where the request gives GPUs by number, else in its own."""
    by_number = base.request.cluster is None
    return {("gpu",): text, ("gpus",): base.cluster.num_gpus if by_number else base.request.gpus}


def _written_out(base: Resolved) -> dict[FieldPath, Any]:
    """A cluster given by GPU and number, or by node and number, as the description whose parts can be changed."""
    request = base.request
    if isinstance(request.cluster, dict) or (request.cluster and Path(request.cluster).is_file()):
        return {}
    swapped = request.cluster is not None and request.gpu is not None
    name = base.cluster.name.partition(" with ")[0]
    return {("cluster",): name, ("gpus",): None, ("gpu",): request.gpu if swapped else None}


def _with_gpus(base: Resolved, text: str) -> dict[FieldPath, Any]:
    """The same kind of nodes, as many as hold so many GPUs."""
    request = base.request
    try:
        number = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise InputError(f"--set gpus: `{text}` is not a whole number", hint="write `gpus=512`") from None
    if number == base.cluster.num_gpus:
        return {}
    group = base.cluster.groups[0]
    if len(base.cluster.groups) > 1:
        raise InputError(f"--set gpus: {base.cluster.name} has {len(base.cluster.groups)} groups of nodes",
                         hint="say which grows: `--set cluster='dgx-h100:8+dgx-a100-80gb:4'`")  # fmt: skip
    if request.cluster is None:
        return {("gpus",): number}
    description = request.cluster
    if isinstance(description, str) and Path(description).is_file():
        description = read_document(description).data
    if isinstance(description, str):
        if group.node == f"{group.gpus_per_node}x{group.gpu.name}":  # so many GPUs, no catalogued node
            return {("cluster",): None, ("gpu",): group.gpu.name, ("gpus",): number}
        return {("cluster",): group.node, ("gpus",): number}
    nodes, rest = divmod(number, group.gpus_per_node)
    if rest:
        raise InputError(f"--set gpus: {number} GPUs are {number / group.gpus_per_node:g} nodes of {group.node}",
                         hint=f"take a multiple of {group.gpus_per_node}")  # fmt: skip
    own = description["groups"]
    first = own[0] if isinstance(own, list) else own
    counted = {**first, "count": nodes} if isinstance(first, Mapping) else f"{str(first).partition(':')[0]}:{nodes}"
    return {("cluster",): {**description, "groups": [counted]}, ("gpus",): None}


def current(resolved: Resolved, path: str) -> Value | None:
    """What stands at `path` now: in base units for a quantity, as words for the rest; None where nothing does."""
    if path in KNOBS:
        return KNOBS[path].read(resolved)
    told = {
        "gpus": resolved.cluster.num_gpus, "gpu": resolved.cluster.gpu.name, "cluster": resolved.cluster.name,
        "model": resolved.model.name, "stack": resolved.stack.name, "target": resolved.target.name,
        "workload.seq_len": resolved.workload.seq_len, "workload.global_batch": resolved.workload.global_batch,
    }  # fmt: skip
    value: Any = told.get(path, resolved.request.model_dump(mode="json"))
    if path not in told:
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, Mapping):
        return None
    return float(value) if path in _QUANTITIES else str(value)
