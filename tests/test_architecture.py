"""The layers and folders of docs/architecture.md sections 2 and 3, read from the imports with `ast`.

The rules are the tables at the top of this file. `tests/import_graph.py` holds the functions that apply them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .import_graph import (
    Import,
    breaks_of_doors,
    breaks_of_order,
    breaks_of_privacy,
    breaks_of_table,
    circles,
    long_files,
    long_functions,
    package_imports,
    parsed,
)
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
    "cli": {"typer", "rich", "matplotlib", "pydantic", "jinja2", "starlette", "uvicorn"},
    "planner": {"numpy", "pydantic", "pydantic_core", "pulp", "highspy", "distributed", "ray"},
    "profiles": {"numpy", "scipy", "pydantic", "yaml", "torch"},
    "cost_models": {"numpy"},
    "runtime": {"torch", "numpy", "safetensors", "wandb", "tokenizers"},
}
# The folders of planner from the lowest; a folder imports those on the lines above it, never one on its own line.
PLANNER = (
    ("document",),
    ("space",),
    ("switches",),
    ("targets",),
    ("request",),
    ("search",),
    ("evaluation",),
    ("batches",),
    ("stages", "layerwise", "placement", "accuracy"),
    ("heterogeneous",),
    ("serving",),
    ("workflows",),
    ("drivers",),
    ("api",),
    ("studies", "importing"),
    ("explain",),
)
# Folders of cost_models -> the folders of it that they may import. `problem` and `layer_kinds` stand beside
# `quantities`: their files may import each other's, but never in a circle.
_WORDS = {"arrays", "units", "specs", "schedule_kinds", "cuda_graphs", "masks", "offload_modules", "layouts", "degrees"}
_QUANTITIES = _WORDS | {"problem", "layer_kinds", "quantities"}
COST_MODELS: dict[str, set[str]] = {
    "arrays": set(),
    "units": {"arrays"},
    "specs": {"arrays", "units"},
    "schedule_kinds": {"arrays", "units", "specs"},
    "cuda_graphs": {"arrays", "units", "specs", "schedule_kinds"},
    "masks": {"arrays", "units", "specs", "schedule_kinds", "cuda_graphs"},
    "offload_modules": {"arrays", "units", "specs", "schedule_kinds", "cuda_graphs", "masks"},
    "layouts": {"arrays", "units", "specs", "schedule_kinds", "cuda_graphs", "masks", "offload_modules"},
    "degrees": _WORDS - {"degrees"},
    "problem": _QUANTITIES,
    "layer_kinds": _QUANTITIES,
    "quantities": _QUANTITIES,
    "techniques": _QUANTITIES | {"serving"},
    "build_ledger": _QUANTITIES | {"techniques"},
    "rates": _QUANTITIES,
    "schedules": _WORDS,
    "step": _QUANTITIES | {"rates"},
    "layerwise": _QUANTITIES | {"rates", "step", "build_ledger"},
    "serving": _QUANTITIES | {"rates"},
}
# (importing folder, imported folder) -> what alone of it may be imported.
DOORS = {("runtime", "planner"): ("planner/document", "planner/targets/meshwright/rules",
                                  "planner/targets/meshwright/techniques")}  # fmt: skip
# Folder or file -> (the layer that the rule is about, who alone of it may import that).
PRIVATE: dict[str, tuple[str, tuple[str, ...]]] = {
    "cost_models/techniques/registry": ("cost_models", ("cost_models/build_ledger",)),
    "cli/commands": ("cli", ()),
    "cli/explore": ("cli", ("cli/commands",)),
}
MOST_FILES_OF_A_CIRCLE = 3
# Lines; of the function of a command only its body counts.
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 300, 40

# Scripts that a framework's own Python runs; the package never imports them.
SCRIPTS = set((ROOT / "planner" / "targets").glob("*/parser.py"))
SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py") if path not in SCRIPTS)


@cache
def relative_imports() -> list[Import]:
    """Those of all layers; read by the first test that asks, so that to collect this file parses nothing."""
    return package_imports(ROOT, LAYERS)


def ident(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Absolute dotted names of all that a file imports, wherever in it: `meshwright.planner.api`, `numpy`."""
    package = ("meshwright", *path.relative_to(ROOT).parent.parts)
    for node in parsed(path).imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            base = ".".join((*package[: len(package) - node.level + 1], *([node.module] if node.module else [])))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def nothing_in(problems: list[str]) -> None:
    """Fails with all problems at once, one on a line."""
    if problems:
        pytest.fail(
            "\n".join((f"{len(problems)} against the rules at the top of this file:", *problems)), pytrace=False
        )


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def test_layers_point_one_way() -> None:
    ours = {path: {name.split(".")[1] for name in imports(path) if name.startswith("meshwright.")} for path in SOURCES}
    nothing_in([f"{ident(path)} imports {', '.join(sorted(wrong))}" for path, names in ours.items()
                if (wrong := names - ALLOWED[layer_of(path)] - LEAVES)])  # fmt: skip


def test_folders_of_planner_point_down() -> None:
    nothing_in(breaks_of_order(relative_imports(), "planner", PLANNER))


def test_folders_of_cost_models_point_down() -> None:
    nothing_in(breaks_of_table(relative_imports(), "cost_models", COST_MODELS))


