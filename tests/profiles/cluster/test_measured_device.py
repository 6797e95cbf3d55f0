"""A device that no catalogue knows: its profile prices plans, and what is missing or strange in it is said."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.rates.surfaces import gemm_seconds
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import unplaced
from meshwright.planner.search.shardings import shardings
from meshwright.profiles.cluster import measured_device
from meshwright.profiles.cluster.document import cluster_from_dict, cluster_to_dict
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.profilers import core_speed, device_fit, environment, timing
from meshwright.profiles.profilers.kernel_file import profile_text
from meshwright.profiles.profilers.kernel_results import DeviceRates, KernelProfile
from meshwright.profiles.profilers.kernels import Kernel, Need, hardly_any, needs
from meshwright.profiles.profilers.overlap import Overlap
from meshwright.profiles.profilers.samples import SampleRange
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

from meshwright.errors import InputError

from ...snapshots import run_here

TINY = {"hidden": 128, "layers": 4, "heads": 4, "kv_heads": 4, "ffn_hidden": 256, "vocab": 512, "max_positions": 256}
WORK: dict[str, Any] = {"seq_len": 128, "global_batch": 8, "dtype": "fp32", "target": "meshwright"}
DEVICE: dict[str, Any] = {
    "name": "cpu-0.5-cores", "peak": "40 GFLOP/s", "memory": "4 GiB", "memory_bandwidth": "20 GB/s",
    "gemm": {"efficiency": 0.9, "ramp_k": 10.0, "memory_efficiency": 1.0},
    "attention": {"forward_efficiency": 0.4, "backward_efficiency": 0.3, "half_context": 0},
    "passes": {"norms": {"forward": "4 GB/s", "backward": "2 GB/s"}, "update": {"forward": "5 GB/s",
               "backward": "5 GB/s"}},
    "latency": {"layer": {"forward": "1 ms", "backward": "2 ms"}, "head": {"forward": "0.5 ms", "backward": "1 ms"}},
}  # fmt: skip
LINKS = {"intra_node": {"bandwidth": "1 GB/s", "latency": "100 us"}}


def profile(**changes: Any) -> dict[str, Any]:
    return {"kind": "kernel-profile", "dtype": "fp32", "gpu": "cpu-0.5-cores", "device": {**DEVICE, **changes}}


def cluster(folder: Path, document: Mapping[str, Any], ranks: int = 1, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "cpu.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    groups = [{"gpu": "cpu-0.5-cores", "gpus_per_node": ranks, "count": 1}]
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump({"groups": groups, "profiles": ["cpu.yaml"], **more}), encoding="utf-8")
    return path


def priced(path: Path, layout: str = "dp1-mbs1-z0-rnone-fp32") -> Plan:
    return api.evaluate(None, layout, model=TINY, cluster=str(path), **WORK)


def terms(path: Path) -> dict[str, float]:
    return {term.name: term.seconds for term in priced(path).candidates[0].terms}


def test_a_step_is_the_work_at_the_rates_of_the_device_and_the_latency_of_its_layers(tmp_path: Path) -> None:
    found = terms(cluster(tmp_path, profile()))
    # 4 layers of 3 ms and a head of 1.5 ms, 8 micro-batches; the embedding's three kernels are launched as on a GPU.
    assert found["kernel launches"] == pytest.approx(8 * (4 * 3e-3 + 1.5e-3), rel=0.02)
    faster = terms(cluster(tmp_path, profile(peak="80 GFLOP/s")))
    assert faster["matmul"] < 0.75 * found["matmul"]
    slow = {**DEVICE["passes"], "norms": {"forward": "0.4 GB/s", "backward": "0.2 GB/s"}}
    slower = terms(cluster(tmp_path, profile(passes=slow)))
    # 8 micro-batches, 4 layers, 2 norms: [128, 128] in fp32 moved twice forward, four times backward.
    more = 8 * (4 * 2) * 4 * 128 * 128 * (2 / 0.4e9 + 4 / 0.2e9 - 2 / 4e9 - 4 / 2e9)
    assert slower["norms, elementwise"] - found["norms, elementwise"] == pytest.approx(more, rel=1e-6)
    assert slower["matmul"] == found["matmul"]


def test_layers_take_more_where_their_backward_pass_is_split(tmp_path: Path) -> None:
    """2 of 4 layers on a rank, 8 micro-batches: 8 x 2 x (0.3 + 0.5) ms beside what 1F1B launches."""
    split = {"latency": {**DEVICE["latency"], "split": {"forward": "0.3 ms", "backward": "0.5 ms"}}}
    plain, measured = (cluster(tmp_path / name, profile(**changes), 2, links=LINKS)
                       for name, changes in (("plain", {}), ("split", split)))  # fmt: skip

    def launches(path: Path, schedule: str) -> tuple[float, float]:
        found = priced(path, f"pp2{schedule}-dp1-mbs1-z0-rnone-fp32").candidates[0]
        assert sum(term.seconds for term in found.terms) == pytest.approx(found.step_s, rel=1e-6)
        return next(term.seconds for term in found.terms if term.name == "kernel launches"), found.step_s

    assert launches(measured, "") == launches(plain, "")
    for schedule in ("-zbh1", "-zbv-vpp2"):
        (before, slow), (after, slower) = launches(plain, schedule), launches(measured, schedule)
        assert after - before == pytest.approx(8 * 2 * 0.8e-3, rel=1e-6)
        assert slower - slow > 0.99 * 8 * 2 * 0.8e-3


def test_what_makes_gradients_of_weights_may_wait(tmp_path: Path) -> None:
    """zb-h1 waits (p-1)(F + B - 2W): 2 layers a stage whose W takes 0.4 ms more are 2 x 2 x 0.4 ms less of it."""
    later = {"latency": {**DEVICE["latency"], "weights": {"forward": "0.4 ms", "backward": "0.4 ms"}}}
    plain, measured = (cluster(tmp_path / name, profile(**changes), 2, links=LINKS)
                       for name, changes in (("plain", {}), ("later", later)))  # fmt: skip

    def found(path: Path, schedule: str) -> dict[str, float]:
        plan = priced(path, f"pp2{schedule}-dp1-mbs1-z0-rnone-fp32")
        return {term.name: term.seconds for term in plan.candidates[0].terms}

    assert found(measured, "") == found(plain, "")
    before, after = found(plain, "-zbh1"), found(measured, "-zbh1")
    assert before["pipeline bubble"] - after["pipeline bubble"] == pytest.approx(2 * 2 * 0.4e-3, rel=1e-6)
    assert before["kernel launches"] == after["kernel launches"]


def test_layers_take_more_where_their_heads_are_dealt_out(tmp_path: Path) -> None:
    """4 layers on a rank, 8 micro-batches: 8 x 4 x (0.3 + 0.5) ms beside what the same ranks launch with a ring."""
    dealt = {"latency": {**DEVICE["latency"], "ulysses": {"forward": "0.3 ms", "backward": "0.5 ms"}}}
    plain, measured = (cluster(tmp_path / name, profile(**changes), 2, links=LINKS)
                       for name, changes in (("plain", {}), ("dealt", dealt)))  # fmt: skip

    def launches(path: Path, words: str) -> float:
        found = priced(path, f"{words}-dp1-mbs1-z0-rnone-fp32").candidates[0]
        return next(term.seconds for term in found.terms if term.name == "kernel launches")

    for words in ("cp2r", "tp2"):
        assert launches(measured, words) == launches(plain, words)
    more = launches(measured, "cp2u") - launches(plain, "cp2u")
    assert more == pytest.approx(8 * 4 * 0.8e-3, rel=1e-6)


def test_layers_take_more_where_ranks_share_their_experts(tmp_path: Path) -> None:
    """2 of the 4 layers have experts, 4 micro-batches: 4 x 2 x (0.3 + 0.5) ms."""
    experts = {"experts": 4, "topk": 2, "expert_ffn": 64, "moe_layers": [1, 3]}
    latency = {**DEVICE["latency"], "moe layer": {"forward": "1 ms", "backward": "2 ms"}}
    sends = {"dispatch": {"forward": "0.3 ms", "backward": "0.5 ms"}}
    plain, measured = (cluster(tmp_path / name, profile(latency=latency | more), 2, links=LINKS)
                       for name, more in (("plain", {}), ("sends", sends)))  # fmt: skip

    def launches(path: Path, experts_on: str) -> float:
        found = api.evaluate(None, f"dp2-{experts_on}mbs1-z0-rnone-fp32", model={**TINY, "moe": experts},
                             cluster=str(path), **WORK).candidates[0]  # fmt: skip
        return next(term.seconds for term in found.terms if term.name == "kernel launches")

    assert launches(measured, "") == launches(plain, "")
    for ranks in ("ep2-", "etp2-"):
        assert launches(measured, ranks) - launches(plain, ranks) == pytest.approx(4 * 2 * 0.8e-3, rel=1e-6)


@pytest.mark.parametrize(("layout", "calls"), [("ep2-mbs1-z0-rnone", 4), ("ep2-mbs1-z0-rfull", 6)])
def test_ranks_that_share_experts_send_how_many_tokens_go_where(tmp_path: Path, layout: str, calls: int) -> None:
    """Over links that take a call the same time whatever its bytes: one call more in every forward pass than for
    experts with a capacity. On a device of the catalogue the host's seconds have it."""
    latency = {**DEVICE["latency"], "moe layer": {"forward": "1 ms", "backward": "2 ms"}}
    links = {"intra_node": {"bandwidth": "1000 TB/s", "latency": "100 us"}}
    measured = str(cluster(tmp_path / "measured", profile(latency=latency), 2, links=links))
    known = str(cluster(tmp_path / "known", profile(), 2, links=links))
    model = {**TINY, "moe": {"experts": 4, "topk": 2, "expert_ffn": 64}}

    def exchanged(path: str, **more: Any) -> float:
        found = api.evaluate(None, f"dp2-{layout}-fp32", model=model, cluster=path, **WORK, **more).candidates[0]
        assert sum(term.seconds for term in found.terms) == pytest.approx(found.step_s, rel=1e-6)
        return next(term.seconds for term in found.terms if term.name == "ep comm, exposed")

    forward = 2 if "rfull" in layout else 1
    capped = exchanged(measured, expert_capacity_factor=1.0)
    assert exchanged(measured) == pytest.approx(capped * (calls + forward) / calls, rel=0.01)
    assert exchanged(known) == pytest.approx(capped, rel=0.01)


