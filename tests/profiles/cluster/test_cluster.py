"""profiles/cluster/build.py: every form of a cluster, every way to get it wrong, and the levels that come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cost_models.specs.cluster import ClusterSpec
from meshwright.profiles.cluster.document import cluster_from_dict, cluster_to_dict
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.io import registry
from meshwright.profiles.io.reader import read_document

from meshwright.errors import InputError

from ...snapshots import ROOT

EXAMPLES = ROOT / "examples"
Level = tuple[str, int, float, str]


def texts(cluster: ClusterSpec) -> tuple[str, ...]:
    """What it warns of."""
    return tuple(warning.text for warning in cluster.warnings)


def shape(cluster: ClusterSpec) -> list[Level]:
    """(name, GPUs, GB/s per GPU, kind) of each level."""
    return [(level.name, level.size, round(level.bw_bytes_per_s / 1e9, 4), level.kind) for level in cluster.levels]


def from_text(text: str) -> ClusterSpec:
    return load_cluster(read_document("c.yaml", text))


NODE: Level = ("node", 8, 450.0, "nvlink4")
SHORTHANDS: list[tuple[str, list[Level]]] = [
    ("dgx-h100", [NODE]),
    ("dgx-h100:2", [NODE, ("cluster", 16, 50.0, "ndr-ib")]),
    ("DGX_H100 : 3", [NODE, ("cluster", 24, 50.0, "ndr-ib")]),
    ("aws-p5.48xlarge:32", [NODE, ("cluster", 256, 50.0, "efa")]),
    ("8xh100-sxm-80gb", [NODE]),
    ("1xl4", [("node", 1, 32.0, "pcie4")]),
    ("4xmi300x", [("node", 4, 192.0, "xgmi")]),  # three of its seven links
    ("8xh100-nvl", [("pair", 2, 300.0, "nvlink4"), ("node", 8, 64.0, "pcie5")]),
    ("2xh100-nvl", [("node", 2, 300.0, "nvlink4")]),
    ("dgx-h100:4+dgx-a100:4", [("node", 8, 300.0, "nvlink3"), ("cluster", 64, 25.0, "hdr-ib")]),
    ("dgx-h100:4+dgx-h100:2", [NODE, ("cluster", 48, 50.0, "ndr-ib")]),
    ("gb200-nvl72:18", [("rack", 72, 900.0, "nvlink5")]),
    ("gb200-nvl72:36", [("rack", 72, 900.0, "nvlink5"), ("cluster", 144, 50.0, "ndr-ib")]),
    ("gb200-nvl72:32", [("rack", 64, 900.0, "nvlink5"), ("cluster", 128, 50.0, "ndr-ib")]),
    ("frontier:4", [("pair", 2, 200.0, "xgmi"), ("node", 8, 150.0, "xgmi"), ("cluster", 32, 12.5, "slingshot")]),
    ("perlmutter:2", [("node", 4, 300.0, "nvlink3"), ("cluster", 8, 25.0, "slingshot")]),
    ("gcp-v5p-host:16", [("slice", 64, 540.0, "ici")]),
    ("gaudi2-8x:2", [("node", 8, 262.5, "roce-mesh"), ("cluster", 16, 37.5, "roce")]),
]


@pytest.mark.parametrize(("reference", "levels"), SHORTHANDS)
def test_shorthand(reference: str, levels: list[Level]) -> None:
    cluster = load_cluster(reference)
    assert shape(cluster) == levels
    assert cluster.num_gpus == levels[-1][1]


def test_counts_of_gpus() -> None:
    assert load_cluster("dgx-h100", num_gpus=256).name == "dgx-h100:32"
    assert shape(load_cluster("dgx-h100", num_gpus=24))[-1] == ("cluster", 24, 50.0, "ndr-ib")
    assert load_cluster("dgx-h100:2", num_gpus=16).num_gpus == 16
    part = load_cluster("dgx-h100", num_gpus=4)
    assert shape(part) == [("node", 4, 450.0, "nvlink4")]
    assert texts(part) == ("4 of the 8 GPUs of dgx-h100 are used",)
    assert shape(load_cluster("mi300x-8x-oam", num_gpus=4)) == [("node", 4, 192.0, "xgmi")]


def test_gpu_and_count_only() -> None:
    one = load_cluster(gpu="H100", num_gpus=8)
    assert (one.name, shape(one), texts(one)) == ("8xh100-sxm-80gb", [NODE], ())
    many = load_cluster(gpu="h100", num_gpus=32)
    assert many.name == "dgx-h100:4"
    assert texts(many) == ("32 x h100-sxm-80gb taken as 4 nodes of dgx-h100",)
    assert load_cluster("h100", num_gpus=32) == many
    assert load_cluster(gpu="h800", num_gpus=16).levels[0].bw_bytes_per_s == 200e9
    assert shape(load_cluster(gpu="gb200_nvl72", num_gpus=64)) == [("rack", 64, 900.0, "nvlink5")]
    assert shape(load_cluster(gpu="gb200", num_gpus=2)) == [("node", 2, 900.0, "nvlink5")]
    assert shape(load_cluster(gpu="l40s", num_gpus=4)) == [("node", 4, 32.0, "pcie4")]


def test_another_gpu_in_known_nodes() -> None:
    cluster = load_cluster("dgx-h100:2", gpu="b200")
    assert cluster.gpu.name == "b200-sxm-180gb"
    assert cluster.name == "dgx-h100:2 with b200-sxm-180gb"
    assert shape(cluster) == [("node", 8, 900.0, "nvlink5"), ("cluster", 16, 50.0, "ndr-ib")]
    assert "b200-sxm-180gb in dgx-h100 nodes" in texts(cluster)[0]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"reference": "dgx-h100:0"}, "`dgx-h100:0`: there must be at least 1 node"),
    ({"reference": "dgx-h100:-2"}, "`dgx-h100:-2`: there must be at least 1 node"),
    ({"reference": "0xh100"}, "`0xh100`: a node needs at least 1 GPU"),
    ({"reference": "dgx-h100:many"}, "`dgx-h100:many`: `many` is no number of nodes"),
    ({"reference": "dgx-h100:4+"}, "`dgx-h100:4+` is no cluster"),
    ({"reference": "dgx-h10:4"}, "unknown node `dgx-h10`"),
    ({"reference": "8xh100sxm"}, "unknown GPU `h100sxm`"),
    ({"reference": "h100"}, "`h100` is a GPU: how many of them?"),
    ({"reference": "nothing.yaml"}, "nothing.yaml: no such file"),
    ({"reference": "dgx-h100", "num_gpus": 12}, "12 GPUs are 12 / 8 = 1.5 nodes of dgx-h100"),
    ({"reference": "dgx-h100:2", "num_gpus": 12}, "dgx-h100:2 has 2 x 8 = 16 GPUs, but 12 are asked for"),
    ({"gpu": "h100", "num_gpus": 20}, "20 GPUs are 20 / 8 = 2.5 nodes of dgx-h100"),
    ({"gpu": "h100", "num_gpus": 0}, "0 GPUs: there must be at least 1"),
    ({"gpu": "h100"}, "no cluster"),
    ({"gpu": "l4", "num_gpus": 16}, "16 x l4 are more than one node of 8, and no node with this GPU is known"),
    ({"reference": "lambda-8xv100:4"}, "lambda-8xv100: its NICs are not known, so 4 nodes cannot be joined"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_references(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_cluster(**arguments)
    assert caught.value.message == message


BAD_FILES = [
    ("groups: []", "c.yaml, line 1, groups: must list the groups of nodes"),
    ("groups: [null]", "c.yaml, line 1, groups[0]: is empty"),
    ("name: x", "c.yaml, line 1, groups: `groups` is missing"),
    ("[1]", "c.yaml, line 1: must be a mapping with the keys collectives, fabric, groups, hosts, links, measured, "
            "name, profiles, sites, wan"),
    ("groups: [{node: dgx-h100, count: 0}]",
     "c.yaml, line 1, groups[0].count: `0` must be a whole number of at least 1"),
    ("groups: [{node: dgx-h100, count: -3}]",
     "c.yaml, line 1, groups[0].count: `-3` must be a whole number of at least 1"),
    ("groups: [{node: dgx-h100, count: yes}]",
     "c.yaml, line 1, groups[0].count: `True` must be a whole number of at least 1"),
    ("groups: [{node: dgx-h100}]", "c.yaml, line 1, groups[0].count: `count` is missing"),
    ("groups: [{count: 2}]", "c.yaml, line 1, groups[0]: names neither a `node` nor a `gpu`"),
    ("groups: [{gpu: h100, count: 2}]", "c.yaml, line 1, groups[0]: `gpus_per_node` is missing"),
    ("groups:\n- dgx-h100:x", "c.yaml, line 2, groups[0]: `dgx-h100:x`: `x` is no number of nodes"),
    ("groups: [{gpu: h100, gpus_per_node: 8, count: 2, nics: 8}]",
     "c.yaml, line 1, groups[0]: `nic_bandwidth` is missing: the network is `nics` times `nic_bandwidth`"),
    ("groups: dgx-h100:4\nlinks:\n  inter_node: {bandwidth: 400}",
     "c.yaml, line 3, links.inter_node.bandwidth: 400 has no unit"),
    ("groups: dgx-h100:4\nlinks:\n  inter_node: {bandwith: 400 Gb/s}",
     "c.yaml, line 3, links.inter_node.bandwith: unknown key `bandwith`"),
    ("groups: dgx-h100:4\nlinks:\n  inter_node: {bandwidth: 400 Gb/s per rack}",
     "c.yaml, line 3, links.inter_node.bandwidth: `400 Gb/s per rack`: per gpu, nic or node, and only one of them"),
    ("groups: [{node: lambda-8xv100, count: 2}]\nlinks: {inter_node: {bandwidth: 1 GB/s per nic}}",
     "c.yaml, line 2, links.inter_node.bandwidth: per NIC, but how many NICs lambda-8xv100 has is not known"),
    ("groups: dgx-h100:4\nfabric: {type: fat-tree}",
     "c.yaml, line 2, fabric.type: `fat-tree` is not one of non-blocking, rail-optimised, rail-only, "
     "oversubscribed, torus, dragonfly"),
    ("groups: dgx-h100:4\nfabric: {type: oversubscribed}", "c.yaml, line 2, fabric: `ratio` is missing"),
    ("groups: dgx-h100:4\nfabric: {type: oversubscribed, ratio: 0.5}",
     "c.yaml, line 2, fabric.ratio: `0.5` must be a ratio of at least 1, such as 7 or `7:1`"),
    ("groups: dgx-h100:4\nfabric: {type: torus, ratio: 2}",
     "c.yaml, line 2, fabric: `ratio` and `pod_nodes` have no meaning for a torus fabric"),
    ("groups: dgx-h100:8\nsites: [{name: a, nodes: 5}, {name: b, nodes: 2}]\nwan: {bandwidth: 1 Gb/s, latency: 1 ms}",
     "c.yaml, line 2, sites: 5 + 2 = 7 nodes, but the groups have 8"),
    ("groups: dgx-h100:8\nsites: [{nodes: 5}, {nodes: 3}]",
     "c.yaml, line 2, sites: are joined by a `wan`, which is missing"),
    ("groups: dgx-h100:8\nwan: {bandwidth: 1 Gb/s, latency: 1 ms}",
     "c.yaml, line 2, wan: has no meaning without `sites`"),
    ("groups: dgx-h100:8\nsites: [{nodes: 8}]", "c.yaml, line 2, sites: must list two sites or more"),
    ("groups: [{node: gb200-nvl72, count: 9, domain: 2}]",
     "c.yaml, line 1, groups[0].domain: `2` is less than the 4 GPUs of a node"),
    ("groups: [{gpu: h100, gpus_per_node: 8, count: 2}]", "c.yaml, line 1, groups: 8xh100-sxm-80gb: its NICs are not "
     "known, so 2 nodes cannot be joined"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_bad_files(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_text(text)
    assert caught.value.message == message


def test_a_wrong_number_hides_no_other_and_is_not_called_missing() -> None:
    group = {"gpu": "h100-sxm-80gb", "gpus_per_node": -8, "count": 2, "nics": 0, "nic_bandwidth": "-400 Gb/s",
             "price": "-3 USD/h", "slowdown": -1}  # fmt: skip
    with pytest.raises(InputError) as caught:
        load_cluster({"name": "x", "groups": [group]})
    fields = [problem.field.removeprefix("cluster.groups[0].") for problem in caught.value.problems]
    assert fields == ["gpus_per_node", "nics", "nic_bandwidth", "price", "slowdown"]


def test_all_problems_of_a_file_at_once() -> None:
    with pytest.raises(InputError) as caught:
        from_text("groups:\n- {node: dgx-h10, count: 0}\n- {gpu: h100, gpus_per_nod: 8, count: 2}\nfabrik: 3\n")
    assert caught.value.message.splitlines() == [
        "c.yaml, line 2, groups[0].count: `0` must be a whole number of at least 1",
        "c.yaml, line 2, groups[0].node: unknown node `dgx-h10`",
        "c.yaml, line 3, groups[1].gpus_per_nod: unknown key `gpus_per_nod`",
        "c.yaml, line 3, groups[1]: `gpus_per_node` is missing",
        "c.yaml, line 4, fabrik: unknown key `fabrik`",
    ]
    assert len(caught.value.details["problems"]) == 5


def test_a_key_of_a_group_at_the_top_is_sent_into_one() -> None:
    with pytest.raises(InputError) as caught:
        from_text("gpu: h100-sxm-80gb\ngpus_per_node: 8\ncount: 2\n")
    assert caught.value.message.splitlines() == [
        "c.yaml, line 1, gpu: belongs to a group of nodes",
        "c.yaml, line 1, groups: `groups` is missing",
        "c.yaml, line 2, gpus_per_node: belongs to a group of nodes",
        "c.yaml, line 3, count: belongs to a group of nodes",
    ]
    assert "`[{gpu: h100-sxm-80gb, gpus_per_node: 8, count: 2}]`" in caught.value.hint


def test_a_description_without_a_file_names_fields_as_set_does(tmp_path: Path) -> None:
    data = {"groups": "dgx-h100:4", "links": {"inter_node": {"bandwidth": 400}}}
    with pytest.raises(InputError) as caught:
        load_cluster(data)
    assert caught.value.message == "cluster.links.inter_node.bandwidth: 400 has no unit"
    assert caught.value.hint == "write `400 Gb/s` (bits, as on the cable) or `50 GB/s` (bytes)"
    path = tmp_path / "c.json"
    path.write_text(json.dumps(data, indent=1))
    with pytest.raises(InputError, match=r"c\.json, line 5, cluster\.links\.inter_node\.bandwidth: 400 has no unit"):
        load_cluster(path)


def test_part_of_a_larger_document() -> None:
    document = read_document("request.yaml", "model: x\ncluster:\n  groups:\n    - node: dgx-h10\n      count: 1\n")
    with pytest.raises(InputError, match=r"request\.yaml, line 4, cluster\.groups\[0\]\.node: unknown node `dgx-h10`"):
        load_cluster(document.part(("cluster",)))


PER = [("400 Gb/s", 50.0), ("50 GB/s per gpu", 50.0), ("3.2 Tb/s per node", 50.0), ("400 Gb/s per NIC", 50.0),
       ("100 Gb/s", 12.5)]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PER)
def test_network_bandwidth_per_what(text: str, expected: float) -> None:
    cluster = load_cluster({"groups": "dgx-h100:4", "links": {"inter_node": {"bandwidth": text}}})
    assert cluster.levels[-1].bw_bytes_per_s == pytest.approx(expected * 1e9)
    assert texts(cluster) == ()


def test_a_slice_takes_no_other_gpu() -> None:
    with pytest.raises(InputError, match=r"`v5p-128` names 64 x tpu-v5p: it takes no other GPU"):
        load_cluster("v5p-128", gpu="tpu-v6e")


def test_per_counts_a_bandwidth() -> None:
    with pytest.raises(InputError, match=r"links\.inter_node\.per: counts a `bandwidth`, which is not given"):
        load_cluster({"groups": "dgx-h100:4", "links": {"inter_node": {"per": "node"}}})


def test_per_nic_where_a_gpu_has_four() -> None:
    link = {"bandwidth": "200 Gb/s", "per": "nic", "latency": "10 us"}
    cluster = load_cluster({"groups": "aws-p5.48xlarge:4", "links": {"inter_node": link}})
    assert cluster.levels[-1].bw_bytes_per_s == pytest.approx(100e9)
    assert cluster.levels[-1].latency_s == pytest.approx(10e-6)
    assert cluster.levels[-1].kind == "efa"


BITS_AND_BYTES = [
    ({"inter_node": {"bandwidth": "400 GB/s"}}, "cluster.links.inter_node.bandwidth: `400 GB/s` is 3.2 Tb/s per GPU, 8 "
     "times the 400 Gb/s of dgx-h100; if bits were meant, write `400 Gb/s` (50 GB/s)"),
    ({"inter_node": {"bandwidth": "50 Gb/s"}}, "cluster.links.inter_node.bandwidth: `50 Gb/s` is 6.25 GB/s per GPU, "
     "1/8 of the 50 GB/s of dgx-h100; if bytes were meant, write `50 GB/s` (400 Gb/s)"),
    ({"intra_node": {"bandwidth": "900 GB/s"}}, "cluster.links.intra_node.bandwidth: `900 GB/s` is twice the link of "
     "h100-sxm-80gb: bandwidths are one direction, 450 GB/s here"),
    ({"intra_node": {"bandwidth": "450 Gb/s"}}, "cluster.links.intra_node.bandwidth: `450 Gb/s` is 56.25 GB/s per GPU, "
     "1/8 of the 450 GB/s of h100-sxm-80gb; if bytes were meant, write `450 GB/s` (3.6 Tb/s)"),
]  # fmt: skip


@pytest.mark.parametrize(("links", "warning"), BITS_AND_BYTES)
def test_bits_given_as_bytes(links: dict[str, Any], warning: str) -> None:
    assert texts(load_cluster({"groups": "dgx-h100:4", "links": links})) == (warning,)


NICS = [
    ("400 Gb/s", ""),
    ("50 GB/s", ""),
    ("400 GB/s", "`400 GB/s` is 3.2 Tb/s, more than a NIC has; if bits were meant, write `400 Gb/s` (50 GB/s)"),
    ("50 Gb/s", "`50 Gb/s` is 6.25 GB/s, no speed that ib NICs have; if bytes were meant, write `50 GB/s` (400 Gb/s)"),
]


@pytest.mark.parametrize(("speed", "warning"), NICS)
def test_nic_speeds(speed: str, warning: str) -> None:
    group = {"gpu": "h100", "gpus_per_node": 8, "count": 2, "nics": 8, "nic_bandwidth": speed, "network": "ib"}
    expected = (f"cluster.groups[0].nic_bandwidth: {warning}",) if warning else ()
    assert texts(load_cluster({"groups": [group]})) == expected


def test_a_node_written_out() -> None:
    cluster = from_text("""\
