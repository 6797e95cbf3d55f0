"""Files of DeepSpeed that a framework ships and its recipes name: their options that a layout depends on.

Sources: LLaMA-Factory ff6d4d12 (2026-08-18), examples/deepspeed; Axolotl 067b021c (2026-07-24), deepspeed_configs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_HOST: Mapping[str, Any] = {"device": "cpu"}
_STATES, _WEIGHTS = {"offload_optimizer": _HOST}, {"offload_param": _HOST}


def _zero(stage: int, *, overlap: bool, **more: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, "overlap_comm": overlap, **more}}


# Name of a file -> its options.
_FACTORY = {
    "ds_z0_config.json": _zero(0, overlap=False),
    "ds_z2_config.json": _zero(2, overlap=False),
    "ds_z2_autotp_config.json": _zero(2, overlap=False) | {"tensor_parallel": {"autotp_size": 2}},
    "ds_z2_offload_config.json": _zero(2, overlap=False, **_STATES),
    "ds_z3_config.json": _zero(3, overlap=False),
    "ds_z3_fp8_config.json": _zero(3, overlap=False, **_STATES),
    "ds_z3_offload_config.json": _zero(3, overlap=False, **_STATES, **_WEIGHTS),
}
_AXOLOTL = {
    "zero1.json": _zero(1, overlap=True),
    "zero2.json": _zero(2, overlap=True, **_STATES),
    "zero3.json": _zero(3, overlap=True),
    "zero3_bf16.json": _zero(3, overlap=True),
    "zero3_bf16_cpuoffload_all.json": _zero(3, overlap=True, **_STATES, **_WEIGHTS),
    "zero3_bf16_cpuoffload_params.json": _zero(3, overlap=True, **_WEIGHTS),
}
# Folder of the framework's checkout -> its release, and the files there.
_FOLDERS = {"examples/deepspeed": ("LLaMA-Factory ff6d4d12", _FACTORY),
            "deepspeed_configs": ("Axolotl 067b021c", _AXOLOTL)}  # fmt: skip
_SHIPPED = re.compile(rf"(?:.*/)?({'|'.join(_FOLDERS)})/([^/]+)")


def options_of(path: str) -> tuple[str, Mapping[str, Any]] | None:
    """The release that ships the file which a recipe names by `path`, and the options of the file; None for another."""
    found = _SHIPPED.fullmatch(path)
    release, files = _FOLDERS[found[1]] if found else ("", {})
    return (release, files[found[2]]) if found and found[2] in files else None
