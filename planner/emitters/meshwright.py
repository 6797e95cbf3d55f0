"""Our own torch runtime: data, tensor, context, expert and pipeline parallelism with ZeRO 0-3."""

import numpy as np

from ...cost_models.held import splits_backward
from ...cost_models.layouts import CP_ALGORITHMS, OFFLOADS, PRECISIONS
from ...cost_models.tables import Problem
from ..constraints import Columns, Mask, Rule
from .base import Target, Trainer, only
from .launchers.base import Job, torchrun
from .option_lists import OptionList
from .setup import Setup

_N = "meshwright"


def _sequence_parallel(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["tp"] == 1) | (columns["sequence_parallel"] == 1))


def _flash(columns: Columns, problem: Problem) -> Mask:
    """Keys that come part by part go through the flash kernel itself: no other one of torch stands in for it."""
    fits = all(kind.attention.suits_flash for kind in problem.model.kinds)
    elsewhere = (columns["cp"] == 1) | (columns["cp_algorithm"] == CP_ALGORITHMS.index("ulysses"))
    return np.asarray(elsewhere | (fits & (columns["precision"] == PRECISIONS.index("bf16"))))


def _here(columns: Columns, problem: Problem) -> Mask:
    """What a split backward pass keeps for later is on the GPU."""
    sent = np.isin(columns["offload"], [i for i, name in enumerate(OFFLOADS) if "act" in name.split("+")])
    return np.asarray(~sent | ~splits_backward(columns["schedule"]))


def _frozen(columns: Columns, problem: Problem) -> Mask:
    lora = problem.workload.lora
    return np.full(len(columns["tp"]), lora is None or lora.base_dtype == "bf16")


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """The worker reads everything from the plan."""
    return Job(
        name=f"{setup.model.name}-meshwright", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node, files={}, example="--steps 100 --data tokens/",
        command=f"{torchrun(setup.num_nodes, setup.gpus_per_node)}"
                f'  -m meshwright.runtime.worker "$here/plan.json" --choice {setup.choice}',
    )  # fmt: skip


TARGET = Target(
    _N,
    "the torch runtime of this package",
    _N,
    "docs/architecture.md, runtime",
    stages="recompute",
    own_layers=True,
    rules=(
        Rule(
            f"{_N}: sequence_parallel",
            ("tp", "sequence_parallel"),
            _sequence_parallel,
            "the runtime's tensor parallelism is always sequence-parallel",
        ),
        only(_N, "cp_algorithm", ("ring", "allgather", "ulysses"), "the runtime has no {algorithm} attention yet"),
        Rule(
            f"{_N}: flash attention",
            ("cp", "cp_algorithm", "precision"),
            _flash,
            "cp {cp} ({algorithm}) needs the flash kernel: bf16, one head dim, a multiple of 8 up to 256",
        ),
        Rule(f"{_N}: lora", ("tp",), _frozen, "the runtime keeps frozen weights in bf16, not in int8 or nf4"),
        Rule(
            f"{_N}: offload",
            ("schedule", "offload"),
            _here,
            "the runtime offloads no activations in {schedule_name}: what waits for the gradients of weights stays",
        ),
        only(_N, "precision", ("bf16", "fp32"), "the runtime trains in bf16 or fp32"),
    ),
    trainer=Trainer("meshwright", None, job),
)
