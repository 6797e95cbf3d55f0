"""When the answer is no: which wishes contradict each other, or what comes closest and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod

from ..cost_models import units
from ..cost_models.specs import ClusterSpec, NodeGroup
from ..errors import NoFeasibleLayoutError
from .candidates import candidates
from .census import Census
from .constraints import MESH, Rule
from .plan import Candidate
from .resolve import Resolved
from .simulation import Staged
from .space import Count, Space

_NO_BUFFERS = ("allocated_bytes", "reserved_bytes", "device_bytes", "host_bytes")
_GROWTH = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def num_legal(space: Space) -> int:
    """Layouts of `space` that pass every rule."""
    meshes = space.meshes(Count())
    return int(Census(space, meshes).weight.sum()) if len(meshes["tp"]) else 0


def no_legal_layout(found: Resolved, count: Count) -> NoFeasibleLayoutError:
    """Every layout breaks a rule: name the smallest set of `--fix` that does it, or the rules that exclude most."""
    most = sorted(count.ruled_out.items(), key=lambda item: -item[1])[:3]
    details = {"ruled_out": dict(count.ruled_out), "total": count.total}
    conflict = minimal_conflict(found)
    if conflict:
        names = " and ".join(f"`{rule.name}`" for rule in conflict)
        alone = f"{names} leave{'s' if len(conflict) == 1 else ''} no legal layout of {found.model.name}"
        return NoFeasibleLayoutError(
            f"{alone} on {found.cluster.num_gpus} x {found.cluster.gpu.name} for target {found.target.name}: "
            f"{_why(found, conflict)}",
            hint=_loosen(found, conflict), details={**details, "conflict": [rule.name for rule in conflict]},
        )  # fmt: skip
    rules = "\n".join(f"    {name}: {number:,}" for name, number in most)
    return NoFeasibleLayoutError(
        f"no legal layout of {found.model.name} on {found.cluster.num_gpus} x {found.cluster.gpu.name} "
        f"for target {found.target.name}\n\n  {count.total:,} layouts, ruled out most by\n{rules}",
        hint=_legal_hint(found), details=details,
    )  # fmt: skip


def _why(found: Resolved, conflict: Sequence[Rule]) -> str:
    """The arithmetic of fixed degrees that do not divide the GPUs, else the rules that exclude the rest."""
    degrees = [(f, found.request.fix[f]) for rule in conflict for f in rule.fields if f in MESH]
    product = prod(value for _, value in degrees)
    num_gpus = found.cluster.num_gpus
    if degrees and num_gpus % product:
        text = " x ".join(f"{name} {value}" for name, value in degrees)
        return f"{text}{f' = {product}' if len(degrees) > 1 else ''} does not divide {num_gpus} GPUs"
    count = Count()
    space = found.space_under(found.target.rules, tuple(conflict))
    meshes = space.meshes(count)
    if len(meshes["tp"]):
        Census(space, meshes).tally(count)
    others = [name for name in count.ruled_out if name not in {rule.name for rule in conflict}]
    return f"the rest breaks {', '.join(others[-3:])}"


def _legal_hint(found: Resolved) -> str:
    if found.target.name != "any" and num_legal(found.space_under(found.fixes)):
        return f"`--target any` has layouts that {found.target.name} cannot run"
    batch = found.workload.global_batch
    return f"try another number of GPUs or another global batch than {batch}: dp x micro batch must divide it"


def minimal_conflict(found: Resolved) -> Sequence[Rule]:
    """The smallest set of fixed values that no layout satisfies together; empty if the fixes are not to blame."""
    if not found.fixes or not num_legal(found.space_under(found.target.rules)):
        return ()
    for size in range(1, len(found.fixes) + 1):
        for chosen in combinations(found.fixes, size):
            if not num_legal(found.space_under(found.target.rules, chosen)):
                return chosen
    return ()


def _loosen(found: Resolved, conflict: Sequence[Rule]) -> str:
    """What the conflicting values would be legal for: another target, or without the first of them."""
    if found.target.name != "any" and num_legal(found.space_under(tuple(conflict))):
        return f"{found.target.name} cannot run them; other targets can: `--target any` says which"
    return f"leave out `{conflict[-1].name}` and it is chosen for you"


def does_not_fit(
    found: Resolved, count: Count, late: Callable[[], bool] = lambda: False
) -> NoFeasibleLayoutError:
    """Legal layouts, but none fits: the smallest by buffer, and how many GPUs or which change would do."""
    smallest = found.search(found.space, memory_bytes=float("inf"), objective="memory", should_stop=late).run()
    if smallest.stopped == "interrupted":
        raise KeyboardInterrupt
    if not smallest.found.rows:
        return no_legal_layout(found, count)
    closest = candidates(found, [Staged.of(found, smallest.found.rows[0][2])])[0]
    stage = max(closest.memory, key=lambda each: each.device_bytes)
    buffers = {
        name.removesuffix("_bytes"): value
        for name, value in stage.model_dump().items()
        if name.endswith("_bytes") and name not in _NO_BUFFERS
    }
    buffers["reserve"] = stage.reserved_bytes - stage.allocated_bytes
    largest = sorted(((v, k) for k, v in buffers.items() if v > 0), reverse=True)
    listed = ", ".join(f"{name} {units.gib(value)}" for value, name in largest[:6])
    legal = count.total - sum(count.ruled_out.values())
    limit = units.gib(found.memory_bytes)
    return NoFeasibleLayoutError(
        f"no layout of {found.model.name} fits on {found.cluster.num_gpus} x {found.cluster.gpu.name}\n\n"
        f"  {legal:,} layouts tried. The closest, {closest.layout_id}, needs {units.gib(stage.device_bytes)} GiB "
        f"per GPU and has {limit}:\n    {listed}\n  what binds: {largest[0][1]}",
        hint=_what_would_fit(found, late),
        details={"closest": closest.layout_id, "device_bytes": stage.device_bytes, "memory_bytes": found.memory_bytes,
                 "buffers": buffers},
    )  # fmt: skip


def _what_would_fit(found: Resolved, late: Callable[[], bool]) -> str:
    """More GPUs of the same kind, or layouts of other targets (offload, other schedules) on the same."""
    if found.target.name != "any" and (other := _any_fitting(found, found.space_under(found.fixes), late)):
        return f"`--target any` finds {other.layout_id}, which fits"
    if len(found.cluster.groups) > 1:
        return "more GPUs, or GPUs with more memory"
    legal = False
    for factor in _GROWTH:
        if late():
            break
        bigger = grown(found, factor)
        legal = legal or num_legal(bigger.space) > 0
        if fitting := _any_fitting(bigger, bigger.space, late):
            room = f"{units.gib(fitting.device_bytes)} GiB of {units.gib(found.memory_bytes)}"
            return f"{bigger.cluster.num_gpus} GPUs are enough (est. {room})"
    if not legal and found.fixes:
        names = ", ".join(f"`{rule.name}`" for rule in found.fixes)
        return f"leave out one of {names}: they allow no other number of GPUs"
    return "a shorter --seq-len, --lora, 8-bit optimizer states, or GPUs with more memory"


def _any_fitting(found: Resolved, space: Space, late: Callable[[], bool]) -> Candidate | None:
    """The first good layout that fits; a Ctrl-C in here ends the command, since no plan is at stake."""
    search = found.search(space)
    search.should_stop = lambda: bool(search.found.rows) or late()
    outcome = search.run()
    if outcome.stopped == "interrupted":
        raise KeyboardInterrupt
    return candidates(found, [Staged.of(found, outcome.found.rows[0][2])])[0] if outcome.found.rows else None


def grown(found: Resolved, factor: int) -> Resolved:
    """The same request on `factor` times the nodes."""
    group: NodeGroup = found.cluster.groups[0]
    levels = found.cluster.levels
    last = replace(levels[-1], size=levels[-1].size * factor)
    if len(levels) == 1:  # a single node: the new nodes talk at the speed of a host link, which is at least there
        outer = replace(levels[0], name="cluster", size=levels[0].size * factor, kind="ethernet",
                        bw_bytes_per_s=min(levels[0].bw_bytes_per_s, group.gpu.pcie_bw_bytes_per_s))  # fmt: skip
        levels = (levels[0], outer)
    else:
        levels = (*levels[:-1], last)
    cluster = ClusterSpec(name=f"{found.cluster.name} x {factor}", levels=levels,
                          groups=(replace(group, num_nodes=group.num_nodes * factor),))  # fmt: skip
    return Resolved(found.request, found.model, cluster, found.workload, found.stack, found.target, ())
