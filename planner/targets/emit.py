"""Writes the files that run a plan: trainer, node script, launcher, and the plan itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...cost_models.problem import Problem
from ...errors import UnsupportedError, listed
from ..document.island_use import UNEVEN_SHARES
from ..document.plan import Plan
from ..document.specs import model_of, stack_of, workload_of
from .base import Target
from .launchers.base import node_script
from .launchers.registry import launcher as load_launcher
from .option_lists import OptionList, option_list
from .placement import place
from .registry import TARGETS, runs_on_none, who_trains, with_techniques, writes_its_files
from .registry import target as load_target
from .setup import Setup


@dataclass(frozen=True)
class Emitted:
    """The files of a layout, and how to start them."""

    # Name -> text.
    files: dict[str, str]
    # The command that starts them.
    next_step: str
    # The framework and its release.
    framework: str
    # Manual steps and doubts for the user.
    warnings: tuple[str, ...] = ()


class LayoutRefusedError(UnsupportedError):
    """Raised when the target cannot express a layout because of `fields`. It has a hint where no other layout helps."""

    def __init__(self, message: str, fields: tuple[str, ...], *, hint: str = "") -> None:
        super().__init__(message, hint=hint, details={"fields": list(fields)})
        self.fields = fields


def emit(
    plan: Plan, to: str = "meshwright", launcher: str = "torchrun", version: str | None = None, choice: int = 1,
    name: str = "plan",
) -> Emitted:  # fmt: skip
    """Writes the files for layout `choice` of `plan`. Pure: equal plans give equal bytes.

    Raises UnknownNameError (target, launcher), InputError (choice, damaged plan), and Refused (a layout that the target
    cannot express) before it writes a file.
    """
    target, starter = load_target(to), load_launcher(launcher)
    if target.trainer is None:
        able = ", ".join(known.name for known in TARGETS.values() if known.trainer is not None)
        raise UnsupportedError(f"files for {to} cannot be written yet", hint=f"these can: {able}")
    check_runs(plan)
    setup = Setup.of(plan, choice, name, layerwise=target.layerwise)
    _train_by(target, setup, plan.resolved["target"])
    config = target.config
    options, warning = option_list(to, version or config.release(setup)) if config is not None else (None, "")
    framework = f"{target.trainer.framework} {options}" if options is not None else target.trainer.framework
    if reasons := refusals(target, setup, options):
        fields = tuple(dict.fromkeys(field for names, _ in reasons for field in names))
        lines = "\n".join(f"{'' if not names else ', '.join(names) + ': '}{text}" for names, text in reasons)
        lacks = target.lacks(setup.model, setup.workload, options)
        hint = who_trains(setup.problem) if lacks else ""
        subject = f"{framework} cannot express layout {choice}, {setup.candidate.layout_id}"
        raise LayoutRefusedError(f"{subject}\n{lines}", fields, hint=hint)
    job = target.trainer.job(setup, _header(setup, framework, options, _priced_for(plan, to)), options)
    hosts, devices = (setup.candidate.placement.hosts, None) if target.runs_plans else place(setup)
    plan_file = {"plan.json": plan.to_json()}
    # A launcher passes the files of the job to the nodes. Our runtime needs the plan there.
    job = replace(job, hosts=hosts, devices=devices, nodes_per_rack=setup.nodes_per_rack, gpu=setup.gpu,
                  files={**job.files, **(plan_file if target.runs_plans else {})})  # fmt: skip
    files = {**job.files, "launch.sh": node_script(job), **starter.files(job), **plan_file}
    unnamed = () if plan.resolved["cluster"].get("hosts") or not hosts else (
        f"the cluster file names no hosts: put yours in place of {hosts[0]} and the others",)  # fmt: skip
    warnings = (*((warning,) if warning else ()), *job.notes, *_unbalanced(target, setup, options), *unnamed)
    return Emitted(files, starter.next_step(job), framework, warnings)


def _unbalanced(target: Target, setup: Setup, options: OptionList | None) -> tuple[str, ...]:
    """A note where the files lack the plan's balancing loss."""
    coefficient, config = setup.model.moe_aux_loss_coeff, target.trainer.config if target.trainer is not None else None
    if not coefficient or config is None or options is None:
        return ()
    if any("model.moe_aux_loss_coeff" in entry.fields for entry in config.table(options).entries):
        return ()
    return (f"the files do not set the balancing loss of the experts (moe_aux_loss_coeff {coefficient:g} in the plan)",)


