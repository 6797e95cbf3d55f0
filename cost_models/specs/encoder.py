"""The encoder of an encoder-decoder model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The stack that reads the source. Its layers are the first ones of the model, and all of the decoder attend to its
    output: T5 (arXiv 1910.10683) and Whisper (arXiv 2212.04356)."""

    layers: int  # the first ones of the model
    max_positions: int  # longest source, tokens
    # Mel bins of a frame of sound; two convolutions turn pairs of frames into tokens. 0: the source is text, whose
    # tokens are looked up in the table of the decoder.
    mel_bins: int = 0

    @property
    def reads_text(self) -> bool:
        return self.mel_bins == 0
