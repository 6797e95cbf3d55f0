"""Our own torch runtime: data, tensor and pipeline parallelism with ZeRO 0-3."""

import shlex

import numpy as np

from ...cost_models.tables import Problem
from ...errors import InputError, UnsupportedError
from ..constraints import Columns, Mask, Rule
from ..plan import Plan
from .base import Target, only

_N = "meshwright"


def _sequence_parallel(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["tp"] == 1) | (columns["sequence_parallel"] == 1))


TARGET = Target(
    _N,
    "the torch runtime of this package",
    "torch-fsdp",
    "docs/architecture.md, runtime",
    rules=(
        Rule(
            f"{_N}: sequence_parallel",
            ("tp", "sequence_parallel"),
            _sequence_parallel,
            "the runtime's tensor parallelism is always sequence-parallel",
        ),
        only(_N, "cp", (1,), "the runtime has no context parallelism yet (cp {cp})"),
        only(_N, "ep", (1,), "the runtime has no expert parallelism yet (ep {ep})"),
        only(_N, "etp", (1,), "the runtime has no expert-tensor parallelism yet (etp {etp})"),
        only(_N, "schedule", ("1f1b", "gpipe", "interleaved"), "the runtime has no {schedule_name} schedule yet"),
        only(_N, "offload", ("none",), "the runtime does not offload yet"),
        only(_N, "precision", ("bf16", "fp32"), "the runtime trains in bf16 or fp32"),
    ),
)

LAUNCHERS = ("torchrun", "slurm")
_WORKER = "meshwright.runtime.worker"
_TORCHRUN = """\
#!/bin/sh
# {layout}: {model} on {nodes} x {gpus} GPUs, {step_s:.3g} s per step predicted. Written by `meshwright emit`.
# Run on every node; arguments go to the worker (--steps 100 --data tokens/):
#   MASTER_ADDR=<host of node 0> NODE_RANK=<0..{last}> sh launch.sh --steps 100
set -eu
cd "$(dirname "$0")"
exec torchrun \\
  --nnodes {nodes} --nproc-per-node {gpus} --node-rank "${{NODE_RANK:-0}}" \\
  --master-addr "${{MASTER_ADDR:-127.0.0.1}}" --master-port "${{MASTER_PORT:-29500}}" \\
  -m {worker} plan.json --choice {choice} "$@"
"""
_SLURM = """\
#!/bin/sh
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
# {layout}: {model} on {nodes} x {gpus} GPUs, {step_s:.3g} s per step predicted. Written by `meshwright emit`.
# Arguments go to the worker: sbatch launch.sbatch --steps 100 --data tokens/
set -eu
cd "${{SLURM_SUBMIT_DIR:-.}}"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT="${{MASTER_PORT:-29500}}"
# The node number is known only on the node itself: the inner shell expands it.
exec srun --kill-on-bad-exit=1 sh -c 'exec torchrun --nnodes {nodes} --nproc-per-node {gpus} \\
  --node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\
  -m {worker} plan.json --choice {choice} "$@"' sh "$@"
"""


def files(plan: Plan, launcher: str = "torchrun", choice: int = 1) -> dict[str, str]:
    """Name -> text of the files that launch `choice` of a plan: the plan itself and a script. Pure.

    Raises InputError for an unknown launcher or choice, UnsupportedError for a layout that the runtime cannot run.
    """
    if launcher not in LAUNCHERS:
        raise InputError(f"unknown launcher `{launcher}`", hint=f"known: {', '.join(LAUNCHERS)}")
    if not 1 <= choice <= len(plan.candidates):
        raise InputError(f"the plan has no layout {choice}", hint=f"it has 1 to {len(plan.candidates)}")
    candidate = plan.candidates[choice - 1]
    if (reason := candidate.targets.get(_N)) is not None:
        runs = [each.choice for each in plan.candidates if each.targets.get(_N) is None]
        hint = f"`--choice {runs[0]}` can" if runs else "plan again with `--target meshwright`"
        raise UnsupportedError(f"the runtime cannot run {candidate.layout_id}: {reason}", hint=hint)
    groups = plan.resolved["cluster"]["groups"]
    sizes = {int(group["gpus_per_node"]) for group in groups}
    if len(sizes) > 1:
        raise UnsupportedError("torchrun needs nodes with the same number of GPUs", hint="plan for one kind of node")
    gpus = sizes.pop()
    nodes = candidate.to_layout().num_gpus // gpus
    name = str(plan.resolved["model"]["name"])
    text = (_TORCHRUN if launcher == "torchrun" else _SLURM).format(
        layout=candidate.layout_id, model=name, nodes=nodes, gpus=gpus, last=nodes - 1, step_s=candidate.step_s,
        worker=_WORKER, choice=choice, name=shlex.quote(f"meshwright-{name}"),
    )  # fmt: skip
    return {"plan.json": plan.to_json(), "launch.sh" if launcher == "torchrun" else "launch.sbatch": text}
