"""mpiGraph's table of what every task sends to every other: one task per node. MB are 2**20 bytes there."""

from __future__ import annotations

from .base import Imported, Importer, Nodes, fail, twice


def read(name: str, text: str) -> Imported:
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("Send\t") and line.count(":")), None)
    if start is None:
        raise fail(name, 0, "has no table `Send`", "the whole output of mpiGraph, one task per node")
    tasks = lines[start].split()[1:]
    hosts = [task.rpartition(":")[0] for task in tasks]
    if again := sorted({host for host in hosts if hosts.count(host) > 1}):
        raise fail(name, start + 1, f"several tasks on {', '.join(again)}", "run one task per node: `srun -n 8 -N 8`")
    twice(name, hosts)
    rows = []
    for i, task in enumerate(tasks):
        number = start + 2 + i
        words = lines[number - 1].split() if number <= len(lines) else []
        if words[:2] != [task, "to"] or len(words) != len(tasks) + 2:
            raise fail(name, number, f"the row of {task} with {len(tasks)} numbers is missing: the matrix has a hole")
        rows.append(tuple(_speed(name, number, word, i == j) for j, word in enumerate(words[2:])))
    return Imported(groups=(Nodes(hosts=tuple(hosts)),), matrix=tuple(rows),
                    notes=("mpiGraph sends around a ring, each task both ways at once",))  # fmt: skip


def _speed(name: str, line: int, word: str, diagonal: bool) -> float:
    try:
        value = float(word) * 2**20
    except ValueError:
        raise fail(name, line, f"`{word}` is no number of MB/s") from None
    if not diagonal and not 0 < value < float("inf"):
        raise fail(name, line, f"`{word}`: nothing was sent: the matrix has a hole", "measure again with all nodes")
    return value


def recognises(text: str) -> bool:
    return "START mpiGraph" in text


IMPORTER = Importer("output of mpiGraph, one task per node", recognises, read)
