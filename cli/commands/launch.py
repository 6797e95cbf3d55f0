"""`meshwright launch`: trains a plan with torchrun, or rehearses it on a small model and proves it right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .. import launch_flags, launched, options, run_flags, training_flags
from ..console import FORMAT_VERSION, Terminal
from ..elastic import check_elastic, check_nodes, recovery_of
from ..files import check_writable
from ..pretrained import check_pretrained

if TYPE_CHECKING:
    from ...planner.document.lengths_plan import LengthsPlan
    from ...planner.document.plan import Plan
    from ...planner.document.rl_plan import RlPlan
    from ...runtime.job import Job
    from ...runtime.nodes import Nodes
    from ...runtime.settings import Settings

_DONE_BY_LAUNCHERS = {
    "copy-every": "`meshwright launch` makes the copies",
    "elastic": "`meshwright launch` goes on without a lost node",
    "max-restarts": "on several nodes `meshwright launch` starts the ranks again",
}


def command(
    context: typer.Context,
    plan: options.PlanFile,
    choice: options.Choice = 1,
    steps: run_flags.Steps = None,
    init_from: training_flags.InitFrom = None,
    data: training_flags.Data = "synthetic",
    shuffle: training_flags.Shuffle = False,
    end_token: training_flags.EndToken = None,
    eval_data: training_flags.EvalData = None,
    eval_every: training_flags.EvalEvery = 100,
    eval_batches: training_flags.EvalBatches = 10,
    seed: run_flags.Seed = 0,
    learning_rate: training_flags.LearningRate = 3e-4,
    schedule: training_flags.Schedule = "constant",
    warmup: training_flags.Warmup = 0,
    min_lr: training_flags.MinRate = 0.0,
    decay_steps: training_flags.DecaySteps = None,
    weight_decay: training_flags.WeightDecay = 0.1,
    no_decay: training_flags.NoDecay = "",
    clip: training_flags.Clip = 1.0,
    lora_alpha: training_flags.LoraAlpha = None,
    balance_experts: training_flags.BalanceExperts = False,
    compile_layers: training_flags.Compile = False,
    order: run_flags.Order = None,
    device: run_flags.Device = "auto",
    timeout: run_flags.Timeout = None,
    scale_down: run_flags.ScaleDown = False,
    check_parity: run_flags.CheckParity = False,
    as_trained: run_flags.AsTrained = False,
    planned_dtype: run_flags.PlannedDtype = False,
    dry_run: run_flags.DryRun = False,
    report: run_flags.Report = None,
    metrics: training_flags.Metrics = None,
    tracker: training_flags.Tracker = None,
    checkpoint: run_flags.Checkpoint = None,
    checkpoint_every: run_flags.CheckpointEvery = None,
    checkpoint_async: run_flags.CheckpointAsync = False,
    copy_every: run_flags.CopyEvery = None,
    keep: run_flags.Keep = None,
    resume: run_flags.Resume = False,
    nnodes: run_flags.Nnodes = None,
    nproc_per_node: run_flags.NprocPerNode = None,
    node_rank: run_flags.NodeRank = 0,
    master_addr: run_flags.MasterAddr = None,
    master_port: run_flags.MasterPort = None,
    max_restarts: run_flags.MaxRestarts = 0,
    elastic: run_flags.Elastic = False,
    rejoin_timeout: run_flags.RejoinTimeout = None,
    force: options.Force = False,
) -> None:
    """Train a plan with torchrun; --scale-down rehearses it with a small model.

    A plan of post-training is rehearsed: it generates, scores and trains.
    One of DPO also trains at its size, on pairs of --data.

    \b
    Examples:
      meshwright launch plan.json --scale-down --check-parity
      meshwright launch plan.json --steps 100 --data tokens/ --report run.json
      meshwright launch plan.json --init-from Llama-3.1-8B/ --checkpoint ckpt/
      meshwright launch plan.json --checkpoint ckpt/ --resume --max-restarts 3
      meshwright launch plan.json --checkpoint ckpt/ --elastic --master-addr n0
      meshwright launch plan.json --nnodes 2 --node-rank 1 --master-addr n0
      meshwright launch rl.json --scale-down --steps 20 --lr 0.003
      meshwright launch dpo.json --data pairs.jsonl
    """
    from ...runtime.nodes import nodes_for
    from ...runtime.report import Recorder
    from ...runtime.settings import Settings
    from ...runtime.trackers.registry import checked_tracker

    terminal: Terminal = context.obj
    _check_files(report, None if resume else metrics, force=force)  # a resumed run appends to its metrics
    # Rounding grows with every step of a rate that moves the loss: parity is judged on few of them.
    steps = steps if steps is not None else (4 if check_parity else 10)
    launch_flags.check_flags(steps=steps, device=device, check_parity=check_parity, as_trained=as_trained,
                             planned_dtype=planned_dtype, scale_down=scale_down)  # fmt: skip
    check_elastic(elastic=elastic, rejoin_s=rejoin_timeout, scale_down=scale_down, order=order, restarts=max_restarts)
    keep_last, keep_axes = launch_flags.checkpoints_and_axes(keep or (), scale_down=scale_down)
    saving = launch_flags.saving_settings(checkpoint, every=checkpoint_every, behind=checkpoint_async,
                                          copy_every=copy_every, keep=keep_last, resume=resume,
                                          max_restarts=max_restarts, elastic=elastic)  # fmt: skip
    settings = Settings(
        plan=str(plan.resolve()), choice=choice, steps=steps, data=_absolute(data), init_from=_resolved(init_from),
        shuffle=shuffle, end_token=end_token, eval_data=_resolved(eval_data), eval_every=eval_every,
        eval_batches=eval_batches, seed=seed, learning_rate=learning_rate, schedule=schedule, warmup=warmup,
        min_learning_rate=min_lr, decay_steps=decay_steps, weight_decay=weight_decay, no_decay=no_decay, clip=clip,
        metrics=_resolved(metrics), tracker=None if tracker is None else checked_tracker(tracker),
        lora_alpha=lora_alpha, device=device, timeout_s=timeout, scale_down=scale_down, keep_axes=keep_axes,
        check_parity=check_parity, as_trained=as_trained, planned_dtype=planned_dtype, balance_experts=balance_experts,
        compile=compile_layers, order=_absolute(order) if order and Path(order).exists() else order, **saving,
    )  # fmt: skip
    loaded, job, notes = _prepared(settings)
    nodes = nodes_for(loaded, job, scaled=scale_down, nnodes=nnodes, nproc_per_node=nproc_per_node,
                      node_rank=node_rank, master_addr=master_addr, master_port=master_port,
                      max_restarts=max_restarts, dry=dry_run)  # fmt: skip
    launched.check_planned_dtype(settings, nodes)
    check_nodes(loaded, nodes, elastic=elastic, copy_every=settings.copy_every)
    if dry_run:
        _show_command(terminal, settings, nodes, elastic=elastic)
        return
    terminal.outlive_streams()
    launched.show_notes(job, notes, terminal.show_line, scaled=scale_down)
    recovery = recovery_of(terminal, loaded, settings, nodes, elastic=elastic, rejoin_s=rejoin_timeout)
    launched.run(terminal, Recorder(job, notes, is_scaled=scale_down), settings, nodes, recovery, report, force=force)


def _check_files(*files: Path | None, force: bool) -> None:
    """Raises InputError for a file that cannot be written, or that is there without `--force`."""
    for file in files:
        if file is not None:
            check_writable(file, force=force)


def _prepared(settings: Settings) -> tuple[Plan | LengthsPlan | RlPlan, Job, list[str]]:
    """The plan, the job of the flags, and what was shrunk. Raises InputError for what does not fit them."""
    from ...planner.document.lengths_plan import load_lengths_plan
    from ...planner.document.reading import load_plan, rl_plan_in
    from ...planner.targets.emit import check_runs, check_trained
    from ...runtime.preparation import prepare

    path = Path(settings.plan)
    plan = load_lengths_plan(path) or rl_plan_in(path) or load_plan(path)
    if plan.kind == "plan":
        check_trained(plan, "meshwright")
        if not settings.scale_down:
            check_runs(plan)
    job, notes = prepare(settings)
    if settings.init_from is not None:
        check_pretrained(Path(settings.init_from), job.model)
    return plan, job, notes


def _show_command(terminal: Terminal, settings: Settings, nodes: Nodes, *, elastic: bool) -> None:
    """The command that would start the run on this node, without the parts that launchers do."""
    from ...runtime.nodes import shell_line

    left_out = {"copy-every": bool(settings.copy_every), "elastic": elastic,
                "max-restarts": nodes.max_restarts > 0 and nodes.nnodes > 1}  # fmt: skip
    for name in (name for name, is_given in left_out.items() if is_given):
        terminal.warn(f"the command leaves out `--{name}`", _DONE_BY_LAUNCHERS[name])
    line = shell_line(replace(settings, copy_every=0), nodes)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "command", "command": line})
    else:
        terminal.write(f"{line}\n")


def _resolved(path: Path | None) -> str | None:
    """An absolute path, since workers may start in another folder."""
    return None if path is None else str(path.resolve())


def _absolute(data: str) -> str:
    """Workers may start elsewhere."""
    return data if data == "synthetic" else str(Path(data).resolve())
