"""Coordinates of ranks, as planned and as each framework computes them. Run by the Python that has the framework:

    python coordinates.py TARGET [SOURCE] < meshes.jsonl > coordinates.jsonl

A mesh is {world, tp, cp, pp, dp, ep, etp}. SOURCE: folders to take the framework from. Ranks of a
world above 64 are sampled: the first and last 8, and every 17th.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NEMO_PARSER = Path(__file__).parents[2] / "planner" / "targets" / "nemo" / "parser.py"
NANOTRON_PARSER = Path(__file__).parents[2] / "planner" / "targets" / "nanotron" / "parser.py"
BRIDGE_PARSER = Path(__file__).parents[2] / "planner" / "targets" / "megatron_bridge" / "parser.py"

Mesh = dict[str, int]


def planned(mesh: Mesh, rank: int) -> dict[str, int]:
    """A plan's order: tp fastest, then cp, dp, pp. Experts: etp fastest, then ep, over the ranks of a stage."""
    tp, cp, dp, ep, etp = (mesh[name] for name in ("tp", "cp", "dp", "ep", "etp"))
    return {
        "tp": rank % tp, "cp": rank // tp % cp, "dp": rank // (tp * cp) % dp, "pp": rank // (tp * cp * dp),
        "ep": rank // etp % ep, "etp": rank % etp,
    }  # fmt: skip


def sampled(world: int) -> list[int]:
    if world <= 64:
        return list(range(world))
    return sorted({*range(8), *range(world - 8, world), *range(0, world, 17)})


