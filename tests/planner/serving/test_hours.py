"""Load over a day, and prefixes in the cache, as plans take them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from meshwright.cost_models.serving.lengths import RequestLengths
from meshwright.planner.api import plan_serving
from meshwright.planner.request.load import load_any_request
from meshwright.planner.request.serving import ServingFields, ServingRequest
from meshwright.planner.serving.candidates import Demand
from meshwright.planner.serving.hours import over_hours
from meshwright.planner.serving.instance import pool
from meshwright.planner.serving.promises import Promises, largest_load
from meshwright.planner.serving.search import Deployment, Fleet, fleets_pool, search
from meshwright.planner.serving.space import Space, Spaces
from meshwright.planner.serving.technique_choice import TechniqueSpaces, searched
from meshwright.planner.targets.engines.emit import emit_serving

from meshwright.errors import InputError

from ...snapshots import run_here
from .test_plan_serving import ASKED, ENGINES, bursts, planned, space

PROMISES = Promises(requests=RequestLengths.equal(2000, 300), ttft_s=1.0, tpot_s=0.05, share=0.9, closed=False)


def test_every_hour_has_the_fewest_instances_that_carry_it() -> None:
    plan = planned({"rate": None, "hourly": "1/s,5/s,2/s", "fix": "tp=4"})
    hours, best = plan.hourly, plan.best
    assert hours is not None
    each = best.largest_load / best.pools[0].instances
    assert best.largest_load >= 5
    for rate, (number,) in zip(hours.rates, hours.instances, strict=True):
        assert number * each >= rate
        assert (number - 1) * each < rate
    assert hours.gpu_hours == sum(number for (number,) in hours.instances) * best.pools[0].tp * best.pools[0].pp
    assert hours.gpu_hours < hours.gpu_hours_at_peak == 3 * best.gpus
    assert hours.usd is not None
    assert hours.usd_per_mtoken == pytest.approx(hours.usd / (8 * 3600 * 300) * 1e6)


def test_pools_apart_change_by_themselves() -> None:
    """Three instances that prefill and two that decode: every smaller pair carries less than the hour asks for."""
    of_model = space(cluster="dgx-h100:4", fix={"tp": 4, "pp": 1, "chunk_tokens": 8192})
    (instance,) = of_model.instances
    prefill, decode = (Fleet(site=of_model.site, instance=instance, instances=n) for n in (3, 2))
    most = _most(prefill, decode)
    deployment = Deployment(prefill=prefill, decode=decode, largest_load=most)
    (by_day,) = over_hours([deployment], [most, 0.3 * most], PROMISES, ENGINES.constants, rented=False)
    busy, few = by_day.hours
    assert busy == (3, 2)
    assert sum(few) < 5
    for fewer in [(few[0] - 1, few[1]), (few[0], few[1] - 1)]:
        if min(fewer) >= 1:
            fleets = (Fleet(site=of_model.site, instance=instance, instances=n) for n in fewer)
            assert _most(*fleets) < 0.3 * most


@pytest.mark.parametrize("rates", [(1.0, 4.0, 2.0, 1.0), (0.2, 0.2, 3.0)])
def test_no_deployment_is_cheaper_over_the_day(rates: tuple[float, ...]) -> None:
    """Against the largest load of every number of instances of every layout, and of every pair of them."""
    of_model = space(cluster="8xh100-sxm-80gb", fix={"chunk_tokens": 8192})
    demand = Demand(load=max(rates), promises=PROMISES, constants=ENGINES.constants, rates=rates)
    spaces = Spaces(aggregated=(of_model,), prefill=(of_model,), decode=(of_model,))
    field = TechniqueSpaces(spaces=spaces, wide=spaces, between_bw=1e9)
    result = searched(field, demand, ())
    assert result.disaggregated is not None
    price = of_model.site.usd_per_gpu_hour or 0.0
    aggregated = _least_gpu_hours(of_model, rates, disaggregated=False)
    disaggregated = _least_gpu_hours(of_model, rates, disaggregated=True)
    assert result.aggregated.deployments[0].gpu_hours == aggregated
    assert result.disaggregated.deployments[0].gpu_hours == disaggregated
    best = result.result(demand.load).deployments[0]
    assert best.price(rented=True) == pytest.approx(min(aggregated, disaggregated) * price)


def _least_gpu_hours(of_model: Space, rates: tuple[float, ...], *, disaggregated: bool) -> float:
    """Of the layouts, or pairs of them: the sum over the hours of the fewest GPUs that carry the rate."""
    rows = [row for row, instance in enumerate(of_model.instances)
            if pool([instance]).capacity(np.array(2000.0), np.array(300.0))[0] >= 1]  # fmt: skip
    fleets = {row: [Fleet(site=of_model.site, instance=of_model.instances[row], instances=n)
                    for n in range(1, of_model.most[row] + 1)] for row in rows}  # fmt: skip
    every = [((i, j), a, b) for i, j in product(rows, rows) for a, b in product(fleets[i], fleets[j])
             if (a.gpus + b.gpus <= 8 if disaggregated else a is b)]  # fmt: skip
    pools = fleets_pool([a for _, a, _ in every]), fleets_pool([b for *_, b in every])
    sent = np.maximum(*(it.kv_bytes * it.kv_elements(np.array(2000.0)) / it.pp for it in pools))
    carried = largest_load(*pools, np.full(len(every), disaggregated), PROMISES, ENGINES.constants,
                           sent / of_model.site.levels[0].bw_bytes_per_s * disaggregated)  # fmt: skip
    by_layouts = defaultdict[tuple[int, int], list[tuple[int, float]]](list)
    for (layouts, a, b), most in zip(every, carried, strict=True):
        by_layouts[layouts].append((a.gpus + b.gpus * disaggregated, float(most)))
    return min(sum(min((gpus for gpus, most in numbers if most >= rate), default=np.inf) for rate in rates)
               for numbers in by_layouts.values())  # fmt: skip


def test_the_layout_is_the_cheapest_of_the_day_and_not_of_its_peak() -> None:
    """14 GPUs at the peak against 16: the disaggregated pools cannot be smaller in quiet hours."""
    fields: ServingFields = {"cluster": "dgx-h100:4", "rate": None, "hourly": "1/s,2/s,10/s,4/s", "top": 3}
    plan, at_peak = planned(fields), planned({**fields, "hourly": None, "rate": "10/s"})
    assert (plan.best.deployment_id, plan.best.gpus) == ("4 x tp4", 16)
    assert (at_peak.best.deployment_id, at_peak.best.gpus) == ("5 x tp2 + 1 x tp4", 14)
    assert plan.hourly is not None
    assert plan.hourly.gpu_hours == plan.best.gpu_hours == 32
    assert plan.separation is not None
    assert (plan.separation.gpu_hours or 0) > 32
    assert plan.certificate.unit == "USD"
    assert plan.certificate.lower_bound == pytest.approx(plan.hourly.usd or 0.0)
    assert plan.certificate.proven


def test_sets_of_techniques_have_the_hours_of_their_deployments() -> None:
    plan = plan_serving(allow_techniques=["nexus"], model="llama-3.1-8b", cluster="8xh100-sxm-80gb", input=2000,
                        output=300, hourly="1/s,20/s,5/s", ttft="1s", tpot="50ms", top=1)  # fmt: skip
    assert plan.hourly is not None
    first, *others = plan.technique_choices
    assert first.gpu_hours == plan.hourly.gpu_hours == plan.best.gpu_hours
    assert all((it.gpu_hours or 0) >= first.gpu_hours for it in others)


def test_bursts_spread_over_more_instances() -> None:
    """One instance meets the whole burst, so it carries less than its share of what eight carry."""
    promises = replace(PROMISES, requests=bursts(16), ttft_s=1.1)
    of_model = space("qwen3-8b", "dgx-h100:1", {"tp": 1, "pp": 1, "chunk_tokens": 8192})
    (most,) = search([of_model], None, promises, ENGINES.constants).deployments
    (one,) = search([replace(of_model, most=(1,))], None, promises, ENGINES.constants).deployments
    assert most.decode.instances == 8
    assert one.largest_load < 0.8 * most.largest_load / 8
    rates = [one.largest_load, most.largest_load / 8]
    (by_day,) = over_hours([most], rates, promises, ENGINES.constants, rented=False)
    assert by_day.hours == ((1,), (2,))


def _most(prefill: Fleet, decode: Fleet) -> float:
    pools = fleets_pool([prefill]), fleets_pool([decode])
    return float(largest_load(*pools, pools[0].tp > 0, PROMISES, ENGINES.constants)[0])


def test_the_plan_of_shared_prefixes_carries_more_and_starts_the_cache() -> None:
    fields: ServingFields = {"rate": None, "fix": ["tp=4", "replicas=1", "chunk_tokens=8192", "pp=1"]}
    without, shared = planned(fields), planned({**fields, "prefix_hit": "60%", "prefixes": 4})
    assert shared.best.largest_load > 1.2 * without.best.largest_load
    assert shared.best.pools[0].cache_sequences > 1.5 * without.best.pools[0].cache_sequences
    assert "--enable-prefix-caching" in emit_serving(shared, "vllm").files["serve.sh"]
    assert "--enable-prefix-caching" not in emit_serving(without, "vllm").files["serve.sh"]


@pytest.mark.parametrize(("flags", "says"), [
    (("--hourly", "1/s,2"), "hour 1: `2` is no rate"), (("--hourly", "1/s", "--rate", "2/s"), "two loads"),
    (("--prefix-hit", "100%"), "last token"), (("--prefix-hit", "-1"), "more than 0"),
    (("--prefixes", "3"), "--prefix-hit 0.6"), (("--input", "759:rms=500"), "less than the mean"),
    (("--input", "no.csv"), "no.csv"), (("--hourly", "no.txt"), "no such file"),
])  # fmt: skip
def test_wrong_loads_are_named(flags: tuple[str, ...], says: str) -> None:
    result = run_here("plan", "--workload", "serve", *ASKED, *flags)
    assert result.code == 2
    assert says in result.err


def test_a_file_of_rates(tmp_path: Path) -> None:
    file = tmp_path / "rates.txt"
    file.write_text("1/s\n2/s\n")
    assert planned({"rate": None, "hourly": str(file), "fix": "tp=8"}).hourly is not None
    file.write_text("\n")
    with pytest.raises(InputError, match="no rates"):
        planned({"rate": None, "hourly": str(file)})


@pytest.mark.parametrize(("hourly", "says"), [
    ("[0.0, 0.0]", "hour 0: `0.0` is no rate"), ("[2/s, -5/s]", "hour 1: must be more than 0"),
    ("[2.0, -5.0]", "hour 0: `2.0` is no rate"), ("3", "hour 0: `3` is no rate"), ("[]", "no rates"),
    ("[2, 3]", "hour 0: `2` is no rate"), ("{a: 1/s}", "is no rate"),
])  # fmt: skip
def test_rates_of_a_file_are_checked_as_those_of_flags(tmp_path: Path, hourly: str, says: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(f"model: llama-3.1-70b\ncluster: 8xh100-sxm-80gb\n"
                    f"workload: {{kind: serve, input: 2000, output: 300, hourly: {hourly}}}\n")  # fmt: skip
    result = run_here("plan", str(file))
    assert result.code == 2
    assert says in result.err


def test_one_rate_is_a_day_of_one_hour(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model: llama-3.1-70b\ncluster: 8xh100-sxm-80gb\n"
                    "workload: {kind: serve, input: 2000, output: 300, hourly: 3/s}\n")  # fmt: skip
    request = load_any_request(file)
    assert isinstance(request, ServingRequest)
    assert request.workload.hourly == (3.0,)


def test_more_prefixes_than_the_cache_holds() -> None:
    result = run_here("plan", "--workload", "serve", *ASKED, "--prefix-hit", "0.9", "--prefixes", "100000")
    assert result.code == 1
    assert "100,000 shared prefixes and a sequence" in result.err
