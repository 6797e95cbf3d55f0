"""A team's own launch config as a layout, a model and a batch: read, and made into a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..cost_models.layouts import Layout
from ..errors import FieldProblem, InputError, UnknownNameError
from ..profiles.cluster.load import load_cluster
from ..profiles.io.reader import read_text
from ..profiles.stack.rates import NoUnitsError, check_units
from .document.plan import Plan
from .drivers.given_layout import evaluate_resolved
from .request.load import Request, load_request
from .request.model_reference import referenced_model
from .request.resolve import Resolved, resolve
from .switches.registry import SWITCHES
from .targets.adapter_choices import CHOSEN, chosen_adapters
from .targets.argv import Arguments
from .targets.broken_rules import check_rules
from .targets.engines.command_line import READ_ENGINES
from .targets.facts import batch_of, cannot_exist, gpus_named, layout_of, ranks_stated, request_part, started_gpus
from .targets.foreign import owner_hint, refuse_foreign
from .targets.import_format import Compared, Format, of_target
from .targets.interleaving_groups import check_groups, regrouped
from .targets.model_names import model_of, no_model
from .targets.option_lists import OptionList
from .targets.options import Facts, NoCounterpartError, Table
from .targets.post_training.step_readers import STEP_READERS
from .targets.readers.registry import READERS
from .targets.reading import DEGREES, fields_of, located, of_error, placed, read_facts, stated_facts
from .targets.registry import TARGETS
from .targets.switch_options import SWITCH

# Format by name, in the order of screens.
FORMATS: dict[str, Format] = {entry.name: entry for entry in (*filter(None, map(of_target, TARGETS.values())),
                                                              *READERS)}  # fmt: skip


# Fields of a request that facts of the workload fill, by the same name.
_OF_WORKLOAD = ("seq_len", "source_len", "global_batch", "optimizer", "expert_capacity_factor", "lora", "train_layers",
                "images", "freeze_tower", "freeze_language", "reference", "reward_model", "rounding")  # fmt: skip
# Facts that state the sequences of a step.
_BATCH = frozenset({"workload.global_batch", "batch_per_rank", "accumulation"})


@dataclass(frozen=True)
class Imported:
    """A launch config as a request and a layout."""

    # The model, batch and cluster of the config, completed by flags and defaults; None where there are gaps.
    completed: Request | None
    # The layout of the config, None where a gap leaves it open.
    read_layout: Layout | None
    # The framework and its release.
    framework: str
    # Number of options that the layout depends on.
    read: int
    # Option that the framework does not have, and that changes nothing -> line.
    unknown: dict[str, int]
    # Number of known options that the layout does not depend on.
    unread: int
    # A sentence for each fact that the config leaves open, with the value that is taken.
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    # The switches that it states.
    settings: Mapping[str, str] = field(default_factory=dict)
    # Options that `emit` would set otherwise, because of a switch that it would turn.
    switched: tuple[str, ...] = ()
    # What is not understood and may change layout, model or batch. With a gap there is no price.
    gaps: tuple[FieldProblem, ...] = ()
    unpriced: bool = False  # whether the only gap is a precision that the GPUs lack
    # The facts that are read nevertheless, by field of a plan.
    stated: Mapping[str, Any] = field(default_factory=dict)
    # Layers of each chunk of the pipeline, in the order of the model; None: the config leaves them open.
    stages: tuple[int, ...] | None = None

    @property
    def request(self) -> Request:
        """The request. Raises InputError where the config has gaps."""
        if self.completed is None:
            raise InputError.of(self.gaps)
        return self.completed

    @property
    def layout(self) -> Layout:
        """The layout. Raises InputError where a gap leaves it open."""
        if self.read_layout is None:
            raise InputError.of(self.gaps)
        return self.read_layout

    def price(self) -> Plan:
        """The plan that has the layout of the config, with the software switched as the config has it."""
        return evaluate_resolved(self.resolved(self.settings), str(self.layout))

    def price_switched(self) -> Plan:
        """The same with the switches that a plan would choose."""
        return evaluate_resolved(self.resolved(), str(self.layout))

    def resolved(self, settings: Mapping[str, str] | None = None) -> Resolved:
        """The request with the stages of the config, and these switches in place of what it fixes."""
        fixed = {} if settings is None else {"fix": dict(settings)}
        return resolve(self.request.model_copy(update={**fixed, "stages": self.stages}))


def import_config(
    kind: str, paths: Sequence[Path | str], given: Mapping[str, Any], version: str | None = None,
    script_arguments: Sequence[str] = (),
) -> Imported:  # fmt: skip
    """The config in `paths` of format `kind` (a key of FORMATS); `given`: flags of a request, which win.

    script_arguments: positional parameters of a script in turn, or `NAME=value`.
    Raises InputError, all problems of the files at once: unreadable values, contradictions, no model, no cluster,
    degrees that do not multiply to the GPUs.
    """
    if kind not in FORMATS:
        raise UnknownNameError("format", kind, [*FORMATS, *STEP_READERS, *READ_ENGINES])
    source = FORMATS[kind]
    options, warning = source.option_list(version)
    files = {str(path): read_text(Path(path)) for path in paths}
    try:
        arguments = source.read(files, options, script_arguments)
    except InputError as error:  # broken syntax, perhaps because it is that of another file
        if error.problems and (hint := owner_hint(files, kind)):
            raise InputError.of([problem._replace(hint=hint) for problem in error.problems]) from None
        raise
    if not arguments.program:
        refuse_foreign(arguments, files, source.framework, kind)
    if not arguments.settings and not arguments.gaps and not arguments.problems:
        raise InputError(f"{', '.join(map(str, paths))}: no option of {source.framework} in it", hint=source.hint)
    table = source.table(options)
    facts = read_facts(arguments, table)
    if arguments.problems:
        raise InputError.of([*arguments.problems, *_misfits(facts, arguments, table, given)])
    assumed = [*arguments.notes, *facts.pop("notes", [])]
    read = len(set(arguments.settings) & table.options)
    gaps = {gap.field for gap in arguments.gaps}
    unknown = {name: line for name, line in arguments.unknown.items() if name not in gaps}
    about = _About(f"{source.framework} {options}", read, unknown, len(arguments.settings) - read,
                   (warning,) if warning else ())  # fmt: skip
    if arguments.gaps:
        return _with_gaps(facts, arguments, table, given, about, assumed)
    return _whole(facts, arguments, table, options, given, source.compared(facts), about, assumed)


@dataclass(frozen=True)
class _About:
    """Notes of an import on its files."""

    framework: str
    read: int
    unknown: dict[str, int]
    unread: int
    warnings: tuple[str, ...]


def _whole(facts: Facts, arguments: Arguments, table: Table, options: OptionList, given: Mapping[str, Any],
           compared: Compared, about: _About, assumed: list[str]) -> Imported:  # fmt: skip
    """The import of a config that is understood."""
    try:
        request = _request(facts, arguments, options, given, compared, assumed)
        resolved = resolve(request)
        check_units(resolved.cluster, resolved.workload.precision)
    except NoCounterpartError as error:
        arguments.gaps.append(of_error(arguments, error, facts[CHOSEN][1:]))
        return _with_gaps(facts, arguments, table, given, about, assumed)
    except NoUnitsError as error:
        named = tuple(name for entry in table.entries if "precision" in entry.fields for name in entry.options)
        gap = of_error(arguments, error, named)._replace(hint="name another GPU by `--gpu`")
        return replace(_with_gaps(facts, arguments, table, given, about, assumed), gaps=(gap,), unpriced=True)
    except InputError as error:
        known = list(error.problems) or [FieldProblem(error.message, hint=error.hint)]
        problems = [placed(problem, arguments, table, facts) for problem in known]
        problems += _misfits(facts, arguments, table, given)
        if problems == known:
            raise
        raise InputError.of(problems) from None
    with located(arguments, table):
        layout = layout_of(facts, resolved.cluster.num_gpus, resolved.cluster.num_nodes, resolved.model.num_layers)
    # The number of data-parallel ranks is known only now that the request has given the number of GPUs.
    batch = resolved.workload.global_batch
    if "global_batch" not in given and (own := batch_of(facts, layout, batch, assumed)):
        batch = own
        update = {"workload": request.workload.model_copy(update={"global_batch": batch})}
        request = request.model_copy(update=update)
    if _counts_micro_batches(facts, arguments, given):
        with located(arguments, table):
            check_groups(facts, layout, batch, table)
    assumed += regrouped(facts, layout, batch)
    settings = _settings(facts, resolved, layout)
    imported = Imported(
        completed=request, read_layout=layout, **vars(about), assumed=tuple(assumed), settings=settings,
        switched=_switched_options(settings, resolved, table), stages=facts.get("stages") and tuple(facts["stages"]),
    )  # fmt: skip
    check_rules(layout, imported.resolved(settings).problem, arguments, table)
    return imported


def _counts_micro_batches(facts: Facts, arguments: Arguments, given: Mapping[str, Any]) -> bool:
    """Whether config and flags state how many micro-batches a pipeline runs per step."""
    batch = given.get("global_batch") is not None or not facts.keys().isdisjoint(_BATCH)
    return batch and not arguments.by_tokens and not facts.keys().isdisjoint({"micro_batch", "accumulation"})


def _misfits(facts: Facts, arguments: Arguments, table: Table, given: Mapping[str, Any]) -> list[FieldProblem]:
    """The problem of degrees that do not multiply to the GPUs. Empty where another problem leaves them open."""
    if DEGREES & fields_of(arguments, table):
        return []
    gpus = given.get("gpus") or (None if given.get("cluster") else ranks_stated(facts, arguments) or None)
    try:
        cluster = load_cluster(given.get("cluster"), gpu=given.get("gpu"), num_gpus=gpus,
                               exclude=given.get("exclude") or ())  # fmt: skip
    except InputError:
        return []
    try:
        with located(arguments, table):
            layout_of({**facts, "recompute": {}}, cluster.num_gpus, cluster.num_nodes)
    except InputError as error:
        return list(error.problems)
    return []


def _with_gaps(facts: Facts, arguments: Arguments, table: Table, given: Mapping[str, Any], about: _About,
               assumed: list[str]) -> Imported:  # fmt: skip
    """The import of a config that is understood in part: the facts that it states, and what is open."""
    open_fields = fields_of(arguments, table)
    layout = None
    gpus = gpus_named(given) or ranks_stated(facts, arguments)
    if gpus and not open_fields:
        try:
            layout = layout_of(facts, int(gpus))
            reason = cannot_exist(layout, facts)
        except InputError as error:
            reason = error.message
        if reason:
            layout = None
            assumed.append(reason)
    return Imported(completed=None, read_layout=layout, **vars(about), assumed=tuple(assumed),
                    gaps=tuple(arguments.gaps), stated=stated_facts(arguments, table, facts))  # fmt: skip


def _settings(facts: Facts, resolved: Resolved, layout: Layout) -> dict[str, str]:
    """The switches that a config states, of those that do something in it."""
    stated = request_part(facts, SWITCH.rstrip("."))
    return {name: value for name, value in stated.items()
            if SWITCHES[name].concerns(resolved.problem) and SWITCHES[name].applies(layout)}  # fmt: skip


def _switched_options(settings: Mapping[str, str], resolved: Resolved, table: Table) -> tuple[str, ...]:
    """The first option of each switch that a plan would turn otherwise."""
    chosen = resolved.switches.settings
    differ = {f"{SWITCH}{name}" for name, value in settings.items() if chosen.get(name, value) != value}
    return tuple(entry.options[0] for entry in table.entries if differ.intersection(entry.fields))


def _request(
    facts: Facts, arguments: Arguments, options: OptionList, given: Mapping[str, Any], compared: Compared,
    assumed: list[str],
) -> Request:
    """A request out of the facts, with `given` on top of them."""
    fields: dict[str, Any] = {"target": compared.target, **compared.fields}
    model = model_of(facts, options, assumed)
    if model is not None:
        fields["model"] = model
    for name in _OF_WORKLOAD:
        if (value := facts.get(f"workload.{name}")) is not None:
            fields[name] = value
    also = {"technique": "workload.techniques", "precision": "precision"}
    fields |= {name: facts[fact] for name, fact in also.items() if facts.get(fact)}
    gpus = ranks_stated(facts, arguments)
    if gpus and "cluster" not in given and "gpus" not in given:
        fields |= started_gpus(arguments, given.get("gpu"), gpus, assumed)
    fields |= {name: value for name, value in given.items() if value is not None}
    if CHOSEN in facts and given.get("lora") is None and "model" in fields:
        fields["lora"] = chosen_adapters(facts, referenced_model(fields["model"])[0], assumed)
    if "model" not in fields:
        raise no_model(facts.get("model_name") or facts.get("registered"))
    if "images" not in fields:  # the text model is planned, beside which no tower is frozen
        fields.pop("freeze_tower", None)
    if "cluster" not in fields and "gpu" not in fields:
        ranks = f"it starts {gpus} rank{'s' * (gpus != 1)}: add `--gpu h100-sxm-80gb`, or `--cluster NAME`"
        raise InputError("the config does not name its GPUs", hint=ranks if gpus else "add `--cluster dgx-h100:1`")
    if gpus and (named := gpus_named(given)) not in (None, gpus):
        assumed.append(f"the config starts {gpus} rank{'s' * (gpus != 1)}: read for the {named} GPUs that are named")
    if "micro_batch" not in facts and not {"accumulation", "workload.global_batch"} <= facts.keys():
        assumed.append("the micro-batch is not in the config: 1 sequence is taken")
    if "precision" not in facts:
        assumed.append("the precision is not in the config: the default of `plan` is taken")
    for name in ("seq_len", "global_batch"):
        stated = not facts.keys().isdisjoint(_BATCH if name == "global_batch" else {f"workload.{name}"})
        if name not in fields and not stated:
            flag = f"--{name.replace('_', '-')}"
            assumed.append(f"{flag} is not in the config: the default of `plan` is taken")
    return load_request(None, fields)
