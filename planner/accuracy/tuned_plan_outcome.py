"""A tuned plan, priced by the path of `plan`, beside the layout that the search chooses for the same request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ...cost_models.arrays import Mask
from ...cost_models.cuda_graphs import GRAPH_CODE
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities.stages import Partition
from ..evaluation.staged import Staged
from ..request.resolve import Resolved, resolve
from ..search.run import search_of
from ..space.rules import WELL_FORMED, Columns, Rule, legality
from ..switches.dtypes import NUMERICS
from ..switches.experts import MOE_FORCE_BALANCE
from ..switches.registry import SWITCHES
from .stack_features import NoNotes, settings_of, switched_layout, with_features
from .tuned_plan import Refusal, TunedPlan
from .tuned_plan_gains import Gains, gains


def _no_whole_graph(columns: Columns, problem: Problem) -> Mask:
    return np.asarray(columns["cuda_graphs"] != GRAPH_CODE["full_iteration"])


# The language model alone is priced where rows state no images, but the step is that of the whole one, which counts
# them on the host (get_rope_index of Qwen3-VL in Megatron-Bridge 067f987d).
_OF_SEEING = (Rule("graphs of models that see", ("cuda_graphs",), _no_whole_graph,
                   "a model that counts its images on the host has no graph of the iteration"),)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlanOutcome:
    """A tuned plan as meshwright sees it; None where there is no such number."""

    id: str
    # Name of the model as the file has it.
    model: str
    task: str
    # Name of the accelerator in the catalogue.
    gpu: str
    num_gpus: int
    # As the recipe names it.
    precision: str
    # Whether it can be launched as written.
    launchable: bool
    # Whether the model can be described.
    described: bool
    # Whether the model has experts.
    moe: bool | None = None
    # Why it is not in the space; None if it is.
    refused: str | None = None
    # The name of that rule.
    rule: str | None = None
    # Id of its layout.
    layout: str | None = None
    # How its tokens reach their experts; None without experts, or where the recipe does not state it.
    dispatcher: str | None = None
    # Whether the memory model says that it fits.
    fits: bool | None = None
    # Bytes of the fullest GPU.
    peak_memory_bytes: float | None = None
    # That a plan may use of a GPU, bytes.
    memory_limit_bytes: float | None = None
    # Seconds of a step.
    step_s: float | None = None
    # The least seconds of a step: of the search, or of the plan itself if that fits and is faster.
    best_step_s: float | None = None
    best_layout: str | None = None
    # step_s / best_step_s: over 1 where the search has a faster layout.
    ratio: float | None = None
    # Factors of the ratio, by what the best layout has and the plan has not.
    gains: Gains | None = None
    # Id of another plan for the model that has the switch with the largest factor; None where none has it, or where the
    # largest is that of the layout.
    kin: str | None = None
    assumptions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: a row of `validate --plans --json`."""
        return asdict(self)


def outcomes_of(plans: Sequence[TunedPlan]) -> list[PlanOutcome]:
    """Outcomes of plans for one request (`request_key`), for which one search is enough."""
    priced = [_priced(plan) for plan in plans]
    in_space = [outcome for outcome in priced if outcome.step_s is not None]
    if not in_space:
        return priced
    # Only a layout that beats the slowest of them matters, unless one does not fit and takes whatever fits.
    limit_s = max(o.step_s or np.inf if o.fits else np.inf for o in in_space)
    best = _best(_requested(plans[0]), limit_s, _OF_SEEING if plans[0].sees else ())
    return [_explained(plan, beside(outcome, best)) for plan, outcome in zip(plans, priced, strict=True)]


def _explained(plan: TunedPlan, outcome: PlanOutcome) -> PlanOutcome:
    """The outcome with the factors of its ratio, where another layout is better."""
    if plan.layout is None or outcome.best_layout in (None, outcome.layout):
        return outcome
    layout, partition = switched_layout(plan.layout, plan.features), Partition(plan.chunks) if plan.chunks else None
    best = (outcome.best_step_s or np.nan, outcome.best_layout or "")
    return replace(outcome, gains=gains(_as_written(plan), _requested(plan), layout, partition, best))


def request_key(plan: TunedPlan) -> str:
    """Equal for plans that train the same, in the same numerics, on the same machines."""
    return repr((plan.request, plan.seq_len, sorted(_trained(plan).items())))


def _trained(plan: TunedPlan) -> dict[str, str]:
    """The switches that change what is trained: a search may not choose others to be faster."""
    settings = settings_of(plan.features)
    return {switch.name: settings[switch.name] for switch in (*NUMERICS, MOE_FORCE_BALANCE) if switch.name in settings}


