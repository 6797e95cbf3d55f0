"""The optimizer of torchtitan's configs, by the words that change a step.

Sources: torchtitan b5bcd76c, components/optimizer/optimizer.py; v0.2.2, torchtitan/config/job_config.py.
"""

from __future__ import annotations

import re

from ..options import Entry, Facts, NoCounterpartError, Settings

# Stands for the call, or the section, that makes it.
OPTION = "optimizer"
_ADAM = ("Adam", "AdamW")
_OTHERWISE = {"fused_opt_states_bf16": "no plan of torchtitan has moments in bf16",
              "early_step_in_backward": "updates weights in the backward pass"}  # fmt: skip


def words(text: str) -> str:
    """The names of its optimizers and what changes their step, of a call or a section as text."""
    names = re.findall(r"\b(?:optimizer_)?name=['\"](\w+)['\"]", text)
    return " ".join(sorted({*names, *re.findall(r"fused_opt_states_bf16|early_step_in_backward(?==True)", text)}))


def _read(settings: Settings, facts: Facts) -> Facts:
    """Adam and AdamW with moments in fp32, which plans have."""
    for word in str(settings.get(OPTION, "")).split():
        if word in _OTHERWISE:
            raise NoCounterpartError(f"{OPTION}: {word}: {_OTHERWISE[word]}")
        if word not in _ADAM:
            raise NoCounterpartError(f"{OPTION} {word} has no counterpart in a plan of torchtitan",
                                     hint=f"known: {', '.join(_ADAM)}")  # fmt: skip
    return {}


ENTRY = Entry(("workload.optimizer",), (OPTION,), lambda setup: {}, _read)
