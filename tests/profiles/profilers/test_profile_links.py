"""`profile links`: what is measured, what the samples are made into, and real runs on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cli.commands import profile_links
from meshwright.cli.console import Terminal
from meshwright.cli.settings import Settings
from meshwright.cost_models.rates import collectives
from meshwright.cost_models.rates.collectives import CollectiveRates, LevelRates, OpRates
from meshwright.cost_models.specs.cluster import NetworkLevel
from meshwright.profiles.cluster import link_file, link_fits, link_tests
from meshwright.profiles.cluster.link_tests import COLLECTIVES, Ranks
from meshwright.profiles.cluster.links import matrix_text
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.rates.link_rates import collective_rates, with_measured

from meshwright.errors import InputError

from ...snapshots import ROOT, environment, run_here

ABOUT = {"gpu": "h100-sxm-80gb", "device": "NVIDIA H100", "torch": "2.13.0", "backend": "nccl"}
RATES = {"all_reduce": (40e-6, 6e-6, 0.6), "all_gather": (30e-6, 4e-6, 0.7), "reduce_scatter": (30e-6, 5e-6, 0.65),
         "all_to_all": (25e-6, 3e-6, 0.8)}  # fmt: skip
SIZES = link_tests.sizes(1 << 24)


def made(
    ranks: Ranks, slow: dict[tuple[int, int], float] | None = None, slower: str = "", *, quick: bool = False
) -> dict[str, list[float]]:
    """Samples of a cluster of 10 GB/s per rank and 5 us inside nodes, 1 GB/s and 20 us between them; slow: shares of
    that from node to node; slower: a device inside whose nodes all takes three times as long."""
    samples: dict[str, list[float]] = {}
    for test in link_tests.tests(ranks, quick=quick):
        for num_bytes in SIZES:
            for row, key in enumerate(test.keys(num_bytes)):
                group = next(group for i, group in enumerate(test.groups) if test.row(i) == row)
                times = 3.0 if slower and ranks.device(group) == slower else 1.0
                if test.kind == "pair":
                    nodes = ranks.node(group[0]), ranks.node(group[1])
                    seconds = 10e-6 + num_bytes / 10e9
                    if nodes[0] != nodes[1]:
                        seconds = 40e-6 + num_bytes / (1e9 * (slow or {}).get(nodes, 1.0))
                    samples[key] = [times * seconds * factor for factor in (0.99, 1.0, 1.02)]
                else:
                    size, stride = map(int, test.name.split()[1].split("x"))
                    samples[key] = [times * priced(ranks, test.kind, size, stride, num_bytes)]
    return samples


def priced(ranks: Ranks, op: str, size: int, stride: int, num_bytes: int, ramp: float = 0.0) -> float:
    """By the curves of the cost model, with RATES on both levels, four times the start between nodes."""
    levels = tuple(
        NetworkLevel(name=name, size=joined, bw_bytes_per_s=bw, latency_s=0.0, kind=name)
        for name, joined, bw in (("in", ranks.per_node, 10e9), ("out", ranks.size, 1e9))
    )
    kinds = {name: LevelRates(ops={op: OpRates(base_s=base * far, hop_s=hop * far, efficiency=share, ramp=ramp)
                                   for op, (base, hop, share) in RATES.items()})
             for name, far in (("in", 1), ("out", 4))}  # fmt: skip
    rates = CollectiveRates(kinds=kinds, inner=kinds["in"], outer=kinds["out"])
    curve = collectives.curve(rates, levels, op, size, stride)  # type: ignore[arg-type]
    return float(collectives.seconds(curve, num_bytes)[0])


@given(st.integers(2, 40))
def test_rounds_hold_every_ordered_pair_once_and_no_rank_twice(n: int) -> None:
    rounds = list(link_tests.rounds(n))
    assert sorted(pair for met in rounds for pair in met) == [(a, b) for a in range(n) for b in range(n) if a != b]
    for met in rounds:
        assert len({rank for pair in met for rank in pair}) == 2 * len(met)


@given(st.integers(1, 6), st.integers(1, 8))
def test_groups_of_a_shape_tile_the_ranks(nodes: int, per_node: int) -> None:
    ranks = Ranks(tuple(map(str, range(nodes))), per_node)
    for size, stride in link_tests.shapes(ranks):
        groups = list(link_tests.groups(ranks.size, size, stride))
        assert sorted(rank for group in groups for rank in group) == list(range(ranks.size))
        assert all(len(group) == size and set(np.diff(group)) == {stride} for group in groups)


def test_few_ranks_are_measured_one_pair_at_a_time_and_many_in_rounds() -> None:
    few = [test for test in link_tests.tests(Ranks(("a", "b"), 4), quick=False) if test.name == "alone"]
    assert len(few) == 8 * 7
    assert all(len(test.groups) == 1 for test in few)
    quick = [test for test in link_tests.tests(Ranks(("a", "b"), 4), quick=True) if test.name == "round"]
    assert sorted(pair for test in quick for pair in test.groups) == [
        (node + a, node + b) for node in (0, 4) for a in range(4) for b in range(4) if a != b]  # fmt: skip
    assert {len(test.groups) for test in quick} == {4}  # two pairs in each node
    many = [test for test in link_tests.tests(Ranks(tuple("abcdefghi"), 8), quick=False) if test.name == "round"]
    assert len(many) == 2 * 71
    assert {len(test.groups) for test in many} == {36}


def test_a_rank_under_a_quota_repeats_a_call_over_several_periods() -> None:
    from meshwright.profiles.profilers import links
    from meshwright.profiles.profilers.environment import Quota

    limit, seconds = Quota(cores=0.2, period_s=0.005), (1.0, 0.025, 0.024, 0.001, 1e-5)
    assert [links._calls(each, limit, computes=False) for each in seconds] == [1, 1, 2, 25, 100]
    assert [links._calls(each, limit, computes=True) for each in seconds] == [1, 2, 3, 50, 100]


def test_what_is_computed_before_a_call_is_not_in_its_seconds() -> None:
    """Five calls of 2 ms, each behind something that says it took a second: 10 ms, or a little more, less 5 s. And what
    is computed takes as long as the quota makes it, or longer where the first product of a process does."""
    import time

    from meshwright.profiles.profilers import links
    from meshwright.profiles.profilers.environment import Quota

    seconds, computed_s = links._repeat(lambda: time.sleep(0.002), lambda: 1.0, 5)
    assert computed_s == 5.0
    assert -4.99 <= seconds < -2.0
    assert links._compute(Quota(cores=0.5, period_s=0.02)) >= 0.02


def test_the_fit_finds_what_the_samples_were_made_of() -> None:
    links = link_fits.fit(Ranks(("a", "b", "c", "d"), 4), made(Ranks(("a", "b", "c", "d"), 4)))
    node, network = links.levels
    assert node.bw_bytes_per_s == pytest.approx(10e9, rel=0.01)
    assert node.latency_s == pytest.approx(5e-6, rel=0.02)
    assert network.bw_bytes_per_s == pytest.approx(1e9, rel=0.03)
    assert network.latency_s == pytest.approx(20e-6, rel=0.02)
    for op in COLLECTIVES:
        assert max(residuals[op] for residuals in links.residuals.values()) < 0.03, op
        # Between nodes a call moves its bytes over what was measured there: 1/1.02 of the 1 GB/s of the samples.
        assert links.rates["measured-network"][op].efficiency == pytest.approx(RATES[op][2], rel=0.08), op
    assert link_fits.slow_links(links) == []
    assert not link_fits.links_differ(links)


@pytest.mark.parametrize("ramp", [-0.9, 1.5])
def test_the_fit_tells_what_hides_from_what_is_added(ramp: float) -> None:
    ranks = Ranks(("a", "b", "c", "d"), 4)
    samples = {name: values for name, values in made(ranks).items() if name.split()[0] not in COLLECTIVES}
    for test in link_tests.tests(ranks, quick=False):
        if test.kind in COLLECTIVES:
            size, stride = map(int, test.name.split()[1].split("x"))
            samples |= {key: [priced(ranks, test.kind, size, stride, num_bytes, ramp)]
                        for num_bytes in SIZES for key in test.keys(num_bytes)}  # fmt: skip
    links = link_fits.fit(ranks, samples)
    for op in COLLECTIVES:
        assert links.rates["measured-network"][op].ramp == pytest.approx(ramp, abs=0.3), op
        assert max(residuals[op] for residuals in links.residuals.values()) < 0.03, op


def test_nodes_of_two_devices_have_each_their_own_links_inside(tmp_path: Path) -> None:
    devices = ("cpu-0.2-cores", "cpu-0.2-cores", "cpu-0.1-cores")
    ranks = Ranks(("a", "b", "c"), 4, devices)
    inside = next(test for test in link_tests.tests(ranks, quick=True) if test.name == "all_reduce 2x2")
    assert inside.keys(1024) == [f"all_reduce 2x2 {device} 1024" for device in (devices[0], devices[2])]
    assert [inside.row(i) for i in range(6)] == [0, 0, 0, 0, 1, 1]
    across = next(test for test in link_tests.tests(ranks, quick=True) if test.name == "all_reduce 3x4")
    assert across.keys(1024) == ["all_reduce 3x4 1024"]
    links = link_fits.fit(ranks, made(ranks, slower=devices[2]))
    fast, slow = links.inside[devices[0]], links.inside[devices[2]]
    assert (fast.kind, slow.kind) == ("measured-node-cpu-0.2-cores", "measured-node-cpu-0.1-cores")
    assert slow.bw_bytes_per_s == pytest.approx(fast.bw_bytes_per_s / 3, rel=0.01)
    for op in COLLECTIVES:
        of_fast, of_slow = (links.rates[level.kind][op] for level in (fast, slow))
        assert of_slow.base_s + of_slow.hop_s == pytest.approx(3 * (of_fast.base_s + of_fast.hop_s), rel=0.05), op
    document = yaml.safe_load(link_file.profile_text(links, [], gpu="cpu", about=ABOUT, date="2026-11-22", samples="s",
                                                     matrix="m"))  # fmt: skip
    assert [(group["gpu"], group["count"]) for group in document["groups"]] == [(devices[0], 2), (devices[2], 1)]
    for name, device in (("h100-sxm-80gb", devices[0]), ("a100-sxm-80gb", devices[2])):  # which the catalogue knows
        document["groups"][device == devices[2]]["gpu"] = name
    path = tmp_path / "links.yaml"
    path.write_text(yaml.safe_dump(document))
    cluster = load_cluster(path)
    assert [island.levels[0].kind for island in cluster.islands] == [fast.kind, slow.kind]
    assert cluster.levels[0].kind == slow.kind  # a plan for all of them alike
    document["collectives"].pop(fast.kind)
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=r"says nothing of `measured-node-cpu-0\.2-cores`"):
        load_cluster(path)


def test_one_name_for_different_nodes_is_not_used_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = Ranks(("a", "b"), 4, ("cpu-0.2-cores", "a100-sxm-80gb"))
    links = link_fits.fit(ranks, made(ranks))
    profile_links.finish(Terminal(Settings()), links, ABOUT, "cpu-0.2-cores", "h100", None, force=False)
    said = " ".join(capsys.readouterr().err.split())
    assert "--gpu h100 is not used: the nodes have cpu-0.2-cores, a100-sxm-80gb" in said
    assert said.count("no catalogue knows") == 1


def test_the_next_command_is_one_that_works(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Links alone price no plan on a device that no catalogue has."""
    ranks = Ranks(("a",), 4)
    links = link_fits.fit(ranks, made(ranks))
    for device, backend, command in (
        ("cpu-1-cores", "gloo", "profile all --device cpu --model MODEL.yaml -o node.yaml"),
        ("h100-sxm-80gb", "nccl", f"plan --cluster {tmp_path}/h100-sxm-80gb.yaml --model llama-3.1-8b"),
    ):
        output, about = tmp_path / f"{device}.yaml", {**ABOUT, "backend": backend}
        profile_links.finish(Terminal(Settings()), links, about, device, None, output, force=False)
        assert f"Next: meshwright {command}" in capsys.readouterr().out