def _requested(plan: TunedPlan) -> Resolved:
    """The request of a plan with its numerics; all other switches are chosen as for any request."""
    if plan.request is None:
        raise RuntimeError(f"{plan.id} has no request")
    resolved = resolve(plan.request)
    fix = {name: value for name, value in _trained(plan).items() if SWITCHES[name].concerns(resolved.problem)}
    resolved = resolve(plan.request.model_copy(update={"fix": {**plan.request.fix, **fix}}))
    # Rotary positions have no end: a recipe may train on sequences that are longer than those of config.json.
    model = replace(resolved.model, max_positions=max(resolved.model.max_positions, plan.seq_len))
    workload = replace(resolved.workload, seq_len=plan.seq_len)
    if workload.lengths:
        length = float(plan.seq_len)
        workload = replace(workload, lengths=((plan.seq_len, 1.0),), mean_len=length, mean_square_len=length**2)
    return replace(resolved, model=model, workload=workload)


def _as_written(plan: TunedPlan) -> Resolved:
    """The request with the software switched as the recipe has it; what that leaves out is the framework's default."""
    resolved = _requested(plan)
    return replace(resolved, stack=with_features(resolved.plain_stack, plan.features, NoNotes()))


def _priced(plan: TunedPlan) -> PlanOutcome:
    """The plan by itself: whether it is in the space, its step and its memory."""
    blank = PlanOutcome(
        id=plan.id, model=plan.model, task=plan.task, gpu=plan.gpu, num_gpus=plan.num_gpus, precision=plan.precision,
        launchable=not plan.checks, described=plan.undescribed is None, assumptions=plan.assumptions,
    )  # fmt: skip
    if plan.checks:
        return replace(blank, rule="checks", refused=f"cannot be launched as written: {'; '.join(plan.checks)}")
    if plan.undescribed is not None:
        return replace(blank, rule="model", refused=plan.undescribed)
    if plan.layout is None:
        refusal = plan.refusal or Refusal(rule="layout", text="it has no layout")
        return replace(blank, rule=refusal.rule, refused=refusal.text)
    resolved, layout = _as_written(plan), switched_layout(plan.layout, plan.features)
    dispatcher = plan.features.get("moe_dispatcher")
    blank = replace(blank, layout=str(layout), dispatcher=dispatcher, moe=resolved.model.is_moe)
    if broken := _broken(layout, replace(resolved, stages=plan.chunks)):
        texts = "; ".join(rule.explain(layout, resolved.problem) for rule in broken)
        return replace(blank, rule=broken[0].name, refused=texts)
    staged = Staged.of(resolved, layout, Partition(plan.chunks) if plan.chunks else None)
    fits = staged.device_bytes <= resolved.memory_bytes and staged.host_bytes <= resolved.host_bytes
    return replace(
        blank, layout=staged.id, step_s=_rounded(staged.closed_s), peak_memory_bytes=staged.device_bytes, fits=fits,
        memory_limit_bytes=resolved.memory_bytes,
    )  # fmt: skip


def _rounded(seconds: float) -> float:
    """A value rounded like the values that searches compare."""
    return float(f"{seconds:.9g}")


def _broken(layout: Layout, resolved: Resolved) -> list[Rule]:
    """The rules that keep a layout out of the space of the target."""
    columns = Layouts.of([layout])
    rules = (*WELL_FORMED, *legality(resolved.problem), *resolved.target_rules)
    return [rule for rule in rules if not bool(rule.allows(columns, resolved.problem)[0])]


def _best(resolved: Resolved, limit_s: float, rules: tuple[Rule, ...]) -> tuple[float, str] | None:
    """Seconds and id of the fastest layout that fits, of those that beat `limit_s`; None if none does. rules: beside
    those of any request."""
    space = resolved.space_under(resolved.target_rules, resolved.fixes, rules)
    rows = search_of(resolved, space, incumbent=limit_s).run().top.rows
    return (rows[0][0], rows[0][1]) if rows else None


def beside(outcome: PlanOutcome, best: tuple[float, str] | None) -> PlanOutcome:
    """The outcome of a plan with the best layout for its request."""
    if outcome.step_s is None:
        return outcome
    best_s, name = best if best is not None else (np.inf, None)
    if outcome.fits and outcome.step_s <= best_s:
        best_s, name = outcome.step_s, outcome.layout
    if name is None:
        return outcome
    return replace(outcome, best_step_s=best_s, best_layout=name, ratio=outcome.step_s / best_s)
