"""Plans for documents of mixed lengths, each a sequence with a degree of its own: `plan --max-len`, then `explain` and
`report` of what it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from . import requests
from .console import FORMAT_VERSION, Terminal, to_json
from .files import check_writable, write_file, write_files
from .screens import mixed_lengths as screens

if TYPE_CHECKING:
    from ..planner.document.lengths_plan import LengthsPlan
    from ..planner.explain.mixed_lengths import LengthsExplanation
    from ..planner.request.load import Request


def _refuse(options: Mapping[str, object]) -> None:
    """Refuses what goes with a plan of one layout, by name."""
    if given := [name for name, value in options.items() if value]:
        raise InputError(f"{given[0]} goes with a plan of one layout, and --max-len gives every document a degree",
                         hint="leave one of them out")  # fmt: skip


def refuse_schemes(schemes: str | None) -> None:
    """Refuses schemes where documents share sequences."""
    if schemes is not None:
        raise InputError("--lengths-scheme: its schemes plan documents that are sequences of their own",
                         hint="add `--max-len 192K`")  # fmt: skip


def run(
    terminal: Terminal, request: Request, output: Path | None, of_layouts: Mapping[str, object], *, force: bool,
    seed: int, schemes: str | None,
) -> None:  # fmt: skip
    """Plans and shows; `output` gets the plan, and a file beside it the batches for a sampler, as JSON lines.
    of_layouts: flags of a plan of one layout. schemes: names of published ones, separated by commas."""
    from ..planner import api
    from ..planner.document.sampler_plan import sampler_path

    _refuse(of_layouts)
    names = [name.strip() for name in schemes.split(",")] if schemes is not None else []
    sampler = None if output is None else sampler_path(output)
    if sampler is not None:
        check_writable(sampler, force=force)
    with terminal.progress("planning batches") as progress:
        planned = api.plan_documents(request, progress=progress, seed=seed, schemes=names)
    plan = planned.document()
    document = plan.model_dump(mode="json")
    if output is not None and sampler is not None:
        lines = "".join(f"{line}\n" for line in planned.sampler_lines())
        write_files({output: to_json(document), sampler: lines}, force=force)
    if terminal.settings.json:
        terminal.write_json(document)
    terminal.show(screens.screen(plan, str(output) if output else None, str(sampler) if sampler else None))
    requests.show_warnings(terminal, plan.warnings)


def explain(terminal: Terminal, path: Path, plan: LengthsPlan, step: int, options: Mapping[str, object]) -> None:
    """Shows lengths, degrees and waiting; step `step` group by group. options: flags of a plan of one layout."""
    if given := [name for name, value in options.items() if value]:
        text = f"{path.name} gives every document a degree, and {given[0]} goes with a plan of one layout"
        raise InputError(text, hint=f"leave {given[0]} out")
    explanation = _explanation(path, plan, step)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "lengths-explanation",
                             **explanation.model_dump(mode="json")})  # fmt: skip
    terminal.show(screens.explain_screen(plan, explanation))
    requests.show_warnings(terminal, plan.warnings)


def report(terminal: Terminal, path: Path, plan: LengthsPlan, step: int, output: Path, *, force: bool) -> None:
    """Writes the page of the plan; step `step` is drawn."""
    from ..planner.explain.report import facts
    from ..planner.request.load import request_from_dict
    from ..planner.request.resolve import resolve
    from .pages.mixed_lengths import lengths_page

    explanation = _explanation(path, plan, step)
    stated = tuple(facts(resolve(request_from_dict(plan.request))))
    write_file(output, lengths_page(plan, explanation, stated), force=force)
    if terminal.settings.json:
        terminal.write_json({
            "format_version": FORMAT_VERSION, "kind": "lengths-report", **explanation.model_dump(mode="json"),
            "facts": [fact.model_dump(mode="json") for fact in stated],
        })  # fmt: skip
    terminal.talk(f"Wrote {output}")
    requests.show_warnings(terminal, plan.warnings)


def _explanation(path: Path, plan: LengthsPlan, step: int) -> LengthsExplanation:
    from ..planner.document.sampler_plan import read_sampler, sampler_path
    from ..planner.explain.mixed_lengths import explain_lengths

    batches = read_sampler(sampler_path(path), plan.header)
    return requests.rounded(explain_lengths(plan, batches, step))
