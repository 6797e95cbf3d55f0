"""The flags of `launch`, checked one against the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError


def check_flags(
    *, steps: int, device: str, check_parity: bool, as_trained: bool, planned_dtype: bool, scale_down: bool
) -> None:
    """Raises InputError where one flag needs another one, or a value is out of range."""
    if steps < 1:
        raise InputError(f"--steps {steps}: nothing to train", hint="`--steps 4` trains four steps")
    if device not in ("auto", "cuda", "cpu"):
        raise InputError(f"--device `{device}` is none of auto, cuda, cpu", hint="`--device auto`")
    if check_parity and not scale_down:
        raise InputError("--check-parity compares with one process: it needs a small model", hint="add `--scale-down`")
    if as_trained and not check_parity:
        raise InputError("--as-trained: nothing is checked", hint="add `--check-parity`")
    if planned_dtype and not as_trained:
        raise InputError("--planned-dtype compares the training as planned", hint="add `--check-parity --as-trained`")


def checkpoints_and_axes(values: Sequence[str], *, scale_down: bool) -> tuple[int | None, str]:
    """The two meanings of `--keep`: number of checkpoints (None: the default), and ranks as in `Settings.keep_axes`."""
    axes = ",".join(value for value in values if "=" in value)
    if axes and not scale_down:
        raise InputError(f"--keep {axes}: only a rehearsal has fewer ranks than the plan", hint="add `--scale-down`")
    numbers = [value for value in values if "=" not in value]
    if len(numbers) > 1 or not all(value.removeprefix("-").isdecimal() for value in numbers):
        raise InputError(f"--keep {' '.join(numbers)}: neither a number of checkpoints nor AXIS=N",
                         hint="`--keep 3`, or `--keep cp=4` with `--scale-down`")  # fmt: skip
    return int(numbers[0]) if numbers else None, axes


def saving_settings(
    folder: Path | None, *, every: int | None, behind: bool, copy_every: int | None, keep: int | None, resume: bool,
    max_restarts: int, elastic: bool,
) -> dict[str, Any]:  # fmt: skip
    """The settings of checkpoints that were given. Raises InputError where there is no folder for them."""
    given = {"--checkpoint-every": every is not None, "--checkpoint-async": behind,
             "--copy-every": copy_every is not None, "--keep": keep is not None, "--resume": resume,
             "--max-restarts": max_restarts != 0, "--elastic": elastic}  # fmt: skip
    if folder is None:
        alone = next((name for name, there in given.items() if there), None)
        if alone:
            raise InputError(f"{alone}: checkpoints are not saved anywhere", hint="add `--checkpoint DIR`")
        return {}
    numbers = (("--checkpoint-every", every, 1), ("--copy-every", copy_every, 1), ("--keep", keep, 2),
               ("--max-restarts", max_restarts, 0))  # fmt: skip
    for name, value, least in numbers:
        if value is not None and value < least:
            raise InputError(f"{name} {value}: must be {least} or more",
                             hint="the last two stay, so that one is left if the other is damaged" if name == "--keep"
                             else f"`{name} {least}`")  # fmt: skip
    if copy_every is not None and not (elastic or max_restarts):
        raise InputError("--copy-every: nothing starts again after a failure",
                         hint="add `--elastic` or `--max-restarts N`")  # fmt: skip
    settings: dict[str, Any] = {"checkpoint": str(folder.resolve()), "checkpoint_async": behind, "resume": resume}
    optional = {"checkpoint_every": every, "copy_every": copy_every, "keep": keep}
    return settings | {name: value for name, value in optional.items() if value is not None}
