"""`meshwright cite`: the papers behind a plan's techniques."""

from __future__ import annotations

import typer

from .. import options, requests, serving
from ..console import FORMAT_VERSION, Terminal


def command(context: typer.Context, plan: options.PlanFile) -> None:
    """Print the papers of the techniques that a plan uses, as BibTeX.

    \b
    Examples:
      meshwright cite plan.json > techniques.bib
    """
    from ...cost_models.techniques.registry import of
    from ...planner.document.reading import load_plan
    from ...planner.document.specs import workload_of

    terminal: Terminal = context.obj
    if requests.is_plan(plan, "serving-plan"):
        from ...planner.serving.listed import techniques_of

        used = techniques_of(serving.loaded(plan))
    else:
        used = workload_of(load_plan(plan).resolved, str(plan)).techniques
    entries = [technique.bibtex for technique, _ in of(used)]
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "cite", "bibtex": entries})
    terminal.show(["\n\n".join(entries)] if entries else ["The plan uses no technique of `show techniques`."])
