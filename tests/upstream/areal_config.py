"""Makes many configs of AReaL by its own loader, on a machine without a GPU. Run it by the Python that has it:

    python areal_config.py < cases.jsonl > verdicts.jsonl

A case is a list of overrides on a YAML with no more than AReaL asks for. Its verdict is null or why AReaL refuses it:
Hydra's grammar, fields of its dataclasses and their checks (areal.api.cli_args), or degrees (ModelAllocation of
areal.api.alloc_mode). Packages whose own files import trainers are entered without running those files.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

_BARE = ("areal", "areal.api", "areal.engine", "areal.engine.fsdp_utils", "areal.utils", "areal.infra",
         "areal.infra.utils")  # fmt: skip
_ROLES = ("actor", "critic", "ref", "rollout")
# Fields that AReaL has no default for.
_OTHERS = {"experiment_name": "a", "trial_name": "b", "tokenizer_path": "c",
           "train_dataset": {"path": "d", "type": "rl"}, "cluster": {"fileroot": "e"},
           **{role: {"experiment_name": "a", "trial_name": "b", "backend": "fsdp:d1"} for role in _ROLES[:3]},
           **{part: {"experiment_name": "a", "trial_name": "b", "fileroot": "e"}
              for part in ("saver", "recover", "evaluator", "stats_logger")}}  # fmt: skip


def loader() -> tuple[Any, Any]:
    """Its modules of configs and of degrees."""
    spec = importlib.util.find_spec("areal")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("areal is not installed")
    root = Path(next(iter(spec.submodule_search_locations))).parent
    for name in _BARE:
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    return importlib.import_module("areal.api.cli_args"), importlib.import_module("areal.api.alloc_mode")


def verdict(modules: tuple[Any, Any], base: Path, overrides: list[str]) -> str | None:
    """None, or why it stops."""
    args, degrees = modules
    try:
        composed, _ = args.parse_cli_args(["--config", str(base), *overrides])
        config = args.OmegaConf.to_object(args.to_structured_cfg(composed, args.GRPOConfig))
        for role in _ROLES:
            if text := getattr(getattr(config, role), "backend", ""):
                degrees.ModelAllocation.from_str(text, name=role)
    except Exception as error:  # any of Hydra, OmegaConf, its parser of degrees, its own checks
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return None


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        modules, base = loader(), Path(folder) / "base.yaml"
        base.write_text(json.dumps(_OTHERS), encoding="utf-8")
        verdicts = [verdict(modules, base, json.loads(line)) for line in sys.stdin]
    for each in verdicts:
        print(json.dumps(each))


if __name__ == "__main__":
    main()