def test_messages_between_stages_take_time_of_the_ranks(tmp_path: Path) -> None:
    """Each of two stages of one chunk sends or receives one forward and one backward, with two chunks in a row three
    ends of messages in all but one, and of a V two: 8 micro-batches."""
    sent = {"latency": {**DEVICE["latency"], "message": {"forward": "0.2 ms", "backward": "0.3 ms"}}}
    rates = {"passes": {**DEVICE["passes"], "message": {"forward": "100 MB/s", "backward": "100 MB/s"}}}
    plain, measured, by_bytes = (
        cluster(tmp_path / name, profile(**changes), 2, links=LINKS)
        for name, changes in (("plain", {}), ("sent", sent), ("bytes", {**sent, **rates})))  # fmt: skip

    def launches(path: Path, layout: str) -> float:
        found = priced(path, f"{layout}-mbs1-z0-rnone-fp32").candidates[0]
        assert sum(term.seconds for term in found.terms) == pytest.approx(found.step_s, rel=1e-6)
        return next(term.seconds for term in found.terms if term.name == "kernel launches")

    num_bytes = 128 * 128 * 4
    for layout, ends in (("dp2", 0), ("pp2-dp1", 1), ("pp2-gpipe-dp1", 1), ("pp2-zbh1-dp1", 1),
                         ("pp2-vpp2-dp1", 3), ("pp2-zbv-vpp2-dp1", 2)):  # fmt: skip
        more = launches(measured, layout) - launches(plain, layout)
        assert more == pytest.approx(8 * ends * 0.5e-3, rel=1e-6), layout
        more = launches(by_bytes, layout) - launches(measured, layout)
        assert more == pytest.approx(8 * ends * 2 * num_bytes / 1e8, rel=1e-6), layout


