"""Counts the legal layouts on a mesh without forming them.

Meshes that the remaining rules do not distinguish share a *signature*. Per signature this module counts the schedules,
recomputes and shard sizes that pass the rules of their own level, and the (schedule, recompute mode, ZeRO stage,
offload) categories that pass the rules across levels. Rules across levels may read only these categories, whether
recompute_layers and offload_layers are 0, and the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Ints, Mask, distinct, group_rows
from ...cost_models.layouts import OFFLOADS, RECOMPUTE_MODES, SCHEDULES
from .rules import Rule
from .tree import MESH_FIELDS, RECOMPUTE_FIELDS, SCHEDULE_FIELDS, Columns, Count, Space, allowed, cross, select

Counts = NDArray[np.int64]
Options = tuple[Columns, Ints]  # of a level, and the category of each
# The last two: full recompute of some layers, and none while some layers are offloaded.
_MODES = len(RECOMPUTE_MODES) + 2
_BLOCK = 1 << 18  # pairs of a signature and an option at once, so that working arrays stay small
_CATEGORIES = (len(SCHEDULES), _MODES, 4, len(OFFLOADS))
# Key of `level_rules` -> the fields of a mesh that the options of the level depend on, and the number of categories.
_OPTIONS = {"schedule": (("pp",), len(SCHEDULES)), "recompute": (("pp",), _MODES), "state": (("dp", "cp"), 4)}
_CATEGORY_FIELDS = {"schedule", "recompute", "recompute_layers", "offload_layers", "zero", "offload"}


def recompute_category(columns: Columns) -> Ints:
    """The recompute mode. Full recompute of some layers, and offload of some layers, are separate modes."""
    recomputed = columns["recompute"] + (columns["recompute_layers"] > 0)
    return np.asarray(np.where(columns["offload_layers"] > 0, _MODES - 1, recomputed))


@dataclass(frozen=True)
class PerSignature:
    """Values of every signature, of which few are distinct."""

    table: Counts  # [distinct, ...]
    row: Ints  # [signature] row of the table

    @classmethod
    def of(cls, rows: Counts, row: Ints) -> PerSignature:
        """Merges equal rows: [k, ...] rows, and [signature] the row of each."""
        table, place = np.unique(rows, axis=0, return_inverse=True)
        return cls(table, place.ravel()[row])

    def at(self, signature: Ints, *rest: Any) -> Counts:
        """Counts of these signatures. rest: indices into the other axes."""
        return np.asarray(self.table[(self.row[signature], *rest)])


def category_grid() -> Columns:
    """All categories of joint rules, in the order of _CATEGORIES."""
    grid = np.indices(_CATEGORIES).reshape(4, -1)
    options: Columns = dict(zip(("schedule", "recompute", "zero", "offload"), grid, strict=True))
    mode = options["recompute"]
    options["recompute_layers"], options["offload_layers"] = (mode == _MODES - 2) * 1, (mode == _MODES - 1) * 1
    options["recompute"] = np.where(mode == _MODES - 1, 0, np.minimum(mode, _MODES - 3))
    return options


@dataclass(frozen=True)
class LayoutCounts:
    """Counts for the meshes of a search."""

    space: Space
    meshes: Columns
    dominated: frozenset[tuple[int, int]] = frozenset()  # (mode, modules) of dominated recompute options
    only_rules: dict[str, list[Rule]] | None = None  # by level; they replace the rules of the space
    known_signature: tuple[Columns, Ints] | None = None  # from other counts of the same meshes
    # Cache: fields of the mesh -> signatures that are distinct in them.
    known_groups: dict[frozenset[str], tuple[Columns, Ints]] = field(default_factory=dict)

    @cached_property
    def level_rules(self) -> dict[str, list[Rule]]:
        """Rules by level. `joint` rules read categories of several levels."""
        if self.only_rules is not None:
            return self.only_rules
        out: dict[str, list[Rule]] = {"schedule": [], "recompute": [], "state": [], "joint": []}
        mesh = set(MESH_FIELDS)
        levels = (("schedule", set(SCHEDULE_FIELDS)), ("recompute", set(RECOMPUTE_FIELDS)),
                  ("state", {"zero", "shard"}))  # fmt: skip
        for rule in self.space.rules:
            rest = set(rule.fields) - mesh
            if not rest:
                continue
            home = next((name for name, fields in levels if rest <= fields), "joint")
            if home == "joint" and not rest <= _CATEGORY_FIELDS:
                raise ValueError(
                    f"rule {rule.name} joins {sorted(rest)}: only {sorted(_CATEGORY_FIELDS)} may be joined"
                )
            out[home].append(rule)
        return out

    @cached_property
    def signatures(self) -> tuple[Columns, Ints]:
        """Distinct mesh columns that the remaining rules and option lists read, and each mesh's signature."""
        if self.known_signature is not None:
            return self.known_signature
        fields = {"pp", "dp", "cp"}.union(
            *(set(r.fields) & set(MESH_FIELDS) for rs in self.level_rules.values() for r in rs)
        )
        return distinct_rows(self.meshes, fields)

    @property
    def signature(self) -> Ints:
        """[mesh] index into the per-signature arrays."""
        return self.signatures[1]

    @cached_property
    def num_schedules(self) -> PerSignature:
        """[schedule] options that pass."""
        return self._passing("schedule", self._schedules)

    @cached_property
    def num_recomputes(self) -> PerSignature:
        """[mode] number of options that pass and are not dominated."""

        def kept(pp: int) -> Options:
            options, modes = self._recomputes(pp)
            undominated = ~self.dominated_mask(options)
            return select(options, undominated), modes[undominated]

        return self._passing("recompute", kept)

    @cached_property
    def _num_undominated(self) -> PerSignature:
        """[mode] number of options that pass, including dominated ones."""
        return self._passing("recompute", self._recomputes)

    @cached_property
    def num_shards(self) -> PerSignature:
        """[zero] number of sizes of the shard group that pass."""
        return self._passing("state", self._shards)

    def dominated_mask(self, options: Columns) -> Mask:
        """Mask of dominated recompute options."""
        pairs = zip(options["recompute"].tolist(), options["recompute_modules"].tolist(), strict=True)
        return np.array([pair in self.dominated for pair in pairs])

    def _schedules(self, pp: int) -> Options:
        options = self.space.schedules(pp)
        return options, options["schedule"]

    def _recomputes(self, pp: int) -> Options:
        options = self.space.recomputes(pp)
        return options, recompute_category(options)

    def _shards(self, dp: int, cp: int) -> Options:
        sizes = {zero: self.space.shards(dp, cp, zero) for zero in set(self.space.states(dp * cp)["zero"].tolist())}
        zero = np.repeat(list(sizes), [len(some) for some in sizes.values()])
        return {"shard": np.concatenate(list(sizes.values())), "zero": zero}, zero

    def _passing(self, level: str, options_of: Callable[..., Options]) -> PerSignature:
        """[category] number of options that pass all rules of `level`."""
        numbers, of_signature = self._counted(level, options_of)
        return PerSignature.of(numbers[0], of_signature)

    def _counted(self, level: str, options_of: Callable[..., Options], *, each: bool = False) -> tuple[Counts, Ints]:
        """[1, row, category] number of options that pass all rules of `level`, and [signature] its row. options_of: the
        options for values of the fields that they depend on. each: [rules + 1, ...] after every rule, none first."""
        rules, (fields, width) = self.level_rules[level], _OPTIONS[level]
        rows, of_signature = self._read_by(rules, *fields)
        out = np.zeros((len(rules) + 1 if each else 1, len(rows["tp"]), width), dtype=np.int64)
        first, alike = group_rows(rows[name] for name in fields)
        options, categories = zip(*(options_of(*values) for values in
                                    zip(*(rows[name][first].tolist() for name in fields), strict=True)), strict=True)
        read = set[str]().union(*(rule.fields for rule in rules))
        every = {name: np.concatenate([some[name] for some in options]) for name in read & set(options[0])}
        for row, option in _pairs([len(some) for some in categories], alike):
            pairs = {name: every[name][option] if name in every else rows[name][row] for name in read}
            passes = [np.ones(len(row), dtype=bool), *(rule.allows(pairs, self.space.problem) for rule in rules)]
            cell = row * width + np.concatenate(categories)[option]
            for number, kept in zip(out, np.logical_and.accumulate(passes)[-len(out) :], strict=True):
                number += np.bincount(cell[kept], minlength=number.size).reshape(number.shape)
        return out, of_signature

    def _read_by(self, rules: Sequence[Rule], *also: str) -> tuple[Columns, Ints]:
        """Signatures that differ in the mesh fields of `rules` (and in `also`), and the index of each signature."""
        read = frozenset(MESH_FIELDS) & set(also).union(*(rule.fields for rule in rules))
        if read not in self.known_groups:
            columns = {name: self.signatures[0][name] for name in sorted(read | {"tp"})}
            self.known_groups[read] = distinct_rows(columns, set(read))
        return self.known_groups[read]

    @cached_property
    def _joint(self) -> tuple[NDArray[np.bool_], Ints]:
        """[distinct, schedule, mode, zero, offload] whether joint rules pass, and [signature] its distinct row."""
        rules = self.level_rules["joint"]
        rows, which = self._read_by(rules, "pp")
        passing = allowed(rules, cross(rows, category_grid()), self.space.problem)
        return passing.reshape(len(rows["pp"]), *_CATEGORIES), which

    @cached_property
    def _joint_and_shards(self) -> tuple[NDArray[np.bool_], Counts, Ints]:
        """[pair, schedule, mode, zero, offload] as in `_joint` and [pair, zero] as in `num_shards`, of the pairs that
        signatures have, and [signature] its pair."""
        (passing, which), shards = self._joint, self.num_shards
        size = (int(which.max()) + 1) * len(shards.table)
        pairs, pair = distinct(which * len(shards.table) + shards.row, size)
        return passing[pairs // len(shards.table)], shards.table[pairs % len(shards.table)], pair

    @cached_property
    def num_states(self) -> PerSignature:
        """[schedule, mode] choices of ZeRO stage, offload and shard size."""
        passing, shards, pair = self._joint_and_shards
        return PerSignature(np.einsum("psrz,pz->psr", passing.sum(axis=-1), shards), pair)

    @cached_property
    def loosest_states(self) -> tuple[PerSignature, PerSignature]:
        """[schedule, mode] the highest ZeRO stage, and the union of offloads (bits of OFFLOADS), over passing states.

        No passing state holds fewer bytes on the GPU.
        """
        passing, shards, pair = self._joint_and_shards
        sharded = shards[:, None, None, :] > 0
        stage = np.where(passing.any(axis=-1) & sharded, np.arange(4), 0).max(axis=-1)
        moved = np.where(passing & sharded[..., None], np.arange(len(OFFLOADS)), 0)
        offload = np.bitwise_or.reduce(moved, axis=(-2, -1))
        return PerSignature(stage, pair), PerSignature(offload, pair)

    @cached_property
    def weight(self) -> Counts:
        """[mesh] number of layouts that pass every rule and are not dominated."""
        return np.asarray(self._total(self.num_recomputes)[self.signature])

    def _total(self, recomputes: PerSignature) -> Counts:
        """[signature] number of layouts that pass every rule, for these counts of recomputations."""
        schedules, states = self.num_schedules, self.num_states
        first, inverse = group_rows((schedules.row, recomputes.row, states.row))
        rows = (each.at(first) for each in (schedules, recomputes, states))
        return np.asarray(np.einsum("us,ur,usr->u", *rows)[inverse])

    def tally(self, count: Count) -> None:
        """Add to `count` the exclusions of the rules below the mesh, and the dominated layouts.

        Rules are applied one by one, in the order of the levels, and each excludes the difference. A layout that breaks
        several rules is therefore counted once, under the first.
        """
        meshes_of = np.bincount(self.signature, minlength=len(self.signatures[0]["pp"]))
        options: dict[str, Callable[..., Options]]
        options = {"schedule": self._schedules, "recompute": self._recomputes, "state": self._shards}
        counted = {level: self._counted(level, of, each=True) for level, of in options.items()}
        name = {"schedule": "num_schedules", "recompute": "_num_undominated", "state": "num_shards"}
        vars(self).update({name[level]: PerSignature.of(numbers[-1], row) for level, (numbers, row) in counted.items()})
        sizes = {level: numbers[0].sum(axis=1)[row] for level, (numbers, row) in counted.items()}
        for level, (numbers, row) in counted.items():
            beside = meshes_of * len(OFFLOADS) * math.prod(sizes[other] for other in sizes if other != level)
            passing = numbers.sum(axis=2)
            for rule, excluded in zip(self.level_rules[level], passing[:-1] - passing[1:], strict=True):
                count.exclude(rule.name, int((excluded[row] * beside).sum()) if excluded.any() else 0)
            sizes[level] = passing[-1][row]
        remaining = math.prod(sizes.values()) * len(OFFLOADS)
        for index, rule in enumerate(self.level_rules["joint"]):
            counts = self._with_joint_rules(index + 1)
            now = counts._total(counts._num_undominated)
            count.exclude(rule.name, int(((remaining - now) * meshes_of).sum()))
            remaining = now
        count.dominated += int((remaining * meshes_of).sum()) - int(self.weight.sum())
        self.known_groups.clear()  # each has a number for every signature

    def _with_joint_rules(self, number: int) -> LayoutCounts:
        """The same meshes and signatures with only the first `number` joint rules: they distinguish less, so that
        signatures stay valid."""
        rules = {**self.level_rules, "joint": self.level_rules["joint"][:number]}
        counts = LayoutCounts(self.space, self.meshes, self.dominated, rules, self.signatures, self.known_groups)
        vars(counts).update({name: getattr(self, name) for name in ("num_schedules", "_num_undominated", "num_shards")})
        return counts


def _pairs(number: Sequence[int], which: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Each row with each of the options of its group, in blocks: the row, and the option among those of all groups.
    number: [group] options. which: [row] its group."""
    lengths = np.array(number, dtype=np.int64)
    starts, of_row = np.cumsum(lengths) - lengths, lengths[which]
    before = np.cumsum(of_row) - of_row
    for block in np.unique(before // _BLOCK):
        rows = np.flatnonzero(before // _BLOCK == block)
        row = np.repeat(rows, of_row[rows])
        yield row, np.arange(len(row)) + np.repeat(starts[which[rows]] - before[rows] + before[rows[0]], of_row[rows])


def distinct_rows(columns: Columns, fields: set[str]) -> tuple[Columns, Ints]:
    """The distinct rows of `fields` (with the other columns of the first occurrence), and the index of every row."""
    first, index = group_rows(columns[name] for name in sorted(fields))
    return select(columns, first), index


def num_legal(space: Space) -> int:
    """Layouts of `space` that pass every rule."""
    meshes = space.meshes(Count())
    return int(LayoutCounts(space, meshes).weight.sum()) if len(meshes["tp"]) else 0
