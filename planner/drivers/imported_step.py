"""A team's own config of verl, priced, and the placement on the same GPUs that is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...cost_models.quantities.params import expert_parameters, total_parameters
from ...errors import InputError, NoFeasibleLayoutError
from ...profiles.io.reader import read_text
from ..document.rl_plan import RlCandidate, RlPlan
from ..request.load import load_any_request
from ..request.reinforcement import RlRequest
from ..targets.verl.options import OVERRIDES
from ..targets.verl.read import StatedStep, read_step
from ..targets.verl.target import VERL
from ..workflows.candidates import candidate
from ..workflows.prices import Prices
from ..workflows.question import Question
from ..workflows.resolve import question_of
from ..workflows.runs import placed
from .reinforcement import plan_rl

_GIB = 2.0**30
_WEIGHTS = 2.0  # bytes of a parameter


@dataclass(frozen=True, kw_only=True)
class ImportedStep:
    """A config, its step and the fastest one."""

    step: StatedStep
    theirs: RlCandidate | None  # None: a call fits on its GPUs by no layout of the stated degrees
    best: RlPlan | None
    placement: RlCandidate | None  # the fastest of the plan that verl runs
    why: str = ""  # no step of theirs, or no plan

    @property
    def gain(self) -> float | None:
        """Times that the fastest step is shorter."""
        return self.theirs.step_s / self.placement.step_s if self.theirs and self.placement else None


def import_step(paths: Sequence[Path], given: Mapping[str, Any], arguments: Sequence[str] = ()) -> ImportedStep:
    """The config in `paths` on the cluster of `given` (flat fields of a request, among them `output`, the tokens of an
    answer in the mean, which no config has).

    Raises InputError: options of another release, wrong values, another number of GPUs, an engine without a cache.
    """
    fields = {name: value for name, value in given.items() if value is not None}
    if "output" not in fields:
        raise InputError("no config states the length of answers", hint="`--output N`: their mean, in tokens")
    files = {str(path): read_text(path) for path in paths}
    scripts = [name for name, text in files.items() if OVERRIDES.file in text]
    if scripts and not any(path.name == OVERRIDES.file for path in paths):
        raise InputError(f"{scripts[0]}: its options are in {OVERRIDES.file}", hint="name that file beside it")
    step = read_step(files, arguments, fields.get("model"))
    if "input" not in fields:
        prompt = f"prompts of {step.fields['input']} tokens, data.max_prompt_length: `--input N` gives their mean"
        step = replace(step, assumed=(prompt, *step.assumed))
    if "cluster" not in fields and "gpu" not in fields:
        raise InputError("the config does not name its GPUs",
                         hint=f"it starts {step.gpus} ranks: add `--gpu NAME` or `--cluster NAME:NODES`")  # fmt: skip
    if "cluster" not in fields:
        fields.setdefault("gpus", step.gpus)
    request = load_any_request(None, {**step.fields, **fields, "target": VERL.name},
                               [f"workload.old_logprobs={step.old_logprobs}"])  # fmt: skip
    if not isinstance(request, RlRequest):
        raise InputError("the workload is not one to post-train", hint="take `workload.kind` out of the environment")
    question = replace(question_of(request)[0], fixed={"train": step.train, "generate": step.generate})
    if question.cluster.num_gpus != step.gpus:
        raise InputError(f"the config starts {step.gpus} ranks, the cluster has {question.cluster.num_gpus} GPUs",
                         hint="name a cluster of as many")  # fmt: skip
    _holds_a_cache(step, question)
    found = placed(Prices(question), step.trainer_gpus)
    theirs = candidate(found, question, 1) if found is not None else None
    why = "" if found is not None else "a call fits on its GPUs by no layout of these degrees"
    try:
        best = plan_rl(request)
    except NoFeasibleLayoutError as error:
        return ImportedStep(step=step, theirs=theirs, best=None, placement=None, why=why or error.message)
    return ImportedStep(step=step, theirs=theirs, best=best, placement=best.best, why=why)


def emitted(path: Path) -> bool:
    """Whether a file has the overrides that `emit` writes, or is a script that reads them."""
    return path.name == OVERRIDES.file or (
        path.is_file() and OVERRIDES.file in path.read_text(encoding="utf-8", errors="replace"))  # fmt: skip


def _holds_a_cache(step: StatedStep, question: Question) -> None:
    """Raises InputError where the memory of the engine is less than its weights."""
    memory = question.resolved.memory_bytes
    room = step.memory_share * memory
    model, tp = question.models["policy"], step.generate["tp"]
    experts = sum(expert_parameters(model, model.kinds[kind]) for kind in model.pattern)
    # Experts alone are divided over the ranks of ep, which may be more than those of tp.
    dense = (total_parameters(model) - experts) / tp
    weights = _WEIGHTS * (dense + experts / max(step.generate["ep"], tp))
    if weights >= room:
        raise InputError(
            f"actor_rollout_ref.rollout.gpu_memory_utilization {step.memory_share:g} of {memory / _GIB:.1f} GiB is "
            f"{room / _GIB:.1f} GiB: {weights / _GIB:.1f} GiB of weights leave no KV cache",
            hint="a larger share, or tensor_model_parallel_size")  # fmt: skip

