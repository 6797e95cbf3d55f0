"""The workload: lengths, batch, precision, optimizer and adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Precision = Literal["bf16", "fp16", "fp8", "fp32", "fp4"]


# Bytes of an element of a product's operands. fp4 with the scales of its blocks: a byte per 16 elements (NVFP4; MXFP4:
# per 32). Those of fp8 are fewer than one in 32 elements and left out.
OPERAND_BYTES: Mapping[str, float] = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp32": 4.0, "fp4": 0.5 + 1 / 16}


OptimizerName = Literal["adamw", "adamw-bf16", "adamw-8bit", "sgd", "muon"]


LoraTarget = Literal["q", "k", "v", "o", "gate", "up", "down"]


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters; the base weights are frozen."""

    rank: int  # of the adapters
    targets: tuple[str, ...]  # of LoraTarget
    base_dtype: Literal["bf16", "int8", "nf4"] = "bf16"  # of the frozen weights


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """Quantisation-aware training: weights and inputs of the layers' products are rounded to fewer bits and back. How
    many bits is in no price."""

    weights: Literal["none", "forward", "step"] = "none"  # rounded in every forward pass, or in place once a step
    inputs: Literal["none", "dynamic", "static"] = "none"  # by the range of each token, or by a running one
    symmetric_weights: bool = True  # the range of weights is about 0
    symmetric_inputs: bool = True  # that of inputs is


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images of a sequence, all of one size; their tokens are among those of the sequence. For a diffusion transformer
    the image or video that it denoises."""

    per_sequence: int
    height: int  # pixels
    width: int  # pixels
    num_frames: int = 1  # of a video


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step."""

    seq_len: int  # tokens of the longest sequence: what memory must hold
    global_batch: int  # sequences
    precision: Precision = "bf16"  # compute dtype
    optimizer: OptimizerName = "adamw"  # decides the bytes of its states
    mean_len: float | None = None  # E[s] of the documents, tokens
    mean_square_len: float | None = None  # E[s^2] of the documents, tokens^2: what attention costs
    packed: bool = True  # documents fill sequences of seq_len, else each is padded to it
    lengths: tuple[tuple[int, float], ...] = ()  # histogram: (length, share of documents)
    lora: Lora | None = None  # adapters
    trains_layers: int | None = None  # how many of the last layers train, None: all; 0 only with lora
    total_tokens: float | None = None  # of the whole training, for its cost
    objective: Literal["step", "cost", "memory"] = "step"  # minimised by the search
    max_memory_bytes: float | None = None  # per GPU, None: all that it has
    kind: Literal["train"] = "train"  # of work
    # names with their knobs (techniques/registry.py)
    techniques: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()
    images: Images | None = None  # None: text alone, without the model's tower
    freeze_tower: bool = False  # its layers do not train; what projects their output does
    freeze_language: bool = False  # the language model does not train: tower and projector alone, by its gradients
    # A frozen copy of the model reads the same sequences before the loss: the reference of DPO. Beside adapters it is
    # the base without them.
    reference: bool = False
    rounding: Rounding | None = None  # of weights and inputs of products
    # Tokens that the encoder of an encoder-decoder model reads, or of a text to which all layers attend; None: no such.
    source_len: int | None = None

    @property
    def forward_passes(self) -> int:
        """Forward passes of each sequence."""
        return 1 + self.reference

    @property
    def has_second_weights(self) -> bool:
        """Whether the reference has weights of its own."""
        return self.reference and self.lora is None

    @property
    def is_quantised(self) -> bool:
        """Operands of the layers' products are narrower than what is kept and sent between them."""
        return self.precision in ("fp8", "fp4")

    @property
    def operand_bytes(self) -> float:
        return OPERAND_BYTES[self.precision]

    @property
    def sent_share(self) -> float:
        """Hidden states that a stage of a decoder sends on, per token of `seq_len`: also the encoder's output. Other
        messages are smaller (stacks.py)."""
        return 1.0 + (self.source_len or 0) / self.seq_len

    @property
    def tokens_per_step(self) -> float:
        """Useful tokens per step: padding does not count."""
        if self.packed or self.mean_len is None:
            return float(self.seq_len * self.global_batch)
        return self.mean_len * self.global_batch

    @property
    def context_tokens(self) -> float:
        """Context that attention spans, tokens: E[s^2]/E[s] of packed documents; seq_len for one length or padding."""
        if self.mean_len is None or self.mean_square_len is None or not self.packed:
            return float(self.seq_len)
        return self.mean_square_len / self.mean_len
