"""Images of a request that serves, and the tower that sees them, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass

from ..quantities import vision
from ..specs.vision import VisionTower
from ..specs.workload import Images


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenImages:
    """The images of a request, the same for all instances. Pieces of the tower are the product of the pixels, each
    layer, and what makes tokens of the output."""

    flops: tuple[float, ...]  # [piece] of all images
    pixels: float  # values of all images as they are sent: scaled to the patches of the tower
    elements: tuple[float, ...]  # [piece] behind each, of all images
    width: int  # of the hidden states of the tower
    rows: float  # patches of all images, with class tokens
    parameters: float  # of the tower and what projects its output
    prompt: float  # mean tokens of a prompt, with those of its images

    @classmethod
    def of(cls, tower: VisionTower, images: Images, prompt: float) -> SeenImages:
        """The images of a prompt of so many tokens, mean."""
        number, size = float(images.per_sequence), (images.height, images.width)
        patches = tower.patches(*size)
        return cls(
            flops=tuple(number * it for it in vision.piece_flops(tower, *size)),
            pixels=number * patches * tower.patch**2 * tower.channels,
            elements=tuple(number * it for it in vision.piece_elements(tower, *size)), width=tower.hidden,
            rows=number * (patches + tower.class_tokens), parameters=float(sum(vision.parameters(tower).values())),
            prompt=prompt,
        )  # fmt: skip

    @property
    def layers(self) -> int:
        return len(self.flops) - 2