def test_recomputing_takes_more_than_its_work(tmp_path: Path) -> None:
    """4 layers, 8 micro-batches; of a module, or of everything."""
    sizes = {"layer": 0.4, "attn": 0.1, "norm": 0.2, "act": 0.3}
    again = {"latency": {**DEVICE["latency"], **{f"recompute {what}": {"forward": f"{ms / 4} ms",
                         "backward": f"{ms * 3 / 4} ms"} for what, ms in sizes.items()}}}  # fmt: skip
    plain, measured = (cluster(tmp_path / name, profile(**changes))
                       for name, changes in (("plain", {}), ("again", again)))  # fmt: skip
    for recompute, ms in (("rnone", 0.0), ("rfull", 0.4), ("rfull1", 0.1), ("rsel", 0.1), ("rsel(norm+act)", 0.5)):
        before, after = (priced(path, f"dp1-mbs1-z0-{recompute}-fp32").candidates[0].step_s
                         for path in (plain, measured))  # fmt: skip
        assert after - before == pytest.approx(8 * 4 * ms * 1e-3, rel=1e-6), recompute


def test_nothing_is_offloaded_from_host_memory_to_host_memory(tmp_path: Path) -> None:
    path = cluster(tmp_path, profile())
    found = api.plan(model=TINY, cluster=str(path), **WORK)
    assert {candidate.layout["offload"] for candidate in found.candidates} == {"none"}
    with pytest.raises(InputError, match="offload opt moves tensors to host memory, where a CPU rank has all"):
        priced(path, "dp1-mbs1-z0-rnone-oopt-fp32")
    on_gpu = {"model": TINY, "gpu": "h200", "gpus": 1, **WORK}
    assert api.evaluate(None, "dp1-mbs1-z0-rnone-oopt-fp32", **on_gpu).best.memory[0].host_bytes > 0


