"""Why a request has no plan: the fixed values that contradict each other, or the closest layout and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import ceil, prod
from string import Formatter

from ...cost_models import units
from ...cost_models.layouts import OFFLOADS, OPTIMIZER_ON_HOST, Layout, Layouts, encode
from ...cost_models.quantities import optimizer_on_host
from ...cost_models.quantities.params import total_parameters
from ...cost_models.schedule_kinds import INTERLEAVED
from ...errors import NoFeasibleLayoutError, listed
from ..request.resolve import Resolved
from ..search.run import search_of
from ..search.top_k import TIE
from ..space.counting import LayoutCounts, num_legal
from ..space.rules import MESH, Rule, only
from ..space.tree import Count
from ..targets.registry import able_to_train
from .candidates import candidates
from .remedies import what_would_fit
from .staged import Staged

_NO_BUFFERS = ("allocated_bytes", "reserved_bytes", "device_bytes", "host_bytes")
_NAMED = 3  # rules of those that exclude the rest
_ON_GPU = only("any", "offload", [name for code, name in enumerate(OFFLOADS) if code not in OPTIMIZER_ON_HOST],
               "the host has no room for the optimizer")  # fmt: skip


class NoHeadroomError(NoFeasibleLayoutError):
    """Layouts fit, and none leaves the headroom. share: of a GPU's memory that the smallest leaves."""

    def __init__(self, resolved: Resolved, share: float, why: str) -> None:
        headroom, limit = units.gib(resolved.headroom_bytes), units.gib(resolved.memory_bytes)
        super().__init__(
            f"no layout of {resolved.model.name} on {resolved.cluster.num_gpus} x {resolved.cluster.gpu.name} leaves a "
            f"headroom of {headroom} GiB of {limit}: {why}",
            hint="`--headroom 0` plans without it; a smaller one is `--headroom 2%`",
            details={"headroom_bytes": resolved.headroom_bytes, "memory_bytes": resolved.memory_bytes},
        )  # fmt: skip
        self.share = share


def no_legal_layout(resolved: Resolved, count: Count) -> NoFeasibleLayoutError:
    """The error if every layout breaks a rule: the smallest set of `--fix` to blame, or the rules that exclude most."""
    most = sorted(count.ruled_out.items(), key=lambda item: -item[1])[:3]
    details = {"ruled_out": dict(count.ruled_out), "total": count.total}
    conflict = minimal_conflict(resolved)
    if conflict:
        names = " and ".join(f"`{rule.name}`" for rule in conflict)
        alone = f"{names} leave{'s' if len(conflict) == 1 else ''} no legal layout of {resolved.model.name}"
        return NoFeasibleLayoutError(
            f"{alone} on {resolved.cluster.num_gpus} x {resolved.cluster.gpu.name} for target {resolved.target.name}: "
            f"{_why(resolved, conflict)}",
            hint=_loosen(resolved, conflict), details={**details, "conflict": [rule.name for rule in conflict]},
        )  # fmt: skip
    rules = "\n".join(f"    {name}: {number:,}" for name, number in most)
    return NoFeasibleLayoutError(
        f"no legal layout of {resolved.model.name} on {resolved.cluster.num_gpus} x {resolved.cluster.gpu.name} "
        f"for target {resolved.target.name}\n\n  {count.total:,} layouts, ruled out most by\n{rules}",
        hint=_legal_hint(resolved), details=details,
    )  # fmt: skip


