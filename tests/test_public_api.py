"""What `import meshwright` offers."""

from __future__ import annotations

import inspect

import pytest

import meshwright
from meshwright import errors


def test_all() -> None:
    assert meshwright.__all__ == ["__version__", "evaluate", "load_plan", "plan", "what_if"]


@pytest.mark.parametrize("name", ["evaluate", "load_plan", "plan", "what_if"])
def test_public_functions_are_documented(name: str) -> None:
    function = getattr(meshwright, name)
    assert callable(function)
    assert inspect.getdoc(function)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        getattr(meshwright, "plam")  # noqa: B009  # mypy knows that there is none


def test_the_error_tree_is_the_one_drawn_in_its_docstring() -> None:
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.MeshwrightError)]
    drawn = inspect.getdoc(errors) or ""
    for each in classes:
        assert each.__name__ in drawn


def test_errors_carry_a_hint() -> None:
    for each in (errors.InputError, errors.UnsupportedError, errors.NoFeasibleLayoutError, errors.SearchInterrupted):
        assert each("message", hint="do this").hint == "do this"
    assert errors.MissingExtraError("plot", "a chart").hint == "pip install 'meshwright[plot]'"


def test_errors_have_codes_and_exit_codes() -> None:
    assert errors.InputError("x").exit_code == 2
    assert errors.UnsupportedError("x").exit_code == 2
    assert errors.NoFeasibleLayoutError("x").exit_code == 1
    assert errors.SearchInterrupted("x").exit_code == 130
    assert errors.UnknownNameError("GPU", "h100sxm", ["h100-sxm-80gb"]).hint == "did you mean `h100-sxm-80gb`?"