def test_what_is_measured_quickly_tells_the_same() -> None:
    ranks = Ranks(("a", "b", "c"), 4)
    whole, quick = (link_fits.fit(ranks, made(ranks, quick=quick)) for quick in (False, True))
    assert quick.levels == whole.levels
    assert quick.rates == whole.rates
    assert quick.nodes == whole.nodes
    assert set(quick.pairs) < set(whole.pairs)


def test_a_rank_that_is_faster_alone_shares_its_link() -> None:
    ranks = Ranks(("a", "b", "c"), 4)
    for quick in (False, True):
        samples = made(ranks, quick=quick)
        for name, values in samples.items():
            test, pair, *_ = name.split()
            if test == "alone" and len({ranks.node(int(end)) for end in pair.split(">")}) == 2:
                num_bytes = int(name.split()[-1])
                samples[name] = [each - num_bytes * (1 - 1 / 3) / 1e9 for each in values]
        links = link_fits.fit(ranks, samples)
        assert links.network is not None
        assert links.network.shared_by == pytest.approx(3.0, rel=0.03)
        assert links.network.bw_bytes_per_s == pytest.approx(1e9, rel=0.03)
        text = link_file.profile_text(links, [], gpu="h100", about=ABOUT, date="2026-11-22", samples="s", matrix="m")
        assert yaml.safe_load(text)["links"]["inter_node"]["shared_by"] == pytest.approx(3.0, rel=0.03)


