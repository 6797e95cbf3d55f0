"""The gain of vocabulary parallelism over its alternative: the same layout with its layers redistributed."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.stages import on_devices
from ...cost_models.step import reserved_memory
from ...cost_models.techniques.vocabulary_parallel import TECHNIQUE
from ..document.base import rounded
from ..document.candidate import Candidate
from ..evaluation.staged import Staged
from ..heterogeneous.candidates import staged_as
from ..request.load import Request, changed_request
from ..request.resolve import resolve
from ..stages.finalists import Finalists


class Redistribution(BaseModel):
    """step_s: simulated, with vocabulary parallelism; even_*: of the same layout without it; own_*: without it, and
    with the stages of `plan --stages own` (None: no stages fit), whose layers are own_layers. *_last_bytes: what the
    GPU of the last stage needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_s: float
    last_bytes: float
    even_step_s: float
    even_last_bytes: float
    own_step_s: float | None = None
    own_last_bytes: float | None = None
    own_layers: tuple[int, ...] = ()


def redistribution(request: Request, candidate: Candidate) -> Redistribution | None:
    """For a candidate of the plan for `request`; None where it is not simulated with vocabulary parallelism alone."""
    if TECHNIQUE.name not in request.workload.techniques:
        return None
    spread = staged_as(resolve(request), candidate)
    if spread.ledger.vocabulary is None or not spread.is_simulated:
        return None
    plain = resolve(changed_request(request, {("workload", "techniques"): {}}))
    even = Staged.of(plain, spread.layout, simulate=True)
    finalists = Finalists(plain, lambda: np.inf)
    finalists.split(spread.layout, start=True)
    out = {"step_s": spread.step_s, "last_bytes": _last_bytes(spread),
           "even_step_s": even.step_s, "even_last_bytes": _last_bytes(even)}  # fmt: skip
    if (own := finalists.best.get(spread.layout)) is not None:
        layers = on_devices(np.array(own.partition.sizes), own.devices)
        out |= {"own_step_s": own.step_s, "own_last_bytes": _last_bytes(own), "own_layers": layers.astype(int).tolist()}
    return Redistribution(**rounded(out))


def _last_bytes(staged: Staged) -> float:
    batch, rates = staged.ledger, staged.resolved.rates
    reserved = reserved_memory.reserved_bytes(DeviceMemory(batch), rates, batch.num_profiles - 1)
    return float((reserved + reserved_memory.fixed_bytes(batch, rates))[0])
