"""What was edited in emitted files: where they say something else than the plan beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.specs.model import with_capacity
from ...errors import FieldProblem, InputError, nearest
from ...profiles.model.load import read_model_yaml
from .argv import Arguments
from .facts import request_part
from .options import Facts, Settings, Table
from .setup import Setup

# What of a model is compared, and the entries of a table that say it.
_MODEL = {
    "num_layers": ("model.layers",), "hidden": ("model.hidden",), "vocab": ("model.vocab",),
    "kinds": ("model.attention", "model.feed_forward"), "pattern": ("model.moe", "model.window"),
}  # fmt: skip
# Compared as `emit` writes them: --rotary-base is a whole number.
_ROTATION = ("rope_theta", "partial_rotary_factor", "rope_scaling")


@dataclass(frozen=True)
class Places:
    """Where in the main file a field of the plan is said."""

    table: Table
    given: Arguments
    main: str
    planned: Settings  # what `emit` wrote, {} without a plan

    def problem(self, text: str, fields: tuple[str, ...], hint: str = "") -> FieldProblem:
        """A problem at the first option that says one of `fields`, or said it."""
        options = [option for field in fields for entry in self.table.entries if field in entry.fields
                   for option in entry.options]  # fmt: skip
        given = [option for option in options if option in self.given.settings]
        name = (given or [option for option in options if option in self.planned] or [""])[0]
        file = self.given.files.get(name, self.main)
        return FieldProblem(text, file=file, line=self.given.lines.get(name, 0), field=name, hint=hint)

    def of_error(self, error: InputError) -> FieldProblem:
        """The problem of an error, at the line of the option that it names, else of the degrees."""
        lines = self.given.lines
        named = [name for name in lines if _names(error.message, name)]
        if not named:
            first = error.message.partition(":")[0]
            field = "model.layers" if re.match(r"\d+ layers", first) else first
            return self.problem(error.message, (field, "tp", "pp", "cp", "dp", "num_gpus"), error.hint)
        name = max(named, key=len)
        file = self.given.files.get(name, self.main)
        text = error.message.removeprefix(name).lstrip(" :")
        return FieldProblem(text, file=file, line=lines[name], field=name, hint=error.hint)


def mended(given: Arguments, planned: Settings, problems: list[FieldProblem]) -> Settings:
    """The settings with those that are known to be wrong as the plan has them: what else is wrong then shows."""
    wrong = {each.field for each in problems}
    wrong |= {name for name in given.settings for each in problems if each.field and _names(each.message, name)}
    for name in planned:
        misspelt = (spelled for unknown in given.unknown for spelled in _with_block(unknown, name))
        if name not in given.settings and nearest(name, misspelt, cutoff=0.6):
            wrong.add(name)
    kept = {name: value for name, value in given.settings.items() if name not in wrong}
    return kept | {name: value for name, value in planned.items() if name in wrong}


def _with_block(unknown: str, name: str) -> tuple[str, ...]:
    """A misspelt option, and with a misspelt block the option that was in it."""
    return (unknown, f"{unknown}.{name.partition('.')[2]}") if "." in name and "." not in unknown else (unknown,)


def _names(message: str, option: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", message) is not None


def _spelled(techniques: Mapping[str, Mapping[str, float]]) -> str:
    """`zero++:weight_bits=8`, as `--technique` takes it."""
    knobs = {name: ",".join(f"{knob}={value:g}" for knob, value in each.items()) for name, each in techniques.items()}
    return " ".join(f"{name}:{said}" if said else name for name, said in knobs.items()) or "none"


def edits(facts: Facts, layout: Layout | None, setup: Setup, places: Places) -> list[FieldProblem]:
    """Where the files say something else than the plan. `layout`: theirs, None if their degrees make none.

    Raises InputError for a model that cannot be.
    """
    out = []
    before = setup.layout.as_dict()
    # Degrees that make no layout have been told.
    after = layout.as_dict() if layout is not None else before | {
        name: facts[name] for name in ("micro_batch", "schedule", "zero", "precision") if name in facts
    }  # fmt: skip
    differs: dict[str, tuple[Any, Any]] = {
        name: (after[name], before[name]) for name in before if after[name] != before[name]
    }
    if "dp" not in facts and {"tp", "cp", "pp"} & set(differs):  # the rest is dp, and its shards follow
        differs = {name: pair for name, pair in differs.items() if name not in ("dp", "shard")}
    batch = facts.get("workload.global_batch", facts.get("batch_per_rank", 0) * setup.layout.dp)
    for name, said in (("global_batch", batch), ("seq_len", facts.get("workload.seq_len"))):
        if said and said != getattr(setup.workload, name):
            differs[name] = (said, getattr(setup.workload, name))
    factors = facts.get("workload.expert_capacity_factor"), setup.model.capacity_factor
    if factors[0] != factors[1]:
        differs["expert_capacity_factor"] = factors
    planned, said_now = (each.get("workload.techniques", {}) for each in (places.table.read(places.planned), facts))
    if places.planned and planned != said_now:
        differs["techniques"] = (_spelled(said_now), _spelled(planned))
    stages = facts.get("stages")
    if stages is not None and setup.layout.pp > 1 and stages != setup.chunk_sizes:
        differs["stages"] = (stages, setup.chunk_sizes)
    described = request_part(facts, "model")
    if "hidden" in described:
        model = with_capacity(read_model_yaml(described, "model")[0], setup.model.capacity_factor)
        other = next((name for name in _MODEL if getattr(model, name) != getattr(setup.model, name)), None)
        if other is not None:
            text = f"describes another model than plan.json ({other} of {setup.model.name})"
            out.append(places.problem(text, _MODEL[other], "plan again for this model"))
        usual = request_part(places.table.read(places.planned), "model") if places.planned else described
        for name in (each for each in _ROTATION if described.get(each) != usual.get(each)):
            text = f"rotates otherwise than plan.json ({name} {described.get(name)}, there {usual.get(name)})"
            out.append(places.problem(text, ("model.positions", "model.rope_scaling"), "plan again for this model"))
    hint = "edited after `emit`: plan again with `--fix`"
    return out + [
        places.problem(f"{name} is {new}, plan.json has {old}", (name, f"workload.{name}"), hint)
        for name, (new, old) in differs.items()
    ]
