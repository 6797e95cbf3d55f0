"""Reads many recipes with Megatron-Bridge itself, without a GPU. Run it by the Python with its requirements:

    python parser.py BRIDGE/src:MEGATRON < cases.jsonl > verdicts.jsonl

A case is {module, world, environment, capability, device}; `module` is the text of a module with a function `plan`. Its
verdict is null or the error message of Bridge. The dataclasses reject unknown fields. `runtime_config_update` repeats
the steps of `pretrain` before the model is built (precision, overlaps, `validate` with the TransformerConfig of the
core). Bridge asserts that virtual stages divide the layers when it builds a chunk; this script asserts the same
condition. Stand-ins replace the parts of a GPU machine that this one lacks: the properties of the device, and packages
with kernels (TransformerEngine, ModelOpt, resiliency, ...), of which imports use names only.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
import typing

ABSENT = (
    "transformer_engine", "transformer_engine_torch", "modelopt", "nvidia_resiliency_ext", "omegaconf", "hydra",
    "megatron.energon", "diffusers", "webdataset", "flash_attn", "mamba_ssm", "torchvision", "nemo_run",
)  # fmt: skip
capability = [9, 0]
device = types.SimpleNamespace(major=9, minor=0, name="")


class _Names(type):
    def __getattr__(cls, name: str) -> typing.Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Anything(metaclass=_Names):
    """Stands in for any attribute of an absent package."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __call__(self, *args: object, **kwargs: object) -> _Anything:
        return _Anything()

    def __class_getitem__(cls, item: object) -> typing.Any:
        return cls


class _FusedAdam(_Anything):
    """The optimizer of TransformerEngine. The core checks for these arguments before it uses moments in bf16."""

    def __init__(self, *, master_weight_dtype: object = None, exp_avg_dtype: object = None,
                 exp_avg_sq_dtype: object = None, use_decoupled_grad: bool = False) -> None: ...  # fmt: skip


class _Package(types.ModuleType):
    __version__ = "2.12.0"  # of TransformerEngine; some options check it

    def __getattr__(self, name: str) -> typing.Any:
        if name == "FusedAdam":
            return _FusedAdam
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Anything,), {})


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages of ABSENT that are not installed. It is the last finder."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == package or name.startswith(f"{package}.") for package in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        package = _Package(spec.name)
        package.__path__ = []
        return package

    def exec_module(self, module: types.ModuleType) -> None: ...


def load(source: str) -> typing.Any:
    """megatron.bridge.training.config of `source`: folders to import from."""
    import torch
    import typing_extensions

    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    torch.cuda.get_device_capability = lambda *args, **kwargs: tuple(capability)
    torch.cuda.get_device_properties = lambda *args, **kwargs: device  # type: ignore[assignment]
    sys.meta_path.append(StandIns())
    sys.path[:0] = source.split(os.pathsep)
    import megatron.core.utils as core_utils
    from packaging.version import Version

    core_utils._te_version = Version("2.12.0")
    core_utils.get_te_version = lambda: Version("2.12.0")
    return importlib.import_module("megatron.bridge.training.config")


def whole_chunks(model: typing.Any) -> str | None:
    """The check of `provide` before the model is built: virtual stages divide the layers of a stage."""
    virtual = model.virtual_pipeline_model_parallel_size
    if virtual and hasattr(model, "hybrid_layer_pattern"):
        return "HybridModelProvider builds no virtual stages"
    uneven = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
              "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
              "pipeline_model_parallel_layout")  # fmt: skip
    if virtual and not any(getattr(model, name) for name in uneven):
        per_stage = model.num_layers // model.pipeline_model_parallel_size
        if per_stage % virtual:
            return f"{per_stage} layers of a stage over {virtual} virtual stages"
    return None


def parse(case: dict[str, typing.Any], update: typing.Callable[[typing.Any], None]) -> typing.Any:
    """The ConfigContainer of the case, as `pretrain` has it before it builds the model."""
    os.environ.update(WORLD_SIZE=str(case["world"]), RANK="0", LOCAL_RANK="0")
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1"):
        os.environ.pop(name, None)
    os.environ.update(case["environment"])
    capability[:] = [int(case["capability"]), 0]
    device.major, device.name = capability[0], case["device"]
    with contextlib.redirect_stdout(sys.stderr):
        names: dict[str, typing.Any] = {"__name__": "recipe"}
        exec(compile(case["module"], "bridge_plan.py", "exec"), names)
        config = names["plan"]()
        update(config)
        return config


def verdict(case: dict[str, typing.Any], update: typing.Callable[[typing.Any], None]) -> str | None:
    try:
        return whole_chunks(parse(case, update).model)
    except SystemExit as error:
        return f"exit {error.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
    config = load(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line), config.runtime_config_update)), file=answers, flush=True)


if __name__ == "__main__":
    main()
