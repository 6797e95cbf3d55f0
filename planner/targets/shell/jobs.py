"""Ranks and variables that directives of a job scheduler state: `#SBATCH` of Slurm, `#PBS -l select=...` of PBS.

Sources: Slurm 25.05, sbatch(1), "Input and output environment variables"; OpenPBS 23.06, pbs_resources(7).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence

# Directive of Slurm -> variables that it sets.
_NODES, _TASKS = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), ("SLURM_NTASKS", "SLURM_NPROCS")
_SLURM = {"nodes": _NODES, "N": _NODES, "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",), "ntasks": _TASKS, "n": _TASKS,
          "gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), "gres": ("SLURM_GPUS_ON_NODE",),
          "cpus-per-task": ("SLURM_CPUS_PER_TASK",), "c": ("SLURM_CPUS_PER_TASK",)}  # fmt: skip
_DIRECTIVE = re.compile(r"(?m)^#SBATCH\s+(\S.*)$")
_SELECT = re.compile(r"(?m)^#PBS\s+.*?-l\s*\S*?select=(\S+)")


def slurm_variables(text: str) -> dict[str, str]:
    """The variables that Slurm sets from the directives of a script."""
    out: dict[str, str] = {}
    for line in _DIRECTIVE.findall(text):
        out |= slurm_options(_words(line))
    nodes, tasks = out.get("SLURM_NNODES"), out.get("SLURM_NTASKS_PER_NODE")
    if nodes and tasks and tasks != "1":  # one task per node starts ranks that Slurm does not count
        return dict.fromkeys(_TASKS, str(int(nodes) * int(tasks))) | out
    return out


def started_by(words: Sequence[str]) -> dict[str, str]:
    """The variables that Slurm sets for a script, from the words of the command that starts it; {} for others."""
    return slurm_options(words[1:]) if words and posixpath.basename(words[0]) in ("sbatch", "srun", "salloc") else {}


def slurm_options(words: Sequence[str]) -> dict[str, str]:
    """The variables that Slurm sets from options of sbatch: `--nodes=4`, `--nodes 4`, `-N 4`, `-N4`."""
    out: dict[str, str] = {}
    for index, word in enumerate(words):
        found = re.fullmatch(r"--([a-z-]+)(?:=(.*))?|-([A-Za-z])(.*)", word)
        if found is None:
            continue
        name, value = found[1] or found[3], found[2] if found[1] else found[4]
        value = value or (words[index + 1] if index + 1 < len(words) else "")
        number = value.rpartition(":")[2]
        if name in _SLURM and number.isdigit():
            out |= dict.fromkeys(_SLURM[name], number)
    return out


def pbs_ranks(text: str) -> dict[str, int]:
    """num_nodes and gpus_per_node of `#PBS -l select=16:ncpus=192:ngpus=8`; of chunks with unlike numbers of GPUs
    (`8:ngpus=8+2:ngpus=4`) the world alone; empty where a chunk names no GPUs."""
    found = _SELECT.search(text)
    chunks = [re.match(r"(?:(\d+):)?(?:\S*?:)?ngpus=(\d+)", chunk) for chunk in found[1].split("+")] if found else []
    counts = [(int(chunk[1] or 1), int(chunk[2])) for chunk in chunks if chunk is not None]
    if not counts or len(counts) < len(chunks):
        return {}
    if len({gpus for _, gpus in counts}) > 1:
        return {"world": sum(nodes * gpus for nodes, gpus in counts)}
    return {"num_nodes": sum(nodes for nodes, _ in counts), "gpus_per_node": counts[0][1]}


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that is not closed
        return line.split()
