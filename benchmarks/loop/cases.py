"""The file of emulated clusters: their hosts, and the models that are trained on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.profiles.io.document import FieldPath
from meshwright.profiles.io.facts import Facts
from meshwright.profiles.io.reader import read_document

from .emulated import Host


@dataclass(frozen=True)
class Model:
    """A model that is trained, and its batch."""

    name: str
    # Tokens of a sequence.
    seq_len: int
    # Sequences of a step.
    global_batch: int
    # The fields of a model file.
    fields: Mapping[str, Any]

    @property
    def has_experts(self) -> bool:
        return "moe" in self.fields


@dataclass(frozen=True)
class Case:
    """A cluster, and the models to train on it."""

    name: str
    hosts: tuple[Host, ...]
    models: tuple[Model, ...]

    @property
    def num_ranks(self) -> int:
        return sum(host.ranks for host in self.hosts)

    @property
    def speeds(self) -> list[float]:
        """Cores of a rank, every one once, in the order of the hosts."""
        return list(dict.fromkeys(host.cores for host in self.hosts))


def read_cases(path: Path) -> list[Case]:
    """The clusters of the file. Raises InputError with all its problems, each with line and field."""
    facts = Facts(read_document(path))
    facts.keys((), ("clusters", "models"))
    models = {name: model for name in _names(facts, ("models",)) if (model := _model(facts, name))}
    cases = [_case(facts, name, models) for name in _names(facts, ("clusters",))]
    facts.finish()
    return cases


def _names(facts: Facts, path: FieldPath) -> list[str]:
    section = facts.document.at(path)
    if not isinstance(section, Mapping) or not section:
        facts.fail(path, "must be a mapping: a name, and what it is", "benchmarks/closed_loop.yaml has one")
        return []
    return [str(name) for name in section]


def _model(facts: Facts, name: str) -> Model | None:
    path = ("models", name)
    facts.keys(path, ("seq_len", "global_batch", "model"))
    seq_len, batch = (facts.whole((*path, field), required=True) for field in ("seq_len", "global_batch"))
    fields = facts.document.at((*path, "model"))
    if not isinstance(fields, Mapping):
        facts.fail((*path, "model"), "must be a mapping, as in a model file")
        return None
    return Model(name, seq_len, batch, fields) if seq_len and batch else None


def _case(facts: Facts, name: str, models: Mapping[str, Model]) -> Case:
    path = ("clusters", name)
    facts.keys(path, ("hosts", "models"))
    requested = facts.document.at((*path, "models")) or list(models)
    for model in requested if isinstance(requested, list) else [requested]:
        if model not in models:
            facts.fail((*path, "models"), f"`{model}` is no model of this file", f"it has {', '.join(models)}")
    names = [name for name in _names(facts, (*path, "hosts")) if isinstance(name, str)]
    hosts = [host for name in names if (host := _host(facts, (*path, "hosts", name)))]
    if len({host.ranks for host in hosts}) > 1:
        facts.fail((*path, "hosts"), "must have equally many ranks", "torchrun starts as many on every node")
    return Case(name, tuple(hosts), tuple(models[model] for model in requested if model in models))


def _host(facts: Facts, path: FieldPath) -> Host | None:
    facts.keys(path, ("ranks", "cores", "link"))
    ranks, link = facts.whole((*path, "ranks"), required=True), facts.quantity((*path, "link"), "B/s")
    cores = facts.value((*path, "cores"), required=True)
    if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int | float) or not 0 < cores < 1):
        facts.fail((*path, "cores"), f"`{cores}` must be a share of a core, above 0 and below 1")
        return None
    return Host(str(path[-1]), ranks, float(cores), link) if ranks and cores else None