def test_every_second_of_a_device_is_measured(tmp_path: Path) -> None:
    sources = {term.name: term.source for term in priced(cluster(tmp_path, profile())).candidates[0].terms}
    assert {sources[name] for name in ("matmul", "attention", "norms, elementwise", "kernel launches")} == {"measured"}


def test_a_plan_keeps_its_device(tmp_path: Path) -> None:
    spec = load_cluster(str(cluster(tmp_path, profile())))
    assert cluster_from_dict(cluster_to_dict(spec)) == spec
    assert "measured" not in cluster_to_dict(load_cluster("dgx-h100:1"))["groups"][0]["gpu"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"passes": None}, "`passes` is missing: its kernels were not timed"),
        ({"gemm": {"efficiency": 0.9, "ramp_k": -1, "memory_efficiency": 1}}, "`-1` must be a number of at least 0"),
        ({"peak": "40"}, "40 has no unit"),
        ({"in_place": {"calls": 1.1, "work": 0}}, "`0` must be a number above 0"),
        ({"in_place": 1.2}, "`1.2` must be a mapping of calls and work"),
        ({"speed": 3}, "speed"),
    ],
)
def test_what_is_wrong_with_a_device_is_said(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as raised:
        load_cluster(str(cluster(tmp_path, profile(**changes))))
    assert said in raised.value.message + raised.value.hint


def test_ranks_need_links(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"how 2 x cpu-0\.5-cores are joined is not known"):
        load_cluster(str(cluster(tmp_path, profile(), ranks=2)))
    spec = load_cluster(str(cluster(tmp_path, profile(), ranks=2, links=LINKS)))
    assert spec.levels[-1].bw_bytes_per_s == 1e9
    assert not spec.warnings


def test_other_dtypes_than_the_measured_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cpu-0\.5-cores has no bf16 matrix units"):
        api.evaluate(None, "dp1-mbs1-z0-rnone", model=TINY, cluster=str(cluster(tmp_path, profile())), seq_len=128,
                     global_batch=8, target="meshwright")  # fmt: skip


def test_what_runs_side_by_side_slows_both_as_measured(tmp_path: Path) -> None:
    beside = {**profile(), "overlap": {"compute": 1.25, "communication": 3.0}}
    spec = load_cluster(str(cluster(tmp_path, beside)))
    rates = rates_for(spec, load_stack("meshwright"), "fp32")
    assert rates.stack.contention == pytest.approx(3.0 * (1 - 1 / 1.25))
    assert Overlap(1.25, 3.0).contention == pytest.approx(rates.stack.contention)
    assert Overlap(4.0, 3.0).contention == 1.0  # never worse than one after the other
    none = rates_for(load_cluster(str(cluster(tmp_path, profile()))), load_stack("meshwright"), "fp32")
    assert none.stack.contention == load_stack("meshwright").contention


def test_the_memory_of_a_cpu_rank_is_its_process(tmp_path: Path) -> None:
    measured = {"kind": "memory-profile", "gpu": "cpu-0.5-cores", "overheads": {"reserve_share": 0.0,
                "context": "300 MiB"}}  # fmt: skip
    (tmp_path / "memory.yaml").write_text(yaml.safe_dump(measured), encoding="utf-8")
    path = cluster(tmp_path, profile(), ranks=2, links=LINKS)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("- cpu.yaml", "- cpu.yaml\n- memory.yaml"), encoding="utf-8")
    (stage,) = priced(path, "dp2-mbs1-z1-rnone-fp32").candidates[0].memory
    assert stage.device_bytes - stage.allocated_bytes == pytest.approx(300 * 2**20, rel=1e-6)
    assert not load_cluster(str(path)).warnings