name: mine
groups:
  - name: box
    gpu: h200
    gpus_per_node: 4
    count: 6
    intra_node: {bandwidth: 300 GB/s, latency: 2 us, topology: mesh, kind: nvlink3}
    nics: 2
    nic_bandwidth: 200 Gb/s
    network: roce
    host_memory: 1 TiB
    host_memory_bandwidth: 300 GB/s
    price: 20 USD/h
""")
    (group,), (node, network) = cluster.groups, cluster.levels
    assert (cluster.name, group.node, group.num_nodes, group.gpus_per_node) == ("mine", "box", 6, 4)
    assert (group.host_memory_bytes, group.host_memory_bw_bytes_per_s) == (2**40, 300e9)
    assert cluster.usd_per_hour == 120.0
    assert (node.bw_bytes_per_s, node.latency_s, node.topology, node.kind) == (300e9, 2e-6, "mesh", "nvlink3")
    assert (network.size, network.bw_bytes_per_s, network.kind) == (24, 12.5e9, "roce")


def test_single_values_of_a_catalogue_node() -> None:
    group = {"node": "dgx-b200", "count": 2, "nic_bandwidth": "800 Gb/s", "price": "100 USD/h"}
    cluster = load_cluster({"groups": [group]})
    assert cluster.levels[-1].bw_bytes_per_s == 100e9
    assert cluster.usd_per_hour == 200.0
    assert texts(cluster) == ("dgx-b200: no source confirms its NIC count",)
    halved = load_cluster({"groups": [{"node": "dgx-h100", "count": 2, "nics": 4}]})
    assert halved.levels[-1].bw_bytes_per_s == 25e9


FABRICS: list[tuple[str, list[Level]]] = [
    ("non-blocking", [("cluster", 64, 50.0, "ndr-ib")]),
    ("rail-optimised", [("cluster", 64, 50.0, "ndr-ib")]),
    ("rail-only", [("cluster", 64, 50.0, "ndr-ib-rail-only")]),
    (
        "{type: oversubscribed, ratio: '7:1', pod_nodes: 4}",
        [("pod", 32, 50.0, "ndr-ib"), ("cluster", 64, 7.1429, "ndr-ib")],
    ),
    ("{type: oversubscribed, ratio: 4}", [("cluster", 64, 12.5, "ndr-ib")]),
    ("{type: oversubscribed, ratio: 4, pod_nodes: 8}", [("cluster", 64, 50.0, "ndr-ib")]),
    ("{type: dragonfly, ratio: 2, pod_nodes: 2}", [("group", 16, 50.0, "ndr-ib"), ("cluster", 64, 25.0, "ndr-ib")]),
    ("torus", [("cluster", 64, 50.0, "ndr-ib")]),
]


@pytest.mark.parametrize(("fabric", "levels"), FABRICS)
def test_fabrics(fabric: str, levels: list[Level]) -> None:
    cluster = from_text(f"groups: dgx-h100:8\nfabric: {fabric}\n")
    assert shape(cluster) == [NODE, *levels]
    assert (cluster.levels[-1].topology == "torus") == (fabric == "torus")


def test_sites() -> None:
    sites = "sites: [{name: a, nodes: 5}, {name: b, nodes: 3}]\nwan: {bandwidth: 100 Gb/s, latency: 10 ms}\n"
    cluster = from_text(f"groups: dgx-h100:8\n{sites}")
    # The site of 40 GPUs has the least of its line for each of them.
    assert shape(cluster) == [NODE, ("site", 24, 50.0, "ndr-ib"), ("wan", 64, 0.3125, "wan")]
    assert cluster.levels[-1].latency_s == 0.01
    assert texts(cluster) == ("sites differ in size (a 5, b 3 nodes): groups are laid out for the smallest",)
    single = from_text("groups: dgx-h100:2\nsites: [{nodes: 1}, {nodes: 1}]\nwan: {bandwidth: 1 Gb/s, latency: 1 ms}")
    assert [level.name for level in single.levels] == ["node", "wan"]


def test_mixed_groups_carry_the_weakest_and_say_so() -> None:
    cluster = load_cluster("dgx-h100:2+perlmutter:2")
    assert [group.node for group in cluster.groups] == ["dgx-h100", "perlmutter"]
    assert shape(cluster) == [("node", 4, 300.0, "nvlink3"), ("cluster", 24, 25.0, "slingshot")]
    assert cluster.levels[0].topology == "mesh"
    assert (cluster.gpu.name, cluster.gpus_per_node) == ("a100-sxm-40gb", 4)
    said = " ".join(texts(cluster))
    for part in ("mixed GPUs", "nodes of 4 and 8 GPUs", "networks of 200 Gb/s, 400 Gb/s per GPU", "(ib, slingshot)"):
        assert part in said
    codes = [warning.code for warning in cluster.warnings]
    assert codes == ["uniform-plan", "uniform-plan", "uniform-plan", "cluster"]
    assert cluster_from_dict(json.loads(json.dumps(cluster_to_dict(cluster)))).warnings == cluster.warnings
    assert "share no communication library" in " ".join(texts(load_cluster("mi300x-8x-oam:1+dgx-h100:1")))


def test_unconfirmed_values_are_warned_of() -> None:
    assert texts(load_cluster("dgx-h100:2")) == ()
    assert texts(load_cluster("dgx-b200")) == ()  # one node needs no NIC
    assert texts(load_cluster("dgx-b200:2")) == ("dgx-b200: no source confirms its NIC count, NIC speed",)
    assert "bf16 peak, memory, memory bandwidth, link bandwidth" in texts(load_cluster("8xascend-910b"))[0]


def test_racks_that_do_not_fill_evenly() -> None:
    assert texts(load_cluster("gb200-nvl72:32")) == ("gb200-nvl72: taken as 2 racks with 16 of 18 nodes in use each",)
    assert texts(load_cluster("gb200-nvl72:18")) == ()
    # A name of a rack of 72 GPUs is one of its nodes, of 4.
    assert texts(load_cluster("gb200-nvl72")) == ("gb200-nvl72: taken as 1 of the 18 nodes of a rack",)
    uneven = load_cluster("gb200-nvl72:19")
    assert shape(uneven)[0] == ("rack", 72, 900.0, "nvlink5")
    assert "do not fill 2 racks of 18 evenly" in texts(uneven)[0]


def test_the_network_of_an_unknown_node_is_an_assumption_or_given() -> None:
    cluster = load_cluster({"groups": "lambda-8xv100:2", "links": {"inter_node": {"bandwidth": "25 GB/s"}}})
    assert cluster.levels[-1].bw_bytes_per_s == 25e9
    assert texts(cluster) == ("cluster.links.inter_node: `kind` is not given: taken as InfiniBand (`ib`)",)


def test_latencies_have_a_source() -> None:
    node, network = load_cluster("aws-p5en.48xlarge:2").levels
    assert (node.latency_s, network.latency_s) == (3.4e-6, 18e-6)
    assert "NCCL" in node.source
    assert "aws-p5en" in network.source


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_load(path: Path) -> None:
    if "groups:" in path.read_text():
        assert load_cluster(path).num_gpus > 8


def test_the_examples_of_the_guide_are_these_files() -> None:
    guide = (EXAMPLES.parent / "docs" / "guides" / "clusters.md").read_text()
    for name in ("cluster_h100", "two_sites", "mixed_gpus"):
        assert (EXAMPLES / f"{name}.yaml").read_text() in guide


NODES_WITH_NICS = [name for name in registry.node_names() if registry.load_node(name).nics is not None]
nodes = st.sampled_from(NODES_WITH_NICS)
counts = st.integers(1, 300)


@given(st.lists(st.tuples(nodes, counts), min_size=1, max_size=3))
def test_levels_grow_in_size_and_shrink_in_bandwidth(groups: list[tuple[str, int]]) -> None:
    cluster = load_cluster("+".join(f"{node}:{count}" for node, count in groups))
    expected = sum(registry.load_node(node).gpus_per_node * count for node, count in groups)
    assert cluster.num_gpus == expected == sum(group.num_gpus for group in cluster.groups)
    sizes = [level.size for level in cluster.levels]
    bandwidths = [level.bw_bytes_per_s for level in cluster.levels]
    assert sizes == sorted(set(sizes))
    assert bandwidths == sorted(bandwidths, reverse=True)
    assert min(bandwidths) > 0
    assert cluster.levels[-1].size == expected
    assert all(0 < level.latency_s < 1e-3 and level.kind and level.source for level in cluster.levels)


@given(nodes, counts, st.sampled_from(["cluster", "plan"]))
def test_cluster_survives_json(node: str, count: int, name: str) -> None:
    cluster = load_cluster({"name": name, "groups": f"{node}:{count}"})
    assert cluster_from_dict(json.loads(json.dumps(cluster_to_dict(cluster)))) == cluster


@given(st.integers(2, 40), st.integers(1, 40), st.floats(1.0, 20.0))
def test_thinner_networks_are_never_faster(count: int, pod: int, ratio: float) -> None:
    plain = load_cluster({"groups": f"dgx-h100:{count}"}).levels[-1]
    fabric = {"type": "oversubscribed", "ratio": ratio, "pod_nodes": pod}
    thin = load_cluster({"groups": f"dgx-h100:{count}", "fabric": fabric}).levels[-1]
    assert thin.size == plain.size
    assert thin.bw_bytes_per_s <= plain.bw_bytes_per_s


KEYS = """groups node count gpu gpus_per_node links inter_node intra_node bandwidth per fabric type ratio pod_nodes 
sites wan name nodes nics nic_bandwidth latency topology kind domain network price host_memory"""
SCALARS = ["400 Gb/s", "400 GB/s per node", "10 ms", "dgx-h100", "dgx-h100:4", "h100", "2:1", "torus", "oversubscribed",
           "mesh", "nic", "roce", "80 GB", "1 USD/h", "", "x:1", 0, -1, 1, 4, 10**30, 2.5, float("inf"), True,
           None]  # fmt: skip
values = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=5),
    max_leaves=15,
)


@given(st.dictionaries(st.sampled_from(KEYS.split()), values, max_size=6))
def test_no_description_crashes(data: dict[str, Any]) -> None:
    for description in (data, {"groups": [{"node": "dgx-h100", "count": 2, **data}]}, {**data, "groups": "dgx-h100:4"}):
        try:
            cluster = load_cluster(description)
        except InputError:
            continue
        assert cluster.num_gpus > 0
