"""`profiles:` of a cluster file: constants that `profile kernels` and `profile memory` measured price its plans."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from meshwright.cli.profiling.memory import profile_text
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.io.registry import gpu_entry
from meshwright.profiles.profilers import storage
from meshwright.profiles.rates.device_rates import surfaces_for

from meshwright.errors import InputError

from ...snapshots import run_here
from ..profilers.test_profile_memory import GIB, TINY, of_a_gpu

LAYOUT = "tp2-dp4-mbs1-z1-rfull"


def cluster(folder: Path, gpu: str = "h200", **files: object) -> Path:
    """A cluster file of one node, and the profiles that it names."""
    for name, document in files.items():
        text = document if isinstance(document, str) else yaml.safe_dump(document)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    document = {"groups": [{"gpu": gpu, "gpus_per_node": 8, "count": 1}],
                **({"profiles": [f"{name}.yaml" for name in files]} if files else {})}  # fmt: skip
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def kernels(gpu: str = "h200-sxm-141gb", **efficiencies: float) -> dict[str, object]:
    return {"kind": "kernel-profile", "date": "2026-11-22", "gpu": gpu, "efficiencies": efficiencies}


def priced(path: Path) -> Plan:
    return api.evaluate(None, LAYOUT, model="llama-3.1-8b", cluster=str(path), seq_len=4096, global_batch=64)


def terms(path: Path) -> dict[str, float]:
    return {term.name: term.seconds for term in priced(path).candidates[0].terms}


def test_what_ships_written_out_changes_nothing(tmp_path: Path) -> None:
    device = surfaces_for(gpu_entry("h200").spec)
    attention = load_attention_factor()
    same = kernels(gemm=device.gemm["bf16"].training_factor, attention=attention, fused=device.fused_memory_efficiency)
    assert terms(cluster(tmp_path, kernels=same)) == pytest.approx(terms(cluster(tmp_path)), rel=1e-9)


def load_attention_factor() -> float:
    return surfaces_for(gpu_entry("h200").spec).attention["flash3"].training_factor


def test_each_efficiency_moves_its_own_term(tmp_path: Path) -> None:
    before = terms(cluster(tmp_path))
    device = surfaces_for(gpu_entry("h200").spec)
    attention = terms(cluster(tmp_path, kernels=kernels(attention=load_attention_factor() / 2)))
    assert attention["attention"] > 1.5 * before["attention"]
    assert attention["matmul"] == before["matmul"]
    gemm = terms(cluster(tmp_path, kernels=kernels(gemm=device.gemm["bf16"].training_factor / 2)))
    assert gemm["matmul"] > 1.5 * before["matmul"]
    assert gemm["attention"] == before["attention"]
    fused = terms(cluster(tmp_path, kernels=kernels(fused=device.fused_memory_efficiency / 2)))
    assert fused["norms, elementwise"] > 1.5 * before["norms, elementwise"]


def test_memory_is_what_was_measured_beside_tensors(tmp_path: Path) -> None:
    text = profile_text(of_a_gpu(), "2026-11-22")
    (stage,) = priced(cluster(tmp_path, memory=text)).candidates[0].memory
    assert stage.reserved_bytes == pytest.approx(1.03 * stage.allocated_bytes, rel=1e-6)
    (before,) = priced(cluster(tmp_path)).candidates[0].memory
    assert stage.allocated_bytes == before.allocated_bytes
    assert stage.device_bytes - stage.reserved_bytes == pytest.approx(
        before.device_bytes - before.reserved_bytes + (0.7 - 1.5) * GIB, rel=1e-3)  # fmt: skip


def test_profiles_of_another_gpu_are_warned_of_and_not_used(tmp_path: Path) -> None:
    other = cluster(tmp_path, kernels=kernels("a100-sxm-80gb", gemm=0.1))
    assert any("kernels.yaml: measured on a100-sxm-80gb, the cluster has h200-sxm-141gb: not used" in warning.text
               for warning in load_cluster(other).warnings)  # fmt: skip
    assert terms(other) == terms(cluster(tmp_path))


def test_a_profile_of_one_of_two_gpus_is_of_its_own_groups(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    groups = [{"node": "dgx-h100", "count": 2}, {"node": "dgx-a100-80gb", "count": 2}]
    of_each = {name: kernels(name, gemm=share) for name, share in (("h100-sxm-80gb", 0.7), ("a100-sxm-80gb", 0.5))}
    path.write_text(yaml.safe_dump({"groups": groups, "profiles": list(of_each.values())}))
    found = load_cluster(path)
    assert [group.measured for group in found.groups] == [{"gemm": 0.7}, {"gemm": 0.5}]
    assert found.measured == {"gemm": 0.5}  # an even plan runs at the speed of the weaker
    assert not any("not used" in warning.text for warning in found.warnings)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"kind": "kernels"}, "`kernels` is none of kernel-profile, memory-profile, storage-profile"),
        (kernels(), "says nothing of gemm, attention or fused"),
        (kernels(gemm=-1.0), "`-1.0` must be a share above zero"),
        ({"kind": "memory-profile", "overheads": {"context": "7"}}, "has no unit"),
        ("a: [", "not valid YAML"),
    ],
)
def test_damaged_profiles_are_refused(tmp_path: Path, document: object, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_cluster(cluster(tmp_path, kernels=document))
    assert said in f"{caught.value}"


def test_the_plan_keeps_what_was_measured(tmp_path: Path) -> None:
    plan = priced(cluster(tmp_path, kernels=kernels(gemm=0.5)))
    assert [group["measured"] for group in plan.resolved["cluster"]["groups"]] == [{"gemm": 0.5}]
    missing = cluster(tmp_path)
    missing.write_text(missing.read_text() + "profiles: [none.yaml]\n")
    with pytest.raises(InputError, match=r"none\.yaml"):
        load_cluster(missing)
    missing.write_text(missing.read_text().replace("[none.yaml]", "none.yaml"))
    with pytest.raises(InputError, match="must list files"):
        load_cluster(missing)


ALL = ("profile", "all", "--model", "llama-3.2-1b", "--gpu", "h200", "--gpus", "2", "--ranks", "2", "--device", "cpu")


def test_all_shows_what_it_would_measure(tmp_path: Path) -> None:
    done = run_here(*ALL, "--dry-run", "-o", str(tmp_path / "node.yaml"))
    assert done.code == 0, done
    for said in ("alone", "kernels; calls per micro-batch", "steps each of", "host memory"):
        assert said in done.out
    assert list(tmp_path.iterdir()) == []
    assert "writes files" in run_here(*ALL, "--json", "-o", str(tmp_path / "node.yaml")).err
    (tmp_path / "node.memory.yaml").write_text("kept")
    done = run_here(*ALL, "-o", str(tmp_path / "node.yaml"))
    assert done.code == 2
    assert "node.memory.yaml" in done.err


@pytest.mark.slow
def test_all_of_this_machine_into_one_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "BYTES", {True: 1 << 24, False: 1 << 24})
    model = tmp_path / "tiny.yaml"
    model.write_text(yaml.safe_dump(TINY))
    out = tmp_path / "node.yaml"
    done = run_here("profile", "all", "--model", str(model), "--gpu", "h200", "--gpus", "2", "--seq-len", "64",
                    "--global-batch", "2", "--ranks", "2", "--quick", "--device", "cpu", "-o", str(out),
                    "--layout", "dp2-mbs1-z1-rnone")  # fmt: skip
    assert done.code == 0, done
    written = {path.name for path in tmp_path.glob("node*.yaml")}
    assert written == {"node.yaml", "node.kernels.yaml", "node.memory.yaml", "node.storage.yaml"}
    found = load_cluster(out)
    assert (found.num_gpus, found.measured) == (2, {})  # a CPU tells nothing of an H200
    assert [level.kind for level in found.levels] == ["measured-node"]
