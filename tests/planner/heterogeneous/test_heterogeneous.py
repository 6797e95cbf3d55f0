"""Clusters that are not alike: islands, pipelines and replicas over them, the search and its bounds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cli import text
from meshwright.cli.screens import memory as memory_screen
from meshwright.cli.screens.explain import why_not_screen
from meshwright.cli.screens.heterogeneous import crossing_lines
from meshwright.cli.screens.verdict import verdict
from meshwright.cost_models.layouts import Layout, parse
from meshwright.cost_models.quantities.exchanges import OPS
from meshwright.cost_models.quantities.stages import Partition
from meshwright.cost_models.rates import collectives
from meshwright.cost_models.step import shared_bounds
from meshwright.cost_models.step.stragglers import straggler_share_of
from meshwright.planner import api
from meshwright.planner.document.island_use import Crossing, IslandAssignment, IslandUse
from meshwright.planner.document.plan import Plan
from meshwright.planner.document.reading import read_plan
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.explain.nearest import nearest_hint
from meshwright.planner.explain.outlook import outlook
from meshwright.planner.explain.report import report
from meshwright.planner.heterogeneous import candidates as mixed_plans
from meshwright.planner.heterogeneous.bounds import SharedPipelines, SharedReplicas
from meshwright.planner.heterogeneous.islands import parts_of
from meshwright.planner.heterogeneous.pipeline import CrossIslandPipeline
from meshwright.planner.heterogeneous.replicas import Replicas, equal_shares
from meshwright.planner.heterogeneous.search import HeterogeneousSearch
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.exhaustive import Search
from meshwright.planner.studies.what_if import what_if
from meshwright.planner.targets.emit import emit
from meshwright.profiles.cluster.document import cluster_from_dict, cluster_to_dict
from meshwright.profiles.cluster.load import load_cluster
from meshwright.runtime.job import job_of

from meshwright.errors import InputError, NoFeasibleLayoutError, UnsupportedError

from ...snapshots import ROOT

EXAMPLES = ROOT / "examples"
ALIKE = {"groups": ["dgx-h100:2", "dgx-h100:2"]}


def found_on(cluster: Any, model: str = "llama-3.1-8b", layers: int | None = None, **asked: Any) -> Resolved:
    """A request; layers: only the first of the model's."""
    text = str(EXAMPLES / f"{cluster}.yaml") if isinstance(cluster, str) and ":" not in cluster else cluster
    resolved = resolve(load_request(None, {"model": model, "cluster": text, **asked}))
    if layers is None:
        return resolved
    return replace(resolved, model=replace(resolved.model, pattern=resolved.model.pattern[:layers]))


def searched(resolved: Resolved, *, runnable_only: bool = True) -> HeterogeneousSearch:
    parts, _ = parts_of(resolved)
    return HeterogeneousSearch(
        resolved, parts, lambda: np.inf, lambda count, best: None, runnable_only=runnable_only
    ).run()


def test_a_cluster_is_cut_where_it_is_not_alike() -> None:
    mixed, sites, fabrics = (load_cluster(EXAMPLES / f"{name}.yaml") for name in
                             ("mixed_gpus", "two_sites", "two_fabrics"))  # fmt: skip
    assert [(each.name, each.first_node, each.num_nodes) for each in mixed.islands] == [
        ("dgx-h100", 0, 8), ("dgx-a100-40gb", 8, 4)]  # fmt: skip
    assert [each.name for each in sites.islands] == ["north", "south"]
    assert sites.bridges[0].trunk_bytes_per_s == pytest.approx(400e9 / 8)
    assert sites.bridges[0].link.latency_s == 6e-3
    assert [each.levels[-1].kind for each in fabrics.islands] == ["hdr-ib", "roce"]
    assert fabrics.bridges[0].node_bytes_per_s == pytest.approx(25e9 / 8)
    assert not load_cluster("dgx-h100:4").islands
    for each in (mixed, sites, fabrics):
        assert cluster_from_dict(cluster_to_dict(each)) == each


def test_a_group_in_two_sites_is_two_islands() -> None:
    wan = {"bandwidth": "100 Gb/s", "latency": "5 ms"}
    sites = [{"name": "a", "nodes": 3}, {"name": "b", "nodes": 3}]
    found = load_cluster({"groups": ["dgx-h100:2", "dgx-a100-80gb:4"], "sites": sites, "wan": wan})
    assert [(each.name, each.group, each.num_nodes) for each in found.islands] == [
        ("a dgx-h100", 0, 2), ("a dgx-a100-80gb", 1, 1), ("b dgx-a100-80gb", 1, 3)]  # fmt: skip
    assert [bridge.link.kind == "wan" for bridge in found.bridges] == [False, True, True]


