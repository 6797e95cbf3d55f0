"""The references of a request, loaded together, so that one error names all that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import FieldProblem, InputError, UnknownNameError
from .schema import BaseRequest


def located(request: BaseRequest, error: InputError, name: str) -> InputError:
    """`error` on what field `name` refers to, with the file and the lines of the request that it lies in."""
    changed = [field for field in request._origins if field.startswith(name) and _by_set(request, field)]
    if name not in request._places and not changed:
        return error
    if isinstance(error, UnknownNameError):  # of the reference itself: its class is its code in JSON
        error.message = str(_placed(request, FieldProblem(error.message, name)))
    if not error.problems:
        return error
    placed = [_placed(request, problem) if not problem.file else problem for problem in error.problems]
    return InputError.of(sorted(placed, key=lambda problem: problem.line))


def _by_set(request: BaseRequest, field: str) -> bool:
    return request._origins.get(field, "").startswith("--set ")


def _placed(request: BaseRequest, problem: FieldProblem) -> FieldProblem:
    """The problem with the place of its field, or of the nearest one around it that the file or a `--set` gives."""
    field = problem.field
    while field and field not in request._places:
        if _by_set(request, field):
            return problem._replace(field=request._origins[field])
        field = field[: max(field.rfind("."), field.rfind("["), 0)]
    file, line = request._places.get(field, ("", 0))
    return problem._replace(file=file, line=line)


def together(request: BaseRequest, loads: Mapping[str, Callable[[], Any]]) -> list[Any]:
    """The objects that the fields of `loads` refer to.

    Raises the InputError of the one that is wrong, or one with the problems of all; those of a file with their place.
    """
    loaded: list[Any] = []
    wrong: list[InputError] = []
    for name, load in loads.items():
        try:
            loaded.append(load())
        except InputError as error:
            wrong.append(located(request, error, name))
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise InputError.of([problem for error in wrong for problem in _problems(error)])
    return loaded


def _problems(error: InputError) -> list[FieldProblem]:
    """The problems of one error, each with its own hint."""
    return [it.with_hint for it in error.problems or (FieldProblem(error.message, hint=error.hint),)]
