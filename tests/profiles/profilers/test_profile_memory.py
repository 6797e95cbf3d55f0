"""`profile memory`: bytes of a real run beside those of the plan, and the overheads that a GPU tells."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from meshwright.cli.profiling.memory import (
    LayoutMemory,
    MemoryOverheads,
    MemoryProfile,
    overheads,
    profile_text,
    screen,
)

from ...cli.test_screens import drawn
from ...snapshots import run_here

TINY = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_hidden": 96, "vocab": 256, "max_positions": 64}
GIB = 2**30


def words(folder: Path, *more: str) -> list[str]:
    model = folder / "tiny.yaml"
    model.write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return ["profile", "memory", "--model", str(model), "--gpu", "h200", "--seq-len", "64", "--global-batch", "2",
            "--quick", "--device", "cpu", *more]  # fmt: skip


def of_a_gpu() -> MemoryProfile:
    planned = {"allocated_bytes": 20.0 * GIB, "reserved_bytes": 21.0 * GIB, "device_bytes": 22.5 * GIB}
    sizes = ((20.0, 20.2, 20.9), (10.0, 10.3, 11.1), (40.0, 44.0, 44.6))
    names = tuple(planned)
    layouts = [LayoutMemory(f"dp1-mbs{i}-z0-rnone", planned=planned,
                            measured=dict(zip(names, [size * GIB for size in three], strict=True)))
               for i, three in enumerate(sizes, 1)]  # fmt: skip
    about = {"device": "NVIDIA H200", "torch": "2.11.0", "world_size": 1}
    return MemoryProfile(model="tiny", gpu=None, environment=about, layouts=layouts, overheads=overheads(layouts))


def test_overheads_are_those_of_the_runs() -> None:
    measured = of_a_gpu().overheads
    assert isinstance(measured, MemoryOverheads)
    assert asdict(measured) == pytest.approx(
        {"reserve_share": 0.03, "largest_reserve_share": 0.1, "context_bytes": 0.7 * GIB}
    )
    text = drawn(screen(of_a_gpu(), saved_as=None))
    assert "reserved on top: 3.0% (at most 10.0%); the planner counts 5.0%" in text
    assert "in use beside: 0.7 GiB; the planner counts 1.5" in text


def test_the_file_has_units_and_reads_back() -> None:
    found = yaml.safe_load(profile_text(of_a_gpu(), "2026-11-21"))
    assert found["overheads"] == {"reserve_share": 0.03, "largest_reserve_share": 0.1, "context": "716.8 MiB"}
    assert found["layouts"][0]["measured"]["allocated"] == f"{20 * 1024:.1f} MiB"


@pytest.mark.slow
def test_a_run_holds_what_was_planned(tmp_path: Path) -> None:
    out = tmp_path / "memory.yaml"
    done = run_here(*words(tmp_path, "--gpus", "1", "--layout", "dp1-mbs2-z0-rnone", "-o", str(out)))
    assert done.code == 0, done
    found = yaml.safe_load(out.read_text(encoding="utf-8"))
    (layout,) = found["layouts"]
    measured, planned = (float(layout[side]["allocated"].removesuffix(" MiB")) for side in ("measured", "planned"))
    assert planned == pytest.approx(measured, rel=0.05)
    assert float(found["overheads"]["context"].removesuffix(" MiB")) > 50  # torch itself
    assert found["overheads"]["reserve_share"] >= 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--gpus", "16"), "trains on this machine alone"),
        (("--gpus", "1", "--resume"), "memory has none"),
        (("--gpus", "1", "--device", "tpu"), "none of auto, cuda, cpu"),
    ],
)
def test_bad_input_is_said(tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    done = run_here(*words(tmp_path, *more))
    assert done.code == 2
    assert said in done.err
