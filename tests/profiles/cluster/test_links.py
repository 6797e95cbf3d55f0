"""Links between nodes in a cluster file: slow nodes, a matrix, names of hosts, and everything that can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.profiles.cluster.document import cluster_from_dict, cluster_to_dict
from meshwright.profiles.cluster.links import read_matrix
from meshwright.profiles.cluster.load import load_cluster

from meshwright.errors import InputError

from ...snapshots import ROOT

EXAMPLES = ROOT / "examples"


def cluster_file(folder: Path, *lines: str, nodes: int = 3) -> Path:
    path = folder / "cluster.yaml"
    path.write_text("\n".join(["name: mine", f"groups: [dgx-h100:{nodes}]", *lines]) + "\n", encoding="utf-8")
    return path


def test_a_slow_node_slows_its_links() -> None:
    found = load_cluster(EXAMPLES / "bad_nic.yaml")
    assert found.links is not None
    rows = found.links.bw_bytes_per_s
    assert (rows[0][1], rows[0][3], rows[3][0], rows[3][3]) == (12.5e9, 3.125e9, 3.125e9, 0.0)
    assert found.hosts[3] == "gpu-03"
    assert found.levels[-1].bw_bytes_per_s == 3.125e9 / 4  # other commands take the slowest for all
    assert any("links between nodes differ" in warning.text for warning in found.warnings)
    assert cluster_from_dict(json.loads(json.dumps(cluster_to_dict(found)))) == found


def test_a_matrix_is_from_row_to_column_in_gigabytes(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("# GB/s\nto,a,b,c\na,-,400,380\nb,200,0,390\nc,100,nan,nan\n".replace(
        "c,100,nan,nan", "c,100,395,nan"), encoding="utf-8")  # fmt: skip
    found = load_cluster(cluster_file(tmp_path, "links: {matrix: links.csv}"))
    assert found.links is not None
    assert found.links.bw_bytes_per_s == ((0.0, 400e9, 380e9), (200e9, 0.0, 390e9), (100e9, 395e9, 0.0))
    assert (found.hosts, found.levels[-1].bw_bytes_per_s) == (("a", "b", "c"), 100e9 / 8)


def test_equal_links_are_a_cluster_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("0 300 300\n300 0 300\n300 300 0\n", encoding="utf-8")
    found = load_cluster(cluster_file(tmp_path, "links: {matrix: links.csv}"))
    assert (found.links, found.levels[-1].bw_bytes_per_s) == (None, 300e9 / 8)
    assert "links" not in cluster_to_dict(found)


def test_every_problem_of_a_matrix_is_told_with_its_line() -> None:
    text = "# comment\n0, nan, 3\n-4, 0, 5\n6, 0, x\n1, 2, 3, 4\n"
    with pytest.raises(InputError) as caught:
        read_matrix("m.csv", text)
    assert caught.value.message.splitlines() == [
        "m.csv, line 2: 3 entries, but the matrix has 4 rows",
        "m.csv, line 2: 0 to 1: `nan` must be a number of GB/s above zero",
        "m.csv, line 3: 3 entries, but the matrix has 4 rows",
        "m.csv, line 3: 1 to 0: `-4` must be a number of GB/s above zero",
        "m.csv, line 4: 3 entries, but the matrix has 4 rows",
        "m.csv, line 4: 2 to 1: `0` must be a number of GB/s above zero",
    ]  # the x on the diagonal is not read


def test_one_direction_ten_times_as_fast_is_told() -> None:
    found = read_matrix("m.csv", "0 400 40\n400 0 400\n400 400 0\n")
    assert found.warnings == ("m.csv, line 1: 0 to 2 40 GB/s, back 400: 10 times as fast",)
    assert not read_matrix("m.csv", "0 400 41\n400 0 400\n400 400 0\n").warnings


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        (("links: {matrix: none.csv}",), ("links.matrix", "no such file")),
        (("links: {matrix: [[0, 50], [50, 0]]}",), ("links.matrix", "must be the path of a file")),
        (("links: {slow_nodes: [{node: 7, share: 0.5}]}",), ("`7` is no node", "0 to 2")),
        (("links: {slow_nodes: [{node: 1, share: 0}, {node: 1, share: 25}]}",), ("`0` must", "`25` must", "twice")),
        (("links: {slow_nodes: [{node: 0, share: 0.5}], matrix: a.csv}",), ("`slow_nodes` both",)),
        (("links: {slow_nodes: 3}",), ("must list nodes", "`[]` for none")),
        (("hosts: [a, b]",), ("2 names, but the groups have 3 nodes",)),
        (("hosts: [a, b, a]",), ("a given twice",)),
        (("hosts: [a, 1, c]",), ("must list the names",)),
        (("fabric: {type: oversubscribed, ratio: 2}", "links: {slow_nodes: [{node: 1, share: 0.5}]}"),
         ("`fabric.ratio` both",)),
    ],
)  # fmt: skip
def test_what_a_file_gets_wrong(tmp_path: Path, lines: tuple[str, ...], messages: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        load_cluster(cluster_file(tmp_path, *lines))
    said = f"{caught.value.message} {caught.value.hint}"
    assert all(message in said for message in messages), said
    assert "cluster.yaml, line 3" in said or "line 4" in said


def test_no_slow_node_is_a_list_too(tmp_path: Path) -> None:
    plain, repaired = (load_cluster(cluster_file(tmp_path, *lines)) for lines in ((), ("links: {slow_nodes: []}",)))
    assert repaired.links is None
    assert repaired.levels == plain.levels


def test_a_matrix_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("0 1\n1 0\n", encoding="utf-8")
    with pytest.raises(InputError, match="has 2 nodes, but the groups have 3"):
        load_cluster(cluster_file(tmp_path, "links: {matrix: links.csv}"))
