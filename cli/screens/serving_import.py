"""The screen of `meshwright import vllm` and `sglang`: a team's own deployment, beside the one that serves most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import text
from .serving_plan import BINDS, within

if TYPE_CHECKING:
    from ...planner.document.serving_plan import ServingPlan
    from ...planner.drivers.imported_service import ImportedService
    from .parts import Part

_INDENT = " " * len("planned  ")


def screen(imported: ImportedService, framework: str, rate: float | None, saved_as: str | None) -> list[Part]:
    """The options that were read, the load that they carry, and the deployment of the same GPUs that carries most.
    rate: requests per second that are asked for."""
    commands = imported.service.commands
    read, unread = (sum(map(len, lists)) for lists in zip(*((it.read, it.unread) for it in commands), strict=True))
    parts: list[Part] = [f"{framework}: {read} options set the layout, {unread} set other things"]
    parts += [text.wrapped(f"{it.role}: {it.file}, line {it.line}", hanging="  ") for it in commands
              if len(commands) > 1]  # fmt: skip
    if unknown := [(name, line) for it in commands for name, line in it.unknown.items()]:
        listed = ", ".join(f"{name} (line {line})" for name, line in unknown)
        parts.append(text.wrapped(f"unknown to {framework}: {listed}", hanging="  "))
    parts += [text.wrapped(f"assumed: {it}", hanging="  ") for it in imported.assumed]
    if imported.service.gaps:
        parts += ["", "Not compared, because no plan holds these:"]
        return [*parts, *(text.wrapped(f"  line {gap.line}: {gap.field}: {gap.message}", hanging="    ")
                          for gap in imported.service.gaps)]  # fmt: skip
    if imported.theirs is None:
        parts += ["", text.wrapped(f"yours    no load: {imported.why}", hanging=_INDENT)]
    else:
        parts += ["", *_deployment("yours", imported.theirs, rate)]
    if imported.best is None:
        return [*parts, "", text.wrapped(f"Nothing serves more: {imported.why}", hanging="  ")]
    return [*parts, *_beside(imported, imported.best, rate, saved_as)]


def _beside(imported: ImportedService, best: ServingPlan, rate: float | None, saved_as: str | None) -> list[Part]:
    """The best deployment, and how much more it carries."""
    parts = _deployment("planned", best, rate)
    if imported.theirs is not None:
        gain = best.best.largest_load / imported.theirs.best.largest_load - 1
        if gain <= best.indifference:
            return ["", "Nothing serves more by over the error of the model"]
        parts.append(f"{_INDENT}{text.percent(gain)} % more")
    keep = f"meshwright emit {saved_as}" if saved_as else "add `-o plan.json`, then meshwright emit plan.json"
    return [*parts, "", f"Next: {keep}"]


def _deployment(name: str, plan: ServingPlan, rate: float | None) -> list[Part]:
    best = plan.best
    asked = ""
    if rate is not None:
        asked = f", {'enough' if best.largest_load >= rate else 'not enough'} for {text.significant(rate)}/s"
    latencies = (f"TTFT {text.duration(best.ttft_promised_s)}, TPOT {text.duration(best.tpot_promised_s)} "
                 f"(p{plan.request['workload']['percentile']:g})")  # fmt: skip
    carried = f"carries {text.significant(best.largest_load)}/s{within(plan)}{asked}; {latencies}"
    return [f"{name:<{len(_INDENT)}}{best.deployment_id}", text.wrapped(f"{_INDENT}{carried}", hanging=_INDENT),
            f"{_INDENT}binds: {BINDS[best.binds]}"]  # fmt: skip
