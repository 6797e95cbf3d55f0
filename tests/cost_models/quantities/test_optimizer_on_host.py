"""No layout with its optimizer on the host takes less there than the bound, and some take hardly more."""

from __future__ import annotations

import numpy as np
from meshwright.cost_models.layouts import OPTIMIZER_ON_HOST
from meshwright.cost_models.quantities.optimizer_on_host import least_bytes

from ..random_cases import CASES, case_named, draw, price


def test_no_layout_takes_less_of_the_host() -> None:
    shares = {}
    for name in sorted(CASES):
        case = case_named(name)
        columns = draw(case, 1)
        on_host = price(case, columns).host_bytes[np.isin(columns["offload"], OPTIMIZER_ON_HOST)]
        if len(on_host) and (least := least_bytes(case.problem)):
            shares[name] = float(on_host.min()) / least
    assert len(shares) > 10
    assert min(shares.values()) >= 1 - 1e-9, shares
    assert min(shares.values()) < 1.01
