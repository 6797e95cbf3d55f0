"""CPUs as devices that serve: a token of an answer takes the reading of the weights, and two sockets halve it.

LLM inference on CPUs (arXiv 2407.07304): tensor parallelism over sockets splits the weights that each reads.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.api import plan_serving
from meshwright.planner.document.serving_plan import ServingPlan
from meshwright.planner.explain.serving import explain_serving
from meshwright.planner.targets.engines.emit import emit_serving

from meshwright.errors import UnsupportedError

from ...snapshots import run_here

PEAK_BYTES_PER_S = 8 * 8 * 4.8e9  # eight channels of DDR5-4800, 8 bytes each


def planned(sockets: int, concurrency: int = 1, **asked: Any) -> ServingPlan:
    given = {"fix": {"tp": sockets, "pp": 1, "replicas": 1}, **asked}
    return plan_serving(model="llama-2-7b", cluster=f"{sockets}xxeon-8470", input=512, output=128,
                        concurrency=concurrency, top=1, **given)  # fmt: skip


@pytest.mark.parametrize("concurrency", [1, 4])
def test_two_sockets_give_a_token_nearly_twice_as_fast(concurrency: int) -> None:
    one = planned(1, concurrency).best.tpot_s
    assert 1.7 <= one / planned(2, concurrency).best.tpot_s <= 2.0
    beside = planned(2, concurrency, fix={"tp": 1, "pp": 1, "replicas": 1})
    assert one / beside.best.tpot_s == pytest.approx(1.0)  # the other socket has no part in it


def test_a_token_takes_the_reading_of_the_weights() -> None:
    read_s = 2 * 6.607e9 / PEAK_BYTES_PER_S  # in bf16, without the token table, which a token reads one row of
    plan = planned(1)
    assert read_s <= plan.best.tpot_s
    reading = next(part for part in explain_serving(plan).parts if part.name == "memory bandwidth")
    assert 0.9 <= reading.tpot_s / plan.best.tpot_s <= 1.0
    assert any("no CPU was measured" in warning for warning in plan.warnings)


def test_the_script_binds_every_rank_to_the_cores_of_its_socket(tmp_path: Path) -> None:
    """Two sockets of two cores with two threads each."""
    threads = [f"{cpu},{cpu % 4},{cpu % 4 // 2}" for cpu in range(8)]
    written = {"lscpu": "#!/bin/sh\nprintf '# CPU,Core,Socket\\n" + "\\n".join(threads) + "\\n'\n",
               "vllm": "#!/bin/sh\necho $VLLM_CPU_OMP_THREADS_BIND $VLLM_CPU_KVCACHE_SPACE ${CUDA_VISIBLE_DEVICES-no}"}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def started(plan: ServingPlan, slot: str) -> list[str]:
        (tmp_path / "serve.sh").write_text(emit_serving(plan, "vllm").files["serve.sh"])
        return subprocess.run(["bash", "serve.sh", slot], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
                              text=True, capture_output=True, check=True).stdout.split()  # fmt: skip

    both = planned(2)
    assert started(both, "0") == ["0,1|2,3", str(int(both.best.pools[0].cache_bytes / 2**30)), "no"]
    each = planned(2, fix={"tp": 1, "pp": 1, "replicas": 2})
    assert [started(each, slot)[0] for slot in ("0", "1")] == ["0,1", "2,3"]


@pytest.mark.parametrize(("asked", "launcher", "message"), [
    ({"target": "sglang"}, "scripts", "sglang .* is for GPUs; vLLM has a build for CPUs"),
    ({"fix": {"tp": 1, "pp": 2}}, "scripts", "stages: vLLM's build for CPUs has none that run"),
    ({}, "dynamo", "the images of dynamo are for GPUs"),
])  # fmt: skip
def test_what_does_not_run_on_sockets_is_refused(asked: dict[str, Any], launcher: str, message: str) -> None:
    plan = planned(2, **asked)
    with pytest.raises(UnsupportedError, match=message):
        emit_serving(plan, str(plan.resolved["engine"]), launcher=launcher)


def test_the_command_plans_a_server() -> None:
    """A node of the catalogue, by its name."""
    asked = ("--model", "llama-2-7b", "--cluster", "xeon-8470-2s", "--input", "512", "--output", "128")
    screen = run_here("plan", "--workload", "serve", *asked, "--concurrency", "1", "--fix", "pp=1").out
    assert "2 xeon-8470" in screen
