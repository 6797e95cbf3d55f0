"""Number formats of training: for which tensors there is a choice, how it is asked for, and the bytes that it takes.

The classes of tensors are those of Hao et al. 2025, Low-Precision Training of Large Language Models: Methods,
Challenges, and Opportunities, arXiv 2505.01043: weights, activations, gradients, optimizer states, messages. The bytes
are those that prices are made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..specs.workload import OPERAND_BYTES
from .memory import BASE_WEIGHT_BYTES, MOMENTUM_BYTES, OPTIMIZER_BYTES

_STATES: Mapping[str, tuple[str, float]] = {
    "adamw": ("two moments in fp32", OPTIMIZER_BYTES["adamw"]),
    "adamw-bf16": ("two moments in bf16", OPTIMIZER_BYTES["adamw-bf16"]),
    "adamw-8bit": ("two moments in 8 bits", OPTIMIZER_BYTES["adamw-8bit"]),
    "sgd": ("one moment in fp32", OPTIMIZER_BYTES["sgd"]),
    "muon": ("one moment in fp32, of matrices", MOMENTUM_BYTES),
}


@dataclass(frozen=True, slots=True)
class Format:
    """A number format of one class of tensors."""

    name: str
    tensors: str  # the class
    held: str  # the format of their elements
    option: str  # that asks for it
    bytes_per_element: float  # with the scales of blocks
    usual_bytes: float  # of the format that training has without an option

    @property
    def saved(self) -> float:
        """Share of the usual bytes that it saves; negative where it takes more."""
        return 1 - self.bytes_per_element / self.usual_bytes


def _formats() -> tuple[Format, ...]:
    usual = OPERAND_BYTES["bf16"]
    gathers = {"bf16": "-", "fp8": "--dtype fp8 --fix fp8_param_gather=on"}
    operands = [Format(f"operands-{held}", "operands of products", held, f"--dtype {held}", num_bytes, usual)
                for held, num_bytes in OPERAND_BYTES.items()]  # fmt: skip
    gathered = [Format(f"gathered-{held}", "weights that are gathered", held, option, OPERAND_BYTES[held], usual)
                for held, option in gathers.items()]  # fmt: skip
    frozen = [Format(f"frozen-{held}", "frozen weights of LoRA", held, f"--lora 16:q,v:{held}", num_bytes, usual)
              for held, num_bytes in BASE_WEIGHT_BYTES.items()]  # fmt: skip
    states = [Format(f"states-{optimizer}", "optimizer states per parameter", held, f"--optimizer {optimizer}",
                     num_bytes, OPTIMIZER_BYTES["adamw"])
              for optimizer, (held, num_bytes) in _STATES.items()]  # fmt: skip
    return (*operands, *gathered, *frozen, *states)


FORMATS = _formats()
