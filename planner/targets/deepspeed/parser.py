"""Reads many configs with DeepSpeed itself, on a machine without a GPU. Run it by the Python that has DeepSpeed:

    python parser.py < cases.jsonl > verdicts.jsonl

A case is {config, world, dp, mpu}. Its verdict is null or the error of DeepSpeedConfig as deepspeed.initialize builds
it. The job has `world` ranks, of which an `mpu` (of a pipeline) or the mesh of Ulysses counts `dp`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from typing import Any

answers, sys.stdout = sys.stdout, sys.stderr
if __name__ == "__main__":
    del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
os.environ["DS_ACCELERATOR"] = "cpu"
import torch  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402


def world_of(ranks: int) -> None:
    """A process group without processes."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)


world_of(512)
import deepspeed  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402

# DeepSpeed would compile its collectives in shared memory, which a config does not call, in the user's folder of
# extensions, and wait there for ever for another build that was interrupted.
vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None  # `deepspeed.comm.torch` is torch
deepspeed.comm.init_distributed(dist_backend="fake", auto_mpi_discovery=False, rank=0, world_size=512)


class _Ranks:
    """The part of a model-parallel unit that the config uses."""

    def __init__(self, dp: int) -> None:
        self.get_data_parallel_world_size = lambda: dp


def parse(case: dict[str, Any]) -> DeepSpeedConfig:
    """The config after DeepSpeed's defaults and checks."""
    world_of(case["world"])
    return DeepSpeedConfig(case["config"], mpu=_Ranks(case["dp"]) if case["mpu"] else None)


def verdict(case: dict[str, Any]) -> str | None:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            parse(case)
    except SystemExit as error:
        return f"exit {error.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line))), file=answers, flush=True)
