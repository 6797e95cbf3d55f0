"""Remedies for a request that fits nowhere: more GPUs, another target, or adapters on the same GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import process_time
from typing import Any, Literal

from ...cost_models import units
from ...cost_models.quantities.params import lora_targets
from ...cost_models.specs.cluster import ClusterSpec, NodeGroup
from ...cost_models.specs.workload import Lora
from ...errors import listed
from ..document.candidate import Candidate
from ..request.fields import LORA_DEFAULT
from ..request.resolve import Resolved
from ..search.run import search_of
from ..space.counting import num_legal
from ..targets.registry import TARGETS, able_to_train
from .candidates import candidates
from .staged import Staged

# Times as many nodes, tried in turn.
_GROWTH = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SECONDS = 3.0  # of CPU: as long as a plan takes
_RANK = 16  # of the adapters that are tried
_ADAPTERS: tuple[tuple[str, Literal["bf16", "nf4"]], ...] = ((f"{_RANK}", "bf16"), (f"{_RANK}::nf4", "nf4"))


def what_would_fit(resolved: Resolved, late: Callable[[], bool]) -> str:
    """Targets that have layouts for these GPUs (offload, other schedules), else the number of GPUs that is enough, and
    the adapters that these would train."""
    able = able_to_train(resolved.problem) if resolved.target.name != "any" else []
    others = [name for name in able if name != resolved.target.name]
    if fitting := [name for name in others if not late() and _fitting(resolved.for_target(name), late)]:
        has = "has a layout that fits" if len(fitting) == 1 else "have layouts that fit"
        return f"{listed(fitting)} {has}: plan with `--target {fitting[0]}`"
    return f"{_more_gpus(resolved, late)}{_adapters(resolved, late)}"


def _more_gpus(resolved: Resolved, late: Callable[[], bool]) -> str:
    if len(resolved.cluster.groups) > 1:
        return "more GPUs, or GPUs with more memory"
    legal = False
    for factor in _GROWTH:
        if late():
            break
        bigger = _grown(resolved, factor)
        legal = legal or num_legal(bigger.space) > 0
        if fitting := _fitting(bigger, late):
            return f"{bigger.cluster.num_gpus} GPUs are enough ({_room(fitting, resolved)})"
    if not legal and resolved.fixes:
        names = ", ".join(f"`{rule.name}`" for rule in resolved.fixes)
        return f"leave out one of {names}: they allow no other number of GPUs"
    return "a shorter --seq-len, 8-bit optimizer states, or GPUs with more memory"


def _adapters(resolved: Resolved, late: Callable[[], bool]) -> str:
    """The option that trains adapters on these GPUs, of weights in bf16 or else in 4 bits; "" if none does."""
    model, workload = resolved.model, resolved.workload
    trains_all = workload.lora is None and workload.trains_layers is None
    reads_text = model.diffusion is None and model.graph is None and model.encoder is None and workload.images is None
    if not (trains_all and reads_text and set(LORA_DEFAULT) <= set(lora_targets(model))):
        return ""
    for option, base in _ADAPTERS:
        lora = Lora(rank=_RANK, targets=LORA_DEFAULT, base_dtype=base)
        there = replace(resolved, workload=replace(workload, lora=lora))
        able = able_to_train(there.problem)
        # That of the request, else one that is built on it, else any that trains adapters.
        own = resolved.target.name
        name = min(able, key=lambda name: (name != own, TARGETS[name].built_on != own), default="")
        if name and not late() and (fitting := _fitting(there.for_target(name), late)):
            flag = "" if name == own else f" --target {name}"
            return f"; `--lora {option}{flag}` fits on these ({_room(fitting, resolved)})"
    return ""


def _room(fitting: Candidate, resolved: Resolved) -> str:
    return f"est. {units.gib(fitting.device_bytes)} GiB of {units.gib(resolved.memory_bytes)}"


def _fitting(resolved: Resolved, late: Callable[[], bool]) -> Candidate | None:
    """A layout that fits, among the first by bytes; a Ctrl-C in here ends the command, since no plan is at stake.

    A proof that none fits can take minutes where the smallest is just too large: then none is known after _SECONDS.
    """
    search, ends_s = search_of(resolved, resolved.space, objective="memory", tally=False), process_time() + _SECONDS
    search.should_stop = lambda: bool(search.top.rows) or process_time() > ends_s or late()
    outcome = search.run()
    if outcome.stopped == "interrupted":
        raise KeyboardInterrupt
    return candidates(resolved, [Staged.of(resolved, outcome.top.rows[0][2])])[0] if outcome.top.rows else None


def _grown(resolved: Resolved, factor: int) -> Resolved:
    """The same request on `factor` times the nodes."""
    group: NodeGroup = resolved.cluster.groups[0]
    levels = resolved.cluster.levels
    last = replace(levels[-1], size=levels[-1].size * factor)
    if len(levels) == 1:  # a single node: the new nodes talk at the speed of a host link, which is at least there
        outer = replace(levels[0], name="cluster", size=levels[0].size * factor, kind="ethernet",
                        bw_bytes_per_s=min(levels[0].bw_bytes_per_s, group.gpu.pcie_bw_bytes_per_s))  # fmt: skip
        levels = (levels[0], outer)
    else:
        levels = (*levels[:-1], last)
    cluster = ClusterSpec(name=f"{resolved.cluster.name} x {factor}", levels=levels,
                          groups=(replace(group, num_nodes=group.num_nodes * factor),))  # fmt: skip
    # The larger cluster has usual links, so nothing that placement or islands set for the smaller one holds.
    placement: dict[str, Any] = dict.fromkeys(("network", "nodes", "links", "job_gpus"))
    return replace(resolved, cluster=cluster, warnings=(), **placement)
