"""Lower bounds of pipelines over islands, for many layouts at once: linear programs whose multipliers are shared.

The layers of one layout are divided by the continuous program of `stages/ilp.py`: paths through the schedule, memory at
every moment, no chunk inside without a layer. Its multipliers prove its value. The same multipliers prove a bound of
every other layout of the same schedule, stages, micro-batches and order of islands (weak duality). With weights w_P of
the paths P, u_d of the data-parallel messages of devices d that nothing hides, y_d of their bytes, z_c of the chunks c
that may not be empty and v_c of those of a V:

  step >= sum_P w_P (messages + edges)(P) + sum_d u_d edges(d) + sum_c z_c - sum_d y_d room_d
          + sum_k layers_k min_c price(c, k)
  price(c, k) = sum_P w_P seconds(P, c, k) + u_d(c) unhidden(c, k) + y_d(c) bytes(c, k) - z_c + v_c

whatever the multipliers are, as long as none is negative, the w_P add up to 1 and the u_d to at most 1. So the
multipliers of each program are tried on all layouts like it, which costs a few products, and few layouts need a
program of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import highspy
import numpy as np

from ...cost_models.arrays import Array, Ints
from ...cost_models.schedules import simulator
from ...cost_models.schedules.critical_path import Path, device_path, longest_paths
from ...cost_models.schedules.simulator import Costs, Schedule
from .columns import PipelineColumns

_ROUNDS = 5  # programs per layout at most, after the first
_LONGEST = 16  # paths of an answer that enter the next program
_KNOWN = 96  # paths that the next layout starts with, beside those along devices
_SETTLED = 1e-3  # relative: the rounds end once no path is longer than the answer by more
_PASSES = ("forward", "inputs", "weights")  # of a path
_OVERFLOW = 64.0  # steps that twice the memory of a device costs: so every program has a solution


@dataclass(frozen=True, eq=False)
class Multipliers:
    """The proof of a bound."""

    passes: Array  # [pass, chunk] how often the mean path runs each
    hops: Array  # [2, chunk] messages on it that bring a chunk its input, and its gradient
    links: Array  # [2, chunk] messages on it that only keep the link busy
    ends: Array  # [device] share of the paths that end on each, before messages that nothing hides
    per_byte_s: Array  # [device, moment]
    filled_s: Array  # [chunk] z
    folded_s: Array  # [chunk] v: below 0 on the way there, the opposite on the way back
    layer_s: float  # of the layout of the program: a layer on the mean chunk
    layer_bytes: float  # the same


@dataclass(eq=False)
class Relaxation:
    """The layouts of a class in one order of the islands."""

    columns: PipelineColumns
    schedule: Schedule
    on: Ints  # [device] the island, as the columns number them
    memory_bytes: Array  # [device]
    num_folded: int  # PartitionProblem.num_folded
    growth: float  # factor on a step, for stragglers
    paths: list[Path]  # known of the schedule: other orders share and extend them
    before: Ints = field(init=False)  # [2, chunk] the island from which its input, and its gradient, come
    at: Ints = field(init=False)  # [2, chunk] its own

    def __post_init__(self) -> None:
        if not self.paths:
            self.paths += [device_path(self.schedule, device) for device in range(len(self.on))]
        island = self.on[self.columns.devices]
        # Messages are priced as the pipeline prices them: those of a gradient from here to the next chunk.
        self.before = np.array([[island[0], *island[:-1]], island])
        self.at = np.array([island, [*island[1:], island[-1]]])

    def bounds(self, proof: Multipliers, rows: Ints) -> Array:
        """[row] seconds of a step that no partition of these layouts beats."""
        x, island, devices = self.columns, self.at[0], self.columns.devices
        pass_s, kept = x.pass_s[..., rows], x.kept_bytes[..., rows]
        scale = self.layer_s[rows] / proof.layer_s
        per_byte = scale * proof.layer_bytes / self.layer_bytes[rows]  # of the multipliers of bytes
        is_on = np.equal.outer(np.arange(pass_s.shape[1]), island).astype(np.float64)
        of_edges = np.einsum("gc,pc,ck->pgk", is_on, proof.passes, x.edges)  # how often edges run on an island
        price_s = np.einsum("pc,pckn->ckn", proof.passes, pass_s[:, island][:, :, x.kinds])
        of_moments = np.concatenate([np.ones_like(x.moments[:1]), x.moments])  # [3, chunk, moment]
        held = np.einsum("cm,bcm->cb", proof.per_byte_s[devices], of_moments)
        price_s += np.tensordot(held, kept, 1) * per_byte
        unhidden_s = proof.ends[devices, None, None] * x.never_hidden_s[..., rows][island]
        price_s += unhidden_s[:, x.kinds]
        price_s += ((proof.folded_s - proof.filled_s)[:, None] * scale)[:, None]
        room = self.memory_bytes[:, None, None] - x.fixed_bytes[..., rows]
        fixed_s = np.tensordot(of_edges, pass_s, 3) + self._messages_s(proof.hops, proof.links, rows)
        fixed_s += np.tensordot(x.edges, unhidden_s, 2)
        fixed_s += proof.filled_s.sum() * scale - np.tensordot(proof.per_byte_s, room, 2) * per_byte
        return np.asarray(self.growth * (fixed_s + x.layers @ price_s.min(axis=0) + x.update_s[rows]))

    def prove(self, row: int, enough_s: float) -> tuple[Multipliers, bool]:
        """The multipliers of the program of one layout, and whether more paths would not raise its bound. enough_s: a
        bound at which no more paths are looked for."""
        program, is_last = _Program(self, row), False
        for _ in range(_ROUNDS):
            if self.growth * (program.value_s + float(self.columns.update_s[row])) >= enough_s:
                break
            longest, longest_s = self._longest(row, program.layers)
            is_last = program.value_s >= longest_s * (1 - _SETTLED)
            if is_last:
                break
            self.paths += longest
            program.extend(longest)
        else:
            is_last = True
        multipliers = program.multipliers
        del self.paths[len(self.on) : -_KNOWN]
        return multipliers, is_last

    @cached_property
    def layer_s(self) -> Array:
        """[layout] seconds of a layer on the mean chunk"""
        x = self.columns
        weights = np.bincount(self.at[0], minlength=x.pass_s.shape[1]) / len(x.devices)
        return np.asarray(np.einsum("g,k,pgkn->n", weights, self._kind_shares, x.pass_s[:, :, x.kinds]))

    @cached_property
    def layer_bytes(self) -> Array:
        """[layout] bytes of a layer on the mean chunk in the mean moment"""
        held = np.concatenate([[1.0], self.columns.moments.mean(axis=(1, 2))])
        return np.asarray(np.einsum("b,k,bkn->n", held, self._kind_shares, self.columns.kept_bytes))

    @property
    def _kind_shares(self) -> Array:
        return np.asarray(self.columns.layers / self.columns.layers.sum())

    def _messages_s(self, hops: Array, links: Array, rows: Ints) -> Array:
        """[row] seconds of [2, chunk] messages."""
        seconds = self.columns.message_s[:, self.before, self.at][..., rows]  # [2, way, chunk, row]
        return np.asarray(np.einsum("swc,swcn->n", np.array([hops, links]), seconds))

    def of_row(self, row: int) -> tuple[Array, Array, Array, Array]:
        """For one layout: [pass, chunk, layer kind] seconds of a layer, [pass, chunk] of edges, [2, way, chunk] of
        messages, [chunk, moment, layer kind] bytes of a layer."""
        x = self.columns
        pass_s, (states, saved, stash) = x.pass_s[..., row][:, self.at[0]], x.kept_bytes[..., row]
        resident = states + x.moments[0][..., None] * saved + x.moments[1][..., None] * stash
        edge_s = np.einsum("ck,pck->pc", x.edges, pass_s)
        return pass_s[:, :, x.kinds], edge_s, x.message_s[:, self.before, self.at][..., row], resident

    def _longest(self, row: int, layers: Array) -> tuple[list[Path], float]:
        """The longest paths of a partition, and seconds of the longest with the messages that nothing hides. layers:
        [chunk, layer kind]"""
        layer_s, edge_s, message_s, _ = self.of_row(row)
        forward_s, input_s, weight_s = (np.einsum("ck,pck->pc", layers, layer_s) + edge_s).tolist()
        hops, links = message_s.tolist()
        costs = Costs(forward_s=tuple(forward_s), input_s=tuple(input_s), weight_s=tuple(weight_s),
                      forward_hop_s=tuple(hops[0]), backward_hop_s=tuple(hops[1]), forward_link_s=tuple(links[0]),
                      backward_link_s=tuple(links[1]), unhidden_s=tuple(self._unhidden_s(row, layers)))  # fmt: skip
        timeline = simulator.simulate(self.schedule, costs)
        latest = np.argsort(-timeline.passes_end_s, kind="stable")[:_LONGEST]
        return longest_paths(timeline, latest.tolist()), float(timeline.passes_end_s.max())

    def _unhidden_s(self, row: int, layers: Array) -> list[float]:
        """[device] seconds of messages that nothing hides. layers: [chunk, layer kind]"""
        of_layers, edges = self.unhidden_rows(row)
        unhidden_s: list[float] = (of_layers.reshape(len(edges), -1) @ layers.ravel() + edges).tolist()
        return unhidden_s

    def unhidden_rows(self, row: int) -> tuple[Array, Array]:
        """[device, chunk, layer kind] seconds of a layer of messages that nothing hides, [device] those of edges."""
        x = self.columns
        of_chunks = x.never_hidden_s[..., row][self.at[0]]
        on_device = np.equal.outer(np.arange(len(self.on)), x.devices).astype(np.float64)
        return on_device[..., None] * of_chunks[:, x.kinds], on_device @ (x.edges * of_chunks).sum(axis=1)


class _Program:
    """The continuous program of one layout, solved. Its variables: n[chunk, kind], the seconds of the pipeline with the
    messages that nothing hides, and the share of the memory that the fullest device lacks."""

    def __init__(self, of: Relaxation, row: int) -> None:
        self.of = of
        self.layer_s, self.edge_s, self.message_s, self.resident = of.of_row(row)
        self.unhidden_s = of.unhidden_rows(row)
        self.num_chunks, self.num_kinds = self.layer_s.shape[1:]
        self.scales = float(of.layer_s[row]), float(of.layer_bytes[row])
        self.unit = self.scales[0] * of.schedule.num_micro_batches  # solvers like values near 1
        blocks = [self._memory_rows(row), self._filled_rows(), self._folded_rows()]
        self.sizes = [len(limits) for _, limits in blocks]
        self.solver = self._empty()
        self._add(*self._placed_rows(), equal=True)
        for rows, limits in blocks:
            self._add(rows, limits)
        self.extend(of.paths)

    def _empty(self) -> highspy.Highs:
        """A solver with the variables and the goal, without rows."""
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        width = self.num_chunks * self.num_kinds + 2
        # To presolve programs of some fifteen variables takes as long as to solve them.
        for option, value in (("output_flag", False), ("threads", 1), ("presolve", "off")):
            solver.setOptionValue(option, value)
        cost = np.zeros(width)
        cost[-2:] = 1.0, _OVERFLOW * float(self.of.columns.layers.sum()) / len(self.of.on)
        none: Ints = np.zeros(0, dtype=np.int32)
        solver.addCols(width, cost, np.zeros(width), np.full(width, highspy.kHighsInf), 0, none, none, np.zeros(0))
        return solver

    def _add(self, rows: Array, limits: Array, *, equal: bool = False) -> None:
        """Rows of at most `limits`, or of just as much."""
        row, column = np.nonzero(rows)
        starts = np.searchsorted(row, np.arange(len(rows)))
        least = limits if equal else np.full(len(limits), -highspy.kHighsInf)
        self.solver.addRows(len(rows), least, limits, len(row), starts.astype(np.int32), column.astype(np.int32),
                            rows[row, column])  # fmt: skip

    def extend(self, paths: Sequence[Path]) -> None:
        """Add paths, and solve the program from where it stands."""
        self._add(*self._path_rows(paths))
        self.solver.run()

    @property
    def value_s(self) -> float:
        """Seconds of the pipeline with messages that nothing hides, at least."""
        return float(self.solver.getInfo().objective_function_value) * self.unit

    @property
    def layers(self) -> Array:
        """[chunk, layer kind] of the answer"""
        values = np.array(self.solver.getSolution().col_value[:-2], dtype=np.float64)
        return np.maximum(values, 0.0).reshape(self.num_chunks, self.num_kinds)  # off by up to 1e-12

    @property
    def multipliers(self) -> Multipliers:
        duals = np.maximum(-np.array(self.solver.getSolution().row_dual), 0.0)
        _, memory, filled, folded, weights = np.split(duals, np.cumsum([self.num_kinds, *self.sizes]))
        # Any multipliers prove a bound, so a program that the solver gave up on needs no care.
        weights = weights / weights.sum() if weights.any() else np.full(len(weights), 1.0 / len(weights))
        v = np.concatenate([-folded, np.zeros(self.num_chunks - 2 * len(folded)), folded[::-1]])
        used, paths = np.flatnonzero(weights), self.of.paths

        def mean(*names: str) -> Array:
            of_paths = np.array([[getattr(paths[i], name) for name in names] for i in used])
            return np.asarray(np.tensordot(weights[used], of_paths, 1))

        return Multipliers(
            passes=mean(*_PASSES), hops=mean("hops")[0], links=mean("links")[0], layer_s=self.scales[0],
            layer_bytes=self.scales[1], folded_s=self.unit * v,
            ends=np.bincount([paths[i].device for i in used], weights[used], len(self.of.on)).astype(np.float64),
            per_byte_s=self.unit * memory.reshape(len(self.of.on), -1) / self.of.memory_bytes[:, None],
            filled_s=self.unit * np.concatenate([[0.0], filled, [0.0]]),
        )  # fmt: skip

    def _placed_rows(self) -> tuple[Array, Array]:
        """All layers are somewhere."""
        return self._with(np.tile(np.eye(self.num_kinds), self.num_chunks)), self.of.columns.layers

    def _path_rows(self, paths: Sequence[Path]) -> tuple[Array, Array]:
        """Every path is as long as the pipeline at most, with the messages of its last device that nothing hides."""
        passes = np.array([[getattr(path, name) for name in _PASSES] for path in paths])
        hops, links = (np.array([getattr(path, name) for path in paths]) for name in ("hops", "links"))
        of_layers, of_edges = (seconds[[path.device for path in paths]] for seconds in self.unhidden_s)
        layers = (np.einsum("qpc,pck->qck", passes, self.layer_s) + of_layers).reshape(len(paths), -1)
        fixed = np.tensordot(passes, self.edge_s, 2) + of_edges
        fixed += np.tensordot(hops, self.message_s[0], 2) + np.tensordot(links, self.message_s[1], 2)
        return self._with(layers / self.unit, pipeline=-1.0), -fixed / self.unit

    def _memory_rows(self, row: int) -> tuple[Array, Array]:
        """Every device holds its layers at every moment."""
        x, memory = self.of.columns, self.of.memory_bytes
        on_device = np.equal.outer(np.arange(len(memory)), x.devices)
        held = on_device[:, None, :, None] * self.resident.swapaxes(0, 1) / memory[:, None, None, None]
        room = 1.0 - x.fixed_bytes[..., row] / memory[:, None]
        return self._with(held.reshape(room.size, -1), lacking=-1.0), room.ravel()

    def _filled_rows(self) -> tuple[Array, Array]:
        """Only the first and the last chunk may be empty."""
        inner = self._of_chunks[1:-1]
        return self._with(-inner), np.full(len(inner), -1.0)

    def _folded_rows(self) -> tuple[Array, Array]:
        """Rows of a V: no more layers come back than went there."""
        folded = self.of.num_folded
        rows = self._of_chunks[::-1][:folded] - self._of_chunks[:folded]
        return self._with(rows), np.zeros(folded)

    @property
    def _of_chunks(self) -> Array:
        """[chunk, variable n]"""
        return np.repeat(np.eye(self.num_chunks), self.num_kinds, axis=1)

    @staticmethod
    def _with(rows: Array, *, pipeline: float = 0.0, lacking: float = 0.0) -> Array:
        return np.column_stack([rows, np.tile([pipeline, lacking], (len(rows), 1))])
