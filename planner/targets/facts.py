"""Builds layout, model and workload from the facts of a launch config."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ...cost_models.layouts import Layout
from ...errors import InputError
from ...profiles.cluster.load import load_cluster
from ...profiles.io.registry import gpu_entry, load_node
from .argv import Arguments
from .options import Facts

_LAYOUT = ("tp", "sequence_parallel", "cp", "cp_algorithm", "pp", "schedule", "vpp", "ep", "etp", "ep_overlap",
           "cuda_graphs", "micro_batch", "zero", "recompute", "offload", "offload_layers", "offload_modules",
           "precision")  # fmt: skip

# Details of an error: the field of a plan that it is about.
_OF_BATCH = {"field": "workload.global_batch"}

# Key of the fact `recompute`: whole layers, one of so many of a stage, are recomputed.
EVERY = "every"

# Value of the fact `replicas` where each node holds a copy of the sharded states.
NODES = "nodes"


def layout_of(facts: Facts, num_gpus: int, num_nodes: int = 1, num_layers: int = 0) -> Layout:
    """The layout on `num_gpus` GPUs of `num_nodes` nodes, of a model with `num_layers` (0: not known).

    Raises InputError where the degrees do not fit, and for a layout that follows from a number of layers not known.
    """
    tp, cp, pp = (int(facts.get(name, 1)) for name in ("tp", "cp", "pp"))
    if tp * cp * pp < 1 or num_gpus % (tp * cp * pp):
        raise InputError(
            f"tp {tp} x cp {cp} x pp {pp} = {tp * cp * pp} does not divide the {num_gpus} GPUs",
            hint="tp x cp x pp must divide the number of ranks; the quotient is dp",
        )
    dp = num_gpus // (tp * cp * pp)
    if (stated := facts.get("dp")) is not None and stated != dp:
        raise InputError(
            f"tp {tp} x cp {cp} x pp {pp} x dp {stated} = {tp * cp * pp * stated}, but there are {num_gpus} GPUs",
            hint=f"dp {dp} would fit",
        )
    # DeepSpeed without an mpu counts every rank of AutoTP as data parallel.
    if (counted := facts.get("dp_by_batch")) is not None and counted not in (dp, num_gpus):
        raise InputError(
            f"the batch sizes are those of dp {counted} (global batch / micro-batch / accumulation steps), but tp {tp} "
            f"x cp {cp} x pp {pp} leave dp {dp} of {num_gpus} GPUs",
            hint=f"{counted * tp * cp * pp} GPUs would fit, or other batch sizes",
            details=_OF_BATCH,
        )
    replicas = num_nodes if facts.get("replicas") == NODES else int(facts.get("replicas", 1))
    if dp % replicas:
        raise InputError(f"{replicas} replicas of the sharded states do not divide dp {dp}", hint="a divisor of dp")
    known = {name: facts[name] for name in _LAYOUT if name in facts}
    batch = facts.get("workload.global_batch")
    if "micro_batch" not in facts and batch and (steps := facts.get("accumulation")):
        if batch % (dp * steps):
            raise InputError(f"the batch of {batch} is no multiple of dp {dp} x {steps} accumulation steps",
                             hint="the quotient is the micro-batch; give another number of GPUs",
                             details=_OF_BATCH)  # fmt: skip
        known["micro_batch"] = batch // (dp * steps)
    if "recompute" in known:
        known["recompute"] = _recomputed(known["recompute"], num_layers, pp)
    return Layout.from_dict({**known, "dp": dp, "shard": dp // replicas if known.get("zero") else dp})


def _recomputed(given: Mapping[str, Any], num_layers: int, pp: int) -> Mapping[str, Any]:
    """The recomputation with a number of layers of a stage in the place of a share of them."""
    every = given.get(EVERY)
    if every is None:
        return given
    if every < 2:
        return {"mode": "full"}
    if not num_layers:
        raise InputError(f"one of {every} layers is recomputed, and the model is not known", hint="name it by --model")
    layers = num_layers // pp // every
    return {"mode": "full", "layers": layers} if layers else {"mode": "none"}


def batch_of(facts: Facts, layout: Layout, default: int, assumed: list[str]) -> int | None:
    """The global batch of a config that states it per rank, or not at all; None where that of the request stands."""
    if "batch_per_rank" in facts:
        return int(facts["batch_per_rank"]) * layout.dp
    if "workload.global_batch" not in facts and "accumulation" in facts:
        return int(facts["accumulation"]) * layout.dp * layout.micro_batch
    step = layout.dp * layout.micro_batch
    if "workload.global_batch" in facts or default % step == 0:
        return None
    taken = -(-default // step) * step
    assumed.append(f"{default} is no multiple of dp {layout.dp} x micro batch {layout.micro_batch}: "
                   f"--global-batch {taken} is taken")  # fmt: skip
    return taken


def cannot_exist(layout: Layout, facts: Facts) -> str:
    """Why no run has this layout, as far as the facts of a part of a config tell; "" where they allow it."""
    batch, step = facts.get("workload.global_batch"), layout.dp * layout.micro_batch
    if batch and batch % step:
        return f"the batch of {batch} is no multiple of dp {layout.dp} x micro batch {layout.micro_batch} = {step}"
    ranks, experts = layout.tp * layout.cp * layout.dp, layout.ep * layout.etp
    if layout.ep > 1 and ranks % experts:
        return f"ep {layout.ep} x etp {layout.etp} = {experts} does not divide the {ranks} ranks of a stage"
    return ""


def ranks_stated(facts: Facts, arguments: Arguments) -> int:
    """The number of ranks that the files start; 0: they leave it open."""
    ranks = arguments.ranks
    if "world" in ranks:
        return ranks["world"]
    if "gpus_per_node" in ranks:
        split = prod(int(facts.get(name, 1)) for name in ("tp", "cp", "pp"))
        several = arguments.open_nodes and "num_nodes" not in ranks and split > ranks["gpus_per_node"]
        return 0 if several else ranks["gpus_per_node"] * ranks.get("num_nodes", 1)
    if "num_gpus" in facts:
        return int(facts["num_gpus"])
    copies = facts.get("dp") or facts.get("dp_by_batch") or 0
    return int(copies) * prod(int(facts.get(name, 1)) for name in ("tp", "cp", "pp"))


def started_gpus(arguments: Arguments, gpu: str | None, num_gpus: int, assumed: list[str]) -> dict[str, Any]:
    """Fields of a request for the GPUs that the files start: `gpus`, or a `cluster` of nodes with fewer than usual."""
    open_nodes = "" if {"num_nodes", "world"} & arguments.ranks.keys() else arguments.open_nodes
    if open_nodes:  # the launcher takes its nodes from a variable that is not set, or from a file
        assumed.append(f"the number of nodes is open (`{open_nodes}`): one node is taken")
    return _small_nodes(arguments, gpu, assumed) or {"gpus": num_gpus}


def _small_nodes(arguments: Arguments, gpu: str | None, assumed: list[str]) -> dict[str, Any]:
    """The nodes that the files start if these have fewer ranks than the usual node of the GPU has GPUs.

    A GPU keeps its share of the network cards. Empty: one node or usual nodes hold the ranks, or no usual one is known.
    """
    count, ranks = arguments.ranks.get("num_nodes", 1), arguments.ranks.get("gpus_per_node", 0)
    if gpu is None or count < 2 or arguments.ranks.get("world", count * ranks) != count * ranks:
        return {}
    name = gpu_entry(gpu).usual_node
    usual = load_node(name) if name else None
    if usual is None or not 0 < ranks < usual.gpus_per_node:
        return {}
    group: dict[str, Any] = {"node": usual.name, "count": count, "gpus_per_node": ranks}
    if usual.nics is not None:
        group["nics"] = max(usual.nics * ranks // usual.gpus_per_node, 1)
    assumed.append(f"the config starts {count} nodes of {ranks} ranks: {usual.name} with {ranks} GPUs are taken")
    return {"cluster": {"name": f"{count} x {ranks}x{gpu}", "groups": [group]}}


def gpus_named(given: Mapping[str, Any]) -> int | None:
    """The number of GPUs that the flags of a request name; None: they leave it open."""
    if not given.get("cluster"):
        return given.get("gpus")
    return load_cluster(given["cluster"], gpu=given.get("gpu"), num_gpus=given.get("gpus"),
                        exclude=given.get("exclude") or ()).num_gpus  # fmt: skip


def request_part(facts: Facts, prefix: str) -> dict[str, Any]:
    """The facts under `prefix.` as a mapping: `model` in the explicit form, `workload` in that of a request."""
    return {name.removeprefix(f"{prefix}."): value for name, value in facts.items() if name.startswith(f"{prefix}.")}
