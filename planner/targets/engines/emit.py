"""Writes the scripts that start the instances of a serving plan."""

from __future__ import annotations

import re

from ....errors import InputError, UnsupportedError
from ...document.serving_plan import ServingPlan, ServingPool
from ..emit import Emitted
from .base import EngineTarget, Setup
from .registry import engine_target

_FIRST_PORT = 8000


def emit_serving(plan: ServingPlan, to: str, choice: int = 1) -> Emitted:
    """The scripts of deployment `choice`, one per pool, and the plan. Pure: equal plans give equal bytes.

    Raises InputError (no such deployment) and UnsupportedError (an engine that is not the plan's, or cannot run it).
    """
    target = engine_target(to)
    if to != plan.resolved["engine"]:
        raise UnsupportedError(f"the plan is for {plan.resolved['engine']}, whose iterations {to} does not have",
                               hint=f"plan again with `--target {to}`")  # fmt: skip
    if not 1 <= choice <= len(plan.candidates):
        raise InputError(f"the plan has no deployment {choice}", hint=f"it has 1 to {len(plan.candidates)}")
    chosen = plan.candidates[choice - 1]
    setups = [_setup(plan, pool) for pool in chosen.pools]
    if reasons := [reason for setup in setups for reason in target.refusals(setup)]:
        text = "\n".join([f"{to} {target.release} cannot run deployment {choice}, {chosen.deployment_id}", *reasons])
        raise UnsupportedError(text, hint="`emit --choice` takes another deployment of the plan")
    files = {f"{_name(setup.pool)}.sh": _script(target, setup, chosen.deployment_id) for setup in setups}
    notes = dict.fromkeys(note for setup in setups for note in target.notes(setup))
    first, *_ = files
    return Emitted({**files, "plan.json": plan.to_json()}, f"bash {first}", f"{to} {target.release}", tuple(notes))


def _name(pool: ServingPool) -> str:
    return "serve" if pool.role == "both" else pool.role


def _setup(plan: ServingPlan, pool: ServingPool) -> Setup:
    model, work = plan.resolved["model"], plan.request["workload"]
    found = re.search(r"huggingface\.co/([\w.-]+/[\w.-]+)", str(model.get("source") or ""))
    held = pool.cache_sequences // pool.attention_dp * (work["input"] + work["output"] // 2)
    return Setup(pool=pool, model=found[1] if found else str(model["name"]),
                 longest=held if held < model["max_positions"] else None)  # fmt: skip


def _script(target: EngineTarget, setup: Setup, deployment_id: str) -> str:
    """bash: `serve.sh` starts an instance; its arguments choose it, where there are several."""
    pool = setup.pool
    name, many = f"{_name(pool)}.sh", "s" if pool.instances > 1 else ""
    lines = ["#!/usr/bin/env bash", f"# {deployment_id}: {pool.instances} instance{many} of {setup.gpus} {pool.gpu}.",
             f"# Options of {target.name} {target.release}."]  # fmt: skip
    if setup.nodes > 1:
        lines += [f"# On each of the {setup.nodes} nodes of an instance: {name} RANK HEAD_ADDRESS",
                  "set -euo pipefail", "rank=${1:?rank of this node, from 0}", "head=${2:?address of node 0}",
                  f"port={_FIRST_PORT}"]  # fmt: skip
    else:
        devices = f"$((slot * {setup.gpus})) $((slot * {setup.gpus} + {setup.gpus - 1}))"
        lines += [f"# {name} SLOT: one of up to {min(setup.slots, pool.instances)} instances of a node, from 0.",
                  "set -euo pipefail", "slot=${1:-0}", f"port=$(({_FIRST_PORT} + slot))",
                  f"export CUDA_VISIBLE_DEVICES=$(seq -s, {devices})"]  # fmt: skip
    command = [f'exec {target.start} "${{MODEL:-{setup.model}}}"', *target.options(setup)]
    return "\n".join([*lines, " \\\n  ".join(command)]) + "\n"
