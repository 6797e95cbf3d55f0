"""The techniques by which replicas exchange in this runtime: their knobs, and the layouts that have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import OPTIMIZER_ON_HOST
from ....cost_models.problem import Problem
from ....cost_models.specs.workload import Workload
from ....cost_models.techniques.registry import TECHNIQUES
from ...space.rules import Columns, Rule

Knobs = Mapping[str, float]

_CODING = "gradient-coding"
_BITS = (4, 16, 32)  # that Streaming DiLoCo sends


def _diloco(workload: Workload, knobs: Knobs) -> str | None:
    if knobs["bits"] not in _BITS:
        return f"it sends {', '.join(map(str, _BITS[:-1]))} or {_BITS[-1]} bits per parameter, not {knobs['bits']:g}"
    if knobs["period"] > 1 and knobs["delay"] >= knobs["period"]:
        return (f"a fragment has to arrive before it leaves again: a delay of {knobs['delay']:g} steps is not below "
                f"the period of {knobs['period']:g}")  # fmt: skip
    return None


def _one_bit_adam(workload: Workload, knobs: Knobs) -> str | None:
    return None if workload.optimizer == "adamw" else f"it compresses AdamW's momentum, not {workload.optimizer}'s"


def _gradient_coding(workload: Workload, knobs: Knobs) -> str | None:
    if knobs["window"] != 1 and knobs["tolerated"]:
        return (f"its sums are whole in the step itself, and a window of {knobs['window']:g} makes them whole later: "
                "`gradient-coding:window=1`")  # fmt: skip
    if knobs["patience"] and knobs["tolerated"]:
        return (f"a step goes on with the first that are done, and a patience of {knobs['patience']:g} waits longer: "
                "`gradient-coding:patience=0`")  # fmt: skip
    return None


def _runs(workload: Workload, knobs: Knobs) -> str | None:
    return None


def _of_problem(lack: Callable[[Workload, Knobs], str | None], problem: Problem, knobs: Knobs) -> str | None:
    return lack(problem.workload, knobs)


# Technique -> why the runtime cannot train by it with these knobs in any layout, or None.
_LACKS: Mapping[str, Callable[[Workload, Knobs], str | None]] = {
    "1-bit-adam": _one_bit_adam, "diloco": _diloco, "co2": _runs, "noloco": _runs,
    _CODING: _gradient_coding,
}
# For the target.
CAN: Mapping[str, Callable[[Problem, Knobs], str | None]] = {name: partial(_of_problem, lack)
                                                           for name, lack in _LACKS.items()}  # fmt: skip


def cannot_exchange(workload: Workload) -> str | None:
    """Why the runtime trains by none of the techniques of a workload in any layout, or None."""
    if missing := [name for name, _ in workload.techniques if name not in _LACKS]:
        return f"it does not train by {', '.join(missing)}"
    reasons = ((name, _LACKS[name](workload, dict(knobs))) for name, knobs in workload.techniques)
    return next((f"{name}: {why}" for name, why in reasons if why), None)


def exchanging_technique(workload: Workload) -> tuple[str, dict[str, float]] | None:
    """The technique by which replicas exchange, with its knobs; None where they sum their gradients in every step."""
    for name, values in workload.techniques:
        knobs = dict(values)
        # Slow replicas are those of the machine. Without any to do without there is no code.
        neutral = {knob: value for knob, value in TECHNIQUES[name].neutral.items() if knob != "slow"}
        if not all(knobs[knob] == value for knob, value in neutral.items()):
            return name, knobs
    return None


def _whole_experts(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts in which a replica has one copy of its experts."""
    one = (columns["zero"] > 0) | (columns["ep"] * columns["etp"] == columns["tp"])
    return np.asarray(one | (not problem.model.is_moe))


def _states_on_gpu(columns: Columns, problem: Problem) -> Mask:
    return np.asarray(~np.isin(columns["offload"], OPTIMIZER_ON_HOST))


def _one_rank(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts whose replicas are one rank each, which may drop out of a step."""
    return np.asarray((columns["tp"] * columns["cp"] * columns["pp"] == 1) & (columns["zero"] == 0))


_DROPPING = (
    Rule("meshwright: replicas that drop out", ("tp", "cp", "pp", "zero"), _one_rank,
         "gradient coding has replicas of one rank: not tp {tp}, cp {cp}, pp {pp}, ZeRO {zero}"),
)  # fmt: skip
_EXCHANGING = (
    Rule("meshwright: experts of replicas", ("ep", "etp", "tp", "zero"), _whole_experts,
         "replicas that exchange have one copy of their experts: ep {ep} x etp {etp} is not tp {tp}"),
    Rule("meshwright: states of replicas", ("offload",), _states_on_gpu,
         "replicas exchange what is on the GPU, and offload={offload_name} has it on the host"),
)  # fmt: skip


def rules(workload: Workload) -> tuple[Rule, ...]:
    """The rules of the layouts that train by the techniques of a workload."""
    exchanging = exchanging_technique(workload)
    if exchanging is None:
        return ()
    name, knobs = exchanging
    return (*_DROPPING, *_EXCHANGING) if name == _CODING and knobs["tolerated"] else _EXCHANGING
