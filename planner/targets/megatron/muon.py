"""Muon of Megatron Core: limits of its releases, of its layer-wise optimizer and of its arguments.

Sources: Megatron-LM core_v0.16.1 to d98e8a64, training/arguments.py (`emerging optimizer check`), core/optimizer/
__init__.py (_get_megatron_emerging_optimizer), optimizer_config.py and layer_wise_optimizer.py.
"""

from __future__ import annotations

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.problem import Problem
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule
from ..option_lists import OptionList
from ..options import Settings
from ..setup import Setup

LAYER_WISE = "dist_muon"
# From core_v0.18.0 on gradients are scattered unless this option disables it, and --use-distributed-optimizer is
# allowed with --optimizer muon.
NO_LAYOUT = "--no-use-layer-wise-param-layout"


def cannot_orthogonalise(workload: Workload, options: OptionList | None) -> dict[str, bool]:
    """Sentence -> whether it applies to a training with Muon."""
    muon = workload.optimizer == "muon"
    old = options is not None and "--optimizer" in options.options and NO_LAYOUT not in options.options
    return {
        "workload.precision: Muon does not train in fp16": muon and workload.precision == "fp16",
        "workload.optimizer: muon is planned for core_v0.18.0 and later, whose optimizer scatters gradients":
            muon and old,
    }  # fmt: skip


def _one_instance(columns: Columns, problem: Problem) -> Mask:
    # LayerWiseDistributedOptimizer.__init__ asserts it.
    whole = (columns["zero"] == 0) | (columns["shard"] == columns["dp"])
    return np.asarray(whole | (problem.workload.optimizer != "muon"))


def muon_rules(target: str) -> tuple[Rule, ...]:
    return (
        Rule(f"{target}: muon", ("dp", "zero", "shard"), _one_instance,
             "Megatron's layer-wise optimizer has one instance: shard {shard} of dp {dp} are several"),
    )  # fmt: skip


def conflicts_of_muon(settings: Settings) -> list[tuple[str, str]]:
    """Problems of arguments that exclude Muon."""
    if settings.get("--optimizer") not in ("muon", LAYER_WISE):
        return []
    absent = {
        "--use-megatron-fsdp": "emerging optimizers do not support Megatron-FSDP",
        "--use-torch-fsdp2": "emerging optimizers do not support Torch-FSDP2",
        "--fp16": "emerging optimizers do not support fp16",
        "--use-precision-aware-optimizer": "is only supported with --optimizer adam",
        "--optimizer-cpu-offload": "needs the precision-aware optimizer, which is only supported with adam",
    }
    out = [(name, text) for name, text in absent.items() if settings.get(name)]
    if settings.get("--ckpt-format", "torch") not in ("torch", "torch_dist"):
        out.append(("--ckpt-format", "emerging optimizers support torch and torch_dist"))
    if int(settings.get("--num-distributed-optimizer-instances", 1)) > 1:
        out.append(("--num-distributed-optimizer-instances", "the layer-wise optimizer has one instance"))
    return out


def by_flag(arguments: Settings) -> Settings:
    """Renames the older argument of the layer-wise optimizer to that of core_v0.18.0 and later."""
    if arguments.get("--optimizer") != LAYER_WISE:
        return arguments
    return {**arguments, "--optimizer": "muon", "--use-distributed-optimizer": True}


def with_layer_wise_name(arguments: Settings, setup: Setup) -> Settings:
    """The same in the spelling of Megatron-Bridge.

    Bridge identifies a layer-wise optimizer by its name and requires all other distributed optimizers off
    (training/optim.py, recipes/kimi/h100/kimi_k2.py).
    """
    if setup.workload.optimizer != "muon":
        return arguments
    rest = {name: value for name, value in arguments.items() if name != "--use-distributed-optimizer"}
    return {**rest, "--optimizer": LAYER_WISE} if "--optimizer" in rest and setup.layout.zero else rest
