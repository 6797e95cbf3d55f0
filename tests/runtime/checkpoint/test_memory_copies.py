"""Copies in the memory of two nodes: any node may be lost, and a run goes on from the newest whole generation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.cli.elastic import check_nodes
from meshwright.planner.document.reading import load_plan
from meshwright.runtime import reference
from meshwright.runtime.checkpoint.checkpoint import StorageError
from meshwright.runtime.checkpoint.manifest import NAME, PARTIAL, File, Manifest, folder_name, saved_in
from meshwright.runtime.checkpoint.memory_copies import GENERATIONS, MemoryCopies, Room
from meshwright.runtime.checkpoint.restore_copies import Pick, check_shared_memory, free_bytes, held, orders, restore
from meshwright.runtime.checkpoint.slices import Piece
from meshwright.runtime.job import Job
from meshwright.runtime.nodes import Nodes
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.report import Event, Recorder, event_line
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from meshwright.errors import InputError

from ..fork import TIMEOUT_S, fork
from ..jobs import job
from ..techniques_of import trained_by
from .test_checkpoint import HOW, trained

LAYOUT = "dp4-sh2-mbs1-z1-rnone"  # on nodes of two ranks
NEXT = "dp2-mbs2-z3-rnone"


def folder_of(top: Path, node: int) -> Path:
    return top / f"node-{node}"


def copied(
    wanted: Job, top: Path, steps: list[int], *, per_node: int = 2, folder: Path | None = None, done: int = 0,
    kind: type[MemoryCopies] = MemoryCopies,
) -> list[Any]:  # fmt: skip
    """Trains and copies after each of `steps`. Returns rank 0's room and its events."""

    def one(rank: int) -> tuple[Room, list[Event]]:
        os.environ.update(GROUP_RANK=str(rank // per_node), LOCAL_RANK=str(rank % per_node))
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        where = folder or folder_of(top, rank // per_node)
        copies = kind(trainer, where, timeout_s=TIMEOUT_S, done=done)
        room, events = copies.check_room(), list[Event]()
        for index in range(max(steps, default=0)):
            trainer.step(index)
            if index + 1 in steps:
                events.append(copies.copy(index + 1))
        return room, events

    return fork(wanted.world_size, one)


def reports(top: Path, nodes: list[int]) -> Mapping[int, Mapping[str, list[str]]]:
    return {node: held(str(folder_of(top, node))) for node in nodes}


def restored(top: Path, disk: Path, nodes: list[int]) -> list[str]:
    """The lines of all nodes; node 0, which waits for the others, comes last."""
    disk.mkdir(exist_ok=True)
    lines = list[str]()
    given = orders(str(disk), str(folder_of(top, 0)), reports(top, nodes), lines.append)
    for node in reversed(nodes):
        restore(given, str(disk), str(folder_of(top, node)), node, 0.2, lines.append)
    return lines


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Room, list[Event]]:
    """Copies of the steps 1 to 3 of a run of 6 ranks on three nodes."""
    top = tmp_path_factory.mktemp("memory")
    wanted = job("dp6-sh3-mbs1-z1-rnone", **(HOW | {"global_batch": 12}))
    room, events = copied(wanted, top, [1, 2, 3])[0]
    return top, room, events


def test_two_generations_of_two_nodes_take_the_memory_that_was_planned(
    three_nodes: tuple[Path, Room, list[Event]],
) -> None:
    top, room, events = three_nodes
    assert [event["event"] for event in events] == ["copy"] * 3
    for node in range(3):
        generations = saved_in(folder_of(top, node))
        assert [path.name for path in generations] == [folder_name(3), folder_name(2)]
        assert GENERATIONS == 2
        ranks = {2 * node, 2 * node + 1, (2 * node - 2) % 6, (2 * node - 1) % 6}
        names = {path.name for path in generations[0].glob("__*")}
        assert names == {name for name in Manifest.read(generations[0]).files if name.startswith("__")
                         and int(name.split("_")[2]) in ranks}  # fmt: skip
    taken = sum(path.stat().st_size for path in folder_of(top, room.node).rglob("*") if path.is_file())
    assert taken <= room.needed <= 3 * taken  # boxes of 60 floats beside the headers of their archives


@pytest.mark.parametrize(("technique", "knobs"), [("noloco", {"period": 2}), ("1-bit-adam", {"warmup": 0.5})])
def test_states_of_techniques_take_the_memory_that_was_planned(
    technique: str, knobs: dict[str, float], tmp_path: Path
) -> None:  # fmt: skip
    wanted = trained_by(technique, "dp2-mbs1-z0-rnone", knobs)
    room, _ = copied(wanted, tmp_path, [1, 2], per_node=1)[0]
    taken = sum(path.stat().st_size for path in folder_of(tmp_path, room.node).rglob("*") if path.is_file())
    assert taken <= room.needed <= 3 * taken


class Reporting(MemoryCopies):
    """Fails with the status of a rank that copies."""

    def _write(self, partial: Path, contents: Sequence[Piece]) -> None:
        raise StorageError(self.status.doing)


def test_the_status_of_a_rank_that_copies_names_the_copy(tmp_path: Path) -> None:
    _, events = copied(job("dp2-mbs1-z0-rnone", **HOW), tmp_path, [1], per_node=1, kind=Reporting)[0]
    assert events == [{"event": "not_copied", "step": 1, "reason": "copying the states of step 1 to memory"}]


@pytest.mark.parametrize("lost", [1, 2])
def test_any_node_but_the_first_can_be_lost(lost: int, three_nodes: tuple[Path, Room, list[Event]],
                                            tmp_path: Path) -> None:  # fmt: skip
    top, rest = three_nodes[0], [node for node in range(3) if node != lost]
    lines = restored(top, tmp_path / "disk", rest)
    assert lines[-1].startswith("step-00000003 is written to ")
    wanted = replace(job(NEXT, **(HOW | {"global_batch": 12})), steps=5)
    found, steps = trained(wanted, tmp_path / "disk", 5, resume=True)
    assert found is not None
    assert found.step == 3
    expected = [step.loss for step in reference.train(wanted)]
    assert [step.loss for step in steps] == pytest.approx(expected[3:], rel=1e-12)


def test_two_neighbours_cannot_be_lost(three_nodes: tuple[Path, Room, list[Event]], tmp_path: Path) -> None:
    """The files of the first one are nowhere then, and the last checkpoint is taken."""
    assert orders(str(tmp_path), str(folder_of(three_nodes[0], 0)), reports(three_nodes[0], [0]), print) == {}
    assert not list(tmp_path.iterdir())


@pytest.fixture
def memory(three_nodes: tuple[Path, Room, list[Event]], tmp_path: Path) -> Path:
    """The copies, to be damaged."""
    shutil.copytree(three_nodes[0], tmp_path / "memory")
    return tmp_path / "memory"


@pytest.mark.parametrize("damage", ["cut", "gone", "unnamed"])
def test_a_torn_generation_is_passed_over(damage: str, memory: Path, tmp_path: Path) -> None:
    """A node was lost while another had not finished the last copy: the one before it is whole."""
    torn = folder_of(memory, 0) / folder_name(3)
    name = next(name for name in Manifest.read(torn).files if name.startswith("__4"))  # of node 2, which is lost
    if damage == "cut":
        (torn / name).write_bytes((torn / name).read_bytes()[:-1])
    elif damage == "gone":
        (torn / name).unlink()
    else:
        torn.rename(torn.with_name(PARTIAL + torn.name))
    assert restored(memory, tmp_path / "disk", [0, 1])[-1].startswith("step-00000002 is written")
    assert [path.name for path in saved_in(tmp_path / "disk")] == [folder_name(2)]


def test_a_checkpoint_that_is_as_new_is_taken(memory: Path, tmp_path: Path) -> None:
    (tmp_path / "disk" / folder_name(3)).mkdir(parents=True)
    assert restored(memory, tmp_path / "disk", [0, 1, 2]) == []


def test_a_node_that_does_not_write_its_part_costs_the_copy_alone(memory: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    lines = list[str]()
    given = orders(str(disk), str(folder_of(memory, 0)), reports(memory, [0, 1, 2]), lines.append)
    assert set(Pick.of(given["copy"]).files) == {0, 1, 2}
    restore(given, str(disk), str(folder_of(memory, 0)), 0, 0.1, lines.append)
    assert lines == ["step-00000003: other nodes did not write their part within 0 s; the last checkpoint is taken"]
    assert not list(disk.iterdir())


def test_memory_that_is_too_small_is_refused_with_the_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.runtime.checkpoint.memory_copies.free_bytes", lambda folder: 123 << 10)
    with pytest.raises(RuntimeError, match=r"(?s)--copy-every: node \d needs 2 x \([\d.]+ of its own \+ [\d.]+ of the "
                                           r"node before it\) = [\d.]+ MiB, .* has 0\.1 MiB free"):  # fmt: skip
        copied(job(LAYOUT, **HOW), tmp_path, [])


def test_memory_that_fills_up_under_way_costs_the_copy_alone(tmp_path: Path) -> None:
    """A file where the folder would be stands for it: every write fails."""
    (tmp_path / "taken").write_text("x")
    _, events = copied(job(LAYOUT, **HOW), tmp_path, [1, 2], folder=tmp_path / "taken" / "copies")[0]
    assert [event["event"] for event in events] == ["not_copied"] * 2
    assert event_line(events[0], job(LAYOUT)).startswith("step 1 was not copied in memory: rank 0: Not a directory")
    recorder = Recorder(job(LAYOUT), [])
    recorder.add(events[0])
    assert recorder.document()["not_copied"] == [{"step": 1, "reason": events[0]["reason"]}]


class TornOnNodeOne(MemoryCopies):
    """A manifest cannot be written on node 1 in step 2: a folder is in its place."""

    def _share(self, partial: Path, digests: Sequence[dict[str, File]]) -> None:
        super()._share(partial, digests)
        if self.node == 1 and self.leads and partial.name.endswith(folder_name(2)):
            (partial / NAME).mkdir()


def test_a_copy_that_fails_on_one_node_stays_on_none(tmp_path: Path) -> None:
    _, events = copied(job(LAYOUT, **HOW), tmp_path, [1, 2, 3], kind=TornOnNodeOne)[0]
    assert [event["event"] for event in events] == ["copy", "not_copied", "copy"]
    for node in range(2):
        assert [path.name for path in saved_in(folder_of(tmp_path, node))] == [folder_name(3), folder_name(1)]


def test_copies_of_steps_that_are_not_done_are_removed(memory: Path) -> None:
    """Node 2 lost its memory in step 3, and the run started again after step 2: step 3 is whole nowhere."""
    shutil.rmtree(folder_of(memory, 2) / folder_name(3))
    copied(job("dp6-sh3-mbs1-z1-rnone", **(HOW | {"global_batch": 12})), memory, [], done=2)
    for node in range(3):
        assert [path.name for path in saved_in(folder_of(memory, node))] == [folder_name(2)]


def test_a_folder_that_cannot_be_made_is_named(memory: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").write_text("a file")
    lines = list[str]()
    disk, of_node_0 = str(tmp_path / "disk" / "ckpt"), str(folder_of(memory, 0))
    assert orders(disk, of_node_0, reports(memory, [0, 1, 2]), lines.append) == {}
    assert lines == ["step-00000003: Not a directory; the last checkpoint is taken"]


def test_the_memory_that_is_free_counts_older_copies(tmp_path: Path) -> None:
    before = free_bytes(tmp_path / "copies")
    assert 0 < before <= shutil.disk_usage(tmp_path).free + (1 << 20)
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "file").write_bytes(bytes(1 << 24))
    assert abs(free_bytes(tmp_path / "copies") - before) < (1 << 27)


def test_a_run_on_one_node_and_a_node_without_shared_memory_are_refused(two_ranks: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one node, and a copy in its memory does not survive it"):
        check_nodes(load_plan(two_ranks), Nodes(1, 8), elastic=False, copy_every=5)
    with pytest.raises(InputError, match=r"missing, the shared memory of this node, is missing"):
        check_shared_memory(tmp_path / "missing")
