"""A team's own config of post-training, priced, and the placement on the same GPUs that is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...cost_models.quantities.params import expert_parameters, total_parameters
from ...cost_models.units import GIB
from ...errors import InputError, NoFeasibleLayoutError
from ...profiles.io.reader import read_text
from ..document.rl_plan import RlCandidate, RlPlan
from ..request.lengths import parse_tokens
from ..request.load import load_any_request
from ..request.reinforcement import RlRequest
from ..targets.post_training.stated import StatedStep, StepReader
from ..targets.post_training.step_readers import STEP_READERS
from ..targets.verl.target import VERL
from ..workflows.candidates import candidate
from ..workflows.prices import Prices
from ..workflows.problem import RlProblem
from ..workflows.resolve import rl_problem_of
from ..workflows.runs import placed
from .reinforcement import plan_rl

_WEIGHTS = 2.0  # bytes of a parameter
_PROMPT = 512  # tokens, where neither a flag nor a config gives them


@dataclass(frozen=True, kw_only=True)
class ImportedStep:
    """A config, its step and the fastest one."""

    reader: StepReader
    step: StatedStep
    theirs: RlCandidate | None  # None: a call fits on its GPUs by no layout of the stated degrees
    best: RlPlan | None
    placement: RlCandidate | None  # the fastest of the plan that the framework runs
    why: str = ""  # no step of theirs, or no plan

    @property
    def gain(self) -> float | None:
        """Times that the fastest step is shorter."""
        return self.theirs.step_s / self.placement.step_s if self.theirs and self.placement else None


def import_step(
    paths: Sequence[Path], given: Mapping[str, Any], arguments: Sequence[str] = (), kind: str = VERL.name
) -> ImportedStep:
    """The config in `paths` on the cluster of `given` (flat fields of a request, among them `output`, the tokens of an
    answer in the mean, which no config has). kind: one of STEP_READERS.

    Raises InputError: options of another release, wrong values, another number of GPUs, an engine without a cache.
    """
    fields = {name: value for name, value in given.items() if value is not None}
    if "output" not in fields:
        raise InputError("no config states the length of answers", hint="`--output N`: their mean, in tokens")
    reader = STEP_READERS[kind]
    step = _with_prompts(reader.read(_texts(paths, reader), arguments, fields.get("model")), fields.get("input"))
    if "cluster" not in fields and "gpu" not in fields:
        raise InputError("the config does not name its GPUs",
                         hint=f"it starts {step.gpus} ranks: add `--gpu NAME` or `--cluster NAME:NODES`")  # fmt: skip
    if "cluster" not in fields:
        fields.setdefault("gpus", step.gpus)
    request = load_any_request(None, {**step.fields, **fields, "target": reader.target.name},
                               [f"workload.old_logprobs={step.old_logprobs}"])  # fmt: skip
    if not isinstance(request, RlRequest):
        raise InputError("the workload is not one to post-train", hint="take `workload.kind` out of the environment")
    # A packed sequence is a micro-batch.
    train = step.train if step.packed_tokens is None else {**step.train, "micro_batch": 1}
    rl = replace(rl_problem_of(request)[0], fixed={"train": train, "generate": step.generate},
                 memory_share=step.memory_share, row_tokens=step.packed_tokens)  # fmt: skip
    if rl.cluster.num_gpus != step.gpus:
        raise InputError(f"the config starts {step.gpus} ranks, the cluster has {rl.cluster.num_gpus} GPUs",
                         hint="name a cluster of as many")  # fmt: skip
    _holds_a_cache(step, rl)
    result = placed(Prices(rl), step.trainer_gpus)
    theirs = candidate(result, rl, 1) if result is not None else None
    why = "" if result is not None else "a call fits on its GPUs by no layout of these degrees"
    best: RlPlan | None = None
    try:
        best = plan_rl(request)
    except NoFeasibleLayoutError as error:
        why = why or error.message
    placement = None if best is None else best.best
    return ImportedStep(reader=reader, step=step, theirs=theirs, best=best, placement=placement, why=why)


def _texts(paths: Sequence[Path], reader: StepReader) -> dict[str, str]:
    """The files by path. Raises InputError for the script of overrides without them."""
    files, name = {str(path): read_text(path) for path in paths}, reader.overrides.file
    scripts = [path for path, text in files.items() if name in text]
    if scripts and not any(path.name == name for path in paths):
        raise InputError(f"{scripts[0]}: its options are in {name}", hint="name that file beside it")
    return files


def _with_prompts(step: StatedStep, prompt: Any) -> StatedStep:
    """The step with the lengths of prompts, and with the limit of answers. prompt: tokens of a flag."""
    stated = step.fields.get("input")
    if prompt is None:
        source = f"{stated} tokens, the limit of the config" if stated else f"{_PROMPT} tokens"
        step = replace(step, assumed=(f"prompts of {source}: `--input N` gives their mean", *step.assumed))
    if step.row_tokens is None:
        return step
    mean = parse_tokens(prompt) if prompt is not None else _PROMPT
    if step.row_tokens <= mean:
        raise InputError(f"prompts of {mean:,} tokens leave no answer in the {step.row_tokens:,} tokens of a sequence",
                         hint="`--input N`: shorter prompts")  # fmt: skip
    return replace(step, fields={**step.fields, "input": mean, "output_max": step.row_tokens - mean})


def emitted(path: Path, kind: str) -> bool:
    """Whether a file has the overrides that `emit` writes, or is a script that reads them."""
    name = STEP_READERS[kind].overrides.file
    return path.name == name or (
        path.is_file() and name in path.read_text(encoding="utf-8", errors="replace"))  # fmt: skip


def _holds_a_cache(step: StatedStep, rl: RlProblem) -> None:
    """Raises InputError where the memory of the engine is less than its weights."""
    memory = rl.resolved.memory_bytes
    room = step.memory_share * memory
    model, tp = rl.models["policy"], step.generate["tp"]
    experts = sum(expert_parameters(model, model.kinds[kind]) for kind in model.pattern)
    # Experts alone are divided over the ranks of ep, which may be more than those of tp.
    dense = (total_parameters(model) - experts) / tp
    weights = _WEIGHTS * (dense + experts / max(step.generate["ep"], tp))
    if weights >= room:
        raise InputError(
            f"{step.memory_option} {step.memory_share:g} of {memory / GIB:.1f} GiB is "
            f"{room / GIB:.1f} GiB: {weights / GIB:.1f} GiB of weights leave no KV cache",
            hint="a larger share, or a larger tensor parallel size")  # fmt: skip

