"""Fits the share that the caching allocator reserves over what tensors take to published runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...errors import InputError
from .batch_pricing import ledger_of, rates_of
from .fit import weights
from .interval_fit import weighted_quantile
from .row import Case
from .validate import peak_memory, source_of

PLACE = ("assumptions", "allocator", "reserve_share")  # of the share in a calibration; no fit of step times moves it


def reserve_share(cases: Sequence[Case]) -> float:
    """The median over runs whose reserved memory is scored, each with the share that its peak asks for. A source weighs
    as the root of its runs."""
    reserved = [case for case in cases if case.memory_scored and case.measured.memory_kind == "reserved"]
    rows = [(case, share) for case in reserved if (share := _share(case)) is not None]
    weight = weights([source_of(case.source) for case, _ in rows])
    return weighted_quantile(np.array([share for _, share in rows]), weight, 0.5)


def _share(case: Case) -> float | None:
    """The share at which the predicted peak is the measured one; None for a run that cannot be priced. The peak is
    linear in the share: what tensors take times 1 + share, and blocks that nothing fits into."""
    try:
        rates = rates_of(case)
    except InputError:
        return None
    ledger = ledger_of([case], rates)
    at = [peak_memory(case, ledger, replace(rates, overheads=replace(rates.overheads, reserve_share=share)))
          for share in (0.0, 1.0)]  # fmt: skip
    return ((case.measured.peak_memory_bytes or at[0]) - at[0]) / (at[1] - at[0])
