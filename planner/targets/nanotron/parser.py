"""Reads many configs with nanotron itself, on a machine without a GPU. Run it by the Python that has its packages:

    python parser.py CHECKOUT/src < cases.jsonl > verdicts.jsonl

A case is {config, world, stages}. Its verdict is null or an error message. get_config_from_dict reads the file,
ParallelContext compares the degrees with the ranks, and build_model cuts the model into stages. The script supplies
the names of kernels that nanotron imports and that need a GPU (flash_attn, grouped_gemm). It calls none.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

_KERNELS = ("flash_attn", "grouped_gemm")


class _Kernels(types.ModuleType):
    """A package of kernels whose functions exist and are not called."""

    __version__ = "2.6.3"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages of kernels that are not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        known = fullname.partition(".")[0] in _KERNELS
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Kernels(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def load(source: str) -> None:
    """Makes nanotron importable from the folder `source`, and its groups and pipeline blocks work without a GPU."""
    sys.path.insert(0, source)
    sys.meta_path.append(_Absent())  # the last one to be asked
    import torch
    from nanotron.models import base, qwen
    from nanotron.parallel.context import ParallelContext
    from nanotron.parallel.pipeline_parallel.block import PipelineBlock
    from nanotron.parallel.pipeline_parallel.p2p import P2P

    ParallelContext.set_device = lambda self: None
    qwen.P2P = lambda group, device: P2P(group, torch.device("meta"))
    PipelineBlock.build_and_set_rank = lambda self, rank: setattr(self, "rank", rank)  # its stage, without its weights
    base.NanotronModel.log_modules = lambda self, **where: None


def fake_ranks(rank: int, world: int) -> None:
    """The variables and the process group of a rank, without other processes."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(WORLD_SIZE=str(world), RANK=str(rank), LOCAL_RANK=str(rank % 8), LOCAL_WORLD_SIZE="8")
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


def verdict(case: dict[str, Any]) -> str | None:
    import torch
    import yaml
    from nanotron.config import Qwen2Config
    from nanotron.config.config import get_config_from_dict
    from nanotron.models import base, qwen
    from nanotron.parallel.context import ParallelContext

    fake_ranks(0, case["world"])
    try:
        config = get_config_from_dict(yaml.safe_load(case["config"]))
        sizes, degrees = config.model.model_config, config.parallelism
        if not isinstance(sizes, Qwen2Config):
            return f"read as {type(sizes).__name__}"
        context = ParallelContext(
            tensor_parallel_size=degrees.tp, pipeline_parallel_size=degrees.pp, data_parallel_size=degrees.dp,
            context_parallel_size=degrees.context_parallel_size, expert_parallel_size=degrees.expert_parallel_size,
        )  # fmt: skip
        model = base.build_model(lambda: qwen.Qwen2ForTraining(sizes, context, degrees), context, config.model.dtype,
                                 device=torch.device("meta"))  # fmt: skip
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    ranks = [block.rank for block in model.model.decoder]
    stages = [ranks.count(stage) for stage in range(degrees.pp)]
    return None if stages == case["stages"] else f"stages of {stages} layers, planned {case['stages']}"


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
    load(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
