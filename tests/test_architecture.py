"""The layers of docs/architecture.md section 2, read from the imports with `ast`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .snapshots import ROOT, environment

LAYERS = ("cli", "planner", "profiles", "cost_models", "runtime")
# Who may import whom; `errors` and `_version` are leaves for all.
ALLOWED = {
    "cli": {"cli", "planner", "profiles", "cost_models", "runtime"},
    "planner": {"planner", "profiles", "cost_models"},
    "profiles": {"profiles", "cost_models"},
    "cost_models": {"cost_models"},
    "runtime": {"runtime", "planner", "cost_models"},
}
LEAVES = {"errors", "_version"}
THIRD_PARTY = {
    "cli": {"typer", "rich", "matplotlib", "pydantic"},
    "planner": {"numpy", "scipy", "pydantic", "pydantic_core", "pulp", "highspy", "networkx", "distributed", "ray"},
    "profiles": {"numpy", "scipy", "pydantic", "yaml", "torch"},
    "cost_models": {"numpy", "scipy"},
    "runtime": {"torch", "numpy"},
}
# Scripts that a framework's own Python runs; the package never imports them.
SCRIPTS = ROOT / "planner" / "emitters" / "parsers"
SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py") if path.parent != SCRIPTS)


def ident(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Absolute dotted names of all that a file imports, wherever in it: `meshwright.planner.api`, `numpy`."""
    package = ("meshwright", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((*package[: len(package) - node.level + 1], *([node.module] if node.module else [])))
            yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=ident)
def test_layers_point_one_way(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    ours = [name.split(".")[1] for name in imports(path) if name.startswith("meshwright.")]
    assert set(ours) <= ALLOWED[layer] | LEAVES


@pytest.mark.parametrize("path", SOURCES, ids=ident)
def test_third_parties_stay_in_their_layer(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    others = {name.split(".")[0] for name in imports(path)} - {"meshwright"} - set(sys.stdlib_module_names)
    assert others <= THIRD_PARTY[layer]
    assert not others & {"distributed", "ray"} or path.name == "executors.py"
    if "torch" in others:
        assert layer == "runtime" or path.is_relative_to(ROOT / "profiles" / "profilers")


@pytest.mark.parametrize("path", SOURCES, ids=ident)
def test_inside_the_package_imports_are_relative(path: Path) -> None:
    """A bare `planner`, or an absolute `meshwright`, would make renaming hard and could load a second copy."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        assert not {name.split(".")[0] for name in names} & {"meshwright", *LAYERS}


def test_errors_is_a_leaf() -> None:
    names = {name.split(".")[0] for name in imports(ROOT / "meshwright" / "errors.py")}
    assert names <= set(sys.stdlib_module_names)


def test_a_plan_can_be_read_without_the_planner() -> None:
    allowed = ("pydantic", "meshwright.cost_models", "meshwright.errors", "meshwright.planner.spread")
    for path in (ROOT / "planner" / "plan.py", ROOT / "planner" / "spread.py"):
        names = {name for name in imports(path) if name.split(".")[0] not in sys.stdlib_module_names}
        assert not {name for name in names if not name.startswith(allowed)}


def test_package_inits_are_empty() -> None:
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("__init__.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in tree.body), path


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(' '.join(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    modules = loaded_after("import meshwright")
    assert not modules & {"numpy", "scipy", "pydantic", "torch", "pulp", "networkx", "yaml", "typer", "rich"}


def test_help_loads_no_solver() -> None:
    modules = loaded_after("from meshwright.cli.main import main; main(['--help'])")
    assert not modules & {"torch", "pulp", "networkx", "scipy", "matplotlib", "numpy", "pydantic", "typer", "rich"}


def test_reading_a_plan_loads_no_catalogue_and_no_solver() -> None:
    modules = loaded_after("import meshwright.planner.plan")
    assert not modules & {"pulp", "networkx", "torch", "yaml", "meshwright.profiles"}


def test_planning_needs_no_torch() -> None:
    assert "torch" not in loaded_after("import meshwright; meshwright.plan")


@pytest.mark.parametrize("path", SOURCES, ids=ident)
def test_no_asserts_in_sources(path: Path) -> None:
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def test_the_parsers_of_frameworks_are_imported_nowhere() -> None:
    for path in SOURCES:
        assert not any("emitters.parsers" in name for name in imports(path)), path