def test_a_slow_node_and_a_slow_direction_are_named() -> None:
    ranks = Ranks(("n0", "n1", "n2", "n3"), 2)
    of_one = {(a, b): 0.25 for a in range(4) for b in range(4) if 2 in (a, b)}
    links = link_fits.fit(ranks, made(ranks, of_one))
    (slow,) = link_fits.slow_links(links)
    assert (slow.source, slow.to) == (2, None)
    assert link_file.slow_link_text(slow, ranks) == "n2: all its links run at 0.25 of those of its peers"
    links = link_fits.fit(ranks, made(ranks, {(3, 1): 0.31}))
    (slow,) = link_fits.slow_links(links)
    assert link_file.slow_link_text(slow, ranks) == "n3 → n1 runs at 0.31 of its peers"
    assert link_fits.links_differ(links)


def written(folder: Path, slow: dict[tuple[int, int], float] | None = None, gpu: str = "h100-sxm-80gb") -> Path:
    ranks = Ranks(("n0", "n1", "n2", "n3"), 8)
    links = link_fits.fit(ranks, made(ranks, slow))
    path = folder / "links.yaml"
    path.write_text(link_file.profile_text(links, link_fits.slow_links(links), gpu=gpu, about=ABOUT, date="2026-11-22",
                                           samples="links.samples.csv", matrix="links.matrix.csv"))  # fmt: skip
    (folder / "links.matrix.csv").write_text(matrix_text(ranks.hosts, links.matrix))
    return path


