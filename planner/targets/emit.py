"""The files that run a plan: those of the trainer, the script of a node, those of the launcher, and the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import UnsupportedError
from ..document.island_use import UNEVEN_SHARES
from ..document.plan import Plan
from ..document.specs import model_of, workload_of
from .base import Target
from .launchers.base import node_script
from .launchers.registry import launcher as load_launcher
from .option_lists import OptionList, option_list
from .placement import place
from .registry import TARGETS, able_to_train, target, who_builds
from .setup import Setup


@dataclass(frozen=True)
class Emitted:
    """Name -> text of every file; how to start them; what the user should know."""

    files: dict[str, str]
    next_step: str
    framework: str
    warnings: tuple[str, ...] = ()


class LayoutRefusedError(UnsupportedError):
    """The target cannot express a layout; `fields` of it are why. It has a hint where no other layout would help."""

    def __init__(self, message: str, fields: tuple[str, ...], *, hint: str = "") -> None:
        super().__init__(message, hint=hint, details={"fields": list(fields)})
        self.fields = fields


def emit(
    plan: Plan, to: str = "meshwright", launcher: str = "torchrun", version: str | None = None, choice: int = 1,
    name: str = "plan",
) -> Emitted:  # fmt: skip
    """The files for layout `choice` of `plan`. Pure: equal plans give equal bytes.

    Raises UnknownNameError (target, launcher), InputError (choice, damaged plan), and Refused for a layout that the
    target cannot express, before anything is written.
    """
    found, starter = target(to), load_launcher(launcher)
    if found.trainer is None:
        able = ", ".join(each.name for each in TARGETS.values() if each.trainer is not None)
        raise UnsupportedError(f"files for {to} cannot be written yet", hint=f"these can: {able}")
    setup = Setup.of(plan, choice, name, layerwise=found.layerwise)
    _train_by(found, setup)
    options, warning = option_list(to, version) if found.config is not None else (None, "")
    framework = f"{found.trainer.framework} {options}" if options is not None else found.trainer.framework
    if reasons := refusals(found, setup, options):
        fields = tuple(dict.fromkeys(field for names, _ in reasons for field in names))
        lines = "\n".join(f"{'' if not names else ', '.join(names) + ': '}{text}" for names, text in reasons)
        lacks = found.trainer.cannot_build(setup.model, setup.workload, options)
        hint = who_builds(setup.model, setup.workload) if lacks else ""
        subject = f"{framework} cannot express layout {choice}, {setup.candidate.layout_id}"
        raise LayoutRefusedError(f"{subject}\n{lines}", fields, hint=hint)
    job = found.trainer.job(setup, _header(setup, framework, options), options)
    hosts, devices = (setup.candidate.placement.hosts, None) if found.runs_plans else place(setup)
    own = {"plan.json": plan.to_json()} if found.runs_plans else {}  # our runtime reads the plan itself
    job = replace(job, hosts=hosts, devices=devices, files={**job.files, **own})
    files = {**job.files, "launch.sh": node_script(job), **starter.files(job), "plan.json": plan.to_json()}
    unnamed = () if plan.resolved["cluster"].get("hosts") or not hosts else (
        f"the cluster file names no hosts: put yours in place of {hosts[0]} and the others",)  # fmt: skip
    warnings = (*((warning,) if warning else ()), *job.says, *unnamed)
    return Emitted(files, starter.next_step(job), framework, warnings)


def check_trained(plan: Plan, name: str) -> None:
    """Raises UnsupportedError where target `name` trains the model of a plan in no layout; names targets that do."""
    model, workload = model_of(plan.resolved, "plan"), workload_of(plan.resolved, "plan")
    if reason := target(name).cannot_train(model, workload):
        raise UnsupportedError(f"{name} cannot train {model.name}: {reason}", hint=who_builds(model, workload))


def _train_by(found: Target, setup: Setup) -> None:
    """Raises UnsupportedError for techniques that the target does not train by, naming one that would."""
    chosen = setup.workload.techniques
    able = found.trainer.techniques if found.trainer is not None else {}
    if missing := [name for name, _ in chosen if name not in able]:
        others = able_to_train(missing)
        if not others:
            raise UnsupportedError(f"no target trains by {', '.join(missing)} yet: such a plan is only priced",
                                   hint="plan again without `--technique`")  # fmt: skip
        raise UnsupportedError(f"{found.name} does not train by {', '.join(missing)}",
                               hint=f"{' and '.join(others)} would: plan with `--target {others[0]}`")  # fmt: skip
    for name, knobs in chosen:
        if why := able[name](setup, dict(knobs)):
            raise UnsupportedError(f"{found.name} does not train by this {name}: {why}",
                                   hint=f"its knobs: `meshwright show techniques {name}`")  # fmt: skip


def refusals(found: Target, setup: Setup, options: OptionList | None) -> list[tuple[tuple[str, ...], str]]:
    """Why the target cannot express `setup`: (fields, sentence) of each reason, from the rules that plan for it."""
    if found.trainer is None:
        return [((), "its files cannot be written yet")]
    every = [replace(setup, layout=layout) for layout in setup.layouts]
    out = [(rule.fields, rule.explain(one.layout, one.problem)) for one in every for rule in found.broken(one)]
    partition = setup.candidate.partition if setup.candidate.layerwise is None else None
    if (split := found.cannot_split(partition)) is not None:
        out.append((("stages",), split))
    if setup.candidate.spread is not None and setup.candidate.spread.shares is not None:
        out.append((("micro_batch",), UNEVEN_SHARES))
    out += [((), text) for text in found.trainer.cannot(setup)]
    out += [((), text) for text in found.trainer.cannot_build(setup.model, setup.workload, options)]
    config = found.trainer.config
    if config is None or options is None or out:
        return out
    for entry in config.table(options).entries:
        listed = [option for option in entry.write(setup) if not config.for_script(option)]
        absent = [option for option in listed if option not in options.options]
        if absent:
            out.append((entry.fields, f"release {options} has no {', '.join(absent)}"))
    return out


def _header(setup: Setup, framework: str, options: OptionList | None) -> tuple[str, ...]:
    checked = f"; options checked against {framework}" if options is not None else ""
    return (
        f"{setup.candidate.layout_id}: {setup.model.name} on {setup.nodes}, "
        f"{setup.candidate.step_s:.3g} s per step predicted",
        f"Plan {setup.plan_id}, layout {setup.choice}. Written by {setup.tool}{checked}.",
    )
