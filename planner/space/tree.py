"""The space of layouts as a tree of choices, its size, and what each rule excludes from it.

Level by level: mesh (degrees, sequence and context parallelism, micro batch), schedule (with its chunks), recompute,
states (ZeRO stage and offload), shard (size of the shard group). The options of a level depend on the mesh only
through pp, or dp and cp; so sizes are products of small counts, exact without ever forming the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...cost_models.arrays import Ints, Mask
from ...cost_models.degrees import divisors, shard_sizes
from ...cost_models.layouts import CP_ALGORITHMS, FIELD_NAMES, MODULES, OFFLOADS, PRECISIONS, RECOMPUTE_MODES
from ...cost_models.problem import Problem
from ...cost_models.schedule_kinds import CODE, INTERLEAVED, KINDS
from ...cost_models.specs.model import MixtureOfExperts
from ..document.certificate import SpaceCount
from .activations import present_modules
from .rules import RULES, Rule

Columns = dict[str, Ints]

MESH_FIELDS = ("tp", "sequence_parallel", "cp", "cp_algorithm", "pp", "dp", "ep", "etp", "ep_overlap", "cuda_graphs",
               "offload_modules", "micro_batch", "precision")  # fmt: skip
SCHEDULE_FIELDS = ("schedule", "vpp")
RECOMPUTE_FIELDS = ("recompute", "recompute_modules", "recompute_layers", "offload_layers")
STATE_FIELDS = ("zero", "offload")
SHARD_FIELDS = ("shard",)
LEVELS = (MESH_FIELDS, SCHEDULE_FIELDS, RECOMPUTE_FIELDS, STATE_FIELDS, SHARD_FIELDS)


@dataclass
class Count:
    """The number of layouts in the space and their outcomes, which sum to `total`."""

    total: int = 0
    ruled_out: dict[str, int] = field(default_factory=dict)  # by the rule that excluded them first
    dominated: int = 0  # another layout is never slower and never larger
    out_of_memory: int = 0  # by bound or by price
    bounded: int = 0  # not better than the list, by bound
    priced: int = 0  # layouts that fit and were priced
    unvisited: int = 0  # left by a stopped search

    def exclude(self, rule: str, count: int) -> None:
        if count:
            self.ruled_out[rule] = self.ruled_out.get(rule, 0) + count

    def add(self, other: Count) -> None:
        """Adds the counts of another space to those of this one."""
        for name in ("total", "dominated", "out_of_memory", "bounded", "priced", "unvisited"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for rule, number in other.ruled_out.items():
            self.exclude(rule, number)

    def to_space_count(self, by_axis: Mapping[str, int] | None = None, simulated: int = 0) -> SpaceCount:
        """The counts in the form of a plan. by_axis: sizes of the axes, for a single space."""
        counted = {**vars(self), "ruled_out": dict(sorted(self.ruled_out.items()))}
        return SpaceCount(by_axis=dict(by_axis or {}), simulated=simulated, **counted)

    @property
    def accounted(self) -> int:
        excluded = sum(self.ruled_out.values()) + self.dominated + self.out_of_memory
        return excluded + self.bounded + self.priced + self.unvisited


@dataclass(frozen=True)
class Space:
    """All layouts of `problem` under `rules` (legality, limits of the target, fixed fields)."""

    problem: Problem
    rules: tuple[Rule, ...] = RULES  # of legality, of the target, and of fixed fields
    # Field that is a switch of the framework (planner/switches), or that few frameworks have (Target.axes) -> the
    # compared codes; without an entry the first code. Under `zero` the stages of a rank that shares with no other.
    switches: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def mesh_steps(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """Steps that extend a mesh: field, options, and the degree that must exceed 1 for more than one option."""
        blocks = [block for block in self.problem.model.feed_forwards if isinstance(block, MixtureOfExperts)]
        widths = divisors(blocks[0].expert_inner) if blocks else (1,)
        return (
            ("sequence_parallel", (0, 1), "tp"),
            ("cp_algorithm", tuple(range(len(CP_ALGORITHMS))), "cp"),
            ("ep", divisors(blocks[0].experts) if blocks else (1,), ""),
            ("etp", widths, ""),
            ("ep_overlap", self.switches.get("ep_overlap", (0,)), ""),
            ("cuda_graphs", self.switches.get("cuda_graphs", (0,)), ""),
            ("offload_modules", self.switches.get("offload_modules", (0,)), ""),
            ("micro_batch", divisors(self.problem.workload.global_batch), ""),
        )

    def meshes(self, count: Count) -> Columns:
        """The legal meshes.

        `count` covers every factorisation of the GPUs with all layouts on it. Rules are applied as soon as their fields
        are bound. Excluded layouts are counted and never formed.
        """
        num_gpus = self.problem.num_gpus
        degrees = [
            (tp, cp, pp, num_gpus // (tp * cp * pp))
            for tp in divisors(num_gpus)
            for cp in divisors(num_gpus // tp)
            for pp in divisors(num_gpus // (tp * cp))
        ]
        columns: Columns = dict(zip(("tp", "cp", "pp", "dp"), np.array(degrees, dtype=np.int64).T, strict=True))
        columns["precision"] = np.full(len(degrees), PRECISIONS.index(self.problem.workload.precision), dtype=np.int64)
        weight = self.num_below(columns)
        for _, options, needs in self.mesh_steps:
            weight = weight * (np.where(columns[needs] > 1, len(options), 1) if needs else len(options))
        count.total = int(weight.sum())
        pending = [rule for rule in self.rules if set(rule.fields) <= set(MESH_FIELDS)]
        rows, _ = self._apply(pending, columns, weight, count, np.arange(len(weight)), {})
        columns, weight = select(columns, rows), weight[rows]
        for name, options, needs in self.mesh_steps:
            which = columns[needs] > 1 if needs else np.ones(len(columns["tp"]), dtype=bool)
            weight = weight // np.where(which, len(options), 1)
            rows, values = options_of_rows([options[:1], options], which)
            rows, more = self._apply(pending, columns, weight, count, rows, {name: values})
            columns, weight = {**select(columns, rows), **more}, weight[rows]
        return columns

    def _apply(
        self, pending: list[Rule], columns: Columns, weight: Ints, count: Count, rows: Ints, more: Columns
    ) -> tuple[Ints, Columns]:
        """Apply, count and remove the rules of `pending` whose fields are all bound.

        They apply to `rows` of `columns` and `weight`, with `more` columns. Only fields that a rule reads are formed.
        """
        for rule in [rule for rule in pending if set(rule.fields) <= {*columns, *more}]:
            pending.remove(rule)
            read = {name: more[name] if name in more else columns[name][rows] for name in rule.fields}
            ok = rule.allows(read, self.problem)
            if not ok.all():
                count.exclude(rule.name, int(weight[rows[~ok]].sum()))
                rows, more = rows[ok], select(more, ok)
        return rows, more

    def without(self, name: str) -> Space:
        """The layouts that pass all other rules than those of this name."""
        return replace(self, rules=tuple(rule for rule in self.rules if rule.name != name))

    def axis_sizes(self) -> dict[str, int]:
        """The number of values of each axis, before any rule."""
        degrees = len(divisors(self.problem.num_gpus))
        sizes = {"tp": degrees, "cp": degrees, "pp": degrees, "dp": degrees, "shard": degrees}
        sizes.update({name: len(options) for name, options, _ in self.mesh_steps})
        sizes["schedule"], sizes["vpp"] = len(KINDS), self.deepest(2)
        sizes["recompute"] = len(self.recomputes(1)["recompute"])
        sizes["zero"], sizes["offload"] = 4, len(OFFLOADS)
        return sizes

    def num_below(self, columns: Columns) -> Ints:
        """The number of layouts on each mesh: schedules x recomputes x (states and shards)."""
        pps, at_pp = np.unique(columns["pp"], return_inverse=True)
        by_pp = np.array([len(self.schedules(p)["vpp"]) * len(self.recomputes(p)["recompute"]) for p in pps.tolist()])
        ranks, at_ranks = np.unique(columns["dp"] << 32 | columns["cp"], return_inverse=True)
        by_ranks = np.array([self._num_states(int(r >> 32), int(r & 0xFFFFFFFF)) for r in ranks])
        return np.asarray(by_pp[at_pp] * by_ranks[at_ranks], dtype=np.int64)

    def _num_states(self, dp: int, cp: int) -> int:
        zeros = set(self.states(dp * cp)["zero"].tolist())
        return len(OFFLOADS) * sum(len(self.shards(dp, cp, zero)) for zero in zeros)

    def deepest(self, pp: int) -> int:
        """The largest number of chunks per stage. Even splits need a layer per inner chunk; given stages need none."""
        given = self.problem.stages
        return max((self.problem.most_chunks if given is None else len(given)) // pp, 1)

    def schedules(self, pp: int) -> Columns:
        """Schedule and chunks per stage; interleaved with every number of chunks from 2 to the deepest."""
        if pp == 1:
            return {"schedule": np.array([CODE["1f1b"]]), "vpp": np.array([1])}
        deepest = self.deepest(pp)
        rows = [(code, kind.chunks) for code, kind in enumerate(KINDS) if kind.chunks is not None]
        rows += [(code, vpp) for code in np.flatnonzero(INTERLEAVED).tolist() for vpp in range(2, deepest + 1)]
        options = np.array(rows, dtype=np.int64)
        return {"schedule": options[:, 0], "vpp": options[:, 1]}

    @cached_property
    def modules(self) -> tuple[int, ...]:
        """Bits of the model's modules."""
        present = present_modules(self.problem.model)
        return tuple(1 << bit for bit in range(len(MODULES)) if present >> bit & 1)

    def recomputes(self, pp: int) -> Columns:
        """Recomputation of nothing, of a set of modules, of everything, or of the first n layers of a stage.

        Or offload of the first n layers, which excludes pipelines and recomputation.
        """
        masks = [0]
        for bit in self.modules:
            masks += [mask | bit for mask in masks]
        none, selective, full = (RECOMPUTE_MODES.index(name) for name in ("none", "selective", "full"))
        longest = -(-self.problem.model.num_layers // pp)
        rows = [(none, 0, 0, 0), *((selective, mask, 0, 0) for mask in masks[1:]), (full, 0, 0, 0)]
        rows += [(full, 0, n, 0) for n in range(1, longest)]
        if pp == 1 and not self.problem.on_host:
            rows += [(none, 0, 0, n) for n in self.switches.get("offload_layers", ()) if 0 < n < longest]
        return dict(zip(RECOMPUTE_FIELDS, np.array(rows, dtype=np.int64).T, strict=True))

    def states(self, ranks: int) -> Columns:
        """ZeRO stage (without ranks to shard over, `ranks` = dp x cp, 0 or those of `switches`) and offload."""
        stages = range(4) if ranks > 1 else self.switches.get("zero", (0,))
        rows = [(z, o) for z in stages for o in range(len(OFFLOADS))]
        return dict(zip(STATE_FIELDS, np.array(rows, dtype=np.int64).T, strict=True))

    def has_options(self, columns: Columns) -> Mask:
        """Rows, of layouts of another space of the same model, batch and GPUs, whose switches this space compares."""
        steps = [(name, options) for name, options, _ in self.mesh_steps]
        steps.append(("offload_layers", (0, *self.switches.get("offload_layers", ()))))
        known = [np.isin(columns[name], options) for name, options in steps]
        alone = columns["dp"] * columns["cp"] == 1
        known += [~alone | np.isin(columns["zero"], self.switches.get("zero", (0,)))]
        return np.asarray(np.all(known, axis=0))

    def shards(self, dp: int, cp: int, zero: int) -> tuple[int, ...]:
        """Sizes of the shard group: dp without ZeRO; else the divisors of dp that shard at all."""
        return (dp,) if zero == 0 else shard_sizes(dp, cp)


def grow(columns: Columns, name: str, choices: Sequence[tuple[int, ...]], which: Ints | Mask) -> dict[str, Ints]:
    """Repeat each row once per option of `choices[which]` and add the option as column `name`."""
    rows, values = options_of_rows(choices, which)
    return {**select(columns, rows), name: values}


def options_of_rows(choices: Sequence[tuple[int, ...]], which: Ints | Mask) -> tuple[Ints, Ints]:
    """Each row once per option of `choices[which]`, and the option."""
    which = np.asarray(which).astype(np.int64)
    lengths = np.array([len(options) for options in choices], dtype=np.int64)[which]
    flat = np.concatenate([np.array(options, dtype=np.int64) for options in choices])
    starts = np.cumsum([0, *(len(options) for options in choices)])[:-1][which]
    rows = np.repeat(np.arange(len(which)), lengths)
    shift = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return rows, flat[np.arange(len(rows)) + shift]


def cross(left: Columns, right: Columns) -> dict[str, Ints]:
    """Every row of `left` with every row of `right`."""
    n, k = len(next(iter(left.values()))), len(next(iter(right.values())))
    out = {name: np.repeat(column, k) for name, column in left.items()}
    out.update({name: np.tile(column, n) for name, column in right.items()})
    return out


def paired(left: Columns, right: Columns, which: Mask) -> dict[str, Ints]:
    """The pairs of a row of `left` and a row of `right` that `which` [left, right] has."""
    of_left, of_right = np.nonzero(which)
    return {**select(left, of_left), **select(right, of_right)}


def select(columns: Columns, rows: Ints | Mask | slice) -> dict[str, Ints]:
    """The rows (indices, mask, or slice) of all columns; of a mask of all rows, the columns themselves."""
    if isinstance(rows, np.ndarray) and rows.dtype == bool:
        if rows.all():
            return dict(columns)
        rows = np.flatnonzero(rows)  # scan the mask once, not once per column
    return {name: column[rows] for name, column in columns.items()}


def joined(parts: Iterable[Columns], rows: int) -> Iterator[Columns]:
    """The parts, of equal columns. Those in a row are concatenated until they have as many rows."""
    waiting: list[Columns] = []
    for part in parts:
        waiting.append(part)
        if sum(len(each["tp"]) for each in waiting) >= rows:
            yield _concatenated(waiting)
            waiting = []
    if waiting:
        yield _concatenated(waiting)


def _concatenated(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def allowed(rules: Sequence[Rule], columns: Columns, problem: Problem) -> Mask:
    """Rows that pass all `rules`."""
    ok = np.ones(len(columns["tp"]), dtype=bool)
    for rule in rules:
        ok &= rule.allows(columns, problem)
    return ok


if set().union(*LEVELS) != set(FIELD_NAMES):  # a field without a level would silently never be searched
    raise RuntimeError(f"no level for {set(FIELD_NAMES) - set().union(*LEVELS)}")
