"""Our own torch runtime: data, tensor, context, expert and pipeline parallelism with ZeRO 0-3."""

from ..base import Target, Trainer
from ..launchers.base import Job, torchrun
from ..option_lists import OptionList
from ..setup import Setup
from .rules import RULES, cannot_build
from .techniques import CAN
from .techniques import rules as technique_rules

# The module that launch.sh starts.
WORKER = "meshwright.runtime.worker"


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes the command of the worker, which reads the plan."""
    return Job(
        name=f"{setup.model.name}-meshwright", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node, files={}, example="--steps 100 --data tokens/",
        command=f"{torchrun(setup.num_nodes, setup.gpus_per_node)}"
                f'  -m {WORKER} "$here/plan.json" --choice {setup.choice}',
        notes=setup.model.assumptions,
    )  # fmt: skip


TARGET = Target(
    "meshwright",
    "the torch runtime of this package",
    "meshwright",
    "docs/architecture.md, runtime",
    stages="recompute",
    layerwise=True,
    mixed_lengths=("planned",),
    rules=RULES,
    technique_rules=technique_rules,
    trainer=Trainer(framework="meshwright", config=None, job=job, cannot_build=cannot_build,
                    sees_images=True, encodes_source=True, techniques=CAN),
)
