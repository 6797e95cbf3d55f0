"""Every target's files, read by the framework itself. `make test-upstream` installs the frameworks and runs this.

MESHWRIGHT_UPSTREAM names the folder of their environments (tests/upstream/pythons.py), MEGATRON_PATH a checkout of
Megatron-LM (pip has only its core, without the argument parser), MEGATRON_BRIDGE_PATH one of Megatron-Bridge with its
submodule, NANOTRON_PATH one of nanotron, MAXTEXT_PATH one of MaxText. The row of an absent framework is skipped here,
and `not run` in the table; it never counts as passed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.document.plan import Plan
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.facts import layout_of
from meshwright.planner.targets.option_lists import option_list
from meshwright.planner.targets.registry import TARGETS
from meshwright.planner.targets.setup import Setup

from ..planner.targets.emit_corruptions import CATALOGUE, corrupted
from ..planner.targets.emit_plans import config_of, random_plans
from ..table import Row
from .coordinates import planned
from .pythons import FOLDER, has, python_of

if not FOLDER:
    pytest.skip("`make test-upstream` runs these", allow_module_level=True)
pytestmark = pytest.mark.upstream
NUM_PLANS = 200
HERE = Path(__file__).parent


def source(target: str) -> str | None:
    """The checkout to take a framework from, \"\" for the installed one, None if it is absent."""
    parser = config_of(target).parser
    return parser.source(os.environ) if all(has(target, module) for module in parser.modules) else None


@cache
def emitted(target: str) -> tuple[list[tuple[Plan, dict[str, str]]], Counter[str]]:
    """200 plans with their files, and what was refused on the way, by reason."""
    plans, refused = random_plans(target, NUM_PLANS + 20)
    out = []
    for plan in plans:
        try:
            out.append((plan, dict(emit(plan, target).files)))
        except LayoutRefusedError as error:
            refused[f"{target}: {str(error).splitlines()[-1].partition(':')[0]} (of those drawn)"] += 1
    return out[:NUM_PLANS], refused


@pytest.mark.parametrize("target", CATALOGUE)
def test_the_framework_accepts_every_plan(target: str, row: Row) -> None:
    found, refused = emitted(target)
    for reason, number in refused.most_common():
        if number:
            row(target, "refused", f"{number:,} {reason.removeprefix(f'{target}: ')}")
    if source(target) is None:
        row(target, "own parser accepts", "not run")
        pytest.skip(f"{target} is not there")
    parser = config_of(target).parser
    cases = [parser.case(files, Setup.of(plan, 1)) for plan, files in found]
    said = parser.verdicts(cases, python_of(target), source(target) or "")
    row(target, "own parser accepts", f"{said.count(None)} of {len(cases)}")
    assert [each for each in said if each is not None] == []
    assert len(cases) == NUM_PLANS


@pytest.mark.parametrize("target", CATALOGUE)
def test_corruptions_are_rejected(target: str, row: Row) -> None:
    folders = [files for _, files in emitted(target)[0]]
    made = corrupted(target, folders, 200)
    rejected = [bool(check_files(files, target).problems) for _, files in made]
    row(target, "corruptions rejected by check", f"{sum(rejected)} of {len(made)}")
    assert all(rejected)


@pytest.mark.parametrize("target", CATALOGUE)
def test_what_is_emitted_reads_back(target: str, row: Row) -> None:
    config, equal = config_of(target), 0
    options = option_list(target)[0]
    for plan, files in emitted(target)[0]:
        bare = {name: "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))
                for name, text in files.items()}  # fmt: skip
        facts = config.table(options).read(config.read_folder(bare, options).settings)
        equal += layout_of(facts, Setup.of(plan, 1).layout.num_gpus) == Setup.of(plan, 1).layout
    row(target, "emit, strip header, import: same layout", f"{equal} of {NUM_PLANS}")
    assert equal == NUM_PLANS


def meshes(target: str) -> list[dict[str, int]]:
    """Degrees of a few plans of every world from 8 to 512."""
    degrees = []
    for world in (8, 16, 32, 64, 128, 256, 512):
        tp, cp = 2, 2 if world > 8 and target != "deepspeed" else 1
        pp = 2 if target not in ("accelerate", "maxtext") else 1
        ep = 2 if target in ("megatron", "megatron-bridge", "nemo", "torchtitan") else 1
        if target == "deepspeed" and world >= 64:
            pp, tp = 4, 4
        degrees.append({"world": world, "tp": tp, "cp": cp, "pp": pp, "ep": ep, "etp": 1,
                        "dp": world // (tp * cp * pp)})  # fmt: skip
    if target.startswith("megatron") or target == "nemo":
        degrees.append({"world": 64, "tp": 4, "cp": 1, "pp": 2, "ep": 4, "etp": 2, "dp": 8})
    return degrees


@pytest.mark.parametrize("target", [name for name in CATALOGUE if not TARGETS[name].built_on])
def test_ranks_have_the_coordinates_of_the_plan(target: str, row: Row) -> None:
    path = source(target) if target in ("megatron-bridge", "nanotron", "maxtext") else ""
    modules = {"megatron": "megatron.core", "megatron-bridge": "torch", "nanotron": "dacite", "maxtext": "jax"}
    if path is None or not has(target, modules.get(target, target)):
        row(target, "rank coordinates equal", "not run")
        pytest.skip(f"{target} is not there")
    words = [python_of(target), str(HERE / "coordinates.py"), target, *([path] if path else [])]
    text = "".join(json.dumps(each) + "\n" for each in meshes(target))
    done = subprocess.run(words, input=text, text=True, capture_output=True, check=False)
    found: list[list[dict[str, Any]]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(meshes(target)), done.stderr[-2000:]
    ranks = wrong = 0
    for mesh, coordinates in zip(meshes(target), found, strict=True):
        expected = [planned(mesh, each["rank"]) for each in coordinates]
        ranks += len(coordinates)
        for have, want in zip(coordinates, expected, strict=True):
            wrong += any(want[name] != value for name, value in have.items() if name != "rank")
    row(target, "rank coordinates equal", f"{ranks - wrong} of {ranks} ranks, worlds of 8 to 512")
    assert not wrong
