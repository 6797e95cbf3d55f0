"""Each rule of `test_architecture.py` fails when broken: small trees with one wrong import, file or function."""

from __future__ import annotations

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
)
from .test_architecture import COST_MODELS, DOORS, LAYERS, MOST_FILES_OF_A_CIRCLE, PLANNER, PRIVATE


def tree(root: Path, files: dict[str, str]) -> list[Import]:
    """The imports of a tree of `files` (path -> text)."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return package_imports(root, LAYERS)


def test_imports_name_file_line_and_target(tmp_path: Path) -> None:
    text = "import os\nfrom ..space import tree\nfrom ..space.tree import Layout\nfrom . import rules\n"
    found = tree(tmp_path, {"planner/search/run.py": text, "planner/search/rules.py": "", "planner/space/tree.py": ""})

    assert [(each.line, each.target) for each in found] == [
        (2, "planner/space/tree.py"), (3, "planner/space/tree.py"), (4, "planner/search/rules.py")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "statement", "target", "rule"),
    [
        ("space/tree", "from ..search.run import go", "search/run", "planner/search is above planner/space"),
        ("request/load", "from ..search import run", "search/run", "planner/search is above planner/request"),
        ("search/run", "from ..evaluation import staged", "evaluation/staged", "evaluation is above planner/search"),
        ("stages/ilp", "from ..placement import place", "placement/place", "may not import each other"),
        ("studies/what_if", "from .. import importing", "importing", "may not import each other"),
        ("switches/megatron", "from ..targets import base", "targets/base", "targets is above planner/switches"),
        ("serving/decode", "from ..workflows import rl", "workflows/rl", "workflows is above planner/serving"),
        ("batches/lengths", "from .. import api", "api", "planner/api is above planner/batches"),
        ("studies/what_if", "from ..explain import report", "explain/report", "explain is above planner/studies"),
        ("anywhere/new", "from ..api import plan", "api", "planner/anywhere has no place in the order"),
    ],
)
def test_planner_imports_upwards_are_reported(
    tmp_path: Path, source: str, statement: str, target: str, rule: str
) -> None:
    found = tree(tmp_path, {f"planner/{source}.py": f"\n{statement}\n", f"planner/{target}.py": ""})

    (problem,) = breaks_of_order(found, "planner", PLANNER)
    assert problem.startswith(f"planner/{source}.py:2 imports planner/{target}.py: ")
    assert rule in problem


@pytest.mark.parametrize("header", ["", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    ", "def f():\n    "])
def test_lazy_imports_and_imports_of_types_count(tmp_path: Path, header: str) -> None:
    found = tree(tmp_path, {"planner/space/a.py": f"{header}from ..search import b\n", "planner/search/b.py": ""})
    assert len(breaks_of_order(found, "planner", PLANNER)) == 1


def test_planner_imports_downwards_are_fine(tmp_path: Path) -> None:
    found = tree(tmp_path, {
        "planner/explain/a.py": "from ..api import plan\nfrom . import b", "planner/explain/b.py": "",
        "planner/api.py": "from .space.tree import Layout", "planner/space/tree.py": "",
    })  # fmt: skip

    assert len(found) == 3
    assert not breaks_of_order(found, "planner", PLANNER)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("quantities/ledger", "rates/rates"),
        ("quantities/ledger", "step/step"),
        ("quantities/ledger", "schedules/engine"),
        ("quantities/ledger", "techniques/base"),
        ("quantities/ledger", "build_ledger"),
        ("layouts", "quantities/ledger"),
        ("specs/model", "layouts"),
        ("arrays", "units"),
        ("rates/rates", "step/step"),
        ("techniques/diloco", "rates/rates"),
        ("layer_kinds/attention", "rates/rates"),
        ("build_ledger", "step/step"),
        ("step/step", "layerwise/costs"),
        ("unplaced", "arrays"),
    ],
)
def test_cost_models_imports_upwards_are_reported(tmp_path: Path, source: str, target: str) -> None:
    statement = f"from {'.' * (source.count('/') + 1)}{target.replace('/', '.')} import name\n"
    found = tree(tmp_path, {f"cost_models/{source}.py": statement, f"cost_models/{target}.py": ""})

    (problem,) = breaks_of_table(found, "cost_models", COST_MODELS)
    assert problem.startswith(f"cost_models/{source}.py:1 imports cost_models/{target}.py: ")


def test_runtime_may_read_the_plan_and_one_rule_file(tmp_path: Path) -> None:
    text = "from ..planner.document.plan import Plan\nfrom ..planner.targets.meshwright.rules import RULES\n"
    found = tree(tmp_path, {
        "runtime/job.py": f"{text}from ..planner.targets.base import Target\n", "planner/document/plan.py": "",
        "planner/targets/meshwright/rules.py": "", "planner/targets/base.py": "",
    })  # fmt: skip

    (problem,) = breaks_of_doors(found, DOORS)
    assert problem.startswith("runtime/job.py:3 imports planner/targets/base.py: ")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("cost_models/layerwise/costs", "cost_models/techniques/registry"),
        ("cli/screens/plan", "cli/commands/plan"),
        ("cli/screens/plan", "cli/explore/app"),
    ],
)
def test_private_files_are_reported(tmp_path: Path, source: str, target: str) -> None:
    statement = f"from ..{target.split('/', 1)[1].replace('/', '.')} import name\n"
    found = tree(tmp_path, {f"{source}.py": statement, f"{target}.py": ""})
    assert breaks_of_privacy(found, PRIVATE)[0].startswith(f"{source}.py:1 imports {target}.py: ")


def test_private_files_are_open_to_their_owner(tmp_path: Path) -> None:
    found = tree(tmp_path, {
        "cost_models/build_ledger.py": "from .techniques import registry", "cost_models/techniques/registry.py": "",
        "planner/search/techniques.py": "from ...cost_models.techniques.registry import TECHNIQUES",
        "cli/commands/explore.py": "from ..explore import app", "cli/explore/app.py": "from . import keys",
        "cli/explore/keys.py": "",
    })  # fmt: skip

    assert len(found) == 4
    assert not breaks_of_privacy(found, PRIVATE)


def test_circles_of_executed_imports_are_reported(tmp_path: Path) -> None:
    lazy = "def f():\n    from . import a\n"
    found = tree(tmp_path, {"planner/space/a.py": "from . import b\n", "planner/space/b.py": lazy})

    (problem,) = circles(found, MOST_FILES_OF_A_CIRCLE)
    assert "planner/space/a.py:1 -> planner/space/b.py; planner/space/b.py:2 -> planner/space/a.py" in problem


def types_of(module: str) -> str:
    return f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {module} import T\n"


def test_circles_of_types_stay_in_one_folder(tmp_path: Path) -> None:
    inside = {"planner/space/a.py": "from . import b", "planner/space/b.py": types_of(".a")}
    assert not circles(tree(tmp_path, inside), MOST_FILES_OF_A_CIRCLE)

    across = {"planner/space/a.py": "from ..search import c", "planner/search/c.py": types_of("..space.a")}
    (problem,) = circles(tree(tmp_path, across), MOST_FILES_OF_A_CIRCLE)
    assert problem.startswith("circle over folders: ")


def test_large_circles_are_reported(tmp_path: Path) -> None:
    last = MOST_FILES_OF_A_CIRCLE
    files = {f"planner/space/f{i}.py": f"from . import f{i + 1}" for i in range(last)}
    found = tree(tmp_path, {**files, f"planner/space/f{last}.py": types_of(".f0")})

    (problem,) = circles(found, MOST_FILES_OF_A_CIRCLE)
    assert problem.startswith(f"circle of {last + 1} files, more than {last}: planner/space/f0.py, ")
    assert not circles(found, last + 1)


def test_long_files_and_functions_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "cli" / "show.py"
    body = "".join(f"    x{i} = {i}\n" for i in range(4))
    tree(tmp_path, {"cli/show.py": f"def f():\n{body}\n\ndef g():\n    x = 0\n"})

    assert long_functions(tmp_path, [path], 4) == ["cli/show.py:1 f: 5 lines, at most 4"]
    assert not long_functions(tmp_path, [path], 5)
    assert long_files(tmp_path, [path], 8) == ["cli/show.py: 9 lines, at most 8"]
    assert not long_files(tmp_path, [path], 9)


def test_of_a_command_only_the_body_counts(tmp_path: Path) -> None:
    path = tmp_path / "cli" / "show.py"
    options = "".join(f"    option{i}: int,\n" for i in range(9))
    text = f'def command(\n    context: typer.Context,\n{options}) -> None:\n    """Show.\n\n    Example\n    """\n'
    tree(tmp_path, {"cli/show.py": f"{text}    x = 1\n    y = 2\n"})

    assert long_functions(tmp_path, [path], 1) == ["cli/show.py:1 command: 2 lines, at most 1"]
