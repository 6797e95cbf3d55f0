"""All targets: one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...cost_models.problem import Problem
from ...cost_models.techniques.base import Technique
from ...errors import InputError, UnknownNameError, listed
from . import any_target
from .accelerate import target as accelerate
from .axolotl import target as axolotl
from .base import Target
from .deepspeed import target as deepspeed
from .llama_factory import target as llama_factory
from .maxtext import target as maxtext
from .megatron import target as megatron
from .megatron_bridge import target as megatron_bridge
from .meshwright import target as meshwright
from .nanotron import target as nanotron
from .nemo import target as nemo
from .torchtitan import target as torchtitan
from .trl import target as trl

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (meshwright, megatron, megatron_bridge, nemo, torchtitan, deepspeed, accelerate, trl,
                   llama_factory, axolotl, nanotron, maxtext, any_target)
}  # fmt: skip


def with_techniques(techniques: Sequence[str]) -> list[str]:
    """The targets that have all these techniques, though perhaps not all knobs."""
    return [known.name for known in TARGETS.values()
            if known.trainer is not None and set(techniques) <= set(known.techniques)]  # fmt: skip


def about_technique(technique: Technique, target: Target) -> str:
    """The warning on a technique: targets that have it if this one does not, and costs that are not priced."""
    if technique.name in target.techniques:
        return f"{technique.name}: {technique.caveat}"
    others = listed(with_techniques([technique.name]))
    if not others:
        who = "no target trains by it: `emit` and `launch` refuse"
    elif target.name == "any":
        who = f"only {others} trains by it"
    else:
        who = f"{target.name} does not train by it, {others} would: `emit` and `launch` refuse"
    return f"{technique.name} is priced, but {who}; {technique.caveat}"


def runs_on_none(gpu: str) -> str:
    """Why files for a GPU of plans alone (TPU, Trainium, Gaudi, Ascend) are refused."""
    return f"no target of meshwright runs on {gpu}"


def able_to_train(problem: Problem) -> list[str]:
    """The targets whose newest releases can train a problem."""
    return [known.name for known in TARGETS.values() if known.trainer is not None and not known.cannot_train(problem)]


def compared(problem: Problem, own: str) -> list[Target]:
    """The targets that stand beside `own` and `own` itself, but for `any`. One that is built on another target runs its
    layouts, and stands there only where it trains a problem that the other cannot, as adapters."""

    def stands(known: Target) -> bool:
        if not known.built_on or known.name == own:
            return True
        return bool(TARGETS[known.built_on].cannot_train(problem)) and not known.cannot_train(problem)

    return [known for known in TARGETS.values() if known.trainer is not None and stands(known)]


def who_trains(problem: Problem, own: str = "") -> str:
    """A hint that names the targets that can train a problem. own: the target of its plan, if there is one."""
    able = able_to_train(problem)
    if own in able:
        return writes_its_files(own)
    if not able:
        names = [name for name, _ in problem.workload.techniques]
        plain = replace(problem, workload=replace(problem.workload, techniques=()))
        near = [name for name in with_techniques(names) if names and not TARGETS[name].cannot_train(plain)]
        nearest = f"but for that {listed(near)} would train by {listed(names)}" if near else "no target has all of it"
        return f"{nearest}; `--target any` still plans it"
    return f"{listed(able)} {'has' if len(able) == 1 else 'have'} all of it: plan with `--target {able[0]}`"


def writes_its_files(own: str) -> str:
    """A hint for a plan that its own target runs, and another one does not."""
    return f"the plan is for {own}, which trains it: `meshwright emit PLAN --to {own}`"


def target_of(files: Mapping[str, str]) -> str:
    """The target of an emitted folder (name -> text). Raises InputError if no target or several match."""
    main_files = {name: candidate.config.main_file for name, candidate in TARGETS.items() if candidate.config}
    owners = [name for name, main_file in main_files.items() if main_file in files]
    if len(owners) == 1:
        return owners[0]
    if not owners and meshwright.WORKER in files.get("launch.sh", ""):
        return meshwright.TARGET.name
    problem = f"holds files of {' and '.join(owners)}" if owners else "holds no file that `emit` writes"
    raise InputError(problem, hint=f"`--to` one of {', '.join(main_files)}")


def own_target(name: str) -> str:
    """The target that writes the files of a plan for target `name`: itself, or our runtime for `any`."""
    return name if target(name).trainer is not None else meshwright.TARGET.name


def target(name: str) -> Target:
    """The target `name`. Raises UnknownNameError."""
    if name not in TARGETS:
        raise UnknownNameError("target", name, TARGETS, see="meshwright show targets")
    return TARGETS[name]