@pytest.mark.parametrize(
    ("groups", "between", "message"),
    [(["dgx-h100:2"], {"bandwidth": "25 Gb/s"}, "there is one group only"),
     (["dgx-h100:2", "dgx-a100-80gb:2"], {"kind": "roce"}, "`bandwidth` is missing"),
     (["dgx-h100:2", "dgx-a100-80gb:2"], {"bandwidth": "25 Gb/s per rack"}, "per gpu, nic or node"),
     (["dgx-h100:2", "dgx-a100-80gb:2"], {"bandwith": "25 Gb/s"}, "unknown key `bandwith`")],
)  # fmt: skip
def test_what_is_wrong_with_the_link_between_groups_is_said(groups: Any, between: Any, message: str) -> None:
    with pytest.raises(InputError) as raised:
        load_cluster({"groups": groups, "links": {"between_groups": between}})
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["tp8-pp4-dp1-mbs2-z1-rnone", "tp8-pp2-vpp2-dp2-mbs1-z1-rsel(act)"])
def test_islands_that_are_alike_take_what_one_cluster_takes(name: str) -> None:
    found, one = found_on(ALIKE), found_on("dgx-h100:4")
    parts, _ = parts_of(found)
    across, together = CrossIslandPipeline.over(found, parts, parse(name)), Staged.of(one, parse(name), simulate=True)
    assert across.step_s == pytest.approx(together.step_s, rel=1e-9)
    assert across.device_bytes == pytest.approx(together.device_bytes)
    assert sum(across.terms.values()) == pytest.approx(across.step_s)


def test_replicas_that_are_alike_take_what_one_cluster_takes() -> None:
    found, one, layout = found_on(ALIKE), found_on("dgx-h100:4"), parse("tp2-dp16-sh8-mbs1-z1-rnone")
    shared_out = equal_shares(found, parts_of(found)[0], layout)
    assert shared_out is not None
    assert shared_out.step_s == pytest.approx(Staged.of(one, layout).step_s, rel=1e-9)


def test_replicas_share_micro_batches_so_that_all_end_together() -> None:
    found = found_on("a100_t4", "llama-3.2-1b", precision="fp16", target="any", seq_len=1024, global_batch=256,
                     fix={"pp": 1, "tp": 1, "cp": 1, "micro_batch": 1, "offload": "none"})  # fmt: skip
    ranked = searched(found, runnable_only=False).choices.ranked
    best = next(choice.staged for choice in ranked if choice.manner == "replicas")
    assert isinstance(best, Replicas)
    assert sum(dp * m for dp, m in zip(best.dp, best.shares, strict=True)) == 256
    every = (Replicas.of_shares(found, best.parts, best.layout, ((256 - 4 * m) // 12, m))
             for m in range(1, 63) if (256 - 4 * m) % 12 == 0)  # fmt: skip
    assert best.step_s == pytest.approx(min(one.step_s for one in every if one is not None and one.fits))
    even = equal_shares(found, best.parts, best.layout)
    assert even is not None
    assert best.step_s < 0.5 * even.step_s


def test_a_sum_over_all_ranks_takes_what_each_of_them_takes() -> None:
    """12 A100 and 4 T4: a number goes from rank to rank, over links of their own kind."""
    found = found_on("a100_t4", "llama-3.2-1b", precision="fp16", target="any", seq_len=1024, global_batch=256)
    steps, optimizers, expected = {}, {}, 0.0
    for number in (0, 5):
        asked = replace(found, stack=replace(found.stack, step_reductions=number))
        parts, _ = parts_of(asked)
        across = CrossIslandPipeline.over(asked, parts, parse("pp4-dp4-mbs1-z0-rnone-fp16"))
        apart = equal_shares(asked, parts, parse("dp16-mbs1-z0-rnone-fp16"))
        assert apart is not None
        steps[number], optimizers[number] = (across.step_s, apart.step_s), across.terms["optimizer"]
        assert sum(apart.terms.values()) == pytest.approx(apart.step_s)
        for part in parts:
            curve = collectives.curve(part.rates.collectives, part.rates.levels_of("world"), "all_reduce", 16, 1)
            expected += number * float(collectives.seconds(curve, 8.0)[0]) * part.num_gpus / 16
    assert optimizers[5] - optimizers[0] == pytest.approx(expected, rel=1e-6)
    more = [with_them - without for with_them, without in zip(steps[5], steps[0], strict=True)]
    share = 1 + straggler_share_of(found.stack, 16)
    assert more == pytest.approx([share * expected] * 2, rel=1e-6)


SMALL: dict[str, Any] = {"seq_len": 1024, "global_batch": 24,
         "fix": {"micro_batch": 1, "recompute": "none", "schedule": "1f1b", "zero": 1}}  # fmt: skip
TWO_KINDS = {
    "groups": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 4, "count": 1, "nics": 1, "nic_bandwidth": "200 Gb/s"},
               {"gpu": "a100-sxm-40gb", "gpus_per_node": 2, "count": 1, "nics": 1, "nic_bandwidth": "200 Gb/s"}],
}  # fmt: skip


