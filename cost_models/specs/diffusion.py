"""Diffusion transformers: how latents become tokens, and what conditions each layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulation:
    """Shifts and scales of the norms of a layer and gates of its blocks, made from the time step (DiT, arXiv
    2212.09748, section 3.2, adaLN-Zero). Sizes are those of one stream."""

    parameters: int  # elements of what makes them
    products: int  # columns of the product that makes them for a sequence, 0: a table is added to what all layers share
    norms: int = 0  # of the layer, which have weights and are not modulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Diffusion:
    """Both ends of a transformer that denoises latents. Its encoder of text and its autoencoder are frozen and outside:
    Flux, Wan (arXiv 2503.20314) and DiT (diffusers 0.42.1, models/transformers)."""

    side: int  # pixels of a side of a token: of the autoencoder's latents and of a patch of them
    frames: int  # frames of a token of a video, after the first one; 0: it denoises images
    text_tokens: int  # of the encoded text of a sequence
    joins_text: bool  # whether these are tokens of the sequence (Flux), else all layers attend to them (Wan)
    inputs: int  # values of a token before the first layer; those after the last are the vocabulary
    embedders: int  # elements before the layers, beside the product of these values
    ends: int  # elements after the layers, beside the product that makes values
    guided: bool = False  # each pass is also run without the text or the class (classifier-free guidance)

    def tokens(self, height: int, width: int, frames: int) -> int:
        """Tokens of an image or a video, without those of its text."""
        latent_frames = 1 + (frames - 1) // self.frames if self.frames else 1
        return (height // self.side) * (width // self.side) * latent_frames
