"""Checks emitted files against the option lists, the rules of the target, and the plan in the same folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...cost_models.layouts import Layout, Layouts
from ...cost_models.problem import Problem
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.variants import with_capacity
from ...cost_models.specs.workload import Lora, Workload
from ...errors import FieldProblem, InputError
from ...profiles.model.explicit_form import read_explicit_form
from ...profiles.stack.load import load_stack
from ..document.plan import Plan
from ..document.reading import read_plan
from ..document.specs import model_of, workload_of
from ..space.rules import RULES, WELL_FORMED
from ..switches.registry import with_switches
from .adapters import LORA
from .argv import Arguments
from .base import Target, Trainer
from .differences import differences, not_judged
from .edits import Places, edits, mended
from .emit import emit, refusals
from .facts import layout_of, request_part
from .launch_config import LaunchConfig
from .option_lists import OptionList, option_list
from .options import Facts, Settings
from .registry import TARGETS, target_of
from .registry import target as load_target
from .restated import restated
from .scripts import read_arguments
from .setup import Setup, domain_of
from .switch_options import SWITCH


@dataclass(frozen=True)
class Checked:
    """The result of `check` on a folder."""

    target: str
    # The framework and its release.
    framework: str
    problems: list[FieldProblem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    # None where the files state no number of GPUs, or their degrees make no layout.
    layout: Layout | None = None
    # 0 where the files state none.
    num_gpus: int = 0
    # Options of the files that neither the plan nor a rule covers.
    not_judged: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Folder:
    """An emitted folder, and the references that its files are compared with."""

    target: Target
    config: LaunchConfig
    # The options of the files' release.
    options: OptionList
    # Name -> text.
    files: Mapping[str, str]
    # The plan in the folder; None if it is missing or damaged.
    plan: Plan | None
    # The number of the plan's layout in the files, from 1.
    choice: int

    @cached_property
    def setup(self) -> Setup | None:
        return Setup.of(self.plan, self.choice, "plan.json") if self.plan is not None else None

    @cached_property
    def launch(self) -> Arguments:
        """The variables, ranks and options of launch.sh."""
        return read_arguments("launch.sh", self.files.get("launch.sh", ""), self.options)


def check_files(files: Mapping[str, str], to: str | None = None, version: str | None = None) -> Checked:
    """Checks an emitted folder (name -> text). Raises InputError if it belongs to no target."""
    name = to or target_of(files)
    target = load_target(name)
    if target.trainer is None:
        readable = ", ".join(known.name for known in TARGETS.values() if known.config is not None)
        raise InputError(f"{name} has no files to check", hint=f"these have: {readable}")
    plan, choice, problems = _plan(files)
    config = target.trainer.config
    if config is None:
        return Checked(name, target.trainer.framework, problems)
    if config.main_file not in files:
        raise InputError(f"there is no {config.main_file}", hint=f"`emit --to {name}` writes it")
    options, warning = option_list(name, version or _version_of(files, target.trainer))
    checked = Checked(name, f"{target.trainer.framework} {options}", problems, [warning] if warning else [])
    checked = _check(checked, _Folder(target, config, options, files, plan, choice))
    return replace(checked, problems=sorted(checked.problems, key=lambda problem: (problem.file, problem.line)))


def _check(checked: Checked, folder: _Folder) -> Checked:
    try:
        given = folder.config.read_folder(folder.files, folder.options)
    except InputError as error:
        return replace(checked, problems=[*checked.problems, FieldProblem(error.message, hint=error.hint)])
    problems = [*checked.problems, *given.problems, *given.unclear, *given.blocks.values()]
    problems += [*_unknown(folder, given), *_conflicts(folder, given)]
    return _check_meaning(replace(checked, problems=problems), folder, given)


def _unknown(folder: _Folder, given: Arguments) -> list[FieldProblem]:
    """The options that the release does not have."""
    main, near = folder.config.main_file, folder.options.near
    return [FieldProblem("unknown option", file=given.files.get(name, main), line=line, field=name, hint=near(name))
            for name, line in (given.unknown | given.respelled).items()]  # fmt: skip


def _conflicts(folder: _Folder, given: Arguments) -> list[FieldProblem]:
    """The rules broken by options and environment in combination."""
    environment = {**folder.launch.environment, "before_blackwell": _before_blackwell(folder.setup)}
    problems = []
    for name, text in folder.config.conflicts(given.settings, environment):
        if name.isupper():  # a variable
            line = _line_with(folder.files, name)
            problems.append(FieldProblem(text, file="launch.sh", line=line, field=name))
        else:
            file = given.files.get(name, folder.config.main_file)
            problems.append(FieldProblem(text, file=file, line=_near(given, name), field=name))
    return problems


def _check_meaning(checked: Checked, folder: _Folder, given: Arguments) -> Checked:
    """Compares the layout, model and batch in the options with the rules and with the plan in the folder.

    An option with a known problem is read as planned. Its own value would repeat the problem.
    """
    known, setup = checked.problems, folder.setup
    if known and setup is None:
        return checked
    table = folder.config.table(folder.options)
    planned = table.write(setup) if setup is not None and not refusals(folder.target, setup, folder.options) else {}
    places = Places(table, given, folder.config.main_file, planned)
    settings = mended(given, planned, known) if known else given.settings
    facts, problems = _facts(places, settings)
    if facts is None:
        return replace(checked, problems=known + problems)
    num_gpus, layout = 0, None
    try:
        num_gpus = _num_gpus(facts, folder)
        if num_gpus:
            layout = layout_of(facts, num_gpus)
            problems += _broken_rules(folder, facts, layout, places)
    except InputError as error:
        problems.append(places.of_error(error))
    if setup is not None:
        try:
            problems += edits(facts, layout, setup, places)
        except InputError as error:
            problems.append(places.of_error(error))
    if planned and folder.plan is not None:
        named = {problem.field for problem in (*known, *problems)}
        files = emit(folder.plan, folder.target.name, version=folder.options.version, choice=folder.choice).files
        written = folder.config.read_folder(files, folder.options).settings
        problems += differences(settings, written, places, folder.config.judged, named, folder.options.defaults)
        problems += restated(folder.files, files, folder.plan, folder.target, folder.options.version, folder.choice)
    return replace(checked, problems=known + _first_of_lines(problems, known), layout=layout, num_gpus=num_gpus,
                   not_judged=not_judged(places, folder.config.judged, folder.options.options))  # fmt: skip


def _first_of_lines(problems: list[FieldProblem], known: list[FieldProblem]) -> list[FieldProblem]:
    """The first new problem of each line without a known one. Later problems of a line follow from its first."""
    lines = {(problem.file, problem.line) for problem in known}
    first = []
    for problem in problems:
        if not problem.line or (problem.file, problem.line) not in lines:
            first.append(problem)
            lines.add((problem.file, problem.line))
    return first


def _facts(places: Places, settings: Settings) -> tuple[Facts | None, list[FieldProblem]]:
    """Returns (the facts in the settings, the problems of unreadable entries).

    An unreadable entry is taken as planned. Without a plan there are then no facts.
    """
    facts: Facts = {}
    planned_facts: Facts = {}
    problems = []
    for entry in places.table.entries:
        planned = entry.read(dict(places.planned), planned_facts) if places.planned else {}
        planned_facts |= planned
        try:
            facts |= entry.read(dict(settings), facts)
        except InputError as error:
            problems.append(places.of_error(error))
            if not places.planned:
                return None, problems
            facts |= planned
    return facts, problems


def _line_with(files: Mapping[str, str], name: str) -> int:
    """The line of launch.sh that sets a variable."""
    lines = files.get("launch.sh", "").splitlines()
    return next((index for index, line in enumerate(lines, 1) if re.match(rf"(export|unset) {name}\b", line)), 0)


def _near(given: Arguments, name: str) -> int:
    """The line of an option, or else of its block."""
    block = name.partition(".")[0]
    return given.lines.get(name) or min((line for key, line in given.lines.items() if key.startswith(block)), default=0)


def _version_of(files: Mapping[str, str], trainer: Trainer) -> str | None:
    """The release that the header of launch.sh names."""
    header = re.search(rf"checked against {re.escape(trainer.framework)} (\S+)", files.get("launch.sh", ""))
    return header[1] if header else None


def _plan(files: Mapping[str, str]) -> tuple[Plan | None, int, list[FieldProblem]]:
    """The plan in the folder, the choice in launch.sh, and the problems of the plan."""
    if "plan.json" not in files:
        return None, 1, []
    header = re.search(r"^# Plan \w+, layout (\d+)\.", files.get("launch.sh", ""), re.MULTILINE)
    try:
        plan = read_plan(files["plan.json"], "plan.json")
    except InputError as error:
        return None, 1, [FieldProblem(error.message, hint=error.hint)]
    choice = int(header[1]) if header else 1
    return (plan, choice, []) if choice <= len(plan.candidates) else (None, 1, [])


def _before_blackwell(setup: Setup | None) -> str:
    if setup is None:
        return "unknown"
    return "no" if (setup.capability or 0) >= 10 else "yes"


def _num_gpus(facts: Facts, folder: _Folder) -> int:
    """The number of ranks that the files start. Raises InputError where the files disagree."""
    ranks = folder.launch.ranks
    counts = {}
    if "num_nodes" in ranks and "gpus_per_node" in ranks:
        counts["launch.sh"] = ranks["num_nodes"] * ranks["gpus_per_node"]
    if "num_gpus" in facts:
        counts["num_processes"] = int(facts["num_gpus"])
    if folder.plan is not None:
        counts["plan.json"] = folder.plan.candidates[0].to_layout().num_gpus
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {number}" for name, number in counts.items())
        raise InputError(f"the files disagree on the number of GPUs: {listed}", hint="one of them was edited")
    return next(iter(counts.values()), 0)


def _problem(folder: _Folder, facts: Facts, layout: Layout) -> Problem | None:
    """Model and batch of the files, or else of the plan; None if neither gives them."""
    plan = folder.plan
    model: ModelSpec | None = None
    described = request_part(facts, "model")
    if "hidden" in described:
        model = with_capacity(read_explicit_form(described, "model")[0], facts.get("workload.expert_capacity_factor"))
    elif plan is not None:
        model = model_of(plan.resolved, "plan.json")
    batch = facts.get("workload.global_batch", facts.get("batch_per_rank", 0) * layout.dp)
    seq_len = facts.get("workload.seq_len") or (workload_of(plan.resolved, "plan.json").seq_len if plan else 0)
    if model is None or not batch or not seq_len:
        return None
    adapters = facts.get(LORA)
    lora = Lora(**{**adapters, "targets": tuple(adapters["targets"])}) if adapters else None
    workload = Workload(seq_len=seq_len, global_batch=batch, precision=facts.get("precision", "bf16"), lora=lora)
    per_node = plan.resolved["cluster"]["groups"][0]["gpus_per_node"] if plan is not None else 8
    stack = with_switches(load_stack(folder.target.stack), request_part(facts, SWITCH.rstrip(".")))
    domain = domain_of(plan, layout.num_gpus, per_node) if plan is not None else 0
    stages = tuple(facts.get("stages") or ()) or None
    return Problem(model, workload, stack, layout.num_gpus, per_node, domain=domain, stages=stages)


def _broken_rules(folder: _Folder, facts: Facts, layout: Layout, places: Places) -> list[FieldProblem]:
    """The general rules that this layout breaks, or else those of the target."""
    problem = _problem(folder, facts, layout)
    if problem is None:
        return []
    if min(problem.workload.global_batch, problem.workload.seq_len) < 1:
        fields = ("workload.global_batch", "workload.seq_len")
        return [places.problem("batch and sequence length must be 1 or more", fields)]
    columns = Layouts.of([layout])
    broken = [rule for rule in WELL_FORMED + RULES if not bool(rule.allows(columns, problem)[0])]
    broken = broken or [rule for rule in folder.target.rules_for(problem.workload)
                        if not bool(rule.allows(columns, problem)[0])]  # fmt: skip
    return [places.problem(rule.explain(layout, problem),
                           ("workload.global_batch", *rule.fields) if rule.name == "batch" else rule.fields)
            for rule in broken]  # fmt: skip
