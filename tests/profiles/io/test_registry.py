"""profiles/io/registry.py and the catalogue: all files load, all values have a source, all spellings resolve."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models import units
from meshwright.planner.search.executors import opened
from meshwright.profiles.io import registry
from meshwright.profiles.io.folders import CATALOGUE
from meshwright.profiles.io.reader import read_document

from meshwright.errors import InputError, UnknownNameError

MIB = 2**20

# Every spelling met in hardware tables, in published runs, in profiler data and on the command line.
GPU_SPELLINGS = {
    "a100-sxm-40gb": "A100-SXM4-40GB a100_sxm_40g A100-40G a100.sxm.40gb",
    "a100-sxm-80gb": "A100-SXM4-80GB a100_sxm_80g a100_sxm a100 A100-80 a100_80g",
    "a100-pcie-80gb": "A100-PCIe-80GB a100_pcie A100-PCIe",
    "a800-sxm-80gb": "A800-SXM4-80GB a800",
    "ascend-910b": "Ascend-910B 910b",
    "a10g": "A10G",
    "b200-sxm-180gb": "B200-SXM-180GB b200_sxm B200-SXM b200",
    "b300-sxm-288gb": "B300-SXM-288GB b300_sxm B300-SXM",
    "gaudi2": "Gaudi2",
    "gaudi3": "Gaudi3 GAUDI-3",
    "gb200-186gb": "GB200-186GB gb200_nvl72 GB200 gb200",
    "gb300-288gb": "GB300-288GB gb300_nvl72 GB300",
    "h100-hbm2e-96gb": "h100_96g_hbm2e_500w",
    "h100-nvl-94gb": "H100-NVL-94GB h100_nvl",
    "h100-pcie-80gb": "H100-PCIe-80GB h100_pcie",
    "h100-sxm-80gb": "H100-SXM5-80GB h100_sxm_80g h100_sxm h100 H100_SXM_80GB h100.sxm.80gb",
    "h20-sxm-96gb": "H20-SXM-96GB h20",
    "h200-sxm-141gb": "H200-SXM-141GB h200_sxm H200-SXM h200",
    "h800-sxm-80gb": "H800-SXM5-80GB h800",
    "l4": "L4",
    "l40s": "L40S",
    "mi250x-gcd": "MI250X-GCD mi250x",
    "mi300x": "MI300X",
    "mi325x": "MI325X",
    "mi350x": "MI350X",
    "mi355x": "MI355X",
    "t4": "T4 Tesla-T4",
    "r100-sxm-288gb": "R100-SXM-288GB r100",
    "rtx-3090": "RTX-3090 rtx3090",
    "rtx-4090": "RTX-4090",
    "rtx-5090": "RTX-5090",
    "rtx-pro-6000-server": "RTX-PRO-6000-Server rtx_pro_6000_server rtx_pro_6000",
    "tpu-v4": "TPU-v4",
    "tpu-v5e": "TPU-v5e",
    "tpu-v5p": "TPU-v5p",
    "tpu-v6e": "TPU-v6e trillium",
    "tpu7x-core": "TPU7x Ironwood",
    "trainium1": "Trainium1 trn1",
    "trainium1-core": "trn1_core",
    "trainium2": "Trainium2 trn2",
    "vr200-288gb": "VR200-288GB vr200 VRNVL72",
    "v100-sxm-16gb": "V100-SXM2-16GB v100",
    "v100-sxm-32gb": "V100-SXM2-32GB V100-32GB V100-32",
    "xeon-8470": "Xeon-Platinum-8470 xeon_8470",
}
STATED = [  # as published runs print them
    ("NVIDIA A100 SXM4 40GB", "a100-sxm-40gb"),
    ("NVIDIA A100 SXM4 80GB", "a100-sxm-80gb"),
    ("NVIDIA B200 SXM 180GB", "b200-sxm-180gb"),
    ("NVIDIA B300 SXM 288GB", "b300-sxm-288gb"),
    ("NVIDIA H100 SXM5 80GB", "h100-sxm-80gb"),
    ("NVIDIA H200 141GB", "h200-sxm-141gb"),
    ("NVIDIA H200 SXM5 141GB", "h200-sxm-141gb"),
]
NODE_SPELLINGS = """
DGX-1V Selene DGX-H100 HGX-H200 DGX-B200 DGX-B300 GB200-NVL72 GB300-NVL72 VR200-NVL72 HGX-Rubin-NVL8 AWS-p3.16xlarge
AWS-p3dn.24xlarge AWS-p4d.24xlarge AWS-p4de.24xlarge AWS-p5.48xlarge AWS-p5e.48xlarge AWS-p5en.48xlarge
AWS-p6-b200.48xlarge AWS-p6-b300.48xlarge AWS-g5.48xlarge AWS-trn1.32xlarge AWS-trn2.48xlarge Azure-ND-A100-v4
Azure-ND-H100-v5 Azure-ND-GB200-v6 GCP-a2-highgpu-8g GCP-a2-ultragpu-8g GCP-a3-highgpu-8g GCP-a3-megagpu-8g
GCP-a3-ultragpu-8g GCP-v5p-host GCP-v5e-host GCP-v6e-host GCP-tpu7x-host Lambda-8xH100-SXM Lambda-8xB200-SXM
Lambda-8xA100-40 AWS-trn1.32xlarge-cores GCP-v4-host
Lambda-8xV100 Meta-Grand-Teton-H100 Frontier Perlmutter MI300X-8x-OAM Gaudi2-8x Gaudi3-8x Ascend-910B-8x
Xeon-8470-2s
"""
SPELLINGS = [(text, name) for name, texts in GPU_SPELLINGS.items() for text in (name, *texts.split())] + STATED


def test_the_catalogue_is_complete() -> None:
    assert set(registry.gpu_names()) == set(GPU_SPELLINGS)
    assert len(registry.gpu_names()) >= 36
    assert len(registry.node_names()) >= 43


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS)
def test_gpu_spellings(spelling: str, name: str) -> None:
    assert registry.load_gpu(spelling).name == name


@pytest.mark.parametrize("spelling", NODE_SPELLINGS.split())
def test_node_spellings(spelling: str) -> None:
    assert registry.load_node(spelling).name == spelling.lower()


def test_node_aliases() -> None:
    assert registry.load_node("dgx-a100").name == "dgx-a100-80gb"
    assert registry.load_node("P5_48XLARGE").name == "aws-p5.48xlarge"
    assert registry.load_node("hgx-h100").name == "dgx-h100"


def test_aliases_name_entries_that_exist_and_no_spelling_is_given_twice() -> None:
    for folder, names in (("hardware", registry.gpu_names()), ("nodes", registry.node_names())):
        table = read_document(CATALOGUE / folder / "_aliases.yaml").data
        assert set(table) <= set(names)
        spellings = [registry.normalise(str(text)) for texts in table.values() for text in texts]
        assert len(spellings) == len(set(spellings))
        assert not set(spellings) & {registry.normalise(name) for name in names}


@pytest.mark.parametrize("name", registry.gpu_names())
def test_every_gpu_value_has_unit_and_source(name: str) -> None:
    facts = registry.gpu_facts(name)
    dimensions = {"peak": "FLOP/s", "memory": "B", "clock": "Hz", "tdp": "W", "link": "B/s", "pcie": "B/s"}
    for field, fact in facts.items():
        if field in ("name", "vendor", "arch", "plan_only", "usual_node", "usual_stack", "devices_per_chip",
                     "link.kind", "link.topology", "link.axes", "link.count", "link.pair"):  # fmt: skip
            continue
        assert fact["source"], field
        assert fact.get("confirmed", False) is False, field  # only ever said where it is false
        assert ("from memory" not in fact["source"]) or fact.get("confirmed") is False, field
        head = field.split(".")[0]
        dimension: Any = "B/s" if field.endswith("bandwidth") else dimensions.get(head)
        if dimension:
            assert units.parse(fact["value"], dimension) > 0
    assert facts["name"]["value"] == name
    entry = registry.gpu_entry(name)
    if entry.usual_node:
        assert registry.load_node(entry.usual_node)


@pytest.mark.parametrize("name", registry.node_names())
def test_every_node_value_has_a_source(name: str) -> None:
    facts = registry.node_facts(name)
    for field, fact in facts.items():
        if field not in ("name", "gpu", "fabric.kind"):
            assert fact["source"], field
            assert ("from memory" not in fact["source"]) or fact.get("confirmed") is False, field
    node = registry.load_node(name)
    assert registry.gpu_name(node.gpu) == node.gpu
    assert node.gpus_per_node >= 1
    if node.nics is not None:
        assert node.nic_bw_bytes_per_s
        assert node.fabric_kind


@pytest.mark.parametrize("name", registry.gpu_names())
def test_gpu_values_are_plausible(name: str) -> None:
    gpu = registry.load_gpu(name)
    peaks = gpu.peak_flops_per_s
    assert 3e13 < max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0)) < 5e15
    if gpu.vendor == "nvidia" and "fp8" in peaks:  # dense: twice bf16, not four times
        ratio = 17.5 / 4 if "rubin" in gpu.arch else 2.0  # NVIDIA's table of Rubin: 4 PFLOP/s in bf16
        assert peaks["fp8"] / peaks["bf16"] == pytest.approx(ratio, rel=0.02)
    assert 15e9 < gpu.memory_bytes < 320e9
    assert 0.2e12 < gpu.memory_bw_bytes_per_s < 23e12
    assert 5e9 < gpu.pcie_bw_bytes_per_s <= gpu.link_bw_bytes_per_s <= 1800e9 or name == "mi250x-gcd"
    assert gpu.plan_only == (gpu.vendor in ("google", "aws", "intel", "huawei"))


DATASHEETS = [  # name, dense bf16 TFLOP/s, memory bytes, memory GB/s, link GB/s, SMs, W
    ("h100-sxm-80gb", 989.5, 81559 * MIB, 3350, 450, 132, 700),
    ("h200-sxm-141gb", 989.5, 143771 * MIB, 4800, 450, 132, 700),
    ("a100-sxm-80gb", 312, 81920 * MIB, 2039, 300, 108, 400),
    ("a100-sxm-40gb", 312, 40960 * MIB, 1555, 300, 108, 400),
    ("h800-sxm-80gb", 989.5, 81559 * MIB, 3350, 200, 132, 700),
    ("h20-sxm-96gb", 148, 97871 * MIB, 4000, 450, 78, 400),
    ("b200-sxm-180gb", 2250, 183359 * MIB, 7700, 900, 148, 1000),
    ("gb200-186gb", 2500, 189471 * MIB, 8000, 900, 152, 1200),
    ("vr200-288gb", 4000, 288e9, 22_000, 1800, 224, None),
    ("l40s", 362, 46068 * MIB, 864, 32, 142, 350),
    ("mi300x", 1307, 191.98 * 1024 * MIB, 5300, 448, 304, 750),
    ("tpu-v5p", 459, 95e9, 2765, 540, None, None),
    ("h100-hbm2e-96gb", 989.5, 96e9, 2400, 450, 132, 500),
]


@pytest.mark.parametrize(("name", "tflops", "memory", "memory_gbps", "link_gbps", "sms", "watts"), DATASHEETS)
def test_datasheets(
    name: str, tflops: float, memory: float, memory_gbps: float, link_gbps: float, sms: int | None, watts: float | None
) -> None:
    gpu = registry.load_gpu(name)
    assert gpu.peak_flops_per_s["bf16"] == pytest.approx(tflops * 1e12)
    assert gpu.memory_bytes == pytest.approx(memory)
    assert gpu.memory_bw_bytes_per_s == pytest.approx(memory_gbps * 1e9)
    assert gpu.link_bw_bytes_per_s == pytest.approx(link_gbps * 1e9)
    assert (gpu.num_sms, gpu.tdp_w) == (sms, watts)


def test_v100_has_no_bf16() -> None:
    gpu = registry.load_gpu("v100")
    assert "bf16" not in gpu.peak_flops_per_s
    assert gpu.peak_flops_per_s["fp16"] == 125e12


def test_unconfirmed_values_are_listed() -> None:
    assert registry.load_gpu("h100").unconfirmed == ()
    assert {"peak.bf16", "memory.capacity", "link.bandwidth"} <= set(registry.load_gpu("ascend-910b").unconfirmed)


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError) as caught:
        registry.load_gpu("h100sxm")
    assert caught.value.message == "unknown GPU `h100sxm`"
    assert "did you mean `h100-sxm-80gb`" in caught.value.hint
    assert "`meshwright show gpus` lists all" in caught.value.hint
    with pytest.raises(UnknownNameError, match="unknown node `dgx-h10`"):
        registry.load_node("dgx-h10")


def test_one_file_is_read_for_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(path: Path) -> Any:
        read.append(path.name)
        return read_document(path)

    registry._read_gpu.cache_clear()
    monkeypatch.setattr(registry, "read_document", counted)
    registry.load_gpu("h100-sxm-80gb")
    assert read == ["h100-sxm-80gb.yaml"]


OWN_GPU = """\
name: h100-sxm-80gb
vendor: nvidia
peak: {bf16: 700 TFLOP/s}
memory: {capacity: 80 GB, bandwidth: 3 TB/s}
link: {kind: nvlink4, topology: switch, bandwidth: 450 GB/s}
pcie: {bandwidth: 64 GB/s}
"""


def test_own_profiles_add_and_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "h100-sxm-80gb.yaml").write_text(OWN_GPU)
    (tmp_path / "hardware" / "x1.yaml").write_text(OWN_GPU.replace("name: h100-sxm-80gb", "name: x1"))
    (tmp_path / "hardware" / "_aliases.yaml").write_text("x1: [my-chip]\n")
    monkeypatch.setenv(registry.PATH_VARIABLE, str(tmp_path))
    assert registry.load_gpu("h100").peak_flops_per_s == {"bf16": 700e12}
    assert registry.load_gpu("My_Chip").name == "x1"
    assert registry.load_gpu("a100").name == "a100-sxm-80gb"
    monkeypatch.setenv(registry.PATH_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"--profiles-path\): no folder"):
        registry.load_gpu("h100")


def name_of_a_worker(name: str) -> str:
    """Runs in a spawned process."""
    return registry.gpu_name(name)


def test_a_given_search_path_replaces_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "x1.yaml").write_text(OWN_GPU.replace("name: h100-sxm-80gb", "name: x1"))
    monkeypatch.setenv(registry.PATH_VARIABLE, str(tmp_path / "nowhere"))
    with registry.searching(str(tmp_path)):
        assert registry.is_gpu("x1")
        with opened(2) as workers:
            assert list(workers.run(name_of_a_worker, ["X1"])) == [(0, "x1")]
    assert registry.search_path() == str(tmp_path / "nowhere")


def test_all_problems_of_a_profile_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "bad.yaml").write_text(
        "vendor: nvidia\npeak: {bf16: 989}\nmemory: {capacity: 80 GB, bandwith: 3 TB/s}\n"
        "link: {kind: nvlink9, topology: switch, bandwidth: 450 GB/s}\npcie: {bandwidth: -1 GB/s}\n"
    )
    monkeypatch.setenv(registry.PATH_VARIABLE, str(tmp_path))
    with pytest.raises(InputError) as caught:
        registry.load_gpu("bad")
    lines = [re.sub(r"^.*bad\.yaml, ", "", line) for line in caught.value.message.splitlines()]
    assert "line 2, peak.bf16: 989 has no unit" in lines
    assert "line 3, memory.bandwith: unknown key `bandwith`" in lines
    assert "line 3, memory.bandwidth: `bandwidth` is missing" in lines
    assert any(line.startswith("line 4, link.kind: `nvlink9` is not one of") for line in lines)
    assert "line 5, pcie.bandwidth: `-1 GB/s` is negative" in lines
