"""Scripts that start instances on their nodes, and the router of disaggregated prefill."""

from __future__ import annotations

import shlex

from ....profiles.io.yaml_syntax import text_of
from .base import FIRST_PORT, ROUTER_PORT, DeploymentSetup, EngineSetup, ServingLauncher


def router_script(service: DeploymentSetup, words: list[str]) -> str:
    """bash that starts a router by `words`."""
    lines = ["#!/usr/bin/env bash", f"# {service.deployment_id}: the router, on port {ROUTER_PORT}."]
    if not service.one_node:
        lines.append("# edit: the addresses of your nodes in place of prefill-node0 and the others")
    return "\n".join([*lines, "set -euo pipefail", " \\\n  ".join(words)]) + "\n"


def _files(service: DeploymentSetup) -> dict[str, str]:
    engine = service.engine
    files = {f"{setup.name}.sh": _script(service, setup) for setup in service.setups}
    if engine.config is not None:
        files |= {f"{setup.name}.yaml": text_of(engine.config(setup)) for setup in service.setups}
    return {**files, **(engine.router(service) if service.disaggregated else {})}


def _script(service: DeploymentSetup, setup: EngineSetup) -> str:
    """bash: starts an instance; its arguments choose it, where there are several."""
    engine, pool = service.engine, setup.pool
    many = "s" if pool.instances > 1 else ""
    lines = ["#!/usr/bin/env bash",
             f"# {service.deployment_id}: {pool.instances} instance{many} of {setup.gpus} {pool.gpu}.",
             f"# Options of {engine.name} {engine.release}."]  # fmt: skip
    lines += (_on_nodes if setup.nodes > 1 else _on_node)(service, setup)
    if setup.on_cpus and engine.cpu_environment is not None:
        lines += [_CORES, *(f"export {name}={value}" for name, value in engine.cpu_environment(setup).items())]
    if service.disaggregated:
        lines += [f"export {name}={value}" for name, value in engine.environment(setup, service).items()]
    if engine.config is not None:
        lines.append('here=$(cd "$(dirname "$0")" && pwd)')
    start = " ".join((*(("trtllm-llmapi-launch",) if engine.by_mpi and setup.nodes > 1 else ()), *engine.start))
    command = [f'exec {start} "${{MODEL:-{setup.model}}}"', *engine.script_options(setup),
               *map(shlex.join, engine.options(setup))]  # fmt: skip
    return "\n".join([*lines, " \\\n  ".join(command)]) + "\n"


# The first thread of every core of a socket, as util-linux 2.37 prints them.
_CORES = """cores() {
  lscpu -p=CPU,CORE,SOCKET | awk -F, -v socket="$1" '!/^#/ && $3 == socket && !seen[$2]++ { print $1 }' | paste -sd,
}"""


def _on_nodes(service: DeploymentSetup, setup: EngineSetup) -> list[str]:
    """The parameters of an instance over several nodes."""
    port = f"slot=0 port={FIRST_PORT[setup.pool.role]}"
    if service.engine.by_mpi:
        return [f"# On {setup.nodes} nodes: mpirun -n {setup.gpus} --map-by ppr:{setup.pool.gpus_per_node}:node "
                f"bash {setup.name}.sh", "set -euo pipefail", port]  # fmt: skip
    return [f"# On each of the {setup.nodes} nodes of an instance: {setup.name}.sh RANK HEAD_ADDRESS",
            "set -euo pipefail", "rank=${1:?rank of this node, from 0}", "head=${2:?address of node 0}",
            port]  # fmt: skip


def _on_node(service: DeploymentSetup, setup: EngineSetup) -> list[str]:
    """The parameters of an instance on a node, beside others."""
    first = service.setups[0].pool.gpus if service.one_node and setup is not service.setups[0] else 0
    slots = min(setup.slots, setup.pool.instances)
    devices = [] if setup.on_cpus else [f"export CUDA_VISIBLE_DEVICES=$(seq -s, $gpu $((gpu + {setup.gpus - 1})))"]
    return [f"# {setup.name}.sh SLOT: one of up to {slots} instances of a node, from 0.",
            f"# FIRST_GPU: the first GPU of instance 0 on this node [{first}].",
            "set -euo pipefail", "slot=${1:-0}", f"port=$(({FIRST_PORT[setup.pool.role]} + slot))",
            f"gpu=$((${{FIRST_GPU:-{first}}} + slot * {setup.gpus}))", *devices]  # fmt: skip


def _notes(service: DeploymentSetup) -> list[str]:
    if service.one_node:
        return []
    out = [f"{setup.name}.sh starts an instance, on the node that it is run on: its first lines have the arguments"
           for setup in service.setups if setup.nodes > 1 or setup.slots > 1]  # fmt: skip
    made_up = "router.sh names made-up hosts: put the addresses of your nodes in their place"
    return [*out, *([made_up] if service.disaggregated else [])]


def _next_step(service: DeploymentSetup) -> str:
    """bash that starts all of a node; over several nodes with names in place of what each of them gives."""
    starts = [_started(service, setup) for setup in service.setups]
    if service.disaggregated:
        return " ".join([*(start if start.endswith("done;") else f"{start} &" for start in starts), "bash router.sh"])
    return f"{starts[0]} wait" if starts[0].endswith("done;") else starts[0]


def _started(service: DeploymentSetup, setup: EngineSetup) -> str:
    script = f"bash {setup.name}.sh"
    if setup.nodes > 1:
        return f"{script} RANK HEAD_ADDRESS"
    if not service.one_node:
        return f"{script} SLOT" if setup.slots > 1 else script
    slots = " ".join(map(str, range(setup.pool.instances)))
    return f"for slot in {slots}; do {script} $slot & done;" if setup.pool.instances > 1 else script


SCRIPTS = ServingLauncher(
    name="scripts", files=_files, refusals=lambda service: [], notes=_notes, next_step=_next_step)  # fmt: skip
