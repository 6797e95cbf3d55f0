"""JobConfig: the TOML of torchtitan up to release 0.2.2, read in the names of the Python config that replaced it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ....profiles.io.reader import read_document
from ..argv import Arguments
from ..documents import read_blocks
from ..option_lists import OptionList

# Sections without an option that a layout depends on.
_OTHER_SECTIONS = (
    "job", "profiling", "metrics", "optimizer", "lr_scheduler", "checkpoint", "experimental", "comm", "model",
    "memory_estimation", "fault_tolerance", "validation", "quantize", "float8", "debug", "compile",
)  # fmt: skip


def read_job_config(path: str, text: str, options: OptionList) -> Arguments:
    """The settings of a TOML file. Raises InputError for broken syntax."""
    document = read_document(path, text)
    data = {key: value for key, value in dict(document.data).items() if key not in _OTHER_SECTIONS}
    mode = dict(data.pop("activation_checkpoint", {}) or {}).get("mode", "none")
    arguments = read_blocks(replace(document, data=data), options)
    arguments.settings["activation_checkpoint"] = mode
    model = document.at(("model",), {})
    if not isinstance(model, Mapping):
        return arguments
    if model.get("flavor"):
        arguments.settings["model_spec"] = f"{model.get('name', '')}/{model['flavor']}"
    if any("float8" in str(converter) for converter in model.get("converters", [])):
        arguments.settings["converters"] = "float8"
    return arguments