def test_the_file_is_a_cluster_priced_by_what_was_measured(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path))
    assert cluster.hosts == ("n0", "n1", "n2", "n3")
    assert cluster.links is None
    assert not cluster.warnings
    assert [level.kind for level in cluster.levels] == ["measured-node", "measured-network"]
    rates = with_measured(collective_rates(), cluster.collectives)
    for size, stride in ((8, 1), (4, 8), (32, 1)):
        curve = collectives.curve(rates, cluster.levels, "all_gather", size, stride)
        assert collectives.seconds(curve, 1 << 24)[0] == pytest.approx(
            priced(Ranks(cluster.hosts, 8), "all_gather", size, stride, 1 << 24), rel=0.1)  # fmt: skip
    done = run_here("plan", "--cluster", str(tmp_path / "links.yaml"), "--model", "llama-3.2-1b", "-o",
                    str(tmp_path / "plan.json"))  # fmt: skip
    assert done.code == 0, done
    again = run_here("explain", str(tmp_path / "plan.json"))
    assert again.code == 0, again


def test_where_nodes_differ_the_file_names_a_matrix(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path, {(3, 1): 0.31}))
    assert cluster.links is not None
    assert cluster.links.bw_bytes_per_s[3][1] == pytest.approx(0.31 * 8e9, rel=0.03)
    assert "n3 → n1 runs at 0.31 of its peers" in (tmp_path / "links.yaml").read_text()


