"""The closed forms of a pipeline of equal stages, as one number."""

from __future__ import annotations

import numpy as np
from meshwright.cost_models.schedule_kinds import CODE
from meshwright.cost_models.step.pipeline import Fill, Messages, bubble_s, exposed_hop_s


def even_step_s(
    schedule: str, p: int, m: int, v: int, forward_s: float, backward_s: float, weight_s: float, hop_s: float = 0.0
) -> float:
    """Step seconds of p equal stages (forward_s, backward_s with its weight part weight_s, per micro-batch)."""
    code = np.array([CODE[schedule]])
    pp, vpp, mm, hop, f, b, w = (np.array([float(x)]) for x in (p, v, m, hop_s, forward_s, backward_s, weight_s))
    c = f + b
    bubble = bubble_s(code, Fill(pp, vpp, mm, c, np.zeros(1), *((p - 1) * x for x in (c, f, b, w))))
    messages = Messages(pp, vpp, mm, hop, hop, p * c, c, f, b, w)
    return float((mm * c + bubble + exposed_hop_s(code, messages))[0])
