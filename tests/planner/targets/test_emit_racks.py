"""Racks in emitted files: what HybridEP is told of NVLink, and which nodes Slurm keeps together."""

from __future__ import annotations

import pytest
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit

JOINED = "export NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN="


def files_of(cluster: str, layout: str, target: str = "megatron", dispatcher: str = "hybridep") -> dict[str, str]:
    asked = {"model": "qwen3-30b-a3b", "cluster": cluster, "target": target, "fix": {"moe_dispatcher": dispatcher},
             "workload": {"seq_len": 4096, "global_batch": 1152}}  # fmt: skip
    return dict(emit(api.evaluate(request_from_dict(asked), layout), target, "slurm").files)


@pytest.mark.parametrize(("cluster", "layout", "joined", "domain", "across"), [
    ("dgx-h100:2", "dp16-ep4-mbs1-z1-rnone", 4, 8, 0),
    ("dgx-h100:2", "dp16-ep16-mbs1-z1-rnone", 8, 8, 0),
    ("dgx-h100:2", "tp2-dp8-ep8-etp2-mbs1-z1-rnone", 4, 8, 0),
    ("gb200-nvl72:16", "dp64-ep64-mbs1-z1-rnone", 64, 64, 1),
    ("gb200-nvl72:32", "dp128-ep128-mbs1-z1-rnone", 64, 64, 1),  # two racks of 16 nodes, which Bridge refuses
    ("gb200-nvl72:36", "dp144-ep16-mbs1-z1-rnone", 8, 72, 1),  # groups lie across the edge of a rack
    ("gb200-nvl72:1", "dp4-ep4-mbs1-z1-rnone", 4, 4, 0),
])  # fmt: skip
@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_hybridep_is_told_which_ranks_nvlink_joins(
    cluster: str, layout: str, joined: int, domain: int, across: int, target: str
) -> None:
    """apply_target_topology_environment of Megatron-Bridge (scripts/performance/utils/utils.py), and ep beyond it."""
    if target == "megatron-bridge" and "ep128" in layout:
        with pytest.raises(LayoutRefusedError, match="72 ranks at most on racks, not to ep 128"):
            files_of(cluster, layout, target)
        return
    files = files_of(cluster, layout, target)
    assert f"{JOINED}{joined}\n" in files["launch.sh"]
    assert f"export NVLINK_DOMAIN_SIZE={domain}\n" in files["launch.sh"]
    assert f"export USE_MNNVL={across}\n" in files["launch.sh"]
    assert check_files(files).problems == []


@pytest.mark.parametrize(("layout", "dispatcher"), [
    ("dp16-ep8-mbs1-z1-rnone", "deepep"), ("dp16-ep8-mbs1-z1-rnone", "alltoall"), ("dp16-mbs1-z1-rnone", "hybridep"),
])  # fmt: skip
def test_others_are_told_nothing(layout: str, dispatcher: str) -> None:
    assert "NVL" not in files_of("dgx-h100:2", layout, dispatcher=dispatcher)["launch.sh"]


@pytest.mark.parametrize("value", ["3", "0", "all", "16"])
def test_a_number_that_does_not_divide_the_experts_ranks_is_refused(value: str) -> None:
    files = files_of("dgx-h100:2", "dp16-ep8-mbs1-z1-rnone")
    files["launch.sh"] = files["launch.sh"].replace(f"{JOINED}8", f"{JOINED}{value}")
    problem, = check_files(files).problems
    assert problem.field == "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
    assert problem.file == "launch.sh"
    assert f"is {value}, which does not divide --expert-model-parallel-size 8" in problem.message


@pytest.mark.parametrize(("cluster", "layout", "segment"), [
    ("dgx-h100:2", "dp16-ep8-mbs1-z1-rnone", None), ("gb200-nvl72:1", "dp4-ep4-mbs1-z1-rnone", None),
    ("gb200-nvl72:2", "dp8-ep8-mbs1-z1-rnone", 2), ("gb200-nvl72:18", "dp72-ep8-mbs1-z1-rnone", 18),
    ("gb200-nvl72:32", "dp128-ep64-mbs1-z1-rnone", 16),
])  # fmt: skip
def test_slurm_keeps_the_nodes_of_a_rack_together(cluster: str, layout: str, segment: int | None) -> None:
    script = files_of(cluster, layout)["launch.sbatch"]
    assert ("#SBATCH --segment=" in script) == (segment is not None)
    assert segment is None or f"#SBATCH --segment={segment}\n" in script