def check_trained(plan: Plan, name: str) -> None:
    """Raises UnsupportedError if target `name` cannot train a plan's model in any layout. Names targets that can."""
    resolved, gpus_per_node = plan.resolved, plan.resolved["cluster"]["groups"][0]["gpus_per_node"]
    problem = Problem(model_of(resolved, "plan"), workload_of(resolved, "plan"), stack_of(resolved, "plan"),
                      plan.best.to_layout().num_gpus, gpus_per_node)  # fmt: skip
    if reasons := load_target(name).cannot_train(problem):
        hint = who_trains(problem, plan.resolved["target"])
        raise UnsupportedError(f"{name} cannot train {problem.model.name}: {reasons[0]}", hint=hint)


def check_runs(plan: Plan) -> None:
    """Raises UnsupportedError where a GPU of the plan is known to plans alone."""
    for group in plan.resolved["cluster"]["groups"]:
        if group["gpu"].get("plan_only"):
            raise UnsupportedError(runs_on_none(group["gpu"]["name"]),
                                   hint="`explain`, `memory`, `what-if` and `report` read its plans")  # fmt: skip


def _train_by(target: Target, setup: Setup, own: str) -> None:
    """Raises UnsupportedError for techniques that the target lacks. Names a target that has them. own: of the plan."""
    chosen = setup.workload.techniques
    able = target.techniques
    if missing := [name for name, _ in chosen if name not in able]:
        others = with_techniques(missing)
        if not others:
            raise UnsupportedError(f"no target trains by {', '.join(missing)} yet: such a plan is only priced",
                                   hint="plan again without `--technique`")  # fmt: skip
        hint = writes_its_files(own) if own in others else f"{listed(others)} would: plan with `--target {others[0]}`"
        raise UnsupportedError(f"{target.name} does not train by {', '.join(missing)}", hint=hint)
    for name, knobs in chosen:
        if why := able[name](setup.problem, dict(knobs)):
            raise UnsupportedError(f"{target.name} does not train by this {name}: {why}",
                                   hint=f"its knobs: `meshwright show techniques {name}`")  # fmt: skip


def refusals(target: Target, setup: Setup, options: OptionList | None) -> list[tuple[tuple[str, ...], str]]:
    """Reasons why the target cannot express `setup`: (fields, sentence), from the rules that the planner uses."""
    if target.trainer is None:
        return [((), "its files cannot be written yet")]
    uniform = [replace(setup, layout=layout) for layout in setup.layouts]
    out = [(rule.fields, rule.explain(part.layout, part.problem)) for part in uniform for rule in target.broken(part)]
    partition = setup.candidate.partition if setup.candidate.layerwise is None else None
    if (split := target.cannot_split(partition, setup.model)) is not None:
        out.append((("stages",), split))
    if setup.candidate.spread is not None and setup.candidate.spread.shares is not None:
        out.append((("micro_batch",), UNEVEN_SHARES))
    if setup.documents is not None and setup.documents.rule not in target.mixed_lengths:
        out.append(((), f"the plan gives each document a degree by the {setup.documents.rule} rule of Megatron"))
    out += [((), text) for text in target.lacks(setup.model, setup.workload, options)]
    out += [reason for part in uniform for reason in target.trainer.cannot_run(part, options)]
    config = target.trainer.config
    if config is None or options is None or out:
        return out
    for entry in config.table(options).entries:
        listed = [option for option in entry.write(setup) if not config.for_script(option)]
        absent = [option for option in listed if option not in options.options]
        if absent:
            out.append((entry.fields, f"release {options} has no {', '.join(absent)}"))
    return out


def _priced_for(plan: Plan, to: str) -> str:
    """The framework whose price the plan has, where it is not the one that trains."""
    planned = plan.resolved["target"]
    return "" if planned == to else f" for `--target {planned}`"


def _header(setup: Setup, framework: str, options: OptionList | None, priced_for: str) -> tuple[str, ...]:
    checked = f"; options checked against {framework}" if options is not None else ""
    return (
        f"{setup.candidate.layout_id}: {setup.model.name} on {setup.nodes}, "
        f"{setup.step_s:.3g} s per step predicted{priced_for}",
        f"Plan {setup.plan_id}, layout {setup.choice}. Written by {setup.tool}{checked}.",
    )
