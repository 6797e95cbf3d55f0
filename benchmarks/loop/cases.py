"""The file that says what to emulate: clusters of hosts, and the models that are trained on them."""

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
    """seq_len: tokens of a sequence; global_batch: sequences of a step; fields: of a model file."""

    name: str
    seq_len: int
    global_batch: int
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
    """What is in the file. Raises InputError with all its problems, each with line and field."""
    facts = Facts(read_document(path))
    facts.keys((), ("clusters", "models"))
    models = {name: found for name in _names(facts, ("models",)) if (found := _model(facts, name))}
    cases = [_case(facts, name, models) for name in _names(facts, ("clusters",))]
    facts.finish()
    return cases


def _names(facts: Facts, path: FieldPath) -> list[str]:
    found = facts.document.at(path)
    if not isinstance(found, Mapping) or not found:
        facts.fail(path, "must be a mapping: a name, and what it is", "benchmarks/closed_loop.yaml has one")
        return []
    return [str(name) for name in found]


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
    asked = facts.document.at((*path, "models")) or list(models)
    for each in asked if isinstance(asked, list) else [asked]:
        if each not in models:
            facts.fail((*path, "models"), f"`{each}` is no model of this file", f"it has {', '.join(models)}")
    hosts = [host for host in _names(facts, (*path, "hosts")) if isinstance(host, str)]
    found = [_host(facts, (*path, "hosts", host)) for host in hosts]
    if len({host.ranks for host in found if host}) > 1:
        facts.fail((*path, "hosts"), "must have equally many ranks", "torchrun starts as many on every node")
    return Case(name, tuple(host for host in found if host), tuple(models[each] for each in asked if each in models))


def _host(facts: Facts, path: FieldPath) -> Host | None:
    facts.keys(path, ("ranks", "cores", "link"))
    ranks, link = facts.whole((*path, "ranks"), required=True), facts.quantity((*path, "link"), "B/s")
    cores = facts.value((*path, "cores"), required=True)
    if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int | float) or not 0 < cores < 1):
        facts.fail((*path, "cores"), f"`{cores}` must be a share of a core, above 0 and below 1")
        return None
    return Host(str(path[-1]), ranks, float(cores), link) if ranks and cores else None
