"""Generations of accelerators: as many of each, in the nodes they are usually built into, with the best layout on each.

Everything else of the request stays, its precision too: `--set workload.precision=fp8` asks for those that have it.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import InputError
from ...profiles.io.document import FieldPath
from ..request.load import changed_request
from ..request.resolve import resolve
from .base import Question
from .knobs import KNOBS
from .paths import Value
from .sweep import AxisOut, Sweep, nowhere, points_of

_KEPT = ("cluster.price", "cluster.host_memory", "cluster.host_memory_bandwidth")
USUAL = ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb")


class Generations(Sweep):
    """Points by accelerator. nodes: what each is built into; speedup: tokens per second over the first that runs."""

    nodes: tuple[str, ...]
    speedup: tuple[float | None, ...]


def run(question: Question) -> Generations:
    """Raises InputError for another axis than `gpu`, and NoFeasibleLayoutError where nothing runs on any."""
    if question.axes and [axis.path for axis in question.axes] != ["gpu"]:
        raise InputError("generations are over `gpu`", hint="`--vary gpu=h100-sxm-80gb,b200-sxm-180gb`")
    base = question.base
    names = question.axes[0].values if question.axes else USUAL
    of_cluster = [path for path in question.sets if path.startswith("cluster") and path not in _KEPT]
    if fixed := [path for path in question.sets if path == "gpu" or path in of_cluster]:
        raise InputError(f"--set {fixed[0]}: each generation comes in the nodes it is usually built into",
                         hint="`--vary gpu=a,b` compares them in the nodes of the plan")  # fmt: skip
    gpu, count = base.cluster.gpu.name, base.cluster.num_gpus
    by_number: dict[FieldPath, object] = {("cluster",): None, ("gpu",): gpu, ("gpus",): count}
    plain = resolve(changed_request(base.request, by_number))
    moved = replace(question, plain=plain, sets={}, axes=())
    knobs = {path: value for path, value in question.sets.items() if path in KNOBS}
    grid: list[dict[str, Value]] = [{"gpu": name, **knobs} for name in names]
    points = points_of(moved, grid, search=True)
    if not any(point.best for point in points):
        raise nowhere(moved, points)
    tokens = [point.best.tokens_per_s if point.best else None for point in points]
    first = next(speed for speed in tokens if speed is not None)
    axis = AxisOut(path="gpu", dimension=None, log=False, values=tuple(names), now=base.cluster.gpu.name)
    nodes = tuple(_node(moved, str(name)) for name in names)
    return Generations(**question.common_fields("generations"), axes=(axis,), points=tuple(points), nodes=nodes,
                       speedup=tuple(None if speed is None else speed / first for speed in tokens))  # fmt: skip


def _node(question: Question, gpu: str) -> str:
    return question.with_values({"gpu": gpu}).cluster.name
