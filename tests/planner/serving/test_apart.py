"""Deployments whose prompts and answers have instances of their own: the search against all of them."""

from __future__ import annotations

import numpy as np
import pytest
from meshwright.cost_models.serving.lengths import RequestLengths
from meshwright.planner.serving.apart import search_apart
from meshwright.planner.serving.promises import Promises, priced
from meshwright.planner.serving.search import Stand, stands_pool
from meshwright.planner.targets.engines.emit import emit_serving

from .test_plan_serving import ENGINES, planned, space


@pytest.mark.parametrize(("rate", "tpot_s", "fix"), [(2.0, 0.05, {"tp": 4}), (5.0, 0.02, {"chunk_tokens": 8192})])
def test_the_search_finds_what_pricing_every_pair_finds(rate: float, tpot_s: float, fix: dict[str, int]) -> None:
    promises = Promises(requests=RequestLengths.equal(2000, 300), ttft_s=1.0, tpot_s=tpot_s, share=0.9, closed=False)
    of_model = space("llama-3.1-70b", "8xh100-sxm-80gb", fix)
    found = search_apart([of_model], rate, promises, ENGINES.constants, 1e9)
    stands = [Stand(site=of_model.site, instance=of_model.instances[row], instances=n)
              for row, most in enumerate(of_model.most) for n in range(1, most + 1)]  # fmt: skip
    chunk = of_model.instances[0].chunk_tokens
    pairs = [(a, b) for a in stands for b in stands if b.instance.chunk_tokens == chunk and a.gpus + b.gpus <= 8]
    assert found.total == len(pairs)
    prefill, decode = stands_pool([a for a, _ in pairs]), stands_pool([b for _, b in pairs])
    fits = np.ones(len(pairs), dtype=bool)
    for columns in (prefill, decode):
        fits &= columns.capacity(np.array(2000.0), np.array(300.0)) >= 1
    sent = np.maximum(*(it.kv_bytes * it.kv_elements(np.array(2000.0)) / it.pp for it in (prefill, decode)))
    kept = fits & priced(prefill, decode, np.ones(len(pairs), dtype=bool), np.full(len(pairs), rate), promises,
                         ENGINES.constants, sent / of_model.site.levels[0].bw_bytes_per_s).kept  # fmt: skip
    assert found.out_of_memory == int((~fits).sum())
    assert found.bounded + len(found.deployments) == int(kept.sum())
    gpus = [a.gpus + b.gpus for (a, b), is_kept in zip(pairs, kept, strict=True) if is_kept]
    assert bool(gpus) == bool(found.deployments)
    if gpus:
        assert found.deployments[0].gpus == min(gpus)
        assert len(found.deployments) == gpus.count(min(gpus))


def test_the_plan_compares_both_and_starts_what_is_apart() -> None:
    plan = planned({"tpot": "17ms", "rate": "4/s", "cluster": "dgx-h100:4", "top": 1})
    assert plan.separation is not None
    assert plan.separation.prefill_gpus is not None
    assert [pool.role for pool in plan.best.pools] == ["prefill", "decode"]
    assert plan.best.gpus == sum(pool.gpus for pool in plan.best.pools)
    files = emit_serving(plan, "vllm").files
    assert set(files) == {"prefill.sh", "decode.sh", "router.sh", "plan.json"}
    assert all("NixlConnector" in files[f"{role}.sh"] for role in ("prefill", "decode"))


def test_without_separate_pools_the_reason_is_given() -> None:
    plan = planned({})
    assert len(plan.best.pools) == 1
    assert plan.separation is not None
    assert plan.separation.together_gpus is not None
