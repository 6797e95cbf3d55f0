"""Options of nanotron: the dataclasses of its config."""

from __future__ import annotations

import dataclasses
import runpy
import typing
from collections.abc import Iterator
from pathlib import Path

from .lines import kind_of

MADE_FROM = "Config in src/nanotron/config/config.py, with Qwen2Config and LlamaConfig"
# The script that imports nanotron without its kernels.
_PARSER = Path(__file__).resolve().parents[2] / "planner" / "targets" / "nanotron" / "parser.py"
_PLAIN = {"parallelism.pp_engine": "str afab|1f1b", "parallelism.tp_mode": "str ALL_REDUCE|REDUCE_SCATTER",
          "model.dtype": "str",
          "model.init_method.scaling_method": "str NONE|NUM_LAYERS|LAYER_INDEX|MODEL_SCALE"}  # fmt: skip


def record(source: Path | None) -> list[str]:
    """The lines for a checkout of nanotron."""
    if source is None:
        raise SystemExit("nanotron: give a checkout by --source, because wheels are older")
    runpy.run_path(str(_PARSER))["load"](str(source / "src"))
    from nanotron.config import AdamWOptimizerArgs, Config, LlamaConfig, Qwen2Config, RandomInit

    lines = dict(_fields(Config, ""))
    for kind, prefix in ((LlamaConfig, "model.model_config."), (Qwen2Config, "model.model_config."),
                         (RandomInit, "model.init_method."),
                         (AdamWOptimizerArgs, "optimizer.optimizer_factory.")):  # fmt: skip
        lines |= dict(_fields(kind, prefix))
    return [f"{name} {kind}" for name, kind in lines.items()]


def _fields(kind: type, prefix: str) -> Iterator[tuple[str, str]]:
    """(option, kind) of each field, those of blocks by dotted name."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        inner = [part for part in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(part)]
        if len(inner) == 1 and isinstance(inner[0], type):
            yield from _fields(inner[0], f"{name}.")
        else:
            yield name, _PLAIN.get(name, kind_of(hint))