def _why(resolved: Resolved, conflict: Sequence[Rule]) -> str:
    """The arithmetic of fixed degrees that do not divide the GPUs, else the rules that exclude the rest."""
    pinned = [field for rule in conflict for field in rule.fields if rule.name.startswith(f"--fix {field}=")]
    degrees = [(field, resolved.request.fix[field]) for field in pinned if field in MESH]
    product = prod(value for _, value in degrees)
    num_gpus = resolved.cluster.num_gpus
    if degrees and num_gpus % product:
        text = " x ".join(f"{name} {value}" for name, value in degrees)
        return f"{text}{f' = {product}' if len(degrees) > 1 else ''} does not divide {num_gpus} GPUs"
    count = Count()
    space = resolved.space_under(resolved.target_rules, tuple(conflict))
    meshes = space.meshes(count)
    if len(meshes["tp"]):
        LayoutCounts(space, meshes).tally(count)
    others = [name for name in count.ruled_out if name not in {rule.name for rule in conflict}][-_NAMED:]
    given = Layout(**{field: encode(field, resolved.request.fix[field]) for field in pinned})
    given = replace(given, vpp=2) if INTERLEAVED[given.schedule] and given.vpp == 1 else given
    columns = Layouts.of([given])
    sentences = [rule.explain(given, resolved.problem) for rule in space.rules
                 if rule.name in others and _names_only(rule, pinned) and not rule.allows(columns, resolved.problem)[0]]
    return "; ".join([f"the rest breaks {', '.join(others)}", *sentences])


def _names_only(rule: Rule, pinned: Sequence[str]) -> bool:
    """Whether its sentence names fields of the layout, and no other than these."""
    words = {str(word) for _, word, _, _ in Formatter().parse(rule.message) if word}
    named = {field for field in Layout.__dataclass_fields__ if field in words or f"{field}_name" in words}
    return bool(named) and named <= set(pinned)


def _legal_hint(resolved: Resolved) -> str:
    able = [name for name in able_to_train(resolved.problem) if num_legal(resolved.for_target(name).space)]
    if able:
        has = "has" if len(able) == 1 else "have"
        return f"{listed(able)} {has} legal layouts: plan with `--target {able[0]}`"
    if resolved.target.name != "any" and num_legal(resolved.space_under(resolved.fixes)):
        return f"`--target any` has layouts that {resolved.target.name} cannot run"
    batch = resolved.workload.global_batch
    return f"try another number of GPUs or another global batch than {batch}: dp x micro batch must divide it"


def minimal_conflict(resolved: Resolved) -> Sequence[Rule]:
    """The smallest set of fixed values that no layout satisfies together; empty if the fixes are not to blame."""
    if not resolved.fixes or not num_legal(resolved.space_under(resolved.target_rules)):
        return ()
    for size in range(1, len(resolved.fixes) + 1):
        for chosen in combinations(resolved.fixes, size):
            if not num_legal(resolved.space_under(resolved.target_rules, chosen)):
                return chosen
    return ()


def _loosen(resolved: Resolved, conflict: Sequence[Rule]) -> str:
    """A remedy: another target, for which the conflicting values are legal, or leaving out one of them."""
    if resolved.target.name != "any" and num_legal(resolved.space_under(tuple(conflict))):
        return f"{resolved.target.name} cannot run them; other targets can: `--target any` names them"
    return f"leave out `{conflict[-1].name}` and it is chosen for you"


