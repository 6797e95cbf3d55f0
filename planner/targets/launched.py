"""Ranks that a launcher starts, from its words: torchrun, deepspeed, accelerate, srun, mpirun, jsrun."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from .argv import Arguments, launcher_name
from .shell.values import marks, shown

# Options of launchers that set the number of ranks: torchrun, deepspeed, srun, mpirun; accelerate 1.15
# (commands/launch.py), which counts the processes of all machines.
_LAUNCHERS = {
    "--nnodes": "num_nodes", "--num-nodes": "num_nodes", "--nodes": "num_nodes", "-N": "num_nodes",
    "--nproc-per-node": "gpus_per_node", "--num-gpus": "gpus_per_node", "--ntasks-per-node": "gpus_per_node",
    "--gpus-per-node": "gpus_per_node", "-np": "world", "--ntasks": "world", "--num-processes": "world",
}  # fmt: skip
# Launchers whose `-n` counts tasks: Slurm 25.05, srun(1); Open MPI 5.0, mpirun(1); MPI-4.1, section 11.5.
_COUNT_TASKS = {"srun", "mpirun", "mpiexec"}
# Options of jsrun: resource sets, tasks of one, and sets of a host.
_SETS = {"--nrs": "sets", "-n": "sets", "--tasks_per_rs": "tasks", "-a": "tasks", "--rs_per_host": "hosted",
         "-r": "hosted"}  # fmt: skip
DEVICES = re.compile(r"\d+(,\d+)*")


def launched(words: Sequence[str], arguments: Arguments) -> None:
    """Stores the ranks that the words of a launcher state."""
    names = {posixpath.basename(word) for word in words}
    keys = {**_LAUNCHERS, **({"-n": "world"} if names & _COUNT_TASKS else {})}
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        key = keys.get(launcher_name(name) if name.startswith("--") else name)
        value = value if equals else words[index + 1] if index + 1 < len(words) else ""
        if key is not None and value.isdigit():
            arguments.ranks[key] = int(value)
        elif key == "num_nodes" and marks(value):
            arguments.open_nodes = shown(value).partition(" by ")[0]
        elif name == "--hostfile" and value:
            arguments.open_nodes = arguments.open_nodes or shown(value)
        elif name == "--include":
            arguments.ranks |= _included(value)
    if "jsrun" in names:
        arguments.ranks |= _resource_sets(words)
    if "gpus_per_node" in arguments.ranks and ("torchrun" in names or "torch.distributed" in " ".join(words)):
        arguments.ranks.pop("world", None)  # tasks of the outer launcher: one of a node starts its ranks
    # torch 2.13, torch/distributed/run.py: one process on one node where no option says otherwise.
    arguments.alone = [posixpath.basename(word) for word in words[-1:]] == ["torchrun"]


def _resource_sets(words: Sequence[str]) -> dict[str, int]:
    """Ranks of `jsrun --nrs 48 --tasks_per_rs 1 --rs_per_host 6` (IBM Job Step Manager): tasks of resource sets."""
    given: dict[str, int] = {}
    for index, word in enumerate(words):
        name, _, value = re.sub(r"^(-[nar])(?=\d)", r"\1=", word).partition("=")
        value = value or (words[index + 1] if index + 1 < len(words) else "")
        if name in _SETS and value.isdigit():
            given.setdefault(_SETS[name], int(value))
    sets, tasks, hosted = given.get("sets", 0), given.get("tasks", 1), given.get("hosted", 0)
    if hosted and sets and sets % hosted == 0:
        return {"num_nodes": sets // hosted, "gpus_per_node": hosted * tasks}
    return {"world": sets * tasks} if sets else {}


def _included(hosts: str) -> dict[str, int]:
    """Ranks of `--include host:0,1@other:0,1` (DeepSpeed, launcher/runner.py); {} where hosts have unlike numbers."""
    slots = [host.rpartition(":")[2] for host in hosts.split("@")]
    counts = {part.count(",") + 1 if DEVICES.fullmatch(part) else 0 for part in slots}
    return {"num_nodes": len(slots), "gpus_per_node": counts.pop()} if len(counts) == 1 and 0 not in counts else {}
