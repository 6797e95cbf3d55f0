"""Techniques that DeepSpeed trains by: ZeRO++, states on drives, and 1-bit Adam, as options of its JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.problem import Problem
from ....cost_models.specs.workload import Workload
from ....errors import InputError
from ...space.rules import Columns, Rule
from .. import cpu_offload
from ..argv import Arguments
from ..cpu_offload import FACT
from ..options import Facts, NoCounterpartError, Settings
from ..setup import Setup

Knobs = Mapping[str, float]
_ZERO = "zero_optimization"
QUANTIZED_WEIGHTS, QUANTIZED_GRADIENTS = f"{_ZERO}.zero_quantized_weights", f"{_ZERO}.zero_quantized_gradients"
SECONDARY = f"{_ZERO}.zero_hpz_partition_size"
OPTIMIZER, WEIGHTS = f"{_ZERO}.offload_optimizer", f"{_ZERO}.offload_param"
OPTIONS = (QUANTIZED_WEIGHTS, SECONDARY, QUANTIZED_GRADIENTS, f"{OPTIMIZER}.nvme_path", f"{WEIGHTS}.device",
           f"{WEIGHTS}.nvme_path", f"{WEIGHTS}.pin_memory")  # fmt: skip
PARAMS = "optimizer.params"
OPTIMIZER_OPTIONS = ("optimizer.type", PARAMS)
# Learning rate, which the user sets. The file has `auto`, which transformers fills in.
RATE = "lr"
NVME_PATH = "/local_nvme"  # JSON reads no variable: the folder is named in `notes`


def of(setup: Setup) -> dict[str, dict[str, float]]:
    """The techniques of a plan, with their knobs."""
    return {name: dict(knobs) for name, knobs in setup.workload.techniques}


def states_write(setup: Setup) -> Settings:
    """Options of `zero_optimization` for ZeRO++ and for states on drives or on the host."""
    chosen, out = of(setup), Settings()
    if (knobs := chosen.get("zero++")) is not None:
        out |= {QUANTIZED_WEIGHTS: knobs["weight_bits"] == 8, QUANTIZED_GRADIENTS: knobs["gradient_bits"] == 4,
                SECONDARY: int(knobs["secondary"]) or setup.gpus_per_node}  # fmt: skip
    if (knobs := chosen.get("zero-infinity")) is not None and knobs["optimizer"]:
        out |= {f"{OPTIMIZER}.device": "nvme", f"{OPTIMIZER}.nvme_path": NVME_PATH, f"{OPTIMIZER}.pin_memory": True}
        if knobs["weights"]:
            out |= {f"{WEIGHTS}.device": "nvme", f"{WEIGHTS}.nvme_path": NVME_PATH, f"{WEIGHTS}.pin_memory": True}
    if (on_host := cpu_offload.planned(setup)) is not None:
        out |= {f"{part}.{name}": value for part in ((OPTIMIZER,) if on_host["optimizer"] else ()) + (WEIGHTS,)
                for name, value in (("device", "cpu"), ("pin_memory", True))}  # fmt: skip
    return out


def states_read(settings: Settings) -> Facts:
    """The techniques and the offload that options of `zero_optimization` state."""
    techniques: dict[str, dict[str, float]] = {}
    weights, gradients = bool(settings.get(QUANTIZED_WEIGHTS)), bool(settings.get(QUANTIZED_GRADIENTS))
    if (secondary := settings.get(SECONDARY, 1)) < 0:  # runtime/zero/config.py
        raise InputError(f"{SECONDARY} `{secondary}` is not 0 or more", hint="leave it out, or give a number of ranks")
    if weights or gradients or secondary > 1:
        techniques["zero++"] = {"weight_bits": 8 if weights else 16, "gradient_bits": 4 if gradients else 16,
                           "secondary": max(secondary, 1)}  # fmt: skip
    if settings.get(f"{OPTIMIZER}.device") == "nvme":
        techniques["zero-infinity"] = {"weights": float(settings.get(f"{WEIGHTS}.device") == "nvme")}
    on_host = settings.get(f"{WEIGHTS}.device") == "cpu"
    if on_host:
        alone = settings.get(f"{OPTIMIZER}.device", "none") == "none"
        techniques |= (cpu_offload.WEIGHTS_ON_HOST if alone else cpu_offload.ON_HOST)[FACT]
    host = settings.get(f"{OPTIMIZER}.device") == "cpu" and not on_host
    return {"offload": "opt" if host else "none"} | ({FACT: techniques} if techniques else {})


def optimizer_write(setup: Setup, names: Mapping[str, str]) -> Settings:
    """The optimizer. 1-bit Adam also has the step that freezes the variance."""
    knobs = of(setup).get("1-bit-adam")
    if knobs is None:
        return {"optimizer.type": names[setup.workload.optimizer], PARAMS: {RATE: "auto"}}
    steps = (setup.workload.total_tokens or 0.0) / setup.workload.tokens_per_step
    return {"optimizer.type": "OneBitAdam", PARAMS: {
        RATE: "auto", "freeze_step": max(round(knobs["warmup"] * steps), 1), "cuda_aware": False,
        "comm_backend_name": "nccl"}}  # fmt: skip


def without_rate(arguments: Arguments) -> Arguments:
    """The settings without the learning rate, which a plan does not hold."""
    params = arguments.settings.get(PARAMS)
    if isinstance(params, Mapping):
        arguments.settings[PARAMS] = {name: value for name, value in params.items() if name != RATE}
    return arguments


# Names of optimizers with two states of each weight, those of torch too, and with one (deepspeed 0.19,
# deepspeed/runtime/engine.py, _configure_basic_optimizer).
_OF_ADAM = ("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam", "muadam", "muadamw", "nadam", "radam",
            "adamax", "lamb", "fusedlamb", "onebitadam")  # fmt: skip
_OF_SGD = ("sgd", "musgd")


def optimizer_read(settings: Settings, facts: Facts) -> Facts:
    """The optimizer. A config of DeepSpeed has no number of steps, so the warm-up stays at its default."""
    name = str(settings.get("optimizer.type", "AdamW")).lower()
    if name == "muon":
        raise NoCounterpartError(
            "optimizer.type Muon has no counterpart in a plan", hint="plans for megatron have muon"
        )
    if name not in (*_OF_ADAM, *_OF_SGD):
        raise NoCounterpartError(f"optimizer.type `{settings['optimizer.type']}` has no counterpart in a plan: its "
                                 "states or messages have another size")  # fmt: skip
    out: Facts = {"workload.optimizer": "sgd" if name in _OF_SGD else "adamw"}
    return out | ({FACT: {**facts.get(FACT, {}), "1-bit-adam": {}}} if name == "onebitadam" else {})


def _zero_plus_plus(problem: Problem, knobs: Knobs) -> str | None:
    secondary = int(knobs["secondary"]) or problem.gpus_per_node
    if knobs["weight_bits"] not in (8, 16):
        return f"zero_quantized_weights sends 8 bits, not {knobs['weight_bits']:g}"
    if knobs["gradient_bits"] not in (4, 16):
        return f"zero_quantized_gradients sends 4 bits, not {knobs['gradient_bits']:g}"
    if problem.num_gpus % secondary:
        return f"zero_hpz_partition_size {secondary} does not divide {problem.num_gpus} ranks"
    return None


def _zero_infinity(problem: Problem, knobs: Knobs) -> str | None:
    optimizer = problem.workload.optimizer
    if knobs["weights"] and not knobs["optimizer"]:
        return "weights go to drives only together with the optimizer's states"
    return None if optimizer == "adamw" else f"its Adam on the host is no {optimizer}"


def _one_bit_adam(problem: Problem, knobs: Knobs) -> str | None:
    if problem.workload.optimizer != "adamw":
        return f"OneBitAdam is no {problem.workload.optimizer}"
    if not problem.workload.total_tokens:
        return "freeze_step counts steps, and the run has no length: plan with `--total-tokens`"
    return None


# Technique -> why DeepSpeed cannot train by it with these knobs in any layout, or None.
CAN: Mapping[str, Callable[[Problem, Knobs], str | None]] = {
    "zero++": _zero_plus_plus, "zero-infinity": _zero_infinity, "1-bit-adam": _one_bit_adam,
    "cpu-offload": lambda problem, knobs: None,
}  # fmt: skip


def _ranks_of_one_replica(columns: Columns, problem: Problem) -> Mask:
    return np.asarray(columns["tp"] * columns["cp"] == 1)


_OF_ZERO_PLUS_PLUS = (
    Rule("deepspeed: zero++", ("tp", "cp"), _ranks_of_one_replica,
         "the groups of neighbours of ZeRO++ count ranks of one replica each (tp {tp}, cp {cp})"),
)  # fmt: skip


def rules(workload: Workload) -> tuple[Rule, ...]:
    """The rules of the layouts that train by the techniques of a workload."""
    return _OF_ZERO_PLUS_PLUS if any(name == "zero++" for name, _ in workload.techniques) else ()


def notes(setup: Setup) -> list[str]:
    """Steps that the JSON leaves to the user."""
    chosen: dict[str, Any] = of(setup)
    out = []
    if chosen.get("zero-infinity", {}).get("optimizer"):
        out.append(f"{NVME_PATH} stands for the folder of your drives in ds_config.json; DeepSpeed needs its async_io")
    if "1-bit-adam" in chosen and setup.precision != "fp16":
        out.append("DeepSpeed has verified the convergence of OneBitAdam in fp16 only")
    return out
