"""Finds edits of emitted files: their differences from the plan in the same folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.specs.variants import with_capacity
from ...errors import FieldProblem, InputError, nearest
from ...profiles.model.explicit_form import read_explicit_form
from .argv import Arguments
from .facts import request_part
from .options import Facts, Settings, Table
from .setup import Setup

# Field of ModelSpec that is compared -> the entries of a table that express it.
_MODEL = {
    "num_layers": ("model.layers",), "hidden": ("model.hidden",), "vocab": ("model.vocab",),
    "kinds": ("model.attention", "model.feed_forward"), "pattern": ("model.moe", "model.window"),
    "mtp_pattern": ("model.pattern",), "mtp_shared": ("model.mtp_layers",),
    "tower": ("model.tower",),
    "moe_aux_loss_coeff": ("model.moe_aux_loss_coeff",), "moe_aux_loss_per_sequence": ("model.moe_aux_loss_coeff",),
}  # fmt: skip
# Field in an error of the model reader -> the entry that holds it.
_HOLDS = {"kv_heads": "model.attention", "heads": "model.attention"}
# Compared as `emit` writes them, because --rotary-base is an integer.
_ROPE = ("rope_theta", "partial_rotary_factor", "rope_scaling")


@dataclass(frozen=True)
class Places:
    """Locates the fields of a plan in the files of a folder."""

    table: Table
    # The settings of the files.
    given: Arguments
    main_file: str
    # The settings that `emit` wrote, {} without a plan.
    planned: Settings

    def problem(self, text: str, fields: tuple[str, ...], hint: str = "") -> FieldProblem:
        """A problem at the first option in the files for one of `fields`, or else at the first in the plan."""
        options = [option for field in fields for entry in self.table.entries if field in entry.fields
                   for option in entry.options]  # fmt: skip
        given = [option for option in options if option in self.given.settings]
        name = (given or [option for option in options if option in self.planned] or [""])[0]
        file = self.given.files.get(name, self.main_file)
        return FieldProblem(text, file=file, line=self.given.lines.get(name, 0), field=name, hint=hint)

    def of_error(self, error: InputError) -> FieldProblem:
        """The problem of an error, at the line of the option that it names, or else of the degrees."""
        lines = self.given.lines
        named = [name for name in lines if _names(error.message, name)]
        if not named:
            first = error.message.partition(":")[0]
            field = "model.layers" if re.match(r"\d+ layers", first) else _HOLDS.get(first, first)
            return self.problem(error.message, (field, "tp", "pp", "cp", "dp", "num_gpus"), error.hint)
        name = max(named, key=len)
        file = self.given.files.get(name, self.main_file)
        text = error.message.removeprefix(name).lstrip(" :")
        return FieldProblem(text, file=file, line=lines[name], field=name, hint=error.hint)


def mended(given: Arguments, planned: Settings, problems: list[FieldProblem]) -> Settings:
    """The settings with planned values in place of faulty ones, so that further problems show."""
    wrong = {problem.field for problem in problems}
    wrong |= {name for name in given.settings for problem in problems
              if problem.field and _names(problem.message, name)}  # fmt: skip
    for name in planned:
        misspelt = (spelled for unknown in given.unknown for spelled in _with_block(unknown, name))
        if name not in given.settings and nearest(name, misspelt, cutoff=0.6):
            wrong.add(name)
    right = {name: value for name, value in given.settings.items() if name not in wrong}
    return right | {name: value for name, value in planned.items() if name in wrong}


def _with_block(unknown: str, name: str) -> tuple[str, ...]:
    """The corrected option of a misspelt one, also inside a misspelt block."""
    return (unknown, f"{unknown}.{name.partition('.')[2]}") if "." in name and "." not in unknown else (unknown,)


def _names(message: str, option: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", message) is not None


def _spelled(techniques: Mapping[str, Mapping[str, float]]) -> str:
    """`zero++:weight_bits=8`, as `--technique` takes it."""
    knobs = {name: ",".join(f"{knob}={value:g}" for knob, value in values.items())
             for name, values in techniques.items()}  # fmt: skip
    return " ".join(f"{name}:{text}" if text else name for name, text in knobs.items()) or "none"


def edits(facts: Facts, layout: Layout | None, setup: Setup, places: Places) -> list[FieldProblem]:
    """The differences between files and plan. layout: that of the files; None if their degrees make none.

    Raises InputError for an impossible model.
    """
    differs = _of_layout(facts, layout, setup) | _of_workload(facts, setup, places)
    stages = facts.get("stages")
    if stages is not None and setup.layout.pp > 1 and stages != setup.chunk_sizes:
        differs["stages"] = (stages, setup.chunk_sizes)
    if (group := facts.get("interleaving_group", setup.interleaving_group)) != setup.interleaving_group:
        differs["interleaving_group"] = (group, setup.interleaving_group)
    hint = "edited after `emit`: plan again with `--fix`"
    return _of_model(facts, setup, places) + [
        places.problem(f"{name} is {new}, plan.json has {old}", (name, f"workload.{name}"), hint)
        for name, (new, old) in differs.items()
    ]


def _of_layout(facts: Facts, layout: Layout | None, setup: Setup) -> dict[str, tuple[Any, Any]]:
    """Field of the layout -> (its value in the files, in the plan)."""
    planned = setup.layout.as_dict()
    if layout is not None:
        given = layout.as_dict()
    else:  # These degrees are a known problem, but other fields can still differ.
        given = planned | {name: facts[name] for name in ("micro_batch", "schedule", "zero", "precision")
                           if name in facts}  # fmt: skip
    differs = {name: (given[name], planned[name]) for name in planned if given[name] != planned[name]}
    if "dp" not in facts and {"tp", "cp", "pp"} & set(differs):  # dp and its shards follow from them
        return {name: pair for name, pair in differs.items() if name not in ("dp", "shard")}
    return differs


def _of_workload(facts: Facts, setup: Setup, places: Places) -> dict[str, tuple[Any, Any]]:
    """Field of the workload -> (its value in the files, in the plan)."""
    differs: dict[str, tuple[Any, Any]] = {}
    batch = facts.get("workload.global_batch", facts.get("batch_per_rank", 0) * setup.layout.dp)
    for name, value in (("global_batch", batch), ("seq_len", facts.get("workload.seq_len"))):
        if value and value != getattr(setup.workload, name):
            differs[name] = (value, getattr(setup.workload, name))
    factors = facts.get("workload.expert_capacity_factor"), setup.model.capacity_factor
    if factors[0] != factors[1]:
        differs["expert_capacity_factor"] = factors
    planned = places.table.read(places.planned).get("workload.techniques", {})
    techniques = facts.get("workload.techniques", {})
    if places.planned and planned != techniques:
        differs["techniques"] = (_spelled(techniques), _spelled(planned))
    return differs


def _of_model(facts: Facts, setup: Setup, places: Places) -> list[FieldProblem]:
    """The differences between the model of the files and that of the plan; none where the files describe no model."""
    described = request_part(facts, "model")
    if "hidden" not in described:
        return []
    problems = []
    model = with_capacity(read_explicit_form(described, "model")[0], setup.model.capacity_factor)
    other = next((name for name in _MODEL if getattr(model, name) != getattr(setup.model, name)), None)
    if other is not None:
        text = f"describes another model than plan.json ({other} of {setup.model.name})"
        problems.append(places.problem(text, _MODEL[other], "plan again for this model"))
    planned = request_part(places.table.read(places.planned), "model") if places.planned else described
    fields = ("model.positions", "model.rope_scaling")
    for name in _ROPE:
        if described.get(name) != planned.get(name):
            text = f"rotates otherwise than plan.json ({name} {described.get(name)}, there {planned.get(name)})"
            problems.append(places.problem(text, fields, "plan again for this model"))
    return problems