def test_runtime_reads_the_plan_and_its_rules() -> None:
    nothing_in(breaks_of_doors(relative_imports(), DOORS))


def test_private_folders_are_imported_by_their_owner_only() -> None:
    nothing_in(breaks_of_privacy(relative_imports(), PRIVATE))


def test_files_form_no_circles() -> None:
    nothing_in(circles(relative_imports(), MOST_FILES_OF_A_CIRCLE))


def test_third_parties_stay_in_their_layer() -> None:
    nothing_in([f"{ident(path)} imports {', '.join(sorted(wrong))}" for path in SOURCES if (wrong := strangers(path))])


def strangers(path: Path) -> set[str]:
    """Packages of others that a file imports and may not."""
    others = {name.split(".")[0] for name in imports(path)} - {"meshwright"} - set(sys.stdlib_module_names)
    wrong = others - THIRD_PARTY[layer_of(path)]
    if path.name != "executors.py":
        wrong |= others & {"distributed", "ray"}
    if layer_of(path) != "runtime" and not path.is_relative_to(ROOT / "profiles" / "profilers"):
        wrong |= others & {"torch"}
    return wrong


def test_inside_the_package_imports_are_relative() -> None:
    """A bare `planner`, or an absolute `meshwright`, would make renaming hard and could load a second copy."""
    nothing_in([f"{ident(path)}:{node.lineno}" for path in SOURCES for node in parsed(path).imports
                if {name.split(".")[0] for name in absolute(node)} & {"meshwright", *LAYERS}])  # fmt: skip


def absolute(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that a statement names from the top."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [] if node.level else [node.module or ""]


def test_errors_is_a_leaf() -> None:
    names = {name.split(".")[0] for name in imports(ROOT / "meshwright" / "errors.py")}
    assert names <= set(sys.stdlib_module_names)


def test_files_and_functions_are_short() -> None:
    others = [path for name in ("meshwright", "tools", "benchmarks") for path in (ROOT / name).rglob("*.py")]
    files = [*SOURCES, *SCRIPTS, *others]
    nothing_in([*long_files(ROOT, files, MOST_LINES_OF_A_FILE), *long_functions(ROOT, files, MOST_LINES_OF_A_FUNCTION)])


def test_screens_are_made_of_types() -> None:
    """`Any` in the command line hides what a screen needs of a plan."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "cli").rglob("*.py"))
    assert sum(len(re.findall(r"\bAny\b", text)) for text in texts) < 30


def test_only_errors_suggests_names() -> None:
    """`errors.nearest` is the one place that knows difflib, so that guesses are equally bold everywhere."""
    assert not [ident(path) for path in SOURCES if any(name.split(".")[0] == "difflib" for name in imports(path))]


def test_a_plan_can_be_read_without_the_planner() -> None:
    allowed = ("pydantic", "meshwright.cost_models", "meshwright.errors", "meshwright.planner.document")
    for path in sorted((ROOT / "planner" / "document").glob("*.py")):
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


# Command -> the packages and modules that it does without. The start of a command is mostly the modules that it loads.
SOLVERS = {"torch", "pulp", "highspy", "networkx", "scipy", "matplotlib"}
UNLOADED = {
    "--help": {*SOLVERS, "numpy", "pydantic", "typer", "rich", "yaml", "dataclasses", "inspect", "json", "pathlib",
               "tempfile", "threading", "traceback"},
    "plan --model llama-3.1-8b --cluster dgx-h100:2 --global-batch 512 --seq-len 8192": {
        *SOLVERS, "meshwright.planner.targets.recipes", "meshwright.planner.targets.shell.script",
        "meshwright.planner.targets.shell.followed", "meshwright.planner.placement", "meshwright.planner.importing",
        "meshwright.planner.targets.emit", "meshwright.planner.targets.check"},
    "show gpus": {*SOLVERS, "numpy", "meshwright.planner.targets", "meshwright.profiles.rates.device_rates"},
}  # fmt: skip


@pytest.mark.parametrize("command", UNLOADED)
def test_small_commands_load_little(command: str) -> None:
    loaded = loaded_after(f"from meshwright.cli.main import main; main({command.split()!r})") - loaded_after("")
    assert not {name for name in loaded if any(f"{name}.".startswith(f"{other}.") for other in UNLOADED[command])}


def test_reading_a_plan_loads_no_catalogue_and_no_solver() -> None:
    modules = loaded_after("import meshwright.planner.document.reading")
    assert not modules & {"pulp", "networkx", "torch", "yaml", "meshwright.profiles"}


def test_an_even_plan_loads_no_solver() -> None:
    modules = loaded_after("import meshwright.planner.api")
    assert not modules & {"pulp", "highspy", "networkx", "scipy", "meshwright.planner.heterogeneous.search"}


def test_planning_needs_no_torch() -> None:
    assert "torch" not in loaded_after("import meshwright; meshwright.plan")


def test_no_asserts_in_sources() -> None:
    nothing_in([f"{ident(path)}: {parsed(path).asserts} asserts" for path in SOURCES if parsed(path).asserts])


def test_the_parsers_of_frameworks_are_imported_nowhere() -> None:
    for path in SOURCES:
        assert not any(".targets." in name and name.split(".")[-2] == "parser" for name in imports(path)), path