def does_not_fit(
    resolved: Resolved, count: Count, late: Callable[[], bool] = lambda: False
) -> NoFeasibleLayoutError:
    """The error if legal layouts exist and none fits: the buffers of the smallest, and a number of GPUs or a change
    that makes one fit. NoHeadroomError if one fits and none leaves the headroom."""
    smallest = _smallest(resolved, late)
    if smallest is None:
        return _host_too_small(resolved) if _lacks_host_memory(resolved) else no_legal_layout(resolved, count)
    if (lacks := _lacks_headroom(resolved, *smallest)) is not None:
        return lacks
    closest = candidates(resolved, [Staged.of(resolved, smallest[1])])[0]
    stage = max(closest.memory, key=lambda memory: memory.device_bytes)
    buffers = {
        name.removesuffix("_bytes"): value
        for name, value in stage.model_dump().items()
        if name.endswith("_bytes") and name not in _NO_BUFFERS
    }
    buffers["reserve"] = stage.reserved_bytes - stage.allocated_bytes
    largest = sorted(((v, k) for k, v in buffers.items() if v > 0), reverse=True)
    listed = ", ".join(f"{name} {units.gib(value)}" for value, name in largest[:6])
    legal = count.total - sum(count.ruled_out.values())
    limit = units.gib(resolved.memory_bytes)
    return NoFeasibleLayoutError(
        f"no layout of {resolved.model.name} fits on {resolved.cluster.num_gpus} x {resolved.cluster.gpu.name}\n\n"
        f"  {legal:,} layouts tried. The closest, {closest.layout_id}, needs {units.gib(stage.device_bytes)} GiB "
        f"per GPU and has {limit}:\n    {listed}\n  what binds: {largest[0][1]}",
        hint=what_would_fit(resolved, late),
        details={"closest": closest.layout_id, "device_bytes": stage.device_bytes,
                 "memory_bytes": resolved.memory_bytes, "buffers": buffers},
    )  # fmt: skip


def no_headroom(resolved: Resolved, late: Callable[[], bool] = lambda: False) -> NoHeadroomError | None:
    """The error if layouts fit and none leaves the headroom; None if nothing fits."""
    smallest = _smallest(resolved, late) if resolved.headroom_bytes else None
    return None if smallest is None else _lacks_headroom(resolved, *smallest)


def _smallest(resolved: Resolved, late: Callable[[], bool]) -> tuple[float, Layout] | None:
    """Bytes of the layout that needs least memory, of any size; None without a legal one."""
    space = resolved.space
    if _lacks_host_memory(resolved):  # else bounds count on what fits nowhere
        space = resolved.space_under(resolved.target_rules, resolved.fixes, (_ON_GPU,))
    unlimited = search_of(resolved, space, memory_bytes=float("inf"), objective="memory", should_stop=late)
    outcome = unlimited.run()
    if outcome.stopped == "interrupted":
        raise KeyboardInterrupt
    return (outcome.top.rows[0][0], outcome.top.rows[0][2]) if outcome.top.rows else None


def _lacks_host_memory(resolved: Resolved) -> bool:
    """Whether the optimizer has no room on the host in any layout."""
    return optimizer_on_host.least_bytes(resolved.problem) > resolved.host_bytes


def _host_too_small(resolved: Resolved) -> NoFeasibleLayoutError:
    """The error if every legal layout has its optimizer on the host, which has no room for it."""
    gpus, gpu = resolved.cluster.num_gpus, resolved.cluster.gpu.name
    parameters = total_parameters(resolved.model)
    per_parameter = optimizer_on_host.bytes_per_parameter(resolved.problem)
    needed = parameters * per_parameter / gpus
    fixes = " and ".join(f"`{rule.name}`" for rule in resolved.fixes if "offload" in rule.fields)
    enough = ceil(parameters * per_parameter / resolved.host_bytes)
    return NoFeasibleLayoutError(
        f"no layout of {resolved.model.name} fits on {gpus} x {gpu}: the optimizer has no room on the host\n\n"
        f"  {parameters:,} parameters x {per_parameter:g} bytes / {gpus} GPUs: {units.gib(needed)} GiB of host memory "
        f"per GPU, which has {units.gib(resolved.host_bytes)}",
        hint=f"{f'leave out {fixes}, or take' if fixes else 'take'} at least {enough:,} such GPUs",
        details={"host_bytes": needed, "host_memory_bytes": resolved.host_bytes},
    )  # fmt: skip


def _lacks_headroom(resolved: Resolved, needed: float, layout: Layout) -> NoHeadroomError | None:
    if not resolved.budget_bytes < needed <= resolved.memory_bytes:
        return None
    share = max(0.0, 1 - needed * (1 + 2 * TIE) / resolved.memory_bytes)
    return NoHeadroomError(resolved, share, f"the smallest, {layout}, needs {units.gib(needed)}")
