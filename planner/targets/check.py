"""Are the files of a folder right? Read against the option lists, the rules of the target, and the plan beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...cost_models.layouts import Layout, Layouts
from ...cost_models.problem import Problem
from ...cost_models.specs.model import ModelSpec, with_capacity
from ...cost_models.specs.workload import Workload
from ...errors import FieldProblem, InputError
from ...profiles.model.load import read_model_yaml
from ...profiles.stack.load import load_stack
from ..document.plan import Plan, read_plan
from ..document.specs import model_of, workload_of
from ..space.rules import RULES, WELL_FORMED
from .argv import Arguments, read_arguments
from .base import Target, Trainer
from .edits import Places, edits, mended
from .emit import refusals
from .facts import layout_of, request_part
from .option_lists import OptionList, option_list
from .options import Facts, Settings
from .reading import MAIN_FILES, read_folder, target_of
from .registry import target as load_target
from .setup import Setup


@dataclass
class Checked:
    """What `check` found in a folder; `num_gpus` 0 where the files do not say."""

    target: str
    framework: str
    problems: list[FieldProblem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    layout: Layout | None = None
    num_gpus: int = 0


def check_files(files: Mapping[str, str], to: str | None = None, version: str | None = None) -> Checked:
    """Checks an emitted folder (name -> text). Raises InputError if it is the folder of no target."""
    name = to or target_of(files)
    found = load_target(name)
    trainer = found.trainer
    if trainer is None:
        raise InputError(f"{name} has no files to check", hint=f"these have: {', '.join(MAIN_FILES)}")
    plan, choice, problems = _plan(files)
    if trainer.table is None:
        return Checked(name, trainer.framework, problems)
    if MAIN_FILES[name] not in files:
        raise InputError(f"there is no {MAIN_FILES[name]}", hint=f"`emit --to {name}` writes it")
    options, warning = option_list(name, version or _version_of(files, trainer))
    checked = Checked(name, f"{trainer.framework} {options}", problems, [warning] if warning else [])
    _check(checked, found, trainer, files, options, plan, choice)
    checked.problems.sort(key=lambda each: (each.file, each.line))
    return checked


def _check(
    checked: Checked, found: Target, trainer: Trainer, files: Mapping[str, str], options: OptionList,
    plan: Plan | None, choice: int,
) -> None:  # fmt: skip
    main = MAIN_FILES[found.name]
    try:
        given = read_folder(found.name, files, options)
    except InputError as error:
        checked.problems.append(FieldProblem(error.message, hint=error.hint))
        return
    checked.problems += given.problems
    checked.problems += [
        FieldProblem("unknown option", file=given.files.get(name, main), line=line, field=name, hint=options.near(name))
        for name, line in given.unknown.items()
    ]
    launch = read_arguments(files.get("launch.sh", ""), options, "launch.sh")
    environment = {**launch.environment, "before_blackwell": _before_blackwell(plan, choice)}
    for name, text in trainer.conflicts(given.settings, environment):
        if name.isupper():  # a variable
            checked.problems.append(FieldProblem(text, file="launch.sh", line=_line_with(files, name), field=name))
        else:
            file = given.files.get(name, main)
            checked.problems.append(FieldProblem(text, file=file, line=_near(given, name), field=name))
    _read(checked, found, files, given, options, plan, choice)


def _read(
    checked: Checked, found: Target, files: Mapping[str, str], given: Arguments, options: OptionList,
    plan: Plan | None, choice: int,
) -> None:  # fmt: skip
    """What the options mean together, and beside the plan: read as if those with a problem were as planned."""
    trainer, known = found.trainer, list(checked.problems)
    setup = Setup.of(plan, choice, "plan.json") if plan is not None else None
    if trainer is None or trainer.table is None or (known and setup is None):
        return  # what follows would only repeat it
    table = trainer.table(options)
    planned = table.write(setup) if setup is not None and not refusals(found, setup, options) else {}
    places = Places(table, given, MAIN_FILES[found.name], planned)
    facts = _facts(checked, places, mended(given, planned, known) if known else given.settings)
    if facts is None:
        return
    try:
        checked.num_gpus = _num_gpus(facts, read_arguments(files.get("launch.sh", ""), options, "launch.sh"), plan)
        if checked.num_gpus:
            checked.layout = layout_of(facts, checked.num_gpus)
            _legal(checked, found, facts, plan, places)
    except InputError as error:
        checked.problems.append(places.of_error(error))
    if setup is not None:
        try:
            checked.problems += edits(facts, checked.layout, setup, places)
        except InputError as error:
            checked.problems.append(places.of_error(error))
    said = {(each.file, each.line) for each in known}
    for each in checked.problems[len(known) :]:  # one of a line is enough: the others follow from it
        if not each.line or (each.file, each.line) not in said:
            known.append(each)
            said.add((each.file, each.line))
    checked.problems = known


def _facts(checked: Checked, places: Places, settings: Settings) -> Facts | None:
    """What the settings state; an entry that cannot be read is a problem, and is then as planned (no plan: None)."""
    facts: Facts = {}
    right: Facts = {}
    for entry in places.table.entries:
        usual = entry.read(dict(places.planned), right) if places.planned else {}
        right |= usual
        try:
            facts |= entry.read(dict(settings), facts)
        except InputError as error:
            checked.problems.append(places.of_error(error))
            if not places.planned:
                return None
            facts |= usual
    return facts


def _line_with(files: Mapping[str, str], name: str) -> int:
    """The line of launch.sh that sets a variable."""
    lines = files.get("launch.sh", "").splitlines()
    return next((index for index, line in enumerate(lines, 1) if re.match(rf"(export|unset) {name}\b", line)), 0)


def _near(given: Arguments, name: str) -> int:
    """The line of an option, else of the block that it belongs to."""
    block = name.partition(".")[0]
    return given.lines.get(name) or min((line for key, line in given.lines.items() if key.startswith(block)), default=0)


def _version_of(files: Mapping[str, str], trainer: Trainer) -> str | None:
    """The release that the header of launch.sh names."""
    said = re.search(rf"checked against {re.escape(trainer.framework)} (\S+)", files.get("launch.sh", ""))
    return said[1] if said else None


def _plan(files: Mapping[str, str]) -> tuple[Plan | None, int, list[FieldProblem]]:
    """The plan beside the files, the choice that launch.sh names, and what is wrong with it."""
    if "plan.json" not in files:
        return None, 1, []
    said = re.search(r"^# Plan \w+, layout (\d+)\.", files.get("launch.sh", ""), re.MULTILINE)
    try:
        plan = read_plan(files["plan.json"], "plan.json")
    except InputError as error:
        return None, 1, [FieldProblem(error.message, hint=error.hint)]
    choice = int(said[1]) if said else 1
    return (plan, choice, []) if choice <= len(plan.candidates) else (None, 1, [])


def _before_blackwell(plan: Plan | None, choice: int) -> str:
    if plan is None:
        return "unknown"
    return "no" if (Setup.of(plan, choice).capability or 0) >= 10 else "yes"


def _num_gpus(facts: Facts, launch: Arguments, plan: Plan | None) -> int:
    """Ranks that the files start. Raises InputError where they contradict one another."""
    ranks = launch.ranks
    said = {}
    if "num_nodes" in ranks and "gpus_per_node" in ranks:
        said["launch.sh"] = ranks["num_nodes"] * ranks["gpus_per_node"]
    if "num_gpus" in facts:
        said["num_processes"] = int(facts["num_gpus"])
    if plan is not None:
        said["plan.json"] = plan.candidates[0].to_layout().num_gpus
    if len(set(said.values())) > 1:
        told = ", ".join(f"{name} {number}" for name, number in said.items())
        raise InputError(f"the files disagree on the number of GPUs: {told}", hint="one of them was edited")
    return next(iter(said.values()), 0)


def _priced(checked: Checked, found: Target, facts: Facts, plan: Plan | None) -> Problem | None:
    """Model and batch of the files, and of the plan where they do not say; None if nobody says."""
    model: ModelSpec | None = None
    described = request_part(facts, "model")
    if "hidden" in described:
        model = with_capacity(read_model_yaml(described, "model")[0], facts.get("workload.expert_capacity_factor"))
    elif plan is not None:
        model = model_of(plan.resolved, "plan.json")
    dp = checked.layout.dp if checked.layout is not None else 1
    batch = facts.get("workload.global_batch", facts.get("batch_per_rank", 0) * dp)
    seq_len = facts.get("workload.seq_len") or (workload_of(plan.resolved, "plan.json").seq_len if plan else 0)
    if model is None or not batch or not seq_len:
        return None
    workload = Workload(seq_len=seq_len, global_batch=batch, precision=facts.get("precision", "bf16"))
    per_node = plan.resolved["cluster"]["groups"][0]["gpus_per_node"] if plan is not None else 8
    return Problem(model, workload, load_stack(found.stack), checked.num_gpus, per_node)


def _legal(checked: Checked, found: Target, facts: Facts, plan: Plan | None, places: Places) -> None:
    problem = _priced(checked, found, facts, plan)
    if problem is None or checked.layout is None:
        return
    if min(problem.workload.global_batch, problem.workload.seq_len) < 1:
        batch = ("workload.global_batch", "workload.seq_len")
        checked.problems.append(places.problem("batch and sequence length must be 1 or more", batch))
        return
    columns = Layouts.of([checked.layout])
    broken = [rule for rule in WELL_FORMED + RULES if not bool(rule.allows(columns, problem)[0])]
    for rule in broken or [rule for rule in found.rules if not bool(rule.allows(columns, problem)[0])]:
        fields = ("workload.global_batch", *rule.fields) if rule.name == "batch" else rule.fields
        checked.problems.append(places.problem(rule.explain(checked.layout, problem), fields))
