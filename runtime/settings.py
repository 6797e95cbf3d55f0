"""The flags of a run, as the launcher passes them to every worker. No torch here."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..planner.document.sampler_plan import sampler_path
from .evaluation import BATCHES, EVERY

DEFAULT_TIMEOUT_S, REHEARSAL_TIMEOUT_S = 600.0, 60.0


@dataclass(frozen=True)
class Settings:
    """The settings of `launch` and the worker."""

    plan: str  # file of the plan
    choice: int = 1  # number of its layout, from 1
    steps: int = 10  # of the whole run
    init_from: str | None = None  # Hugging Face folder of the initial weights; None: drawn from the seed
    data: str = "synthetic"  # an argument of `data.open_source`
    shuffle: bool = False  # read sequences in a random order
    eval_data: str | None = None  # an argument of `data.open_source`; None: no evaluation
    eval_every: int = EVERY  # steps between evaluations; one always follows the last step
    eval_batches: int = BATCHES  # global batches of an evaluation
    end_token: int | None = None  # token at the end of each document; None: documents are not told apart
    seed: int = 0  # of weights and synthetic data
    learning_rate: float = 3e-4  # the largest
    schedule: str = "constant"  # one of learning_rate.KINDS
    warmup: int = 0  # steps
    min_learning_rate: float = 0.0  # at the end of the decay
    decay_steps: int | None = None  # of wsd; None: a fifth of all steps
    weight_decay: float = 0.1  # of AdamW
    no_decay: str = ""  # kinds of parameters without it, as "norms,biases"
    clip: float = 1.0  # largest norm of the gradient; 0: no clipping
    lora_alpha: float | None = None  # None: the rank
    device: str = "auto"  # auto, cpu or cuda
    timeout_s: float | None = None  # longest wait in a collective, seconds; None: by kind of run
    scale_down: bool = False  # rehearse a small model on few ranks
    keep_axes: str = ""  # ranks per axis that a rehearsal keeps, where 2 are too few: "cp=4,tp=3"
    check_parity: bool = False  # train in float64 and compare with one process
    as_trained: bool = False  # check parity with the plan's optimizer and clipping
    planned_dtype: bool = False  # check parity in the plan's dtype, not in float64
    report: str | None = None  # file; None: no report
    metrics: str | None = None  # file of one JSON object per step; None: none is written
    tracker: str | None = None  # as `checked_tracker` gives it; None: no tracker
    checkpoint: str | None = None  # folder; None: no checkpoints
    checkpoint_every: int = 100  # steps between saves; the last step is always saved
    checkpoint_async: bool = False  # save in the background
    copy_every: int = 0  # steps between copies of the states in the memory of two nodes; 0: none
    copies: str | None = None  # folder of this node's copies
    keep: int = 2  # number of checkpoints to keep, the newest
    resume: bool = False  # resume from the newest checkpoint
    restarts: int = 0  # failures of the run so far, beside those that torchrun counts
    balance_experts: bool = False  # assign tokens to experts round-robin
    compile: bool = False  # compile layers by torch.compile
    order: str | None = None  # order of passes, a name or a CSV file; None: the layout's schedule
    run_dir: str | None = None  # folder for the status files of the ranks; None: none are written
    events: bool = False  # rank 0 prints events, not lines

    @property
    def collective_timeout_s(self) -> float:
        return self.timeout_s or (REHEARSAL_TIMEOUT_S if self.scale_down else DEFAULT_TIMEOUT_S)

    @classmethod
    def parse(cls, argv: Sequence[str]) -> Settings:
        parser = argparse.ArgumentParser(prog="python -m meshwright.runtime.worker", description="One rank of a run.")
        parser.add_argument("plan")
        for name, kind in _VALUES.items():
            default = getattr(cls, name)
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
        for name in _SWITCHES:
            parser.add_argument(f"--{name.replace('_', '-')}", action="store_true")
        return cls(**vars(parser.parse_args(argv)))

    def words(self) -> list[str]:
        """The command line that `parse` reads back, without options at their defaults."""
        out = [self.plan]
        for name in _VALUES:
            value = getattr(self, name)
            if value != getattr(Settings, name):
                out += [f"--{name.replace('_', '-')}", str(value)]
        return out + [f"--{name.replace('_', '-')}" for name in _SWITCHES if getattr(self, name)]

    def must_be_equal(self) -> dict[str, str]:
        """Flag -> setting that must be equal on all nodes.

        Paths may differ between nodes. Plan and order are compared by content. Data and checkpoints are too large to
        read, so only their presence is compared.
        """
        names = ("choice", "steps", "seed", "learning_rate", "schedule", "warmup", "min_learning_rate",
                 "decay_steps", "weight_decay", "no_decay", "clip", "lora_alpha", "shuffle", "end_token",
                 "eval_every", "eval_batches",
                 "scale_down", "keep_axes", "check_parity", "as_trained", "planned_dtype", "balance_experts", "compile",
                 "checkpoint_every", "checkpoint_async", "copy_every", "resume")  # fmt: skip
        values = {name: str(getattr(self, name)) for name in names}
        values["order"] = _digest(self.order) if self.order and Path(self.order).is_file() else str(self.order)
        values["data"] = self.data if self.data == "synthetic" else "files"
        values["eval_data"] = str(self.eval_data and "files")
        values["checkpoint"] = str(self.checkpoint and "a folder")
        values["init_from"] = str(self.init_from and "a folder")
        flags = {f"--{_FLAGS.get(name, name).replace('_', '-')}": value for name, value in values.items()}
        batches = sampler_path(Path(self.plan))
        sampler = {"the sampler plan's SHA-256": _digest(str(batches))} if batches.is_file() else {}
        return {"the plan's SHA-256": _digest(self.plan), **sampler, **flags}


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


# Fields with another name in `launch`.
_FLAGS = {"learning_rate": "lr", "min_learning_rate": "min-lr", "keep_axes": "keep"}
_VALUES = {"choice": int, "steps": int, "init_from": str, "data": str, "end_token": int, "seed": int,
           "weight_decay": float, "no_decay": str, "eval_data": str, "eval_every": int, "eval_batches": int,
           "learning_rate": float, "schedule": str, "warmup": int, "min_learning_rate": float, "decay_steps": int,
           "metrics": str, "tracker": str, "clip": float, "lora_alpha": float, "device": str,
           "timeout_s": float, "report": str, "checkpoint": str, "checkpoint_every": int, "copy_every": int,
           "copies": str, "keep": int, "restarts": int, "keep_axes": str, "order": str, "run_dir": str}  # fmt: skip
_SWITCHES = ("shuffle", "scale_down", "check_parity", "as_trained", "planned_dtype", "balance_experts", "compile",
             "checkpoint_async", "resume", "events")  # fmt: skip
