"""Rules of layouts that a launch config breaks, at the options that state the layout."""

from __future__ import annotations

from ...cost_models.layouts import Layout
from ...cost_models.problem import Problem
from ...errors import FieldProblem, InputError
from ..space.rules import Rule, broken_rules
from .argv import Arguments
from .options import Table

_HINT = "no plan has such a layout: change this option, or another one that the rule names"


def check_rules(layout: Layout, problem: Problem, arguments: Arguments, table: Table) -> None:
    """Raises InputError with each rule that the layout breaks, its file and its line."""
    if broken := broken_rules(layout, problem):
        raise InputError.of([
            _placed(rule.explain(layout, problem), _option(rule, layout, arguments, table), arguments)
            for rule in broken
        ])  # fmt: skip


def _option(rule: Rule, layout: Layout, arguments: Arguments, table: Table) -> str:
    """The first option that states the number of a field of the rule; "" for none."""
    given = {name: value for name, value in arguments.settings.items() if type(value) is int}
    options = (option for field in rule.fields for entry in table.entries if field in entry.fields
               for option in entry.options if given.get(option) == getattr(layout, field))  # fmt: skip
    return next(options, "")


def _placed(text: str, name: str, arguments: Arguments) -> FieldProblem:
    return FieldProblem(text, field=name, file=arguments.files.get(name, ""), line=arguments.lines.get(name, 0),
                        hint=_HINT)  # fmt: skip
