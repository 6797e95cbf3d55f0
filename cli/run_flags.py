"""Flags of `launch` for its run: passes, rehearsal, checkpoints and nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .flag import flag

Steps = Annotated[int | None, flag("--steps", metavar="N", text="Training steps [10; 4 with --check-parity].")]
Seed = Annotated[int, flag("--seed", metavar="N", text="Random seed for weights and synthetic tokens [0].")]
Order = Annotated[str | None, flag("--order", metavar="NAME|FILE", text="Order of the passes: a name or a CSV file.")]
Device = Annotated[str, flag("--device", metavar="auto|cuda|cpu", text="Device to run on [auto].")]
Timeout = Annotated[
    float | None, flag("--timeout", metavar="SECONDS", text="Longest collective wait [600; --scale-down: 60].")
]
ScaleDown = Annotated[bool, flag("--scale-down", text="Rehearse with a small model on this machine.")]
CheckParity = Annotated[bool, flag("--check-parity", text="Compare with a single-process run.")]
AsTrained = Annotated[bool, flag("--as-trained", text="Check with the plan's optimizer and clipping.")]
PlannedDtype = Annotated[
    bool, flag("--planned-dtype", text="Check as trained, in the plan's dtype [float64].")
]
DryRun = Annotated[bool, flag("--dry-run", text="Print the torchrun command and exit.")]
Report = Annotated[Path | None, flag("--report", metavar="FILE", text="Write a report of the run to this JSON file.")]
Checkpoint = Annotated[
    Path | None, flag("--checkpoint", metavar="DIR", text="Folder for checkpoints; the last step is saved.")
]
CheckpointEvery = Annotated[
    int | None, flag("--checkpoint-every", metavar="N", text="Steps between checkpoints [100].")
]
CheckpointAsync = Annotated[bool, flag("--checkpoint-async", text="Write checkpoints in the background.")]
CopyEvery = Annotated[
    int | None, flag("--copy-every", metavar="N", text="Steps between copies in the memory of two nodes [none].")
]
Keep = Annotated[
    list[str] | None,
    flag("--keep", metavar="N|AXIS=N", text="Checkpoints to keep [2], or ranks per axis to rehearse [2]."),
]
Resume = Annotated[bool, flag("--resume", text="Resume from the newest intact checkpoint in DIR.")]
Nnodes = Annotated[int | None, flag("--nnodes", metavar="N", text="Number of nodes [from the plan].")]
NprocPerNode = Annotated[
    int | None, flag("--nproc-per-node", metavar="N", text="Ranks per node [GPUs per node, from the plan].")
]
NodeRank = Annotated[int, flag("--node-rank", metavar="R", text="Index of this node, from 0 [0].")]
MasterAddr = Annotated[
    str | None, flag("--master-addr", metavar="HOST", text="Address of node 0 [one node: this machine].")
]
MasterPort = Annotated[
    int | None, flag("--master-port", metavar="N", text="Port of node 0 [29500; one node: any free port].")
]
MaxRestarts = Annotated[int, flag("--max-restarts", metavar="N", text="Restarts after the failure of a rank [0].")]
Elastic = Annotated[bool, flag("--elastic", text="After the loss of a node, plan for the others and go on.")]
RejoinTimeout = Annotated[
    float | None, flag("--rejoin-timeout", metavar="SECONDS", text="Longest wait for a lost node [60].")
]
