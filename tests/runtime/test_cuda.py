"""What only a GPU can show. Without one these are skipped; the same modules and schedules are tested on CPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from meshwright.planner import api
from meshwright.runtime.model import grouped
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.parallel.sharding import squared_norm
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from ..snapshots import ROOT, environment
from .jobs import gpt, job, llama

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
BF16_LOSS = 2e-2  # relative: 8 bits of mantissa, over few layers


@gpu
@pytest.mark.parametrize("model", [llama(), gpt()], ids=["llama", "gpt"])
@pytest.mark.parametrize("recompute", ["rnone", "rfull", "rsel(norm+act)"])
def test_losses_are_those_of_the_cpu(model: object, recompute: str) -> None:
    losses = {}
    for device, dtype in (("cpu", "fp32"), ("cuda", "bf16")):
        wanted = replace(
            job(f"dp1-mbs1-z0-{recompute}", model), dtype=dtype, optimizer="adamw", learning_rate=1e-3,  # type: ignore[arg-type]
        )  # fmt: skip
        mesh = build_mesh(wanted.layout, 0, Status(rank=0), 60.0)
        trainer = Trainer(wanted, mesh, torch.device(device))
        losses[device] = [trainer.step(index).loss for index in range(3)]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=BF16_LOSS)


@gpu
def test_launch_trains_over_nccl_and_reports_what_the_gpu_holds(tmp_path: Path) -> None:
    plan = api.evaluate(None, "dp1-mbs1-z0-rfull", model="qwen3-0.6b", gpu="h100", gpus=1, seq_len=2048, global_batch=2)
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    report = tmp_path / "run.json"
    words = [sys.executable, "-m", "meshwright", "launch", str(tmp_path / "plan.json"), "--steps", "3", "--device",
             "cuda", "--report", str(report)]  # fmt: skip
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["environment"]["backend"] == "nccl"
    (held,), (reserved,), (used,) = (found[f"{name}_memory_bytes"] for name in ("peak", "reserved", "device"))
    assert held <= reserved <= used
    assert found["memory"][0]["predicted_bytes"] == pytest.approx(held, rel=0.05)


@gpu
@pytest.mark.parametrize("counts", [(5, 0, 131, 64), (0, 0, 7, 0), (256, 256, 256, 256), tuple(range(60))])
def test_products_of_experts_in_one_kernel_are_those_one_by_one(
    counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def results() -> list[torch.Tensor]:
        draw = torch.Generator("cuda").manual_seed(0)
        x, weight = (
            torch.randn(*shape, generator=draw, device="cuda", dtype=torch.bfloat16).requires_grad_()
            for shape in ((sum(counts), 256), (len(counts), 96, 256))
        )
        out = grouped.linear(x, weight, None, counts)
        gradient = torch.randn(out.shape, generator=draw, device="cuda", dtype=out.dtype)
        return [out, *torch.autograd.grad(out, (x, weight), gradient)]

    x = torch.zeros(1, 256, device="cuda", dtype=torch.bfloat16)
    assert grouped.has_kernel(x, 96, 256)
    assert not grouped.has_kernel(x, 92, 256)
    at_once = results()
    monkeypatch.setattr(grouped, "has_kernel", lambda *_: False)
    for found, expected in zip(at_once, results(), strict=True):
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_the_norm_of_a_long_gradient_is_exact_and_needs_no_second_one() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    part = torch.randn(1 << 23, generator=torch.Generator().manual_seed(0)).mul_(1e-3).add_(1e-3).to(device)
    exact = float(part.double().square().sum())
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        found = float(squared_norm(part))
    assert found == pytest.approx(exact, rel=1e-6 if device.type == "cuda" else 1e-12)
    made = [event.cpu_memory_usage for event in profile.events() if event.key == "aten::empty_strided"]
    assert max(made, default=0) <= part.numel()  # an eighth of a copy in float64
