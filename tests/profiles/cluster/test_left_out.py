"""Clusters without reserved, busy or broken nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cost_models.specs.cluster import ClusterSpec
from meshwright.planner.request.load import load_request
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.cluster.node_lists import busy_nodes, expanded, parse_nodes

from meshwright.errors import InputError

# Made by hand in the default format of `sinfo`, and in that of `sinfo -N`.
SINFO = """PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
gpu*         up   infinite      2   mix gpu-[00-01]
gpu*         up   infinite      1 drain* gpu-05
gpu*         up   infinite      2  idle gpu-[02,04]
gpu*         up   infinite      1 idle~ gpu-03
long         up 1-00:00:00      1  resv gpu-04
"""
SINFO_N = """NODELIST   NODES PARTITION       STATE
gpu-00         1      gpu* allocated
gpu-02         1      gpu*        idle
"""
HOSTS = [f"gpu-{number:02}" for number in range(6)]
NAMED = {"groups": [{"node": "dgx-h100", "count": 4}, {"node": "dgx-a100-80gb", "count": 2}], "hosts": HOSTS}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [("gpu-[03-05,07],login1", ["gpu-03", "gpu-04", "gpu-05", "gpu-07", "login1"]), ("0-2,7", ["0", "1", "2", "7"]),
     ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]), ("a", ["a"])],
)  # fmt: skip
def test_lists_of_nodes(text: str, nodes: list[str]) -> None:
    assert expanded(text) == nodes


@pytest.mark.parametrize("text", ["gpu-[03", "a b", "5-2", "gpu-[a-b]", "", "x[1-999999999]"])
def test_bad_lists(text: str) -> None:
    with pytest.raises(InputError, match=r"is no|no range"):
        parse_nodes(text)


def test_busy_nodes_are_those_that_are_not_idle_everywhere() -> None:
    assert busy_nodes("sinfo", SINFO) == ("gpu-00", "gpu-01", "gpu-05", "gpu-04")
    assert busy_nodes("sinfo", SINFO_N) == ("gpu-00",)


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "nodes.txt"
    file.write_text("gpu-00 idle\n")
    with pytest.raises(InputError, match="NODELIST and STATE"):
        parse_nodes(str(file))
    with pytest.raises(InputError, match="line 2: 1 columns, the header has 2"):
        busy_nodes("sinfo", "NODELIST STATE\ngpu-00\n")


def counts(cluster: ClusterSpec) -> list[tuple[str, int]]:
    return [(group.node, group.num_nodes) for group in cluster.groups]


def test_a_file_of_sinfo_leaves_the_idle_nodes(tmp_path: Path) -> None:
    file = tmp_path / "sinfo.txt"
    file.write_text(SINFO)
    request = load_request(None, {"model": "llama-3.1-8b", "cluster": NAMED, "exclude": str(file)})
    cluster = load_cluster(request.cluster, exclude=request.exclude)
    assert counts(cluster) == [("dgx-h100", 2)]
    assert cluster.hosts == ("gpu-02", "gpu-03")
    assert cluster.islands == ()
    assert cluster.levels == load_cluster("dgx-h100:2").levels
    assert "4 of 6 nodes are left out: gpu-00, gpu-01, gpu-04, gpu-05" in [text.text for text in cluster.warnings]


def test_numbers_leave_nodes_out_of_a_shorthand() -> None:
    cluster, small = load_cluster("dgx-h100:16", exclude=("3", "7")), load_cluster("dgx-h100:14")
    assert (cluster.groups, cluster.levels) == (small.groups, small.levels)


def test_the_links_of_the_nodes_that_remain_stay(tmp_path: Path) -> None:
    rows = [[0 if a == b else 10 + a + b for b in range(4)] for a in range(4)]
    (tmp_path / "links.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    file = tmp_path / "cluster.yaml"
    file.write_text("groups: dgx-h100:4\nlinks: {matrix: links.csv}\n")
    cluster = load_cluster(file, exclude=("1",))
    assert cluster.links is not None
    kept = (0, 2, 3)
    assert cluster.links.bw_bytes_per_s == tuple(tuple(rows[a][b] * 1e9 for b in kept) for a in kept)
    assert cluster.levels[-1].bw_bytes_per_s == pytest.approx(12e9 / 8)
    alike = "\n".join(",".join("0" if a == b else "20" for b in range(4)) for a in range(4))
    (tmp_path / "links.csv").write_text(alike)
    assert load_cluster(file, exclude=("1",)).levels[-1].bw_bytes_per_s == pytest.approx(20e9 / 8)


def test_warnings_on_the_matrix_stay(tmp_path: Path) -> None:
    rows = [[0 if a == b else 200 if (a, b) == (0, 2) else 10 + a for b in range(4)] for a in range(4)]
    (tmp_path / "links.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    file = tmp_path / "cluster.yaml"
    file.write_text("groups: dgx-h100:4\nlinks: {matrix: links.csv}\n")
    before, after = ({text.text for text in load_cluster(file, exclude=nodes).warnings} for nodes in ((), ("1",)))
    assert any("links.csv" in text for text in before)
    assert before <= after


def test_sites_keep_what_remains() -> None:
    described = {"groups": "dgx-h100:4", "sites": [{"name": "a", "nodes": 2}, {"name": "b", "nodes": 2}],
                 "wan": {"bandwidth": "100 Gb/s", "latency": "5 ms"}}  # fmt: skip
    assert [i.num_nodes for i in load_cluster(described, exclude=("3",)).islands] == [2, 1]
    assert load_cluster(described, exclude=("2", "3")).islands == ()


def test_unknown_names_are_a_warning() -> None:
    cluster = load_cluster(NAMED, exclude=("gpu-05", "cpu-1"))
    assert counts(cluster) == [("dgx-h100", 4), ("dgx-a100-80gb", 1)]
    assert "exclude: no nodes of this cluster: cpu-1" in [text.text for text in cluster.warnings]


@pytest.mark.parametrize(
    ("cluster", "exclude", "more", "words"),
    [("dgx-h100:2", "0,1", {}, "all 2 nodes"), ("dgx-h100:2", "2", {}, "there is no node 2"),
     ("dgx-h100:2", "gpu-1", {}, "names no nodes"), ("gb200-nvl72:18", "0", {}, "share one link of 72 GPUs"),
     ("dgx-h100", "0", {"num_gpus": 16}, "a number of GPUs is given")],
)  # fmt: skip
def test_refused(cluster: str, exclude: str, more: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_cluster(cluster, exclude=parse_nodes(exclude), num_gpus=more.get("num_gpus"))