def test_links_of_other_gpus_are_warned_of(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path, gpu="a100-sxm-80gb"))
    text = "its links were measured on h100-sxm-80gb, the cluster has a100-sxm-80gb"
    assert any(text in warning.text for warning in cluster.warnings)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.pop("collectives"), "says nothing of `measured-network`"),
        (lambda d: d["collectives"]["measured-node"].pop("all_reduce"), "`all_reduce` is missing"),
        (lambda d: d["collectives"]["measured-node"]["p2p"].update(efficiency=-1), "must be a number above zero"),
        (lambda d: d["collectives"]["measured-node"]["p2p"].update(ramp=-1.5), "must be a number of -1 or more"),
        (lambda d: d["collectives"]["measured-node"]["p2p"].update(base="3"), "3 has no unit"),
        (lambda d: d["collectives"].update(measured_node={}), "did you mean `measured-node`?"),
        (lambda d: d["links"]["inter_node"].update(kind="measured"), "is not one of ib, roce"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: object, said: str) -> None:
    path = written(tmp_path)
    document = yaml.safe_load(path.read_text())
    change(document)  # type: ignore[operator]
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError) as caught:
        load_cluster(path)
    assert said in f"{caught.value}{caught.value.hint}{caught.value.details}"


def run(*words: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshwright", "profile", "links", "--device", "cpu", "--quick", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=timeout, cwd=ROOT)


@pytest.mark.slow
def test_two_ranks_here_write_a_file_and_resume(tmp_path: Path) -> None:
    out = tmp_path / "links.yaml"
    words = ("--ranks", "2", "--largest", "64 KiB", "--gpu", "h100", "-o", str(out))
    done = run(*words, "--json")
    assert done.returncode == 0, done
    found = json.loads(done.stdout)
    assert [(pair["from"], pair["to"]) for pair in found["pairs"]] == [(0, 1), (1, 0)]
    assert {each["op"] for each in found["collectives"]} == set(COLLECTIVES)
    assert load_cluster(out).num_gpus == 2
    samples = out.with_suffix(".samples.csv")
    lines = samples.read_text().splitlines()
    samples.write_text("\n".join(lines[:-4]) + "\n")  # as if interrupted
    again = run(*words, "--resume", "--force")
    assert again.returncode == 0, again
    after = samples.read_text().splitlines()
    assert after[:-4] == lines[:-4]
    assert len(after) == len(lines)
    other = run("--ranks", "3", "--largest", "64 KiB", "-o", str(out), "--resume", "--force")
    assert other.returncode == 2
    assert "ranks: 1 x 2" in other.stderr
    assert "here 1 x 3" in other.stderr


def test_a_rank_that_drops_out_is_said_and_the_samples_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "links.yaml"
    words = ("profile", "links", "--device", "cpu", "--ranks", "3", "-o", str(out))
    command = [sys.executable, "-m", "meshwright", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    samples = out.with_suffix(".samples.csv")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (samples.exists() and len(samples.read_text().splitlines()) > 3):
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    assert re.search(r"error: a rank did not answer: .* over ranks \d", errors), errors
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert len(samples.read_text().splitlines()) > 3


def test_bad_input_is_said(tmp_path: Path) -> None:
    for words, said in (
        (("--device", "tpu"), "none of auto, cuda, cpu"),
        (("--ranks", "1"), "links join 2 ranks or more"),
        (("--resume",), "name it: `-o links.yaml`"),
        (("--largest", "64"), "has no unit"),
        (("--largest", "1 B"), "at least"),
        (("-o", str(tmp_path / "no" / "x.yaml")), "no"),
    ):
        done = run_here("profile", "links", *words)
        assert done.code == 2, (words, done)
        assert said in done.err, (words, done.err)


def test_dry_run_lists_the_tests() -> None:
    done = run_here("profile", "links", "--dry-run", "--ranks", "4")
    assert done.code == 0
    assert re.search(r"alone +12", done.out)
    assert re.search(r"all_reduce 2x2 +2", done.out)