def fake(rank: int, world: int) -> None:
    """A process group without processes."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


def megatron(mesh: Mesh, rank: int) -> dict[str, int]:
    from megatron.core import parallel_state as state

    state.destroy_model_parallel()
    fake(rank, mesh["world"])
    state.initialize_model_parallel(
        tensor_model_parallel_size=mesh["tp"], pipeline_model_parallel_size=mesh["pp"],
        context_parallel_size=mesh["cp"], expert_model_parallel_size=mesh["ep"],
        expert_tensor_parallel_size=mesh["etp"], order="tp-cp-ep-dp-pp", create_gloo_process_groups=False,
    )  # fmt: skip
    return of_core(state)


def megatron_bridge(mesh: Mesh, rank: int) -> dict[str, int]:
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.core import parallel_state as state

    state.destroy_model_parallel()
    fake(rank, mesh["world"])
    model = GPTModelProvider(
        tensor_model_parallel_size=mesh["tp"], pipeline_model_parallel_size=mesh["pp"],
        context_parallel_size=mesh["cp"], expert_model_parallel_size=mesh["ep"],
        expert_tensor_parallel_size=mesh["etp"], num_layers=8, hidden_size=64, num_attention_heads=8,
    )  # fmt: skip
    model.initialize_model_parallel(create_gloo_process_groups=False)
    return of_core(state)


def of_core(state: Any) -> dict[str, int]:
    return {
        "tp": state.get_tensor_model_parallel_rank(), "cp": state.get_context_parallel_rank(),
        "dp": state.get_data_parallel_rank(), "pp": state.get_pipeline_model_parallel_rank(),
        "ep": state.get_expert_model_parallel_rank(), "etp": state.get_expert_tensor_parallel_rank(),
    }  # fmt: skip


def torchtitan(mesh: Mesh, rank: int) -> dict[str, int]:
    from torchtitan.distributed.parallel_dims import ParallelDims

    fake(rank, mesh["world"])
    dims = ParallelDims(dp_replicate=1, dp_shard=mesh["dp"], cp=mesh["cp"], tp=mesh["tp"], pp=mesh["pp"],
                        ep=mesh["ep"], world_size=mesh["world"])  # fmt: skip
    dims.build_mesh()
    out = {}
    for name, axis in (("tp", "tp"), ("cp", "cp"), ("pp", "pp"), ("dp", "batch"), ("ep", "ep")):
        if mesh[name] > 1:
            out[name] = dims.get_mesh(axis).get_local_rank()
    return out


def deepspeed(mesh: Mesh, rank: int) -> dict[str, int]:
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    topology = PipeModelDataParallelTopology(num_pp=mesh["pp"], num_mp=mesh["tp"], num_dp=mesh["dp"])
    found = topology.get_coord(rank)
    return {"tp": found.model, "dp": found.data, "pp": found.pipe}


def accelerate(mesh: Mesh, rank: int) -> dict[str, int]:
    from accelerate.parallelism_config import ParallelismConfig

    fake(rank, mesh["world"])
    config = ParallelismConfig(dp_shard_size=mesh["dp"], cp_size=mesh["cp"], tp_size=mesh["tp"])
    device_mesh = config.build_device_mesh("cpu")
    names = {"tp": "tp", "cp": "cp", "dp": "dp_shard"}
    return {name: device_mesh[axis].get_local_rank() for name, axis in names.items() if mesh[name] > 1}


def nanotron(mesh: Mesh, rank: int) -> dict[str, int]:
    from nanotron.parallel.context import ParallelContext

    runpy.run_path(str(NANOTRON_PARSER))["fake_ranks"](rank, mesh["world"])
    context = ParallelContext(mesh["tp"], mesh["pp"], mesh["dp"], mesh["cp"])
    return {name: context.get_local_ranks(rank)[name] for name in ("tp", "cp", "dp", "pp")}


def nemo(mesh: Mesh, rank: int) -> dict[str, int]:
    from megatron.core import parallel_state as state
    from nemo.lightning import MegatronStrategy, _strategy_lib

    state.destroy_model_parallel()
    fake(rank, mesh["world"])
    strategy = MegatronStrategy(
        tensor_model_parallel_size=mesh["tp"], pipeline_model_parallel_size=mesh["pp"], pipeline_dtype="float32",
        context_parallel_size=mesh["cp"], expert_model_parallel_size=mesh["ep"],
        expert_tensor_parallel_size=mesh["etp"], use_gloo_process_groups=False,
    )  # fmt: skip
    _strategy_lib.init_parallel_ranks(mesh["world"], rank, rank % 8, strategy.parallelism)
    _strategy_lib.init_model_parallel()
    return of_core(state)


def maxtext(mesh: Mesh, rank: int) -> dict[str, int]:
    """The mesh of jax that create_device_mesh of MaxText makes, in the order of `mesh_axes` of its base.yml."""
    import numpy as np
    from jax.experimental import mesh_utils

    sizes = {"fsdp": mesh["dp"], "context": mesh["cp"], "tensor": mesh["tp"]}
    left, inside = 8, dict[str, int]()
    for axis in reversed(sizes):
        inside[axis] = min(sizes[axis], left)
        left //= inside[axis]
    devices = [SimpleNamespace(id=number, platform="gpu", device_kind="", process_index=number // 8,
                               slice_index=number // 8) for number in range(mesh["world"])]  # fmt: skip
    nodes, over = mesh["world"] // 8, [sizes[axis] // inside[axis] for axis in sizes]
    shape = [inside[axis] for axis in sizes]
    placed = (mesh_utils.create_hybrid_device_mesh(shape, over, devices) if nodes > 1
              else mesh_utils.create_device_mesh(shape, devices))  # fmt: skip
    where = np.argwhere(np.vectorize(lambda device: device.id == rank)(placed))[0].tolist()
    return dict(zip(("dp", "cp", "tp"), where, strict=True))


def main() -> None:

    answers, sys.stdout = sys.stdout, sys.stderr
    os.environ["DS_ACCELERATOR"] = "cpu"
    if sys.argv[1] == "torchtitan":
        import torch

        torch._utils._get_available_device_type = lambda: "cpu"  # its mesh is of GPUs
    if sys.argv[1] == "megatron-bridge":
        runpy.run_path(str(BRIDGE_PARSER))["load"](sys.argv[2])
    if sys.argv[1] == "nemo":
        os.environ.setdefault("LOCAL_WORLD_SIZE", "8")
        runpy.run_path(str(NEMO_PARSER))["load"]()
    if sys.argv[1] == "maxtext":
        os.environ["JAX_PLATFORMS"] = "cpu"
    if sys.argv[1] == "nanotron":
        runpy.run_path(str(NANOTRON_PARSER))["load"](sys.argv[2])
    coordinate: Any = {
        "megatron": megatron, "megatron-bridge": megatron_bridge, "torchtitan": torchtitan, "deepspeed": deepspeed,
        "accelerate": accelerate, "nanotron": nanotron, "nemo": nemo, "maxtext": maxtext,
    }[sys.argv[1]]  # fmt: skip
    for line in sys.stdin:
        mesh: Mesh = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            found = [{"rank": rank, **coordinate(mesh, rank)} for rank in sampled(mesh["world"])]
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