def brute_force(resolved: Resolved) -> float:
    """The fastest step of all pipelines over both islands: every layout, order of the islands and split."""
    parts, _ = parts_of(resolved)
    best = np.inf
    for stage, tp in ((2, 1), (2, 2), (1, 1)):
        pp, dp = 6 // stage, stage // tp
        layout = Layout(tp=tp, sequence_parallel=tp > 1, pp=pp, dp=dp, shard=dp, zero=int(dp > 1))
        for order in itertools.permutations(parts):
            base = CrossIslandPipeline.over(resolved, order, layout)
            for ends in itertools.combinations(range(resolved.model.num_layers + 1), pp - 1):
                sizes = tuple(np.diff([0, *ends, resolved.model.num_layers]).tolist())
                if all(size > 0 for size in sizes[1:-1]):
                    one = base.split(Partition(sizes))
                    best = min(best, one.step_s if one.fits else np.inf)
    return best


@pytest.fixture(scope="module")
def small() -> tuple[Resolved, float]:
    found = found_on(TWO_KINDS, layers=7, **SMALL)
    return found, brute_force(found)


def test_the_search_finds_what_all_splits_and_orders_have(small: tuple[Resolved, float]) -> None:
    found, least = small
    mixed = searched(found)
    best = min(choice.staged.step_s for choice in mixed.choices.ranked
               if len(choice.parts) == 2 and choice.manner == "across")  # fmt: skip
    assert best == pytest.approx(least, rel=2e-3)
    assert mixed.lower_bound_s <= least
    assert mixed.lower_bound_s > 0.8 * mixed.choices.best_s


def test_a_bound_that_is_too_high_is_found_out(small: tuple[Resolved, float], monkeypatch: Any) -> None:
    found, least = small
    honest = shared_bounds.least_pipeline
    monkeypatch.setattr(shared_bounds, "least_pipeline", lambda *a, **k: 1.5 * honest(*a, **k))
    assert searched(found).choices.best_s > least * (1 + 2e-3)


@pytest.mark.parametrize(("kind", "before"), [(Search, 1), (SharedPipelines, 0), (SharedReplicas, 0)])
def test_ctrl_c_in_a_search_of_a_set_ends_them_all(monkeypatch: Any, kind: type[Search], before: int) -> None:
    descend, calls = kind._descend, itertools.count()

    def interrupt(self: Search, meshes: Any) -> None:
        if next(calls) >= before:
            raise KeyboardInterrupt
        descend(self, meshes)

    best_s = searched(found_on(TWO_KINDS, layers=7, **SMALL)).choices.best_s
    monkeypatch.setattr(kind, "_descend", interrupt)
    mixed = searched(found_on(TWO_KINDS, layers=7, **SMALL))
    assert mixed.stopped == "interrupted"
    assert mixed.choices
    assert 0.01 * best_s < mixed.lower_bound_s < best_s
    assert mixed.count.total == mixed.count.accounted
    assert next(calls) == before + 1  # no search began after it


def test_ctrl_c_where_all_gpus_alike_are_compared_is_told(monkeypatch: Any) -> None:
    found = found_on(TWO_KINDS, layers=7, **SMALL)
    mixed = searched(found)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_descend", interrupt)
    assert mixed_plans.even_strategy(found, mixed, lambda: False) is None
    assert mixed.stopped == "interrupted"


def test_a_time_limit_there_is_told_too() -> None:
    found = found_on(TWO_KINDS, layers=7, **SMALL)
    mixed = searched(found)
    assert mixed_plans.even_strategy(found, mixed, lambda: True) is None
    assert mixed.stopped is None
    assert mixed.notes[-1] == "time limit before all GPUs as if alike were compared"


