"""Links of a torus: which of them a group uses, against counts by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from meshwright.cost_models.rates import torus
from meshwright.cost_models.rates.collectives import curve, seconds
from meshwright.cost_models.specs.cluster import NetworkLevel
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.cluster.torus import mismatch, named_slice, read_axes, usual_axes
from meshwright.profiles.rates.link_rates import collective_rates

from meshwright.errors import InputError


def level(*axes: int, devices: int = 1) -> NetworkLevel:
    size = math.prod(axes) * devices
    return NetworkLevel(name="slice", size=size, bw_bytes_per_s=600e9, latency_s=1e-6, topology="torus", kind="ici",
                        torus=axes)  # fmt: skip


@pytest.mark.parametrize(
    ("of", "size", "stride", "links"),
    [
        (level(4, 4, 8), 128, 1, 6),  # all: three rings
        (level(4, 4, 8), 4, 1, 2),  # the first axis
        (level(4, 4, 8), 32, 4, 4),  # the other two
        (level(4, 4, 8), 8, 16, 2),  # the last
        (level(4, 4, 8), 2, 1, 1),  # half of the first axis: a line
        (level(2, 2, 1), 4, 1, 2),  # two lines of a host
        (level(16, 16), 256, 1, 4),  # a whole pod
        (level(8, 16), 128, 1, 3),  # 8 chips of a 2D torus are no ring
        (level(2, 4), 8, 1, 2),
        (level(4, 4, 8), 2, 2, 0.5),  # every other chip of the first axis: two groups share a link
        (level(4, 4, 4, devices=2), 128, 1, 6),  # both devices of every chip
        (level(4, 4, 4, devices=2), 64, 2, 6),  # one device of every chip
    ],
)
def test_links_of_a_group(of: NetworkLevel, size: int, stride: int, links: float) -> None:
    share = torus.link_share(of, np.array([size]), np.array([stride]))
    assert float(np.ravel(share)[0]) == pytest.approx(links / (2 * len(of.torus)))


def test_an_all_gather_over_one_axis_takes_three_times_that_over_three() -> None:
    rates, levels = collective_rates(), (level(8, 8, 8),)
    whole = curve(rates, levels, "all_gather", 512, 1).s_per_byte[0] / (511 / 512)
    axis = curve(rates, levels, "all_gather", 8, 1).s_per_byte[0] / (7 / 8)
    assert axis == pytest.approx(3 * whole)


def test_an_all_to_all_is_bound_by_the_longest_axis() -> None:
    """8 chips of a ring send V each: a quarter of 8 hops in the mean, over both directions: V of one link."""
    rates, link = collective_rates(), 600e9 / 6
    op = rates.level("ici", 0).ops["all_to_all"]
    taken = seconds(curve(rates, (level(8, 8, 8),), "all_to_all", 8, 1), 1e12)
    assert float(taken[0]) * op.efficiency == pytest.approx(1e12 / link, rel=0.01)
    longer = curve(rates, (level(4, 4, 16),), "all_to_all", 256, 1).s_per_byte[0]
    assert longer == pytest.approx(2 * curve(rates, (level(8, 8, 8),), "all_to_all", 512, 1).s_per_byte[0])


def test_messages_go_around_both_ways() -> None:
    of = level(4, 4, 8)
    assert torus.steps(of, np.array([128, 4, 2]), np.array([1, 1, 1])).tolist() == [2 + 2 + 4, 2, 1]


@pytest.mark.parametrize(
    ("chips", "axes", "shape"),
    [(64, 3, (4, 4, 4)), (128, 3, (4, 4, 8)), (512, 3, (8, 8, 8)), (2048, 3, (8, 16, 16)), (8, 2, (2, 4)),
     (128, 2, (8, 16)), (256, 2, (16, 16)), (4, 3, (1, 2, 2)), (7, 2, (1, 7))],
)  # fmt: skip
def test_usual_axes(chips: int, axes: int, shape: tuple[int, ...]) -> None:
    assert usual_axes(chips, axes) == shape
    assert not mismatch(shape, chips)


@pytest.mark.parametrize(
    ("text", "gpu", "chips", "axes"),
    [("v5p-128", "tpu-v5p", 64, (4, 4, 4)), ("v4-16", "tpu-v4", 8, (2, 2, 2)), ("v6e-256", "tpu-v6e", 256, (16, 16)),
     ("TPU v5litepod-16", "tpu-v5e", 16, (4, 4))],
)  # fmt: skip
def test_slices_by_name(text: str, gpu: str, chips: int, axes: tuple[int, ...]) -> None:
    cluster = load_cluster(text)
    assert (cluster.gpu.name, cluster.num_gpus, cluster.levels[0].torus) == (gpu, chips, axes)
    assert len(cluster.levels) == 1
    assert named_slice("dgx-h100") is None


def test_half_a_chip() -> None:
    with pytest.raises(InputError, match=r"7 cores are 7 / 2 = 3\.5 chips") as error:
        load_cluster("v5p-7")
    assert error.value.hint == "`v5p-6` is 3 chips"


def test_axes_in_files() -> None:
    assert read_axes([4, 4, 8]) == read_axes("4x4x8") == read_axes("4 x 4 x 8") == (4, 4, 8)
    assert [read_axes(value) for value in ([], [0, 4], "4", "four", 4, [4.0], [True, 2])] == [None] * 7
    assert mismatch((4, 4, 4), 128) == "4 x 4 x 4 = 64 chips, but a slice has 128"
