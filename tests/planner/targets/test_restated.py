"""Values that launchers and scripts state again: an edit of one is named with its line."""

from __future__ import annotations

import re

import pytest
from meshwright.planner import api
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import emit
from meshwright.planner.targets.launchers.registry import LAUNCHERS

EDITS = [
    ("slurm", "launch.sbatch", "#SBATCH --nodes=2", "#SBATCH --nodes=3"),
    ("slurm", "launch.sbatch", "--gpus-per-node=8", "--gpus-per-node=4"),
    ("slurm", "launch.sbatch", "--ntasks-per-node=1", "--ntasks-per-node=8"),
    ("kubernetes", "jobset.yaml", "parallelism: 2", "parallelism: 1"),
    ("kubernetes", "jobset.yaml", "completions: 2", "completions: 4"),
    ("kubernetes", "trainjob.yaml", "numNodes: 2", "numNodes: 3"),
    ("kubernetes", "trainjob.yaml", "numProcPerNode: 8", "numProcPerNode: 4"),
    ("kubernetes", "trainjob.yaml", "nvidia.com/gpu: 8", "nvidia.com/gpu: 4"),
    ("skypilot", "sky.yaml", "num_nodes: 2", "num_nodes: 4"),
    ("skypilot", "sky.yaml", "H100:8", "H100:4"),
    ("ray", "launch_ray.py", "NUM_NODES = 2", "NUM_NODES = 4"),
    ("ray", "launch_ray.py", "GPUS_PER_NODE = 8", "GPUS_PER_NODE = 1"),
    ("ray", "ray_worker.yaml", "nvidia.com/gpu: 8", "nvidia.com/gpu: 2"),
    ("hostfile", "hostfile", "node-1 slots=8", "node-1 slots=4"),
    ("hostfile", "launch-mpi.sh", "-np 2", "-np 16"),
    ("hostfile", "launch-mpi.sh", "ppr:1:node", "ppr:8:node"),
    ("torchrun", "ds_plan.py", "DATA_PARALLEL = 16", "DATA_PARALLEL = 8"),
    ("torchrun", "train.py", "SEQUENCE_LENGTH = 8192", "SEQUENCE_LENGTH = 4096"),
]


def files_of(launcher: str) -> dict[str, str]:
    plan = api.evaluate(None, "dp16-mbs1-z3-rfull", model="llama-3.1-8b", cluster="dgx-h100:2", target="deepspeed")
    return dict(emit(plan, "deepspeed", launcher).files)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_is_written_states_the_plan(launcher: str) -> None:
    files = files_of(launcher)
    assert not check_files(files).problems
    for name, patterns in LAUNCHERS[launcher].stated.items():
        assert all(re.search(pattern, files[name], re.MULTILINE) for pattern in patterns), name


@pytest.mark.parametrize(("launcher", "name", "written", "edited"), EDITS)
def test_an_edit_is_named_with_its_line(launcher: str, name: str, written: str, edited: str) -> None:
    files = files_of(launcher)
    assert written in files[name]
    problems = check_files({**files, name: files[name].replace(written, edited)}).problems
    line = files[name].count("\n", 0, files[name].index(written)) + 1
    assert [(it.file, it.line) for it in problems] == [(name, line)]


def test_other_hosts_are_no_edit() -> None:
    files = files_of("hostfile")
    own = files["hostfile"].replace("node-0", "gpu-a").replace("node-1", "gpu-b")
    assert not check_files({**files, "hostfile": own}).problems
