"""Tables of a search are gone with their last user: the next ones take their place in memory."""

from __future__ import annotations

import gc
import weakref

from meshwright.cost_models import build_ledger
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.step import step
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve


def test_tables_do_not_wait_for_the_garbage_collector() -> None:
    resolved = resolve(load_request(None, {"model": "llama-3.2-3b", "gpu": "h100-sxm-80gb", "gpus": 8,
                                           "global_batch": 8, "seq_len": 4096}))  # fmt: skip
    layouts = Layouts.of([parse("tp2-dp4-mbs1-z1-rsel(attn)"), parse("tp2-dp4-mbs1-z1-rfull-off(core_attn)")])
    gc.disable()
    try:
        keys, index = index_keys(layouts)
        tables = build(resolved.problem, keys)
        alive = weakref.ref(tables)
        estimate = step.price(build_ledger.build(resolved.problem, tables, layouts, index), resolved.rates)
        assert estimate.device_bytes.all()
        del tables, estimate
        assert alive() is None
    finally:
        gc.enable()
