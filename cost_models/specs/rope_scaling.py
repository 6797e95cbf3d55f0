"""The scaling of rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary positions are stretched beyond the length of the first training. Names and meaning are those of
    rope_parameters in config.json (transformers 5.23, modeling_rope_utils.py); a kind uses its own numbers only."""

    # dynamic: not up to max_positions, which no plan exceeds; longrope: without its factors per frequency
    kind: Literal["linear", "dynamic", "yarn", "longrope", "llama3"]
    factor: float  # of the length
    original_max_positions: int | None = None  # length of the first training
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float = 0.0  # yarn, 0: not given
    mscale_all_dim: float = 0.0  # yarn, 0: not given
    attention_factor: float | None = None  # yarn: amplitude of cos and sin, None: by `mscale`
    truncate: bool = True  # yarn: bounds of its ramp are rounded to whole frequencies

    def __str__(self) -> str:
        first = f" from {self.original_max_positions}" if self.original_max_positions else ""
        return f"{self.kind} x{self.factor:g}{first}"

    @property
    def amplitude(self) -> float:
        """The factor of cos and sin (YaRN, arXiv 2309.00071, section 3.4)."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._grown(self.mscale) / self._grown(self.mscale_all_dim)
        return self._grown(1.0)

    @property
    def latent_scale(self) -> float:
        """The factor of the scores of latent attention (DeepseekV3Attention in transformers)."""
        return self._grown(self.mscale_all_dim) ** 2 if self.kind == "yarn" and self.mscale_all_dim else 1.0

    def _grown(self, mscale: float) -> float:
        return 0.1 * mscale * log(self.factor) + 1.0 if self.factor > 1 else 1.0
