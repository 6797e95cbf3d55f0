"""`profile import`: what other tools print becomes a cluster; data/profile_imports/SOURCES.md has the sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.cost_models.quantities.exchanges import Op
from meshwright.cost_models.rates import collectives
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.importers.registry import IMPORTERS
from meshwright.profiles.rates.link_rates import collective_rates

from meshwright.errors import InputError

from ...snapshots import ROOT, run_here

SAMPLES = ROOT / "tests" / "data" / "profile_imports"
FILES = {
    "nccl-tests": "nccl_tests_two_nodes.log",
    "nvidia-smi-topo": "nvidia_smi_topo.txt",
    "nccl-topo-xml": "nccl_topo.xml",
    "slurm": "scontrol_nodes.txt",
    "k8s-nodes": "kubectl_nodes.json",
    "mpigraph": "mpigraph.out",
    "hostfile": "hostfile",
}


def imported(folder: Path, format_: str, file: str, *more: str) -> Path:
    out = folder / "cluster.yaml"
    done = run_here("profile", "import", format_, str(SAMPLES / file), "-o", str(out), *more)
    assert done.code == 0, done
    return out


def text(file: str) -> str:
    return (SAMPLES / file).read_text(encoding="utf-8")


def test_every_format_has_a_sample_and_only_it_recognises_it() -> None:
    assert FILES.keys() == IMPORTERS.keys()
    for name, file in FILES.items():
        assert [each for each, importer in IMPORTERS.items() if importer.recognises(text(file))] == [name]


@pytest.mark.parametrize("name", FILES)
def test_auto_finds_the_format(name: str) -> None:
    done = run_here("profile", "import", "auto", str(SAMPLES / FILES[name]), "--gpu", "h100", "--gpus-per-node", "8",
                    "--json")  # fmt: skip
    assert done.code == 0, done
    assert json.loads(done.out)["format"] == name


@pytest.mark.parametrize(
    ("file", "op", "nodes", "measured_s"),
    # The largest rows of the logs: 4 GiB in 15656.3 us, 4 GiB in 10968.4 us.
    [
        ("nccl_tests_one_node.log", "all_reduce", 1, 15656.3e-6),
        ("nccl_tests_two_nodes.log", "all_gather", 2, 10968.4e-6),
    ],
)
def test_the_planner_prices_the_call_as_it_was_measured(
    tmp_path: Path, file: str, op: Op, nodes: int, measured_s: float
) -> None:
    cluster = load_cluster(imported(tmp_path, "nccl-tests", file))
    assert (cluster.num_nodes, cluster.gpus_per_node, cluster.gpu.name) == (nodes, 8, "h100-sxm-80gb")
    curve = collectives.curve(collective_rates(), cluster.levels, op, 8 * nodes, 1)
    bare = float(curve.latency_s[0] + curve.s_per_byte[0] * 2**32)
    assert bare == pytest.approx(measured_s, rel=0.01)


def test_the_topology_of_nccl_has_gpus_and_the_fast_nics(tmp_path: Path) -> None:
    out = imported(tmp_path, "nccl-topo-xml", "nccl_topo.xml", "--nodes", "4")
    cluster = load_cluster(out)
    assert (cluster.num_gpus, cluster.gpu.name) == (32, "h100-sxm-80gb")
    assert cluster.levels[-1].bw_bytes_per_s == 50e9
    assert "# NICs of 25, 400 Gb/s: only the fastest are counted" in out.read_text()


def test_slurm_leaves_out_what_is_down_or_has_no_gpu(tmp_path: Path) -> None:
    out = imported(tmp_path, "slurm", "scontrol_nodes.txt")
    found = json.loads(run_here("profile", "import", "slurm", str(SAMPLES / "scontrol_nodes.txt"), "--json").out)
    assert found["cluster"]["hosts"] == ["gpu001", "gpu002", "gpu003"]
    assert found["cluster"]["groups"][0]["host_memory"] == "2015 GiB"
    assert "# left out, down or drained: gpu004" in out.read_text()


def test_kubernetes_groups_by_gpu_and_leaves_out_cordoned_nodes() -> None:
    found = json.loads(run_here("profile", "import", "k8s-nodes", str(SAMPLES / "kubectl_nodes.json"), "--json").out)
    groups = found["cluster"]["groups"]
    assert [(group["gpu"], group["count"]) for group in groups] == [("h100-sxm-80gb", 2), ("a100-sxm-80gb", 1)]
    assert "ip-10-0-1-13" in found["notes"][0]


def test_mpigraph_gives_a_matrix_that_the_plan_places_by(tmp_path: Path) -> None:
    out = imported(tmp_path, "mpigraph", "mpigraph.out", "--gpu", "h100", "--gpus-per-node", "8")
    out.write_text(out.read_text().replace("  count: 4", "  count: 4\n  nics: 1\n  nic_bandwidth: 200 Gb/s"))
    cluster = load_cluster(out)
    assert cluster.hosts == ("node0", "node1", "node2", "node3")
    assert cluster.links is not None
    assert cluster.links.bw_bytes_per_s[0][1] == pytest.approx(23503.1 * 2**20, rel=1e-3)
    assert cluster.links.bw_bytes_per_s[2][0] == pytest.approx((7361.402 + 34.6) * 2**20, rel=1e-3)


def test_a_node_of_nvidia_smi_has_the_nics_near_its_gpus() -> None:
    found = IMPORTERS["nvidia-smi-topo"].read("topo", text("nvidia_smi_topo.txt"))
    assert (found.groups[0].gpus_per_node, found.groups[0].nics) == (8, 8)
    assert "2 NICs are near no GPU, and left out" in found.notes
    mixed = text("nvidia_smi_topo.txt").replace("NV18", "PIX", 1)
    assert "joined in different ways (NV18, PIX)" in IMPORTERS["nvidia-smi-topo"].read("topo", mixed).notes[2]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("nccl-tests", ("#  Rank", "#"), "who took part?"),
        ("nccl-tests", ("_perf", "_bench"), "does not name the collective"),
        ("nccl-tests", ("       0  ", "      12  "), "line 26: 12 wrong results at 1048576 bytes"),
        ("nvidia-smi-topo", ("\nGPU3\t", "\nGPUx\t"), "the row of GPU3 is not whole"),
        ("nccl-topo-xml", ("</gpu>", "</gp>"), "line 10: is not XML"),
        ("nccl-topo-xml", ("<gpu ", "<cpu2 "), "is not XML"),
        ("slurm", ("gpu:h100:8(S:0-1)", "(null)"), "no node with GPUs that is up (1 down or drained, 4 without Gres)"),
        ("slurm", ("NodeName=gpu002", "NodeName=gpu001"), "gpu001 given twice"),
        ("slurm", ("RealMemory=2063837", "RealMemory=2T"), "line 1: gpu001: RealMemory `2T` is no number of MiB"),
        ("k8s-nodes", ('"items": [', '"items": [,'), "is not JSON"),
        ("k8s-nodes", ('"metadata"', '"meta"'), "is no list of nodes"),
        ("mpigraph", ("7396.002", "0.000"), "the matrix has a hole"),
        ("mpigraph", ("node2:2 to", "node9:2 to"), "the row of node2:2 with 4 numbers is missing"),
        ("mpigraph", ("node1:1", "node0:1"), "several tasks on node0"),
        ("hostfile", ("worker-1 slots=8", "worker-1 slots=eight"), "line 3: `worker-1 slots=eight` is no host"),
        ("hostfile", ("worker-1", "worker-0"), "worker-0 given twice"),
    ],
)
def test_damaged_files_are_refused_with_the_line(name: str, change: tuple[str, str], said: str) -> None:
    before = text(FILES[name])
    after = before.replace(*change)
    assert after != before
    with pytest.raises(InputError) as caught:
        IMPORTERS[name].read(FILES[name], after)
    assert said in f"{caught.value}"


def test_what_nobody_says_is_asked_for(tmp_path: Path) -> None:
    done = run_here("profile", "import", "mpigraph", str(SAMPLES / "mpigraph.out"))
    assert done.code == 2
    assert "does not name the GPU" in done.err
    assert "lacks the number of GPUs of a node" in done.err
    other = tmp_path / "x.txt"
    other.write_text("no such format, at all!\n")
    done = run_here("profile", "import", "auto", str(other))
    assert done.code == 2
    assert all(name in done.err for name in IMPORTERS)
    done = run_here("profile", "import", "slrm", str(other))
    assert done.code == 2
    assert "did you mean `slurm`" in done.err
    done = run_here("profile", "import", "slurm", str(SAMPLES / "kubectl_nodes.json"))
    assert done.code == 2
    assert "it looks like k8s-nodes" in done.err
    other.write_text("")
    assert "the file is empty" in run_here("profile", "import", "auto", str(other)).err
