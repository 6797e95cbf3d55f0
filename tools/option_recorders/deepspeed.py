"""Options of DeepSpeed: the keys that DeepSpeedConfig reads, and the fields of its pydantic blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from .lines import kind_of, of_dataclass

MADE_FROM = "the keys that DeepSpeedConfig asks for, and its pydantic blocks"
# DeepSpeed declares no type for these, but it multiplies them.
_TOP_LEVEL = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                            "sequence_parallel_size", "data_parallel_size"), "int")  # fmt: skip
# Read in deepspeed/__init__.py and checkpointing.py instead of by DeepSpeedConfig.
_READ_ELSEWHERE = {"data_parallel_size", "activation_checkpointing"}


class _RecordingDict(dict):  # type: ignore[type-arg]
    """A config that records the keys that DeepSpeed reads, because no list of them exists."""

    def __init__(self, read: set[str], **values: object) -> None:
        super().__init__(values)
        self.read = read

    def get(self, key: str, default: object = None) -> object:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> object:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    # DeepSpeed copies its config and walks over the keys: both must stay this object.
    def keys(self) -> _RecordingDict:  # type: ignore[override]
        return self

    def __copy__(self) -> _RecordingDict:
        return self


def record(source: Path | None) -> list[str]:
    """The lines for the installed package."""
    _start()
    from deepspeed.module_inject.auto_ep_presets.base import AutoEPConfig
    from deepspeed.runtime import constants
    from deepspeed.runtime.config import get_pipeline_config

    lines = [f"{key} {_TOP_LEVEL.get(key, 'any')}" for key in _keys_read() if re.fullmatch("[a-z_0-9]+", key)]
    lines += _blocks()
    lines += of_dataclass(AutoEPConfig, "expert_parallel.")
    lines += [f"pipeline.{name} any" for name in get_pipeline_config({})]
    lines += [f"optimizer.{name} any" for name in (constants.TYPE, constants.OPTIMIZER_PARAMS, constants.LEGACY_FUSION)]
    lines += [f"scheduler.{name} any" for name in (constants.TYPE, constants.SCHEDULER_PARAMS)]
    return lines


def _start() -> None:
    """A process group of 8 ranks that are not there: DeepSpeedConfig divides batches by the number of ranks."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    import deepspeed as package

    package.comm.init_distributed(dist_backend="fake", auto_mpi_discovery=False, rank=0, world_size=8)


def _keys_read() -> set[str]:
    from deepspeed.runtime.config import DeepSpeedConfig

    read = set[str]()
    DeepSpeedConfig(_RecordingDict(read, train_batch_size=8, bf16={"enabled": True}, zero_optimization={"stage": 1}))
    return read | _READ_ELSEWHERE


def _blocks() -> Iterator[str]:
    """The fields of the blocks that are pydantic models."""
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    blocks = {
        "zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig, "tensor_parallel": TPTrainingConfig,
    }  # fmt: skip
    for prefix, model in blocks.items():
        for name, field in model.model_fields.items():
            yield f"{prefix}.{field.alias or name} {kind_of(field.annotation)}"
