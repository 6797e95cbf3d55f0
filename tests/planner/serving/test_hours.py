"""Load over a day, and prefixes in the cache, as plans take them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from meshwright.cost_models.serving.lengths import RequestLengths
from meshwright.planner.request.load import load_any_request
from meshwright.planner.request.serving import ServingFields, ServingRequest
from meshwright.planner.serving.hours import over_hours
from meshwright.planner.serving.promises import Promises, largest_load
from meshwright.planner.serving.search import Deployment, Stand, search, stands_pool
from meshwright.planner.targets.engines.emit import emit_serving

from meshwright.errors import InputError

from ...snapshots import run_here
from .test_plan_serving import ASKED, ENGINES, bursts, planned, space

PROMISES = Promises(requests=RequestLengths.equal(2000, 300), ttft_s=1.0, tpot_s=0.05, share=0.9, closed=False)


def test_every_hour_has_the_fewest_instances_that_carry_it() -> None:
    plan = planned({"rate": None, "hourly": "1/s,6/s,2/s", "fix": "tp=4"})
    hours, best = plan.hourly, plan.best
    assert hours is not None
    each = best.largest_load / best.pools[0].instances
    assert best.largest_load >= 6
    for rate, (number,) in zip(hours.rates, hours.instances, strict=True):
        assert number * each >= rate
        assert (number - 1) * each < rate
    assert hours.gpu_hours == sum(number for (number,) in hours.instances) * best.pools[0].tp * best.pools[0].pp
    assert hours.gpu_hours < hours.gpu_hours_at_peak == 3 * best.gpus
    assert hours.usd is not None
    assert hours.usd_per_mtoken == pytest.approx(hours.usd / (9 * 3600 * 300) * 1e6)


def test_pools_apart_change_by_themselves() -> None:
    """Three instances that prefill and two that decode: every smaller pair carries less than the hour asks for."""
    of_model = space(cluster="dgx-h100:4", fix={"tp": 4, "pp": 1, "chunk_tokens": 8192})
    (instance,) = of_model.instances
    prefill, decode = (Stand(site=of_model.site, instance=instance, instances=n) for n in (3, 2))
    most = _most(prefill, decode)
    deployment = Deployment(prefill=prefill, decode=decode, largest_load=most)
    hours = over_hours(deployment, [most, 0.3 * most], PROMISES, ENGINES.constants)
    assert hours.instances[0] == (3, 2)
    few = hours.instances[1]
    assert sum(few) < 5
    for fewer in [(few[0] - 1, few[1]), (few[0], few[1] - 1)]:
        if min(fewer) >= 1:
            stands = (Stand(site=of_model.site, instance=instance, instances=n) for n in fewer)
            assert _most(*stands) < 0.3 * most


def test_bursts_spread_over_more_instances() -> None:
    """One instance meets the whole burst, so it carries less than its share of what eight carry."""
    promises = replace(PROMISES, requests=bursts(16))
    of_model = space("qwen3-8b", "dgx-h100:1", {"tp": 1, "pp": 1, "chunk_tokens": 8192})
    (most,) = search([of_model], None, promises, ENGINES.constants).deployments
    (one,) = search([replace(of_model, most=(1,))], None, promises, ENGINES.constants).deployments
    assert most.decode.instances == 8
    assert one.largest_load < 0.8 * most.largest_load / 8
    hours = over_hours(most, [one.largest_load, most.largest_load / 8], promises, ENGINES.constants)
    assert hours.instances == ((1,), (2,))


def _most(prefill: Stand, decode: Stand) -> float:
    pools = stands_pool([prefill]), stands_pool([decode])
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
