"""Collectives on a hierarchy of links: the bandwidth rule by hand, properties, and published measurements."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshwright.cost_models.quantities.exchanges import OPS, Op
from meshwright.cost_models.quantities.token_dispatch import distinct_share
from meshwright.cost_models.rates.collectives import (
    CollectiveRates,
    Curve,
    LevelRates,
    OpRates,
    curve,
    members,
    seconds,
)
from meshwright.cost_models.specs.cluster import NetworkLevel
from meshwright.cost_models.step.data_parallel import in_pieces
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.rates.link_rates import collective_rates
from meshwright.profiles.rates.reference_devices import DEVICES
from meshwright.profiles.rates.tables import columns, table

NODE = NetworkLevel(name="node", size=8, bw_bytes_per_s=450e9, latency_s=1e-6, kind="nvlink4")
NET = NetworkLevel(name="cluster", size=1024, bw_bytes_per_s=50e9, latency_s=5e-6, kind="ndr-ib")
WAN = NetworkLevel(name="wan", size=4096, bw_bytes_per_s=1e9, latency_s=30e-3, kind="wan")


def plain(efficiency: float = 1.0, switch_efficiency: float = 0.0) -> CollectiveRates:
    """Rates without ramp: time is latency plus bytes over bandwidth, easy by hand."""
    op = OpRates(base_s=1e-6, hop_s=1e-6, efficiency=efficiency, ramp=0.0)
    level = LevelRates(ops=dict.fromkeys(OPS, op), switch_efficiency=switch_efficiency)
    return CollectiveRates(kinds={}, inner=level, outer=LevelRates(ops=dict.fromkeys(OPS, op)))


def near(value: float) -> object:
    """Equal but for rounding: seconds per byte are below the 1e-12 that `pytest.approx` takes for equal."""
    return pytest.approx(value, rel=1e-9, abs=0.0)


def slope(
    op: Op, size: int, stride: int, rates: CollectiveRates | None = None, levels: tuple[NetworkLevel, ...] = ()
) -> float:
    return float(curve(rates or plain(), levels or (NODE, NET), op, size, stride).s_per_byte[0])


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [(8, 1, 8), (4, 1, 4), (4, 2, 4), (2, 4, 2), (16, 1, 8), (8, 2, 4), (4, 4, 2), (2, 8, 1), (3, 1, 1), (6, 1, 2),
     (16, 8, 1), (32, 2, 4), (1, 1, 1), (2, 16, 1), (12, 1, 4)],
)  # fmt: skip
def test_members_of_a_node(size: int, stride: int, expected: int) -> None:
    assert members(size, stride, 8) == expected


def test_ring_bandwidth_is_the_weakest_level() -> None:
    # inside the node: the link of one GPU
    assert slope("all_gather", 8, 1) == near(7 / 8 / 450e9)
    # 16 ranks on two nodes: eight rails of 50 GB/s give 400, below the link's 450
    assert slope("all_gather", 16, 1) == near(15 / 16 / 400e9)
    # one member per node: its own NIC
    assert slope("all_gather", 16, 8) == near(15 / 16 / 50e9)
    assert slope("all_reduce", 16, 8) == near(2 * 15 / 16 / 50e9)
    # 8 ranks at stride 2: 4 members per node
    assert slope("reduce_scatter", 8, 2) == near(7 / 8 / 200e9)
    assert slope("broadcast", 16, 1) == near(1 / 400e9)


def test_direct_messages_see_one_nic() -> None:
    # all-to-all over two nodes: half of the buffer leaves over one NIC, 7/16 go round inside
    assert slope("all_to_all", 16, 1) == near(max(8 / 16 / 50e9, 7 / 16 / 450e9))
    assert slope("all_to_all", 8, 1) == near(7 / 8 / 450e9)
    assert slope("p2p", 16, 1) == near(1 / 50e9)
    assert slope("p2p", 2, 4) == near(1 / 450e9)
    # rails without a spine: what leaves for another rail first crosses the node, and then goes out
    rails = replace(NET, kind="ndr-ib-rail-only")
    forwarded = 56 / 64 * 7 / 8 / 450e9
    assert slope("all_to_all", 64, 1, levels=(NODE, rails)) == near(56 / 64 / 50e9 + forwarded)
    # the ranks of one rail, and copies that are handed on where they arrive, stay on their rails
    alone = (curve(plain(), (NODE, level), "all_to_all", 8, 8).s_per_byte[0] for level in (NET, rails))
    assert next(alone) == next(alone)
    copies = (curve(plain(), (NODE, level), "all_to_all", 64, 1, copies=8).s_per_byte[0] for level in (NET, rails))
    assert next(copies) == next(copies)


def test_one_copy_per_node() -> None:
    """DeepEP (README): a token that k ranks of other nodes want crosses the network once per node, not k times."""
    # 8 copies over two nodes: 1 - 2^-8 of the tokens cross, of 4 copies that would
    assert float(distinct_share(2, 8)) == near((1 - 0.5**8) / 4)
    assert float(distinct_share(8, 8)) == near(7 * (1 - (7 / 8) ** 8) / (8 * 7 / 8))
    assert float(distinct_share(1, 8)) == 1 / 8  # nothing leaves; the share is of nothing
    assert float(distinct_share(4, 1)) == near(1.0)  # one copy: as an all-to-all
    # DeepSeek-V3 (arXiv 2412.19437, 2.1.2): 8 experts in 4 of 8 groups, 4 nodes at the most; a node may hold two groups
    assert float(distinct_share(8, 8, (8, 4))) == near(4 * (1 - 0.75**8) / 8)
    assert float(distinct_share(16, 8, (8, 4))) == float(distinct_share(8, 8))
    assert float(distinct_share(4, 8, (8, 4))) == float(distinct_share(4, 8))
    across = curve(plain(), (NODE, NET), "all_to_all", 16, 1, copies=8).s_per_byte[0]
    assert across == near((1 - 0.5**8) / 4 * 8 / 16 / 50e9)
    # with a network as fast as the node, the ways inside count: 7/16 own, 8/16 handed on. A rank gets a token once: of
    # 8 copies 8 experts on 16 ranks are on 16 (1 - (15/16)^8) / 8 of as many ranks
    fast = replace(NET, bw_bytes_per_s=450e9)
    inside = curve(plain(), (NODE, fast), "all_to_all", 16, 1, copies=8).s_per_byte[0]
    assert inside == near((7 / 16 + 8 / 16 * 7 / 8) * 2 * (1 - (15 / 16) ** 8) / 450e9)
    # in one node: 8 copies reach 8 (1 - (7/8)^8) = 5.25 ranks
    alone = curve(plain(), (NODE, NET), "all_to_all", 8, 1, copies=8).s_per_byte[0]
    assert alone == near((1 - (7 / 8) ** 8) * slope("all_to_all", 8, 1))


def test_trees_over_two_nodes() -> None:
    """An all-reduce over two nodes sends every byte once up or down a tree, at .65 of the rings' bandwidth, where that
    takes less than a ring."""
    trees = replace(plain(), tree_efficiency=0.65)
    # eight NICs take 1 / (400e9 x .65), less than the ring inside a node, which is left: 2 x 15/16 / 450e9
    assert slope("all_reduce", 16, 1, trees) == near(max(1 / (400e9 * 0.65), 2 * 15 / 16 / 450e9))
    # four ranks: 2 x 3/4 / 100e9 by the ring is less than 1 / (100e9 x .65)
    assert slope("all_reduce", 4, 4, trees) == near(2 * 3 / 4 / 100e9)
    assert slope("all_reduce", 2, 8, trees) == slope("all_reduce", 2, 8)  # a pair: the ring sends every byte once too
    assert slope("all_reduce", 24, 1, trees) == slope("all_reduce", 24, 1)
    assert slope("all_gather", 16, 1, trees) == slope("all_gather", 16, 1)


def test_rings_through_few_nics() -> None:
    """Of the eight members in a node two lend their NIC: 100 GB/s leave it. What stays inside does not change."""
    few = replace(plain(), nics_per_ring=2)
    assert slope("all_gather", 16, 1, few) == near(15 / 16 / 100e9)
    assert slope("all_gather", 16, 8, few) == slope("all_gather", 16, 8)
    assert slope("reduce_scatter", 8, 1, few) == slope("reduce_scatter", 8, 1)


def test_switch_reduces_where_it_beats_the_ring() -> None:
    rates = plain(0.75, switch_efficiency=0.68)
    assert slope("all_reduce", 8, 1, rates) == near((1 + 1 / 8) / (450e9 * 0.68))
    assert slope("all_reduce", 2, 1, rates) == near(2 * 1 / 2 / (450e9 * 0.75))  # a pair is better off alone
    assert slope("all_gather", 8, 1, rates) == near(7 / 8 / (450e9 * 0.75))


def test_mesh_gives_a_small_group_few_links() -> None:
    mesh = replace(NODE, topology="mesh", bw_bytes_per_s=448e9, kind="xgmi")
    assert slope("all_gather", 8, 1, levels=(mesh,)) == near(7 / 8 / 448e9)
    assert slope("all_gather", 2, 1, levels=(mesh,)) == near(1 / 2 / 64e9)
    assert slope("p2p", 2, 1, levels=(mesh,)) == near(1 / 64e9)


def test_latency_counts_hops_per_level() -> None:
    rates, levels = plain(), (NODE, NET, WAN)

    def latency(op: Op, size: int, stride: int) -> float:
        return float(curve(rates, levels, op, size, stride).latency_s[0])

    assert latency("all_gather", 8, 1) == near(1e-6 + 7e-6)
    assert latency("all_gather", 32, 1) == near(8e-6 + 1e-6 + 3 * 5e-6)  # level's own 5 us exceeds hop_s
    assert latency("all_reduce", 2, 8) == near(1e-6 + 2 * 5e-6)
    assert latency("all_reduce", 128, 8) == near(1e-6 + 2 * 7 * 5e-6)  # 128 nodes: the tree, not 254 steps
    assert latency("all_gather", 4, 1024) == near(1e-6 + 3 * 30e-3)  # across the ocean, once per step
    assert latency("p2p", 4, 1024) == near(1e-6 + 30e-3)


def test_seconds_by_hand() -> None:
    rates = collective_rates()
    one = rates.kinds["nvlink3"].ops["all_gather"]
    level = replace(NODE, kind="nvlink3", bw_bytes_per_s=300e9)
    transfer = 2**26 * (7 + one.pair_excess) / 8 / (300e9 * one.efficiency)
    latency = one.base_s + 7 * one.hop_s
    expected = latency + transfer + one.ramp * (latency * transfer) ** 0.5
    assert seconds(curve(rates, (level,), "all_gather", 8, 1), 2**26, calls=3)[0] == near(3 * expected)


def test_the_time_of_light_between_sites_is_paid_once() -> None:
    """16 MiB at 0.8 of 1 GB/s and 30 ms of fibre: 51.0 ms, and a ramp over the 2 us that the software takes to start
    a chunk, no ramp over the fibre."""
    start = OpRates(base_s=1e-6, hop_s=1e-6, efficiency=0.8, ramp=1.0)
    level = LevelRates(ops=dict.fromkeys(OPS, start))
    rates = CollectiveRates(kinds={"wan": level}, inner=level, outer=level)
    transfer_s = 2**24 / 0.8e9
    message_s = seconds(curve(rates, (NODE, NET, WAN), "p2p", 4, 1024), 2**24)[0]
    assert message_s == near(30.001e-3 + transfer_s + (2e-6 * transfer_s) ** 0.5)


@pytest.mark.parametrize(("ramp", "expected"), [(0.0, 5.0), (0.5, 6.0), (-1.0, 4.0), (-0.5, 4.5)])
def test_start_and_bytes_add_up_or_hide(ramp: float, expected: float) -> None:
    """1 s to start, 4 s of bytes: a ramp adds of their geometric mean, one below 0 hides a share of the shorter."""
    one = Curve(np.array([1.0]), np.array([2.0]), np.array([ramp]))
    assert seconds(one, 2.0)[0] == near(expected)
    assert in_pieces(one, np.array([2.0]), np.array([1.0]))[0] == near(expected)


@given(st.floats(-1.0, 6.0), st.floats(1e-9, 1.0), st.floats(1.0, 1e9), st.floats(1.0, 10.0))
def test_more_bytes_take_no_less_whatever_the_ramp(ramp: float, slope: float, num_bytes: float, more: float) -> None:
    one = Curve(np.array([1e-3]), np.array([slope]), np.array([ramp]))
    assert seconds(one, num_bytes * more)[0] >= seconds(one, num_bytes)[0] * (1 - 1e-12)


def _all_ops(base_s: float, hop_s: float, efficiency: float, ramp: float, pair_excess: float) -> dict[str, OpRates]:
    one = OpRates(base_s=base_s, hop_s=hop_s, efficiency=efficiency, ramp=ramp, pair_excess=pair_excess)
    return {op: one for op in OPS}


# Plausible numbers beside the fitted ones.
PLAUSIBLE = CollectiveRates(
    kinds={},
    inner=LevelRates(ops=_all_ops(5e-6, 1.2e-6, 0.79, 1.4, 0.3), source="H100 node"),
    outer=LevelRates(ops=_all_ops(10e-6, 10e-6, 0.93, 1.3, 0.0), source="400 Gb/s InfiniBand"),
)
RATES = [PLAUSIBLE, collective_rates()]
ops = st.sampled_from(OPS)
powers = st.integers(0, 9).map(lambda e: 2**e)


@settings(deadline=None, max_examples=300)
@given(op=ops, size=st.integers(1, 512), stride=powers, num_bytes=st.floats(1, 1e12), more=st.floats(1, 1e3),
       faster=st.floats(1, 10), which=st.integers(0, 2), rates=st.sampled_from(RATES))  # fmt: skip
def test_properties(
    op: Op, size: int, stride: int, num_bytes: float, more: float, faster: float, which: int, rates: CollectiveRates
) -> None:
    levels = [NODE, NET, WAN]
    before = curve(rates, tuple(levels), op, size, stride)
    one = float(seconds(before, num_bytes)[0])
    assert float(seconds(before, 0.0)[0]) == 0.0
    assert float(curve(rates, tuple(levels), op, 1, stride).latency_s[0]) == 0.0
    assert float(seconds(curve(rates, tuple(levels), op, 1, stride), num_bytes)[0]) == 0.0
    if size == 1:
        assert one == 0.0
        return
    assert 0 < one <= float(seconds(before, num_bytes * more)[0]) * (1 + 1e-12)
    levels[which] = replace(levels[which], bw_bytes_per_s=levels[which].bw_bytes_per_s * faster)
    assert float(seconds(curve(rates, tuple(levels), op, size, stride), num_bytes)[0]) <= one * (1 + 1e-12)
    assert float(seconds(before, num_bytes, 2.0)[0]) == pytest.approx(2 * one)


def test_arrays_equal_single_calls() -> None:
    rates = collective_rates()
    sizes, strides = np.array([1, 2, 8, 16, 64, 8]), np.array([1, 4, 1, 1, 2, 8])
    for op in OPS:
        together = curve(rates, (NODE, NET), op, sizes, strides)
        for i, (n, s) in enumerate(zip(sizes.tolist(), strides.tolist(), strict=True)):
            alone = curve(rates, (NODE, NET), op, n, s)
            assert (together.latency_s[i], together.s_per_byte[i]) == (alone.latency_s[0], alone.s_per_byte[0])


def test_unknown_kinds_fall_back_to_their_family() -> None:
    rates = collective_rates()
    assert rates.level("efa-v3", 1) is rates.kinds["efa"]
    assert rates.level("ndr-ib-rail-only", 1) is rates.kinds["ndr-ib"]
    assert rates.level("slingshot-11", 1) is rates.kinds["slingshot"]
    assert rates.level("omni-path", 1).ops["all_reduce"].efficiency * 400 == pytest.approx(55, abs=2)  # Gb/s, measured
    assert rates.level("nvlink6", 0) is rates.kinds["nvlink5"]
    assert rates.level("", 0) is rates.inner
    assert rates.level("carrier-pigeon", 1) is rates.outer


def busbw(kind: str, bandwidth: float, op: Op, ranks: int, num_bytes: float) -> float:
    level = NetworkLevel(name="node", size=8, bw_bytes_per_s=bandwidth, latency_s=0.0, kind=kind)
    factor = (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks
    return factor * num_bytes / float(seconds(curve(collective_rates(), (level,), op, ranks, 1), num_bytes)[0]) / 1e9


def test_h100_node() -> None:
    """512 MB on 8 GPUs: all-reduce 445 GB/s (in the switch), all-gather 335; 4 and 2 GPUs 350, 318."""
    assert busbw("nvlink4", 450e9, "all_reduce", 8, 2**29) == pytest.approx(445, rel=0.05)
    assert busbw("nvlink4", 450e9, "all_gather", 8, 2**29) == pytest.approx(335, rel=0.05)
    assert busbw("nvlink4", 450e9, "all_reduce", 4, 2**29) == pytest.approx(350, rel=0.05)
    assert busbw("nvlink4", 450e9, "all_reduce", 2, 2**29) == pytest.approx(318, rel=0.06)
    assert busbw("nvlink5", 900e9, "all_reduce", 8, 2**29) == pytest.approx(704, rel=0.07)
    assert busbw("nvlink3", 300e9, "all_reduce", 8, 2**29) == pytest.approx(222, rel=0.05)


def test_messages_between_nodes_fill_no_ring() -> None:
    """All-to-all of 128 MiB over two nodes: half of it leaves through each GPU's NIC at .9 of 50 GB/s. A call starts in
    some 30 us; the ramp between the two regimes is that of a copy, 1, where rings have 1.56."""
    rates, levels = collective_rates(), (NODE, NET)
    messages, ring = (curve(rates, levels, op, 16, 1) for op in ("all_to_all", "all_gather"))
    transfer_s, start_s = 2**27 / 2 / (0.9 * 50e9), float(messages.latency_s[0])
    assert 20e-6 < start_s < 40e-6
    expected = start_s + transfer_s + math.sqrt(start_s * transfer_s)
    assert float(seconds(messages, 2**27)[0]) == pytest.approx(expected, rel=1e-9)
    assert float(ring.ramp[0]) == pytest.approx(1.56, abs=0.01)


def test_galvatron_strided_groups() -> None:
    """Bus bandwidth of 16 contiguous and 8, 4, 2 strided ranks on 2 nodes of A100: 44.7, 20.8, 16.2, 8.1 GB/s.

    Theory: proportional to the members per node (8, 4, 2, 1). The four numbers themselves are off that line by up to
    31 %, so the NIC in the middle of them is within 25 % of each, the one that the first gives within 32 %.
    """
    real = np.array([44.7, 20.8, 16.2, 8.1])
    n = np.array([16, 8, 4, 2])
    node = replace(NODE, kind="nvlink3", bw_bytes_per_s=300e9)

    def predicted(nic: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        got = curve(plain(), (node, replace(NET, size=16, bw_bytes_per_s=nic)), "all_reduce", n, 16 // n)
        return np.asarray(2 * (n - 1) / n / got.s_per_byte / 1e9)

    first = predicted(44.7e9 / 8)
    assert first[0] == pytest.approx(44.7)
    assert np.abs(first / real - 1).max() < 0.32
    per_member = real / np.array([8, 4, 2, 1])
    middle = float(np.sqrt(per_member.min() * per_member.max()))
    assert np.abs(predicted(middle * 1e9) / real - 1).max() < 0.25


@pytest.mark.parametrize(
    ("kind", "median"), [("nvlink3", 0.06), ("nvlink4", 0.09), ("nvlink5", 0.065), ("pcie5", 0.08)]
)
def test_fits_of_links(kind: str, median: float) -> None:
    devices = {name: d for name, d in DEVICES.items() if d.link == kind}
    bandwidth = next(iter(devices.values())).link_bw_bytes_per_s
    level = NetworkLevel(name="node", size=8, bw_bytes_per_s=bandwidth, latency_s=0.0, kind=kind)
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        rows = [r for r in table("collectives_in_node") if r["device"] in devices and r["op"] == op]
        ranks, num_bytes, micro = columns(rows, "ranks", "bytes", "time_us")
        got = seconds(curve(collective_rates(), (level,), op, ranks, 1), num_bytes)
        assert np.median(np.abs(got / (micro * 1e-6) - 1)) <= median, op


def test_links_of_frontier_are_near_what_was_measured() -> None:
    """RCCL on the eight dies of a node, 512 B to 80 MB, by constants that were assumed before these rows were known;
    and two nodes at 128 MiB: LUMI's acceptance test of such nodes asks for 85 GB/s, at most 5 % less."""
    levels = load_cluster("frontier:2").levels
    errors: list[float] = []
    for op in ("all_reduce", "all_gather", "all_to_all"):
        rows = [row for row in table("collectives_rccl") if row["op"] == op]
        ranks, num_bytes, micro = columns(rows, "ranks", "bytes", "time_us")
        errors.extend(seconds(curve(collective_rates(), levels, op, ranks, 1), num_bytes) / (micro * 1e-6) - 1)
    assert np.median(np.abs(errors)) < 0.18
    assert np.abs(errors).max() < 0.4
    two_nodes = seconds(curve(collective_rates(), levels, "all_reduce", 16, 1), 2**27)
    assert 2 * 15 / 16 * 2**27 / float(two_nodes[0]) == pytest.approx(85e9, rel=0.14)
