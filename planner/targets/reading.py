"""What the files of a target say: the same for a folder that `emit` wrote and for a team's own config."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import InputError
from .argv import Arguments, read_arguments
from .config_modules import read_config_module, read_constants
from .documents import read_config
from .option_lists import OptionList

# The file of each target that says the most; a folder is of the target whose file it holds.
MAIN_FILES = {
    "megatron": "megatron.args", "torchtitan": "torchtitan_plan.py", "deepspeed": "ds_config.json",
    "accelerate": "accelerate.yaml", "megatron-bridge": "bridge_plan.py",
}  # fmt: skip
# What the function of a config module returns.
_CONTAINERS = {"torchtitan": "Trainer.Config", "megatron-bridge": "ConfigContainer"}
_MORE = {"deepspeed": ("ds_plan.py",), "accelerate": ("training_arguments.json",)}


def read_files(target: str, files: Mapping[str, str], options: OptionList) -> Arguments:
    """The settings in `files` (path -> text). Raises InputError for broken syntax."""
    found = Arguments()
    for path, text in files.items():
        more = _read(target, path, text, options)
        more.files = dict.fromkeys(more.lines, path)
        merge(found, more)
    return found


def read_folder(target: str, files: Mapping[str, str], options: OptionList) -> Arguments:
    """The settings of an emitted folder: those of its main file and of what goes with it."""
    wanted = (MAIN_FILES[target], *_MORE.get(target, ()))
    return read_files(target, {name: files[name] for name in wanted if name in files}, options)


def _read(target: str, path: str, text: str, options: OptionList) -> Arguments:
    if target == "megatron":
        return read_arguments(text, options, path)
    if path.endswith(".py"):
        if target == "deepspeed":
            return read_constants(path, text, options, "ds_plan")
        return read_config_module(path, text, options, _CONTAINERS[target])
    prefix = "training_arguments." if target == "accelerate" and path.endswith(".json") else ""
    return read_config(path, text, options, prefix)


def merge(found: Arguments, more: Arguments) -> None:
    """Adds what another file says."""
    found.settings |= more.settings
    found.lines |= more.lines
    found.files |= more.files
    found.unknown |= more.unknown
    found.ranks |= more.ranks
    found.environment |= more.environment
    found.problems += more.problems


def target_of(files: Mapping[str, str]) -> str:
    """The target of an emitted folder. Raises InputError if it is none's, or of several."""
    held = [target for target, name in MAIN_FILES.items() if name in files]
    if len(held) == 1:
        return held[0]
    if not held and "launch.sh" in files and "meshwright.runtime.worker" in files["launch.sh"]:
        return "meshwright"
    what = f"holds files of {' and '.join(held)}" if held else "holds no file that `emit` writes"
    raise InputError(what, hint=f"`--to` one of {', '.join(MAIN_FILES)}")