def test_profiles_of_other_hardware_are_named_and_not_used(tmp_path: Path) -> None:
    other = {**profile(name="cpu-0.25-cores"), "gpu": "cpu-0.25-cores"}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other), encoding="utf-8")
    mine = {**profile(), "environment": {"device": "Xeon, 8 cores"}}
    path = cluster(tmp_path, mine, measured={"gpu": "", "device": "EPYC, 2 cores"})
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("- cpu.yaml", "- cpu.yaml\n- other.yaml"), encoding="utf-8")
    links, unused = (warning.text for warning in load_cluster(str(path)).warnings)
    assert "measured on Xeon, 8 cores, the links of" in links
    assert "on EPYC, 2 cores" in links
    assert "measured on cpu-0.25-cores, the cluster has cpu-0.5-cores: not used" in unused


@pytest.mark.slow
def test_a_cpu_is_measured_in_one_go_and_planned_on(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    asked = ["--model", str(tmp_path / "tiny.yaml"), "--dtype", "fp32", "--seq-len", "64", "--global-batch", "2"]
    out = tmp_path / "node.yaml"
    words = ["profile", "all", "--device", "cpu", "--gpus", "1", *asked, "--quick", "-o", str(out)]
    done = run_here(*words)
    assert done.code == 0, done
    assert "profiles: [node.kernels.yaml, node.memory.yaml]" in out.read_text(encoding="utf-8")
    kernels = tmp_path / "node.kernels.samples.csv"
    before = kernels.read_text(encoding="utf-8")
    (tmp_path / "node.kernels.yaml").unlink()  # as if interrupted: the samples are there
    assert run_here(*words, "--resume").code == 0
    assert kernels.read_text(encoding="utf-8") == before
    planned = run_here("plan", "--cluster", str(out), *asked, "--target", "meshwright")
    assert planned.code == 0, planned
    assert "Sources of this time: 100 % measured" in planned.out


@pytest.mark.parametrize(
    "model", ["llama-3.2-1b", "mixtral-8x7b", pytest.param("deepseek-v3", marks=pytest.mark.slow), "gpt2-xl"]
)
def test_layers_of_every_family_run_on_hardly_any_data(model: str) -> None:
    import torch
    from meshwright.profiles.model.load import load_model
    from meshwright.runtime.rehearsal.layer_latency import latencies, parts_with_latency

    spec = load_model(model)[0]

    def in_turns(actions: Sequence[Callable[[], object]]) -> list[list[float]]:
        for action in actions:
            action()
        return [[10.0, 14.0, 22.0, 40.0, 34.0][: len(actions)]] * 3

    found = latencies(spec, "fp32", torch.device("cpu"), in_turns)
    kinds = {"moe layer" if kind.is_moe else "layer" for kind in spec.kinds}
    assert tuple(found) == parts_with_latency(spec)
    again = {name.removeprefix("recompute ") for name in found if name.startswith("recompute")}
    experts = {"moe"} if "moe layer" in kinds else {"mlp"}  # the layers that are timed have experts, where any have
    latent = {"mla", "shared"} if model == "deepseek-v3" else set()
    assert again == {"layer", "attn", "norm", "act"} | experts | latent
    dealt = {"ulysses"} if model != "gpt2-xl" else set()  # two ranks cannot share its 25 heads
    others = {"embedding", "head", "split", "weights"} | ({"dispatch"} if "moe layer" in kinds else set())
    assert set(found) == others | kinds | dealt | {f"recompute {what}" for what in again}
    # Of 4 layers: forward 10 s and backward 4 s, those that do more 22 and 18.
    assert {tuple(found[name]) for name in kinds} == {(2.5, 1.0)}
    assert found["head"] == (10.0, 4.0)
    assert found["split"] == found["recompute act"] == (3.0, 3.5)
    assert found.get("dispatch", (3.0, 3.5)) == (3.0, 3.5)
    assert found["recompute layer"] == (3.0, 1.0)  # beside a forward pass more
    assert found["weights"] == (1.5, 1.5)  # of 4 layers: both passes 40 s, 34 without gradients of weights


def wanted(ranks: int = 2) -> list[Need]:
    request = load_request(None, {"model": TINY, "gpu": "h200", "gpus": ranks, **WORK})
    problem, target = unplaced(request, ranks)
    return needs(problem, shardings(problem, target))


def test_every_sharding_of_the_ranks_is_timed() -> None:
    keys = {(need.layout.tp, need.layout.micro_batch) for need in wanted(4)}
    assert {tp for tp, _ in keys} == {1, 2, 4}
    assert {mbs for tp, mbs in keys if tp == 1} == {1, 8}


def test_planted_rates_come_back_whatever_a_call_takes() -> None:
    found = wanted()
    constants = {"efficiency": 0.8, "ramp_k": 30.0, "memory_efficiency": 0.7}
    spec = load_cluster({"groups": [{"gpu": "cpu-0.5-cores", "gpus_per_node": 1, "count": 1}],
                         "profiles": [profile(gemm=constants)]}).gpu  # fmt: skip
    surface = measured_device.gemm(spec)["fp32"]

    def work(kernel: Kernel) -> float:
        if kernel.kind == "gemm":
            m, n, k = kernel.product
            return float(gemm_seconds(surface, m, n, k, 4.0))
        if kernel.kind == "attention":
            return kernel.flops / (40e9 * (0.4 if kernel.direction == "forward" else 0.3))
        return kernel.num_bytes / (2e9 if kernel.direction == "backward" else 4e9 if kernel.kind == "norm" else 20e9)

    kernels = {kernel for need in found for kernel in need.calls}
    spreads = {kernel: 30e-6 + work(kernel) for kernel in kernels}
    spreads |= {hardly_any(kernel): 30e-6 for kernel in kernels}
    timed = device_fit.Timed({k: SampleRange(s, s, s, 3) for k, s in spreads.items()}, {"layer": (1e-3, 2e-3)})
    told = device_fit.device(timed, found, name="cpu-0.5-cores", dtype="fp32", memory_bytes=4.0 * 2**30)
    assert told.passes["norms"] == pytest.approx((4e9, 2e9))
    assert told.passes["final norm"] == told.passes["norms"]
    assert told.memory_bw_bytes_per_s == pytest.approx(20e9)
    assert told.peak_flops_per_s is not None
    assert told.gemm is not None
    assert told.attention is not None
    assert told.residual is not None
    assert told.peak_flops_per_s * told.gemm["efficiency"] == pytest.approx(0.8 * 40e9, rel=0.02)
    assert told.residual < 0.01
    assert told.attention["backward_efficiency"] * told.peak_flops_per_s == pytest.approx(0.3 * 40e9, rel=1e-6)


def test_a_device_in_place_takes_so_many_times_what_its_parts_take(tmp_path: Path) -> None:
    """Products, attention, passes and calls; not updates and sums, which are timed as a step runs them."""
    alone = DeviceRates(
        name="cpu-0.5-cores", peak_flops_per_s=40e9, memory_bytes=4.0 * 2**30, memory_bw_bytes_per_s=20e9,
        gemm={"efficiency": 0.9, "ramp_k": 10.0, "memory_efficiency": 1.0},
        attention={"forward_efficiency": 0.4, "backward_efficiency": 0.3, "half_context": 0.0},
        passes={name: (4e9, 2e9) for name in measured_device.PASSES},
        latency={name: (1e-3, 2e-3) for name in measured_device.LATENCIES},
    )  # fmt: skip

    def told(device: DeviceRates) -> dict[str, float]:
        made = KernelProfile(model="", dtype="fp32", gpu="", environment={}, efficiencies={}, layouts=(), kernels=(),
                             skipped=(), device=device)  # fmt: skip
        return terms(cluster(tmp_path, yaml.safe_load(profile_text(made, "2026-11-22", ""))))

    before, after = told(alone), told(device_fit.in_place(alone, device_fit.InPlace(1.5, 1.25)))
    same = ("optimizer", "gradient accumulation")
    assert min(before[name] for name in same) > 0
    assert after == pytest.approx({name: (1 if name in same else 1.5 if name == "kernel launches" else 1.25) * s
                                  for name, s in before.items()}, rel=1e-3)


@pytest.mark.parametrize(
    ("sizes", "measured", "expected"),
    [([1, 8], [1.5 * 4 + 1.2 * 3, 1.5 * 4 + 1.2 * 24], (1.5, 1.2)),
     ([8], [1.4 * 28], (1.4, 1.4)),
     ([1, 8], [7.0, 14.0], (1.5, 1 / 3)),
     ([1, 8], [7.0, 7.0], (0.4, 0.4))],
)  # fmt: skip
def test_calls_and_work_in_place_come_from_two_sizes(
    sizes: list[int], measured: list[float], expected: tuple[float, float]
) -> None:
    """Calls are priced at 4 s, work at 3 s a sequence."""
    found = device_fit.InPlace.of(measured, [4.0] * len(sizes), [3.0 * size for size in sizes])
    assert (found.calls, found.work) == pytest.approx(expected)


def test_a_part_that_takes_nothing_more_is_no_gain() -> None:
    """Forward 3, -1, -2 and backward 5, 4, 9: by chance one part was faster than the plain layer."""
    assert device_fit.latency([3.0, 5.0, -1.0, 4.0, -2.0, 9.0]) == (device_fit.NO_TIME, 5.0)


def test_what_was_not_timed_is_missing_and_not_guessed() -> None:
    found = wanted(1)
    spreads = {k: SampleRange(1e-3, 1e-3, 1e-3, 3) for need in found for k in need.calls if k.kind != "gemm"}
    spreads |= {hardly_any(k): SampleRange(1e-5, 1e-5, 1e-5, 3) for k in list(spreads)}
    told = device_fit.device(device_fit.Timed(spreads, {}), found, name="x", dtype="fp32", memory_bytes=1.0)
    assert told.gemm is None
    assert told.peak_flops_per_s is None


def test_the_tightest_quota_holds(tmp_path: Path) -> None:
    for name, quota in (("outer", "20000"), ("outer/inner", "3000")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "cpu.cfs_quota_us").write_text(quota)
        (folder / "cpu.cfs_period_us").write_text("10000")
    assert environment._quota_of(tmp_path / "outer/inner") == environment.Quota(0.3, 0.01)
    (tmp_path / "cpu.max").write_text("max 100000")
    assert environment._quota_of(tmp_path) is None


def test_under_a_quota_short_calls_are_repeated_and_cost_their_share() -> None:
    import torch

    x = torch.randn(8, 8)
    pace = timing.Pace(least_s=0.02, share=0.5, achieved_share=0.5, watch=core_speed.Watch())
    halved = timing.sample(lambda: lambda: x @ x, 1.0, torch.device("cpu"), timing.Effort(3, 0.0, 1e9, pace))
    assert len(halved) == 2  # of LEAST_SAMPLES
    assert np.median(halved) < 1e-3  # many calls in a sample, each its own part


class _Slowness:
    """A watch of a core that is as slow as it is told to be, in the time of one sample after another."""

    def __init__(self, slowness: list[float]) -> None:
        self.left = iter(slowness)
        self.took = list[float]()

    def look(self) -> float:
        return 0.0

    def slowness(self, since: int) -> float:
        return next(self.left)


@pytest.mark.parametrize(
    ("slowness", "counted"),
    [([1.0, 1.3, 1.2, 1.4, 1.5, 1.6], [0, 2, 1]), ([2.0, 1.6, 1.8, 1.7, 1.0, 1.9], [4, 1, 3])],
)
def test_the_calmer_half_of_samples_counts(
    slowness: list[float], counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch: Any = _Slowness(slowness)
    calls = list[int]()
    clock = iter(np.arange(1000) * 1.0)  # a second more whenever it is read: each sample is of one call
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(time, "process_time", lambda: float(len(calls) ** 2))  # the n-th takes 2 n + 1
    found = timing._under_quota([lambda: calls.append(0)], 6, timing.Pace(0.5, 1.0, 1.0, watch))
    assert found == [2.0 * each + 1 for each in counted]
    assert len(calls) == 6  # whatever they are: others wait for none


def test_a_sample_is_over_the_share_that_the_quota_allows_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota that follows the speed of its core: half of it before and a quarter after."""
    calls = list[int]()
    clock = iter(np.arange(1000) * 1.0)
    quotas = iter([environment.Quota(0.5, 0.01), environment.Quota(0.25, 0.01)])
    monkeypatch.setattr(timing, "quota", lambda: next(quotas))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(time, "process_time", lambda: 3.0 * len(calls))
    watch: Any = _Slowness([1.0])
    assert timing._under_quota([lambda: calls.append(0)], 1, timing.Pace(0.5, 0.5, 0.5, watch)) == [3.0 / 0.375]


@pytest.mark.parametrize("paced", [False, True])
def test_actions_take_turns_so_that_they_are_compared_at_one_moment(
    paced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four rounds under a quota those two count during which the core was fastest, whole."""
    import torch

    watch: Any = _Slowness([1.5, 1.5, 1.0, 1.2, 1.4, 1.4, 1.0, 1.0])
    calls = list[str]()
    clock = iter(np.arange(1000) * 1.0)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(time, "process_time", lambda: float(len(calls) ** 2))  # the n-th takes 2 n + 1
    effort = timing.Effort(4, 1e9, 1e9, timing.Pace(0.5, 1.0, 1.0, watch) if paced else None)
    found = timing.in_turns([lambda: calls.append("a"), lambda: calls.append("b")], torch.device("cpu"), effort)
    assert "".join(calls) == "ab" * (timing.WARM_UP + 4)
    first = 2 * timing.WARM_UP
    of_round = [[2.0 * (first + 2 * turn + each) + 1 for each in (0, 1)] for turn in range(4)]
    assert found == ([of_round[3], of_round[1]] if paced else [[1.0, 1.0]] * 4)


class TestTheSpeedOfACore:
    def test_is_told_against_its_own(self) -> None:
        """A loop that was interrupted counts as any other that took too long."""
        took = np.full(100, 2.0)
        took[50:60] = [2, 2, 3, 3, 4, 4, 2, 2, 2, 2000]
        assert core_speed.slowness(took[:50], took) == 1.0
        assert core_speed.slowness(took[50:59], took) == pytest.approx(12 / 9)
        assert core_speed.slowness(took[58:60], took) == (1 + core_speed.MOST) / 2

    def test_is_looked_at_every_millisecond_and_its_time_is_told(self) -> None:
        watch, told = core_speed.Watch(), list[float]()
        began = time.perf_counter()
        while (lasted := time.perf_counter() - began) < 0.1:
            told.append(watch.look())
        assert 2 <= len(watch.took) <= lasted / core_speed.APART_S + 1
        assert sum(told) == pytest.approx(sum(watch.took))
        assert watch.slowness(0) >= 0.9


def test_layouts_of_the_grammar() -> None:
    assert all(str(parse(str(need.layout))) == str(need.layout) for need in wanted(4))
