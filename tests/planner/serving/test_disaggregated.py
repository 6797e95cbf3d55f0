"""Deployments whose prompts and answers have instances of their own: the search against all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.arrays import Array, Mask
from meshwright.cost_models.serving.lengths import RequestLengths
from meshwright.planner.request.serving import ServingFields
from meshwright.planner.serving.disaggregated import search_disaggregated, sides_of
from meshwright.planner.serving.promises import ALONE, Promises, largest_load, priced
from meshwright.planner.serving.search import Fleet, Incumbent, fleets_pool
from meshwright.planner.serving.space import Space
from meshwright.planner.targets.engines.emit import emit_serving

from meshwright.errors import InputError, NoFeasibleLayoutError

from .test_plan_serving import ENGINES, planned, space

Every = tuple[list[int], int, Mask]


def every_pair(of_model: Space, load: float, promises: Promises, roles: Sequence[Space] = ()) -> Every:
    """GPUs of each pair on eight GPUs, how many hold no request, and [pair] whether it keeps the promises. roles: the
    instances of each role, where they differ. vLLM moves no caches of stages."""
    prefills, decodes = (
        [Fleet(site=it.site, instance=it.instances[row], instances=n)
         for row, most in enumerate(it.most) for n in range(it.least, most + 1)]
        for it in roles or (of_model, of_model)
    )  # fmt: skip
    chunk = decodes[0].instance.chunk_tokens
    pairs = [(a, b) for a in prefills for b in decodes if b.instance.chunk_tokens == chunk and a.gpus + b.gpus <= 8]
    prefill, decode = fleets_pool([a for a, _ in pairs]), fleets_pool([b for _, b in pairs])
    fits = np.ones(len(pairs), dtype=bool)
    for columns in (prefill, decode):
        fits &= columns.capacity(np.array(2000.0), np.array(300.0)) >= 1
    sent = np.maximum(*(it.kv_bytes * it.kv_elements(np.array(2000.0)) / it.pp for it in (prefill, decode)))
    kept = fits & priced(prefill, decode, np.ones(len(pairs), dtype=bool), np.full(len(pairs), load), promises,
                         ENGINES.constants, sent / of_model.site.levels[0].bw_bytes_per_s).kept  # fmt: skip
    meet = np.array([a.instance.layout.pp == b.instance.layout.pp == 1 for a, b in pairs])
    return [a.gpus + b.gpus for a, b in pairs], int((meet & ~fits).sum()), kept & meet


CASES = [(False, 2.0, 0.05, {"tp": 4}), (False, 5.0, 0.02, {"chunk_tokens": 8192}),
         (True, 16.0, 0.05, {"tp": 2}), (True, 24.0, 0.02, {"chunk_tokens": 8192}),
         (True, 9e3, 0.02, {"tp": 4})]  # fmt: skip


@pytest.mark.parametrize(("closed", "load", "tpot_s", "fix"), CASES)
def test_the_search_finds_what_pricing_every_pair_finds(
    closed: bool, load: float, tpot_s: float, fix: dict[str, int]
) -> None:
    """Requests per second, and requests at any time, where dearer pairs are not priced."""
    promises = Promises(requests=RequestLengths.equal(2000, 300), ttft_s=1.0, tpot_s=tpot_s, share=0.9, closed=closed)
    of_model = space("llama-3.1-70b", "8xh100-sxm-80gb", fix)
    result = search_disaggregated([of_model], [of_model], load, promises, ENGINES.constants, 1e9)
    every, out_of_memory, kept = every_pair(of_model, load, promises)
    gpus = [it for it, is_kept in zip(every, kept, strict=True) if is_kept]
    assert result.total == len(every)
    assert result.out_of_memory == out_of_memory
    counted = result.broken + result.unlike + result.out_of_memory + result.bounded + len(result.deployments)
    assert counted == result.total
    unbroken = result.bounded + len(result.deployments)
    assert unbroken >= len(gpus) if closed and gpus else unbroken == len(gpus)
    assert bool(gpus) == bool(result.deployments)
    if gpus:
        assert result.deployments[0].gpus == min(gpus)
        assert len(result.deployments) == gpus.count(min(gpus))


@pytest.mark.parametrize("load", [2.0, 5.0])
@pytest.mark.parametrize(("prefill", "decode"), [
    ({"tp": 2}, {"tp": 4}), ({"tp": 2, "replicas": 2}, {"pp": 1}), ({"pp": 2}, {"replicas": 1}),
])  # fmt: skip
def test_the_roles_may_be_fixed_by_themselves(prefill: dict[str, int], decode: dict[str, int], load: float) -> None:
    promises = Promises(requests=RequestLengths.equal(2000, 300), ttft_s=1.0, tpot_s=0.05, share=0.9, closed=False)
    one, other = (space("llama-3.1-70b", "8xh100-sxm-80gb", fix) for fix in (prefill, decode))
    other = replace(other, site=one.site)
    result = search_disaggregated([one], [other], load, promises, ENGINES.constants, 1e9)
    gpus, out_of_memory, kept = every_pair(one, load, promises, (one, other))
    keeping = [it for it, is_kept in zip(gpus, kept, strict=True) if is_kept]
    assert (result.total, result.out_of_memory) == (len(gpus), out_of_memory)
    assert result.bounded + len(result.deployments) == len(keeping)
    assert [it.gpus for it in result.deployments] == [min(keeping)] * keeping.count(min(keeping)) if keeping else True
    for deployment in result.deployments:
        assert {"tp": deployment.prefill.instance.layout.tp, "replicas": deployment.prefill.instances,
                "pp": deployment.prefill.instance.layout.pp}.items() >= prefill.items()  # fmt: skip


def test_a_fixed_role_leaves_no_deployment_together() -> None:
    plan = planned({"fix": ["prefill.tp=2", "decode.tp=4"], "rate": "2/s"})
    assert plan.best.deployment_id == "1 x tp2 + 1 x tp4"
    assert plan.separation is None
    with pytest.raises(NoFeasibleLayoutError, match="prefills takes 8 of the GPUs and one that decodes 4"):
        planned({"fix": ["prefill.tp=8", "decode.tp=4"]})
    with pytest.raises(NoFeasibleLayoutError, match="break rules of heads"):
        planned({"fix": ["prefill.tp=2", "decode.tp=3"]})
    with pytest.raises(InputError, match=r"serving has no `prefil\.tp` to fix"):
        planned({"fix": "prefil.tp=2"})


@pytest.mark.parametrize("tpot_s", [0.02, 0.03])
def test_without_a_load_no_pair_carries_more(tpot_s: float) -> None:
    """Against the largest load of every pair; most of them are not priced."""
    promises = Promises(requests=RequestLengths.equal(2000, 300), ttft_s=1.0, tpot_s=tpot_s, share=0.9, closed=False)
    of_model = space("llama-3.1-70b", "8xh100-sxm-80gb", {"chunk_tokens": 8192})
    result = search_disaggregated([of_model], [of_model], None, promises, ENGINES.constants, 1e9)
    (best,) = {round(it.largest_load, 4) for it in result.deployments}
    _, _, more = every_pair(of_model, best * 1.001, promises)
    _, _, as_many = every_pair(of_model, best * 0.999, promises)
    assert not more.any()
    assert int(as_many.sum()) >= len(result.deployments) > 0
    counted = result.broken + result.unlike + result.out_of_memory + result.bounded + len(result.deployments)
    assert counted == result.total


@pytest.mark.parametrize("arrivals_s", [None, np.cumsum([0.1, 3.0] * 50)])
@pytest.mark.parametrize("ttft_s", [1.0, np.inf])
def test_no_pair_carries_more_than_the_bounds_of_its_sides(ttft_s: float, arrivals_s: Array | None) -> None:
    """Bounds are finite without a promise on the first token, of Poisson arrivals and of those of a trace."""
    requests = replace(RequestLengths.equal(2000, 300), arrivals_s=arrivals_s)
    promises = Promises(requests=requests, ttft_s=ttft_s, tpot_s=0.05, share=0.9, closed=False)
    spaces = [space("llama-3.1-70b", "8xh100-sxm-80gb", {"chunk_tokens": 8192, "tp": tp}) for tp in (2, 4)]
    for prefills in (True, False):
        for side in sides_of(spaces, ALONE, promises, ENGINES.constants, prefills=prefills, least=0.0):
            this = side.pool(np.arange(len(side.number)))
            other = this.rows(np.arange(len(side.number)), np.full(len(side.number), 1e9))
            asked = replace(promises, tpot_s=np.inf) if prefills else replace(promises, ttft_s=np.inf)
            pools = (this, other) if prefills else (other, this)
            alone = largest_load(*pools, np.ones(len(side.number), dtype=bool), asked, ENGINES.constants)
            assert (side.most < 1e3).all()
            assert (side.most >= alone * (1 - 1e-6)).all()


def test_an_incumbent_leaves_out_pairs_that_carry_less() -> None:
    promises = Promises(requests=RequestLengths.equal(2000, 300), ttft_s=1.0, tpot_s=0.05, share=0.9, closed=False)
    of_model = [space("llama-3.1-70b", "8xh100-sxm-80gb", {"chunk_tokens": 8192})]
    every = search_disaggregated(of_model, of_model, None, promises, ENGINES.constants, 1e9)
    most = every.deployments[0].largest_load
    beaten, none = (
        search_disaggregated(of_model, of_model, None, promises, ENGINES.constants, 1e9,
                             Incumbent(price=8.0, largest_load=load, rented=False))
        for load in (0.999 * most, 1.001 * most)
    )  # fmt: skip
    assert beaten.deployments == every.deployments
    assert not none.deployments


@pytest.mark.parametrize(("engine", "prefill", "decode", "model"), [
    ("vllm", {"pp": 2}, {"pp": 1}, "llama-3.1-8b"), ("sglang", {"pp": 4}, {"pp": 2}, "llama-3.1-8b"),
    ("vllm", {"tp": 2, "pp": 1}, {"tp": 1, "pp": 1}, "qwen3-next-80b-a3b"),
])  # fmt: skip
def test_instances_between_which_no_caches_move_are_no_pair(
    engine: str, prefill: dict[str, int], decode: dict[str, int], model: str
) -> None:
    fix = [f"{role}.{axis}={value}" for role, axes in (("prefill", prefill), ("decode", decode))
           for axis, value in axes.items()]  # fmt: skip
    with pytest.raises(NoFeasibleLayoutError, match="moves "):
        planned({"model": model, "target": engine, "fix": fix, "rate": "1/s", "cluster": "dgx-h100:2"})
    alike = {**prefill, "pp": 1} if engine == "vllm" else prefill
    other = [f"{role}.{axis}={value}" for role in ("prefill", "decode") for axis, value in alike.items()]
    best = planned({"model": model, "target": engine, "fix": other, "rate": "1/s", "cluster": "dgx-h100:2"}).best
    assert len(best.pools) == 2


def test_too_high_a_rate_names_what_pools_apart_carry() -> None:
    most = planned({"tpot": "30ms", "rate": None}).best
    assert len(most.pools) == 2
    with pytest.raises(NoFeasibleLayoutError, match=rf"up to {most.largest_load:.3g}/s \(1 x tp4 \+ 1 x tp4\)"):
        planned({"tpot": "30ms", "rate": "50/s"})


def test_too_many_requests_at_once_name_what_pools_apart_carry() -> None:
    """As many keep the promises, and hardly more break them."""
    fix: ServingFields = {"fix": ["prefill.tp=2", "decode.tp=4", "prefill.pp=1", "decode.pp=1"],
                          "rate": None}  # fmt: skip
    with pytest.raises(NoFeasibleLayoutError, match=r"up to [\d.]+ requests at once \(2 x tp2 \+ 1 x tp4\)") as error:
        planned({**fix, "concurrency": 4000})
    most = float(error.value.message.partition("up to ")[2].split()[0])
    assert planned({**fix, "concurrency": int(most)}).best.deployment_id == "2 x tp2 + 1 x tp4"
    with pytest.raises(NoFeasibleLayoutError, match="too much"):
        planned({**fix, "concurrency": int(most) + 2})


def test_a_loop_over_two_pools_has_the_rate_and_the_latencies_that_are_simulated() -> None:
    """By Little's law, too."""
    plan = planned({"tpot": "17ms", "rate": None, "concurrency": 24, "cluster": "dgx-h100:4", "top": 1})
    best, simulated = plan.best, plan.best.simulated
    assert [pool.role for pool in best.pools] == ["prefill", "decode"]
    assert plan.separation is not None
    assert plan.separation.prefill_gpus is None  # of requests per second
    assert best.rate * (best.ttft_s + 299 * best.tpot_s) == pytest.approx(24, rel=0.02)
    assert simulated is not None
    assert simulated.tpot_s.mean == pytest.approx(best.tpot_s, rel=0.15)
    assert simulated.ttft_s.mean == pytest.approx(best.ttft_s, rel=0.15)
    assert simulated.kept > 0.9


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
