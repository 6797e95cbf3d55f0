"""The screen of `meshwright import`: the team's own layout, beside the one that `plan` chooses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .. import text
from .explain import difference_table
from .facts import Facts
from .memory import capacity
from .plan import step_text

if TYPE_CHECKING:
    from ...planner.document.plan import Plan
    from ...planner.importing import Imported
    from .parts import Part

_INDENT = " " * len("planned  ")


def import_screen(
    imported: Imported, priced: Plan, switched_s: float | None, plan: Plan | str, saved_as: str | None
) -> list[Part]:
    """The options that were read, the price of their layout, and a faster one. priced: a plan of that layout alone;
    switched_s: its step with the features that the config could switch on; plan: why there is none where it is text."""
    theirs = priced.best
    parts: list[Part] = [*_read_lines(imported), *_theirs_lines(priced)]
    if switched_s is not None and switched_s < theirs.step_s:
        share = text.percent(1 - switched_s / theirs.step_s)
        line = f"with {', '.join(imported.switched)}: {text.significant(switched_s)} s, {share} % faster"
        parts.append(_indented(line))
    if isinstance(plan, str):
        return [*parts, "", text.wrapped(f"No faster layout is known: {plan}", hanging="  ")]
    best = plan.best
    if best.layout_id == theirs.layout_id:
        parts += ["", "Nothing is faster: it is the layout that `plan` chooses"]
        return parts if switched_s is None else [*parts, "", _next(plan, saved_as)]
    fits = f"{gain(priced, plan)}; fits ({text.gib(best.device_bytes)} GiB)"
    parts += [f"planned  {best.layout_id}", _indented(f"{step_text(best)}, {fits}"), "",
              "Yours beside the planned, per step:", difference_table(best, theirs)]  # fmt: skip
    return [*parts, "", _next(plan, saved_as)]


def gain(priced: Plan, plan: Plan) -> str:
    """How much faster the planned layout is, or why a slower one is planned."""
    theirs, best = priced.best, plan.best
    if (faster := 1 - best.step_s / theirs.step_s) >= 0:
        return f"{text.percent(faster)} % faster"
    why = "it fits"
    if theirs.device_bytes <= capacity(priced):
        freed = theirs.device_bytes - best.device_bytes
        why = f"it leaves {text.gib(freed)} GiB more" if freed > 0 else "it has fewer parallel axes"
    return f"{text.percent(-faster)} % slower, but {why}"


def gaps_screen(imported: Imported, *, several: bool) -> list[Part]:
    """The screen of a config that is read in part: the fields read, the options not understood, and no price.

    several: the config has several files, so that each line needs the name of its file.
    """
    parts: list[Part] = [*_read_lines(imported), ""]
    if imported.read_layout is not None:
        parts.append(f"layout   {imported.read_layout}")
    elif said := ", ".join(_facts(imported)):
        parts.append(text.wrapped(f"read     {said}", hanging=_INDENT))
    why = "these may change the layout, the model or the batch"
    parts += ["", f"Not compared, because {'it has no price on these GPUs' if imported.unpriced else why}:"]
    by_text: dict[tuple[str, str, int, str], list[str]] = {}
    for gap in imported.gaps:
        by_text.setdefault((gap.message, gap.file, gap.line, gap.hint), []).append(gap.field)
    for (message, file, line, _), names in by_text.items():
        where = f"{Path(file).name}, " if several and file else ""
        where = f"{where}line {line}: " if line else ""
        named = f"{', '.join(dict.fromkeys(names))}: " if all(names) else ""
        parts.append(text.wrapped(f"  {where}{named}{message}", hanging="    "))
    hints = dict.fromkeys(hint for *_, hint in by_text if hint)
    return [*parts, *(text.wrapped(f"hint: {hint}", hanging="  ") for hint in list(hints)[:3])]


def _facts(imported: Imported) -> list[str]:
    """The facts about layout and batch that are read."""
    return [f"{name.removeprefix('workload.')} {value}" for name, value in imported.stated.items()
            if isinstance(value, int | float | str) and not name.startswith(("model.", "switches."))]  # fmt: skip


def _read_lines(imported: Imported) -> list[str]:
    """The number of options that state the layout, the unknown ones, and the assumptions."""
    lines = [f"{imported.framework}: {imported.read} options set the layout, {imported.unread} set other things"]
    if imported.unknown:
        listed = ", ".join(f"{name} (line {line})" for name, line in imported.unknown.items())
        lines.append(text.wrapped(f"unknown to {imported.framework}: {listed}", hanging="  "))
    return [*lines, *(text.wrapped(f"assumed: {assumption}", hanging="  ") for assumption in imported.assumed)]


def _theirs_lines(priced: Plan) -> list[str]:
    """The layout of the config, its speed, and whether it fits. Where somebody runs a config that does not fit by the
    estimate, the estimate is wrong."""
    theirs, limit = priced.best, capacity(priced)
    speed = f"{text.percent(theirs.mfu)} % MFU, {text.significant(theirs.tokens_per_s_per_gpu)} tokens/s per GPU"
    needed = f"({text.gib(theirs.device_bytes)} GiB of {text.gib(limit)})"
    fits = f"fits {needed}"
    if theirs.device_bytes > limit:
        over = f"{text.gib(theirs.device_bytes - limit)} GiB"
        fits = f"does not fit by this estimate {needed}: if it runs for you, the estimate is {over} or more too high"
    return ["", f"yours    {theirs.layout_id}", f"{_INDENT}{step_text(theirs)}, {speed}", _indented(fits)]


def _indented(line: str) -> str:
    return text.wrapped(f"{_INDENT}{line}", hanging=_INDENT)


def _next(plan: Plan, saved_as: str | None) -> str:
    if (target := Facts.of(plan).target) == "any":
        kept = f"{saved_as} keeps it" if saved_as else "`-o plan.json` keeps it"
        return f"Next: set its layout in your own file; {kept}"
    saved = f"meshwright emit {saved_as}" if saved_as else "add `-o plan.json`, then meshwright emit plan.json"
    return f"Next: {saved} --to {target}"