def planned(example: str, model: str, **asked: Any) -> Plan:
    return api.plan(model=model, cluster=str(EXAMPLES / f"{example}.yaml"), **asked)


@pytest.fixture(scope="module")
def mixed_gpus() -> Plan:
    return planned("mixed_gpus", "llama-3.1-70b", fix={"cp": 1})


def test_a_pipeline_that_comes_back_is_one_sentence() -> None:
    """Activations of 4 messages go from the first group to the second, their gradients back, and 3 the other way."""
    there = Crossing(ends=(0, 1), what="messages", step_bytes=4e9, seconds=0.003, bw_bytes_per_s=25e9)
    back = Crossing(ends=(1, 0), what="messages", step_bytes=3e9, seconds=0.004, bw_bytes_per_s=20e9)
    uses = tuple(
        IslandUse(island=at, group=at, name=name, gpu="any", num_gpus=8, nodes=(at, at), stages=(at, at), layers=16,
                  replicas=0, micro_batches=8, layer_s=1.0, busy_s=1.0, device_bytes=1.0, memory_bytes=2.0)
        for at, name in enumerate(("fast", "slow"))
    )  # fmt: skip
    assignment = IslandAssignment(manner="across", islands=uses, crossings=(there, back))
    (line,) = crossing_lines(assignment)
    assert "Between fast and slow go only messages of the pipeline: 7.00 GB a step each way" in line
    assert text.duration(0.004) in line
    assert len(crossing_lines(assignment.model_copy(update={"crossings": (there,)}))) == 1


@pytest.mark.slow
def test_layers_go_by_speed_and_the_plan_says_why(mixed_gpus: Plan) -> None:
    spread = mixed_gpus.best.spread
    assert spread is not None
    assert spread.manner == "across"
    by_name = {use.name: use for use in spread.islands}
    fast, slow = by_name["dgx-h100"], by_name["dgx-a100-40gb"]
    assert slow.layer_s > 2 * fast.layer_s
    assert slow.layers / (slow.stages[1] - slow.stages[0] + 1) < 0.5 * fast.layers / (
        fast.stages[1] - fast.stages[0] + 1
    )
    assert spread.even_step_s is not None
    assert spread.even_step_s > 1.5 * mixed_gpus.best.step_s
    assert all(use.device_bytes <= use.memory_bytes for use in spread.islands)
    assert mixed_gpus.ways is not None
    assert {way.manner for way in mixed_gpus.ways} >= {"across", "together", "even"}
    assert min(way.step_s for way in mixed_gpus.ways) == mixed_gpus.best.step_s
    bound = mixed_gpus.certificate.lower_bound_s
    assert bound is not None
    assert 0.85 * mixed_gpus.best.step_s < bound <= mixed_gpus.best.step_s


@pytest.mark.slow
def test_a_plan_over_groups_is_read_and_priced_again(mixed_gpus: Plan) -> None:
    again = read_plan(mixed_gpus.to_json(), "plan.json")
    assert again == mixed_gpus
    found = found_on("mixed_gpus", "llama-3.1-70b", fix={"cp": 1})
    for candidate in again.candidates[:3]:
        assert mixed_plans.staged_as(found, candidate).step_s == pytest.approx(candidate.step_s, rel=1e-8)
    plain = api.plan(model="llama-3.1-8b", gpu="h100-sxm-80gb", gpus=8, top=1)
    assert "spread" not in plain.to_json()
    assert '"ways"' not in plain.to_json()


