"""The images of a sequence: their places among its tokens, the positions that they have, and synthetic pixels.

All sequences have images of one size at equal places, spread evenly over the text. Pixels are synthetic: they are drawn
from the tokens of the data that stand where an image is, so that they are equal under any layout. Those tokens have no
other use: they are neither inputs nor targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...cost_models.specs.vision import VisionTower
from ...cost_models.specs.workload import Images


@dataclass(frozen=True)
class SequenceImages:
    """The images of every sequence, and the tower that reads them."""

    tower: VisionTower
    images: Images
    seq_len: int  # tokens of a sequence, those of its images included
    freezes: bool = False  # the layers of the tower do not train

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens of an image."""
        side = self.tower.patch * self.tower.merge
        height, width = self.tower.resized(self.images.height, self.images.width)
        return height // side, width // side

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        rows, columns = self.grid
        return rows * columns

    @property
    def starts(self) -> list[int]:
        """Place of the first token of each image."""
        number, text = self.images.per_sequence, self.seq_len - self.images.per_sequence * self.tokens
        return [(index + 1) * text // (number + 1) + index * self.tokens for index in range(number)]

    @property
    def places(self) -> list[int]:
        """Places of all tokens of images in a sequence, ascending."""
        return [start + token for start in self.starts for token in range(self.tokens)]

    @property
    def without_target(self) -> Tensor:
        """[seq_len] whether the next token is one of an image, which nothing predicts."""
        hidden = torch.zeros(self.seq_len + 1, dtype=torch.bool)
        hidden[self.places] = True
        return hidden[1:]

    @property
    def num_targets(self) -> int:
        """Tokens of a sequence that have a loss."""
        return self.seq_len - sum(place > 0 for place in self.places)

    def positions(self) -> Tensor:
        """[3, seq_len] rotary positions by frame, row and column (arXiv 2409.12191): those of a text token are equal,
        an image has one frame, and text goes on after its longer side."""
        rows, columns = self.grid
        row = torch.arange(rows).repeat_interleave(columns)
        image = torch.stack([torch.zeros_like(row), row, torch.arange(columns).repeat(rows)])
        parts, following, end = [], 0, 0
        for start in self.starts:
            text = torch.arange(start - end).expand(3, -1)
            parts += [text + following, image + following + start - end]
            following, end = following + start - end + max(rows, columns), start + self.tokens
        parts.append(torch.arange(self.seq_len - end).expand(3, -1) + following)
        return torch.cat(parts, dim=1)

    def rotary_positions(self, pairs: int) -> Tensor:
        """[seq_len, pairs] position by which each rotary pair of a head turns, or [seq_len, 1] where all turn alike.

        Sections are interleaved: pairs 1, 4, 7, ... turn by row, 2, 5, 8, ... by column, as many as a section has, and
        the others by frame (Qwen3-VL).
        """
        sections = self.tower.rope_sections
        if not sections:
            return torch.arange(self.seq_len)[:, None]
        axis = torch.zeros(pairs, dtype=torch.long)
        for turned in (1, 2):
            axis[turned : 3 * sections[turned] : 3] = turned
        return self.positions()[axis].T

    def pixels(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Pixels [b x images, patches, values of a patch] from the tokens at the places of images [b, images x tokens].

        Patches are in the order of the tokens that they become. All values are within -1 and 1.
        """
        tower, merged = self.tower, self.tower.merge**2
        values = tower.channels * tower.frames * tower.patch**2
        images = tokens.reshape(-1, self.tokens)
        out = torch.empty(len(images), self.tokens * merged, values, dtype=dtype, device=tokens.device)
        waves = torch.arange(1, merged * values + 1, dtype=torch.float64, device=tokens.device)
        for image, here in zip(out, images, strict=True):  # one after the other, since angles take 8 bytes each
            angles = (here[:, None] + 1) * waves
            image.copy_(angles.sin_().view(image.shape))
        return out
