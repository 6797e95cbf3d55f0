"""Plans under techniques of serving: the choice is exact, and what cannot be is refused with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.api import plan_serving
from meshwright.planner.document.reading import load_serving_plan
from meshwright.planner.explain.serving import explain_serving
from meshwright.planner.targets.engines.check import check_service
from meshwright.planner.targets.engines.emit import emit_serving

from meshwright.errors import InputError, UnsupportedError

from ...snapshots import run_here

FIELDS: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "8xa100-sxm-80gb", "input": 2000, "output": 300,
                          "ttft": "1s", "tpot": "50ms", "top": 1}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("load", [{"rate": "20/s"}, {"concurrency": 64}, {}])
def test_the_choice_is_the_best_of_all_sets_planned_by_themselves(load: dict[str, Any]) -> None:
    allowed = ("ladder-residual", "nexus", "nanoflow:batches=2")
    plan = plan_serving(allow_techniques=allowed, **FIELDS, **load)
    sets = [(), *((name,) for name in allowed), ("ladder-residual", "nexus"), ("nexus", "nanoflow")]
    every = [plan_serving(technique=list(names) or None, **FIELDS, **load) for names in sets]
    best = min(every, key=lambda it: (it.certificate.lower_bound, -it.best.largest_load) if load else
               (-it.certificate.lower_bound,))  # fmt: skip
    assert plan.certificate.lower_bound == pytest.approx(best.certificate.lower_bound, rel=1e-6)
    assert plan.best.largest_load == pytest.approx(best.best.largest_load, rel=0.06)  # the simplest of near ones
    space = plan.certificate.space
    counted = sum(space.ruled_out.values()) + space.dominated + space.out_of_memory + space.bounded + space.priced
    assert counted == space.total


def test_techniques_are_in_the_file_the_screen_and_the_papers(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    asked = ("--model", "llama-3.1-8b", "--cluster", "8xa100-sxm-80gb", "--input", "2000", "--output", "300",
             "--rate", "8/s", "--ttft", "1s", "--tpot", "50ms")  # fmt: skip
    screen = run_here("plan", "--workload", "serve", *asked, "--technique", "nexus:prompts=0.5", "-o", str(path)).out
    assert "Served by nexus (prompts 0.5, reads 0.4)" in screen
    plan = load_serving_plan(path)
    assert plan.resolved["techniques"] == {"nexus": {"prompts": 0.5, "reads": 0.4}}
    assert any("nexus is priced, but no engine has it" in warning for warning in plan.warnings)
    assert "shi2025nexus" in run_here("cite", str(path)).out
    parts = sum(part.ttft_s for part in explain_serving(plan).parts)
    assert parts == pytest.approx(plan.best.ttft_promised_s, rel=1e-6)
    with pytest.raises(UnsupportedError, match="nexus: no runtime"):
        emit_serving(plan, "vllm")


def test_what_an_engine_has_is_written() -> None:
    plan = plan_serving(**{**FIELDS, "model": "llama-3.1-70b"}, rate="1/s", technique="nanoflow", target="sglang")
    files = emit_serving(plan, "sglang").files
    assert "--enable-two-batch-overlap" in files["serve.sh"]
    assert not check_service(plan, {"serve.sh": files["serve.sh"]}).problems
    removed = files["serve.sh"].replace("  --enable-two-batch-overlap\n", "").replace("--enable-two-batch-overlap", "")
    assert check_service(plan, {"serve.sh": removed}).problems


@pytest.mark.parametrize(("changes", "message"), [
    ({"technique": "comet-w4a4kv4", "cluster": "8xh100-sxm-80gb"}, "comet-w4a4kv4 needs GPUs that multiply"),
    ({"technique": "mirror-sd"}, "mirror-sd needs a draft"), ({"technique": "exflow"}, "exflow needs experts"),
    ({"technique": "tpi-llm"}, "tpi-llm needs tensor parallelism over nodes"),
    ({"technique": "ladder-residual", "fix": {"tp": 1}}, "ladder-residual needs tensor parallelism"),
    ({"speculate": "3:0.7:llama-3.1-70b"}, "llama-3.1-70b has 70.6B parameters, llama-3.1-8b 8.03B"),
    ({"technique": "prompt-decoding", "speculate": "3:0.7:llama-3.2-1b"}, "prompt-decoding needs no `--speculate`"),
    ({"technique": "nexus:prompts=1.5"}, "prompts is 1.5, must be in 0 to 0.95"),
    ({"technique": "diloco"}, "diloco trains"),
    ({"technique": "learn2pd"}, "learn2pd needs a language model that fills in masked tokens"),
    ({"technique": "parallelbench:tokens=2"}, "parallelbench needs a language model that fills in masked tokens"),
    ({"technique": "dparallel:steps=24"}, "dparallel has no knob `steps`"),
    ({"technique": "dparallel:tokens=0.5", "model": "llada-8b"}, "dparallel: tokens is 0.5, must be in 1 to 65536"),
    ({"technique": ("learn2pd", "dparallel"), "model": "llada-8b"}, "both choose what proposes tokens"),
    ({"technique": "prompt-decoding", "model": "llada-8b"}, "prompt-decoding needs a decoder"),
    ({"technique": "nexus", "model": "llada-8b"}, "nexus needs a decoder, which gives one token after another"),
    ({"speculate": "3:0.7:llama-3.2-1b", "model": "llada-8b"}, "speculate: llada-8b fills in all tokens of an answer"),
    ({"fix": {"prefill.tp": 2}, "model": "llada-8b"}, "fix prefill.tp: llada-8b fills in all tokens of an answer"),
    ({"prefix_hit": 0.5, "model": "dream-7b"}, "prefix_hit: dream-7b fills in all tokens of an answer together"),
    ({"technique": "streamdiffusion"}, "streamdiffusion needs a diffusion transformer"),
    ({"technique": "pcpp", "model": "llada-8b"}, "pcpp needs a diffusion transformer"),
    ({"technique": "learn2pd", "model": "dit-xl-2-256", "passes": 4}, "learn2pd needs a language model that fills in"),
    ({"technique": "pcpp", "model": "dit-xl-2-256", "passes": 4, "fix": {"tp": 1}}, "pcpp needs several GPUs"),
    ({"technique": "streamdiffusion:similar=1", "model": "dit-xl-2-256", "passes": 4}, "similar is 1, must be in 0 to"),
    ({"technique": "streamdiffusion", "model": "dit-xl-2-256", "passes": 2}, "as many steps as frames: 4 frames in"),
    ({"technique": "dparallel", "model": "llada-8b", "passes": 30}, "passes and dparallel: both are a number of"),
    ({"passes": 30}, "passes: llama-3.1-8b is a decoder, which gives one token after another"),
    ({"model": "flux.1-dev"}, "passes: flux.1-dev denoises an image in several, and their number is not given"),
    ({"model": "llada-8b", "passes": 301}, "passes: 301 are more than the 300 tokens of an answer"),
])  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_serving(**{**FIELDS, **changes})


def test_a_technique_is_not_both_requested_and_allowed() -> None:
    with pytest.raises(InputError, match="nexus is both requested and allowed"):
        plan_serving(technique="nexus", allow_techniques=("nexus",), **FIELDS)
