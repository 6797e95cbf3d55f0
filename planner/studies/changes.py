"""Changes applied to a resolved request.

Two kinds of paths: numbers of the hardware and the software (`knobs`), turned in place, and fields of the request,
which is resolved again with them. A value is a quantity with its unit, or `x2`: so many times what it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...profiles.io.document import FieldPath
from ...profiles.io.reader import read_document
from ..request.load import Request, changed_request
from ..request.resolve import Resolved, resolve
from .knobs import KNOBS, Knob, per_in_text
from .paths import QUANTITIES, Value, Values
from .values import FACTOR, factor_of


def apply(base: Resolved, values: Values) -> Resolved:
    """`base` with the values. Fields of the request first (they are resolved anew), then the knobs.

    Raises InputError as reading a request does.
    """
    fields = {path: value for path, value in values.items() if not is_knob(path, value)}
    changed = resolve(_request_with(base, fields)) if fields else base
    for path, value in values.items():
        if path in fields:
            continue
        knob = KNOBS[path]
        now = knob.read(changed)
        if now is None and (isinstance(value, str) or path.startswith("cluster.links")):
            raise InputError(f"{path}: {changed.cluster.name} has no {knob.label}", hint="give it a value with a unit")
        changed = knob.set(changed, _in_range(knob, value, now))
    return changed


def _in_range(knob: Knob, value: Value, now: float | None) -> float:
    """The number that `value` stands for: itself, or a factor of `now`. Raises InputError where it is out of range."""
    number = (now or 0.0) * factor_of(value) if isinstance(value, str) else value
    if knob.range.holds(number):
        return number
    wanted = knob.range.text if math.isfinite(number) else f"{knob.range.text} and finite"
    unit = "" if knob.dimension == "count" else f" {knob.dimension}"
    made = f" ({value} of {now:g}{unit})" if isinstance(value, str) else ""
    hint = "" if now is None else f"it is {now:g}{unit} now"
    raise InputError(f"{knob.path}: must be {wanted}, is {number:g}{unit}{made}", hint=hint)


def is_knob(path: str, value: Value) -> bool:
    """Whether a change turns a number in place. Links given as a value go through the cluster's description, which
    knows of pods, oversubscription and sites."""
    return path in KNOBS and (isinstance(value, str) or path not in QUANTITIES) and not (
        isinstance(value, str) and FACTOR.fullmatch(value) is None
    )  # fmt: skip


_UNITS = {"B": "B", "B/s": "B/s", "s": "s", "count": ""}


def _request_with(base: Resolved, fields: Values) -> Request:
    """The request of `base` with `fields`. The cluster goes first: its parts are those of the new one."""
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
            places[place] = f"{value:.12g} {_UNITS[QUANTITIES[path]]}{f' per {per}' if per else ''}"
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
                         hint="name the group that grows: `--set cluster='dgx-h100:8+dgx-a100-80gb:4'`")  # fmt: skip
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
    groups = description["groups"]
    first = groups[0] if isinstance(groups, list) else groups
    counted = {**first, "count": nodes} if isinstance(first, Mapping) else f"{str(first).partition(':')[0]}:{nodes}"
    return {("cluster",): {**description, "groups": [counted]}, ("gpus",): None}
