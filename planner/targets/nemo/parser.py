"""Reads many recipes with NeMo itself, on a machine without a GPU. Run it by the Python that has its packages:

    python parser.py < cases.jsonl > verdicts.jsonl

A case is {module, world, environment, capability, device}; `module` is the text of a module with a function `plan`. Its
verdict is null or the error message of NeMo. nemo_run builds the recipe: each class takes its options. The script then
repeats the steps of `pretrain` before the model is built. The strategy passes degrees and precision to the config of
the model, which checks itself (`connect`), and computes the rank of each group. The sampler divides the batch, and the
callback sets the overlaps. Stand-ins replace the parts of a GPU machine that this one lacks, as for Megatron-Bridge.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import runpy
import sys
import types
import typing
from pathlib import Path

BRIDGE = runpy.run_path(str(Path(__file__).parents[1] / "megatron_bridge" / "parser.py"))
_ENGINE = "2.12.0"  # a release of TransformerEngine; some options check it


def load() -> None:
    """Makes nemo.collections.llm importable without a GPU."""
    import lightning.fabric.accelerators.cuda as fabric
    import lightning.pytorch.accelerators.cuda as accelerators
    import torch

    version = importlib.metadata.version
    vars(importlib.metadata)["version"] = lambda name: _ENGINE if name == "transformer-engine" else version(name)
    torch.cuda.get_device_capability = lambda *args, **kwargs: tuple(BRIDGE["capability"])
    torch.cuda.get_device_properties = lambda *args, **kwargs: BRIDGE["device"]
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = _local_ranks
    for module in (fabric, accelerators):
        module.num_cuda_devices = _local_ranks
    sys.meta_path.append(BRIDGE["StandIns"]())
    core = importlib.import_module("megatron.core.utils")
    release = importlib.import_module("packaging.version").Version(_ENGINE)
    core._te_version, core.get_te_version = release, lambda: release  # type: ignore[attr-defined]
    importlib.import_module("nemo.collections.llm")
    ranks = importlib.import_module("nemo.lightning.megatron_init")
    vars(ranks)["_set_random_seed"] = lambda seed: None  # random numbers of a GPU


def _local_ranks() -> int:
    return int(os.environ["LOCAL_WORLD_SIZE"])


def environment(case: dict[str, typing.Any]) -> dict[str, str]:
    """The variables of rank 0 under torchrun."""
    local = str(min(case["world"], 8))
    ranks = {"WORLD_SIZE": str(case["world"]), "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0",
             "LOCAL_WORLD_SIZE": local, "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
             "TORCHELASTIC_RUN_ID": "plan"}  # fmt: skip
    return {**ranks, **case["environment"]}


def build(case: dict[str, typing.Any]) -> typing.Any:
    """The config of the model of the case, as `pretrain` has it before it builds the model."""
    import fiddle
    from megatron.core import num_microbatches_calculator as batches
    from nemo.lightning import _strategy_lib

    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1"):
        os.environ.pop(name, None)
    os.environ.update(environment(case))
    BRIDGE["capability"][:] = [int(case["capability"]), 0]
    names: dict[str, typing.Any] = {"__name__": "recipe"}
    exec(compile(case["module"], "nemo_plan.py", "exec"), names)
    recipe = fiddle.build(names["plan"]()).keywords
    trainer, model, data = recipe["trainer"], recipe["model"], recipe["data"]
    if trainer.world_size != case["world"]:
        raise ValueError(f"{trainer.num_nodes} nodes of {trainer.num_devices} GPUs, started on {case['world']}")
    model.optim = recipe["optim"]
    trainer.strategy.connect(model)
    _strategy_lib.init_parallel_ranks(case["world"], 0, 0, trainer.strategy.parallelism)
    batches.unset_num_microbatches_calculator()
    data.data_sampler.setup(0)
    for callback in trainer.callbacks:
        if type(callback).__name__ == "MegatronCommOverlapCallback":
            callback.setup(types.SimpleNamespace(strategy=trainer.strategy, model=model), model, "fit")
    model.config.__post_init__()
    return model.config


def verdict(case: dict[str, typing.Any]) -> str | None:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            refusal: str | None = BRIDGE["whole_chunks"](build(case))
            return refusal
    except SystemExit as error:
        return f"exit {error.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
    os.environ.setdefault("LOCAL_WORLD_SIZE", "8")
    load()
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
