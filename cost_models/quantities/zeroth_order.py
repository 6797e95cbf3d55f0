"""Training without gradients: the losses of two passes with perturbed weights give the slope along a random direction.

MeZO (Malladi et al. 2023, arXiv 2305.17333): the direction comes from a seed again whenever it is needed, so that no
pass keeps it. Traffic and buffers are those of its steps of torch (liangyuwang/zo2 097d5686, MeZOSGD),
counted in tensors of the size of a weight: the noise is written; it is scaled twice, and added.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import Array

# Noise written (1), scaled twice (2 x 2), added to the weight (3): along the direction, against it, and back.
PERTURBED_TENSORS = 3 * 8.0
# Noise written (1), times the slope (2), decay of the weight (2), their sum (3), times the rate (2), subtracted (3).
UPDATED_TENSORS = 13.0
# Alive at once in that update: noise, noise times the slope, decay, their sum. One less on the way along a direction.
UPDATE_BUFFERS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZerothOrder:
    """A step of training without gradients."""

    # [n] tensors of the size of the weights of a rank that are moved in its memory: in the passes of a micro-batch, and
    # after all of a step.
    in_passes: Array
    after: Array
    sent_bytes: Array  # [n] slopes of a step that every rank gets, of all replicas
    buffers: float  # tensors of the size of a weight that are alive at once while it is updated
    at_once: int = 1  # passes that each layer runs before the next one does