@pytest.mark.slow
def test_ranks_of_a_stage_sit_in_one_group(mixed_gpus: Plan) -> None:
    candidate = mixed_gpus.best
    logical = candidate.placement.logical_of_rank or tuple(range(96))
    layout = candidate.to_layout()
    stage = [rank // (layout.tp * layout.dp) for rank in logical]
    assert not set(stage[:64]) & set(stage[64:])  # the first 64 GPUs of the cluster are H100
    assert sorted(logical) == list(range(96))


@pytest.mark.slow
def test_a_refused_plan_over_groups_is_to_be_planned_again(mixed_gpus: Plan) -> None:
    assert nearest_hint(mixed_gpus, 1, "accelerate", ("pp",)) == "plan again with `--target accelerate`"


@pytest.mark.parametrize("groups", [["dgx-h100:2", "dgx-a100-40gb:1"], ["dgx-a100-40gb:1", "dgx-h100:2"]])
def test_launch_files_say_which_node_is_which(groups: list[str]) -> None:
    plan = api.plan(model="llama-3.1-8b", cluster={"groups": groups}, target="megatron", top=1,
                    fix={"pp": 3, "tp": 1, "cp": 1})  # fmt: skip
    assert plan.best.spread is not None
    order = [f"node-{node}" for use in plan.best.spread.islands for node in range(use.nodes[0], use.nodes[1] + 1)]
    for launcher, name in (("hostfile", "hostfile"), ("slurm", "hosts"), ("torchrun", "hosts")):
        made = emit(plan, "megatron", launcher)
        assert [line.split()[0] for line in made.files[name].splitlines()] == order
        assert any("names no hosts" in warning for warning in made.warnings)
    sizes = " + ".join(f"{use.num_gpus // 8} x 8 {use.gpu}" for use in plan.best.spread.islands)
    assert f"on {sizes}, " in made.files["launch.sh"]
    with pytest.raises(UnsupportedError, match="Kubernetes places pods itself"):
        emit(plan, "megatron", "kubernetes")


def test_screens_hold_each_stage_to_what_its_group_has() -> None:
    plan = api.plan(model="llama-3.1-8b", cluster={"groups": ["dgx-h100:2", "dgx-a100-40gb:1"]}, top=1,
                    fix={"pp": 3, "tp": 1, "cp": 1})  # fmt: skip
    best = plan.best
    assert best.spread is not None
    limits = {stage: text.gib(use.memory_bytes) for use in best.spread.islands
              for stage in range(use.stages[0], use.stages[1] + 1)}  # fmt: skip
    assert sorted(limits.values()) == ["40.0", "79.6", "79.6"]
    shown = next(part for part in memory_screen.memory_screen(plan, best) if not isinstance(part, str))
    row = list(shown.columns[0].cells).index("may use")
    assert {str(column.header): list(column.cells)[row] for column in shown.columns[1:]} == {
        f"stage {stage}": limit for stage, limit in limits.items()}  # fmt: skip
    assert best.device_bytes > memory_screen.capacity(plan)
    assert "does not fit" not in str(why_not_screen(plan, best)[0])
    assert best.overflow_chance is not None
    assert best.overflow_chance < 0.1  # the need of an H100 counts against its own memory
    uses = best.spread.islands
    rooms = {use.gpu: use.memory_bytes - use.device_bytes for use in uses}
    tight, roomy = sorted(rooms, key=lambda gpu: rooms[gpu])
    assert rooms[roomy] - rooms[tight] < 2**30  # then the other GPU is the tightest
    gained = f"; layout 2 leaves {text.gib(rooms[roomy] - rooms[tight])} GiB more"
    for lean, words in ((roomy, "to spare."), (tight, gained)):
        less = [use.model_copy(update={"device_bytes": use.device_bytes - 2**30 * (use.gpu == lean)}) for use in uses]
        other = best.model_copy(update={"choice": 2, "spread": best.spread.model_copy(update={"islands": tuple(less)})})
        assert words in verdict(plan.model_copy(update={"candidates": (best, other)}), best).replace("\n", " ")


def test_islands_keep_what_was_measured_on_them() -> None:
    found = found_on("mixed_gpus", "llama-3.1-70b")
    one = {"base_s": 1e-6, "hop_s": 1e-6, "efficiency": 1.0, "ramp": 0.0}
    links = {"measured-node": {str(op): one for op in OPS}}
    shares = {"h100-sxm-80gb": {"gemm": 0.7}, "a100-sxm-40gb": {"gemm": 0.5}}
    groups = tuple(replace(group, measured=shares[group.gpu.name]) for group in found.cluster.groups)
    cluster = replace(found.cluster, groups=groups, collectives=links)
    assert cluster.measured == {"gemm": 0.5}  # of the weakest GPU
    parts, _ = parts_of(replace(found, cluster=cluster))
    assert all(part.alone.cluster.collectives == links for part in parts)
    assert {part.alone.cluster.gpu.name: part.alone.cluster.measured for part in parts} == shares


@pytest.mark.slow
def test_only_what_crosses_the_line_pays_it() -> None:
    # In a V the pipeline passes the line a second time, on its way back.
    best = planned("two_sites", "llama-3.1-70b", fix={"cp": 1, "tp": 2, "schedule": "1f1b"}).best
    assert best.spread is not None
    found = found_on("two_sites", "llama-3.1-70b")
    one = mixed_plans.staged_as(found, best)
    assert isinstance(one, CrossIslandPipeline)
    border = [one.on[device] != one.on[before] for before, device in itertools.pairwise(one.devices)]
    hops = one.hops_s[0][1:]
    assert sum(border) == 1
    assert all((hop > 6e-3) == crosses for hop, crosses in zip(hops, border, strict=True))


@pytest.mark.slow
def test_four_t4_beside_twelve_a100_are_no_drag() -> None:
    plan = planned("a100_t4", "llama-3.2-3b", seq_len=2048, precision="fp16", target="any", top=3,
                   fix={"cp": 1, "offload": "none"})  # fmt: skip
    assert plan.ways is not None
    even = next(way for way in plan.ways if way.manner == "even")
    alone = next(way for way in plan.ways if way.manner == "together" and way.islands == ("a100-node",))
    assert plan.best.step_s <= min(even.step_s, alone.step_s)
    assert plan.best.step_s < 0.5 * even.step_s
    assert not any("an even plan runs at the speed of" in warning for warning in plan.warnings)


def test_gpus_of_two_vendors_are_no_way_to_use_the_groups() -> None:
    plan = api.plan(model="llama-3.2-1b", cluster="dgx-h100:1 + mi300x-8x-oam:1", seq_len=1024, top=1)
    assert any("share no communication library" in warning for warning in plan.warnings)
    assert plan.ways is not None
    assert [way.manner for way in plan.ways] == ["together", "together"]
    assert plan.ways[0].step_s == plan.best.step_s


def test_a_group_that_cannot_compute_in_the_dtype_is_left_out() -> None:
    plan = planned("a100_t4", "llama-3.2-1b", seq_len=1024, top=1)
    assert plan.best.spread is not None
    assert plan.best.spread.unused == ("t4-node",)
    assert plan.best.to_layout().num_gpus == 12
    seen = outlook(plan, plan.best)
    tokens = plan.resolved["workload"]["global_batch"] * 1024
    assert seen.tokens_per_day == pytest.approx(86_400 * tokens / plan.best.step_s, rel=1e-6)
    assert seen.gpu_hours == 24 * 12
    assert seen.mwh == pytest.approx(12 * 400 * 24e-6)  # board power of an A100
    assert any("t4-node is left out: t4 has no bf16" in warning for warning in plan.warnings)
    for ask in (report, lambda plan: what_if(plan, study="sensitivity")):
        with pytest.raises(InputError) as raised:
            ask(plan)
        assert raised.value.hint.endswith("ask it of a plan for a100-node alone")


def test_groups_that_cannot_hold_the_model_in_any_split_are_named() -> None:
    with pytest.raises(NoFeasibleLayoutError) as raised:
        api.plan(model="llama-3.1-405b", cluster="dgx-h100:1 + dgx-a100-40gb:1")
    text = str(raised.value)
    for part in ("no split of llama-3.1-405b over the groups", "dgx-h100: 8 x", "dgx-a100-40gb: 8 x", "billion x"):
        assert part in text


def test_groups_of_prime_numbers_of_gpus_and_of_one_are_planned() -> None:
    nic = {"count": 1, "nics": 1, "nic_bandwidth": "200 Gb/s"}
    groups = [{"gpu": gpu, "gpus_per_node": number, **nic} for gpu, number in
              (("h100-sxm-80gb", 7), ("a100-sxm-40gb", 1), ("l40s", 5))]  # fmt: skip
    plan = api.plan(model="llama-3.2-1b", cluster={"groups": groups}, seq_len=1024, global_batch=64, top=1)
    assert plan.certificate.gap is not None
    assert plan.certificate.gap <= 0.05


def test_uneven_shares_are_planned_and_refused_by_who_cannot_run_them() -> None:
    plan = api.plan(model="llama-3.2-1b", cluster="dgx-h100:1 + dgx-a100-80gb:1", target="any", seq_len=2048, top=1,
                    fix={"pp": 1, "tp": 1, "cp": 1, "offload": "none"})  # fmt: skip
    spread = plan.best.spread
    assert spread is not None
    assert spread.manner == "replicas"
    fast, slow = spread.islands
    assert fast.micro_batches > 1.5 * slow.micro_batches
    assert read_plan(plan.to_json(), "plan.json").best.layout_id == plan.best.layout_id
    assert plan.best.layout_id[-8:-6] == "-x"
    assert all(plan.best.targets.values())
    with pytest.raises(UnsupportedError, match="micro-batches, it runs equally many"):
        job_of(plan, 1, "plan.json")
    with pytest.raises(UnsupportedError, match="equally many micro-batches"):
        emit(plan, "meshwright")
