"""Counts the legal layouts on a mesh without forming them.

Meshes that the remaining rules do not distinguish share a *signature*. Per signature this module counts the schedules,
recomputes and shard sizes that pass the rules of their own level, and the (schedule, recompute mode, ZeRO stage,
offload) categories that pass the rules across levels. Rules across levels may read only these categories, whether
recompute_layers and offload_layers are 0, and the mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
# The last two: full recompute of some layers, and none while some layers are offloaded.
_MODES = len(RECOMPUTE_MODES) + 2
_CATEGORIES = (len(SCHEDULES), _MODES, 4, len(OFFLOADS))
_LEVELS = ("schedule", "recompute", "state", "joint")  # keys of `level_rules`, in the order in which rules count
# Cached counts of LayoutCounts -> the level whose rules they depend on.
_COUNTS = {"num_schedules": "schedule", "_num_undominated": "recompute", "num_shards": "state"}
_CATEGORY_FIELDS = {"schedule", "recompute", "recompute_layers", "offload_layers", "zero", "offload"}


def recompute_category(columns: Columns) -> Ints:
    """The recompute mode. Full recompute of some layers, and offload of some layers, are separate modes."""
    recomputed = columns["recompute"] + (columns["recompute_layers"] > 0)
    return np.asarray(np.where(columns["offload_layers"] > 0, _MODES - 1, recomputed))


def _schedule(columns: Columns) -> Ints:
    return columns["schedule"]


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

    def sums(self) -> Counts:
        """[signature] sum over all other axes."""
        return np.asarray(self.table.sum(axis=1)[self.row])


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
        return self._per_pp(self.space.schedules, _schedule, len(SCHEDULES), self.level_rules["schedule"])

    @cached_property
    def num_recomputes(self) -> PerSignature:
        """[mode] number of options that pass and are not dominated."""

        def kept(pp: int) -> Columns:
            options = self.space.recomputes(pp)
            return select(options, ~self.dominated_mask(options))

        return self._per_pp(kept, recompute_category, _MODES, self.level_rules["recompute"])

    @cached_property
    def _num_undominated(self) -> PerSignature:
        """[mode] number of options that pass, including dominated ones."""
        return self._per_pp(self.space.recomputes, recompute_category, _MODES, self.level_rules["recompute"])

    def dominated_mask(self, options: Columns) -> Mask:
        """Mask of dominated recompute options."""
        pairs = zip(options["recompute"].tolist(), options["recompute_modules"].tolist(), strict=True)
        return np.array([pair in self.dominated for pair in pairs])

    def _per_pp(
        self, options_of: Callable[[int], Columns], category: Callable[[Columns], Ints], width: int,
        rules: Sequence[Rule],
    ) -> PerSignature:  # fmt: skip
        rows, of_signature = self._read_by(rules, "pp")
        out = np.zeros((len(rows["pp"]), width), dtype=np.int64)
        for pp in np.unique(rows["pp"]).tolist():
            which = np.flatnonzero(rows["pp"] == pp)
            options = options_of(pp)
            codes = category(options)
            if rules:
                columns = cross(select(rows, which), options)
                ok = allowed(rules, columns, self.space.problem).reshape(len(which), len(codes))
            else:
                ok = np.ones((len(which), len(codes)), dtype=bool)
            for code in range(width):
                out[which, code] = ok[:, codes == code].sum(axis=1)
        return PerSignature.of(out, of_signature)

    def _read_by(self, rules: Sequence[Rule], *also: str) -> tuple[Columns, Ints]:
        """Signatures that differ in the mesh fields of `rules` (and in `also`), and the index of each signature."""
        read = frozenset(MESH_FIELDS) & set(also).union(*(rule.fields for rule in rules))
        if read not in self.known_groups:
            columns = {name: self.signatures[0][name] for name in sorted(read | {"tp"})}
            self.known_groups[read] = distinct_rows(columns, set(read))
        return self.known_groups[read]

    @cached_property
    def num_shards(self) -> PerSignature:
        """[zero] number of sizes of the shard group that pass."""
        rules = self.level_rules["state"]
        rows, of_signature = self._read_by(rules, "dp", "cp")
        out = np.zeros((len(rows["dp"]), 4), dtype=np.int64)
        pairs, inverse = np.unique(rows["dp"] << 32 | rows["cp"], return_inverse=True)
        for index, pair in enumerate(pairs.tolist()):
            dp, cp = pair >> 32, pair & 0xFFFFFFFF
            which = np.flatnonzero(inverse == index)
            for zero in sorted(set(self.space.states(dp * cp)["zero"].tolist())):
                shards = np.array(self.space.shards(dp, cp, zero), dtype=np.int64)
                options = {"shard": shards, "zero": np.full(len(shards), zero)}
                ok = allowed(rules, cross(select(rows, which), options), self.space.problem)
                out[which, zero] = ok.reshape(len(which), len(shards)).sum(axis=1)
        return PerSignature.of(out, of_signature)

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
        bare = self._under({level: [] for level in _LEVELS}, dominated=frozenset())
        sizes = {
            "schedule": bare.num_schedules.sums(),
            "recompute": bare.num_recomputes.sums(),
            "state": bare.num_shards.sums() * len(OFFLOADS),
        }
        remaining = sizes["schedule"] * sizes["recompute"] * sizes["state"]
        for level in ("schedule", "recompute", "state"):
            for index in range(len(self.level_rules[level])):
                sizes[level] = _level_size(self._with_rules(level, index + 1), level)
                now = sizes["schedule"] * sizes["recompute"] * sizes["state"]
                count.exclude(self.level_rules[level][index].name, int(((remaining - now) * meshes_of).sum()))
                remaining = now
        for index in range(len(self.level_rules["joint"])):
            counts = self._with_rules("joint", index + 1)
            now = counts._total(counts._num_undominated)
            count.exclude(self.level_rules["joint"][index].name, int(((remaining - now) * meshes_of).sum()))
            remaining = now
        count.dominated += int((remaining * meshes_of).sum()) - int(self.weight.sum())
        self.known_groups.clear()  # each has a number for every signature

    def _with_rules(self, level: str, number: int) -> LayoutCounts:
        """The same meshes with only the first `number` rules of `level`, and none of the later levels."""
        earlier = _LEVELS[: _LEVELS.index(level)]
        rules = {name: self.level_rules[name] if name in earlier else [] for name in _LEVELS}
        rules[level] = self.level_rules[level][:number]
        counts = self._under(rules, self.dominated)
        # Earlier levels have all their rules, so their counts are known.
        vars(counts).update({name: getattr(self, name) for name, home in _COUNTS.items() if home in earlier})
        return counts

    def _under(self, rules: dict[str, list[Rule]], dominated: frozenset[tuple[int, int]]) -> LayoutCounts:
        """The same meshes and signatures under fewer rules, which distinguish less, so that signatures stay valid."""
        return LayoutCounts(self.space, self.meshes, dominated, rules, self.signatures, self.known_groups)


def distinct_rows(columns: Columns, fields: set[str]) -> tuple[Columns, Ints]:
    """The distinct rows of `fields` (with the other columns of the first occurrence), and the index of every row."""
    first, index = group_rows(columns[name] for name in sorted(fields))
    return select(columns, first), index


def _level_size(counts: LayoutCounts, level: str) -> Counts:
    if level == "schedule":
        return counts.num_schedules.sums()
    return counts._num_undominated.sums() if level == "recompute" else counts.num_shards.sums() * len(OFFLOADS)


def num_legal(space: Space) -> int:
    """Layouts of `space` that pass every rule."""
    meshes = space.meshes(Count())
    return int(LayoutCounts(space, meshes).weight.sum()) if len(meshes["tp"]) else 0
