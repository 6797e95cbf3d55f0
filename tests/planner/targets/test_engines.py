"""Scripts that start engines: their options are ones that the engine has, and say what the plan says."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from meshwright.planner.api import plan_serving
from meshwright.planner.document.serving_plan import ServingPlan
from meshwright.planner.request.serving import ServingFields
from meshwright.planner.targets.engines.emit import emit_serving
from meshwright.planner.targets.engines.registry import ENGINE_TARGETS

from meshwright.errors import UnsupportedError

from ...snapshots import ROOT, run_here

LISTS = {"vllm": "vllm-0.32", "sglang": "sglang-0.5.23"}


def known(engine: str) -> set[str]:
    """Options that the engine's own parser printed."""
    return set((ROOT / "planner/targets/engines" / f"{LISTS[engine]}.txt").read_text(encoding="utf-8").split())


def planned(engine: str, model: str = "llama-3.1-70b", cluster: str = "8xh100-sxm-80gb", *fix: str) -> ServingPlan:
    return plan_serving(model=model, cluster=cluster, input=2000, output=300, rate="1/s", target=engine, top=1,
                        precision="fp8", fix=list(fix))  # fmt: skip


PLANS = {
    "tp": ("llama-3.1-70b", "8xh100-sxm-80gb", "tp=4", "pp=1", "replicas=2"),
    "stages over nodes": ("llama-3.1-70b", "dgx-h100:2", "tp=8", "pp=2"),
    "experts": ("deepseek-v3", "8xh200-sxm-141gb", "tp=1", "attention_dp=8", "ep=8"),
    "short cache": ("llama-3.1-8b", "4xv100-sxm-16gb", "tp=1", "pp=1"),
}


@pytest.fixture(scope="module")
def scripts() -> dict[tuple[str, str], str]:
    plans = {name: planned("vllm", *asked) for name, asked in PLANS.items()}
    for_engine = {(engine, name): plan.model_copy(update={"resolved": {**plan.resolved, "engine": engine}})
                  for engine in ENGINE_TARGETS for name, plan in plans.items()}  # fmt: skip
    return {(engine, name): emit_serving(plan, engine).files["serve.sh"] for (engine, name), plan in for_engine.items()}


def options(script: str) -> dict[str, str]:
    """Option -> value of the command of a script."""
    command = script.split("exec ")[1].replace("\\\n", " ")
    words = shlex.split(re.sub(r"\$\(\[.*?\)", "", command))
    return {word: words[i + 1] if i + 1 < len(words) else "" for i, word in enumerate(words) if word.startswith("--")}


@pytest.mark.parametrize("engine", list(LISTS))
@pytest.mark.parametrize("name", list(PLANS))
def test_every_option_is_one_of_the_engine(engine: str, name: str, scripts: dict[tuple[str, str], str]) -> None:
    assert set(options(scripts[engine, name])) <= known(engine)


def test_vllm_says_what_the_plan_says(scripts: dict[tuple[str, str], str]) -> None:
    plain, stages, experts = (options(scripts["vllm", name]) for name in ("tp", "stages over nodes", "experts"))
    assert (plain["--tensor-parallel-size"], plain["--quantization"]) == ("4", "fp8")
    assert (stages["--pipeline-parallel-size"], stages["--nnodes"]) == ("2", "2")
    assert "--headless" in scripts["vllm", "stages over nodes"]
    assert (experts["--tensor-parallel-size"], experts["--data-parallel-size"]) == ("1", "8")
    assert "--enable-expert-parallel" in experts
    assert "--max-model-len" not in plain
    assert int(options(scripts["vllm", "short cache"])["--max-model-len"]) < 131072


def test_sglang_counts_attention_data_parallelism_in_its_tp(scripts: dict[tuple[str, str], str]) -> None:
    experts = options(scripts["sglang", "experts"])
    assert (experts["--tp-size"], experts["--attn-dp-size"], experts["--ep-size"]) == ("8", "8", "8")
    assert "--dp-size" not in experts
    assert 0.7 < float(experts["--mem-fraction-static"]) < 0.9


def test_instances_of_a_node_have_their_own_devices_and_ports(
    scripts: dict[tuple[str, str], str], tmp_path: Path
) -> None:  # fmt: skip
    (tmp_path / "vllm").write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $*"\n')
    (tmp_path / "vllm").chmod(0o755)
    (tmp_path / "serve.sh").write_text(scripts["vllm", "tp"])
    paths = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ran = [subprocess.run(["bash", "serve.sh", slot], cwd=tmp_path, env=paths, text=True, capture_output=True,
                          check=True).stdout for slot in ("0", "1")]  # fmt: skip
    assert ran[0].startswith("0,1,2,3 serve meta-llama/Llama-3.1-70B --port 8000")
    assert ran[1].startswith("4,5,6,7 serve meta-llama/Llama-3.1-70B --port 8001")


def test_what_an_engine_cannot_run_is_refused() -> None:
    plan = planned("vllm", "deepseek-v3", "dgx-h100:2", "tp=1", "attention_dp=16", "ep=16", "pp=1")
    with pytest.raises(UnsupportedError, match="several nodes"):
        emit_serving(plan, "vllm", launcher="dynamo")
    with pytest.raises(UnsupportedError, match="the plan is for vllm"):
        emit_serving(plan, "sglang")
    with pytest.raises(UnsupportedError, match="cannot be written"):
        emit_serving(plan, "llama-cpp")


def test_ranks_on_several_nodes_start_by_the_number_of_their_node() -> None:
    """By vLLM's guide on data parallel deployment."""
    plan = planned("vllm", "deepseek-v3", "dgx-h100:2", "tp=1", "attention_dp=16", "ep=16", "pp=1")
    script = emit_serving(plan, "vllm").files["serve.sh"]
    for words in ("--data-parallel-size 16", "--data-parallel-size-local 8", "--data-parallel-address $head",
                  "--headless --data-parallel-start-rank $((rank * 8))"):  # fmt: skip
        assert words in script
    assert "--nnodes" not in script


def test_weights_that_are_not_those_of_the_checkpoint_are_named() -> None:
    asked: ServingFields = {"model": "gpt-oss-120b", "cluster": "8xh100-sxm-80gb", "input": 2000, "output": 300,
                            "rate": "1/s", "top": 1}  # fmt: skip
    widened: ServingFields = {**asked, "precision": "bf16"}
    other, same = plan_serving(**widened), plan_serving(**asked)
    text = "gpt-oss-120b is published with weights in mxfp4, and the plan has them in bf16: `--dtype mxfp4`"
    assert any(text in warning for warning in other.warnings)
    assert not any("published" in warning for warning in same.warnings)
    assert any("put a checkpoint in that format" in note for note in emit_serving(other, "vllm").warnings)
    assert not any("checkpoint" in note for note in emit_serving(same, "vllm").warnings)
    assert same.request["workload"]["precision"] == "mxfp4"
    assert same.origins["workload.precision"] == "the checkpoint"
    chosen = "weights are in mxfp4, the format of the checkpoint; products on h100-sxm-80gb widen them to 16 bits"
    assert any(chosen in text for text in same.assumptions)
    assert not any("checkpoint" in text for text in other.assumptions)


def test_a_chunk_of_sglang_is_that_of_all_groups() -> None:
    """handle_data_parallelism of SGLang divides it by the groups."""
    plan = planned("sglang", "deepseek-v3", "dgx-h200:1", "tp=1", "attention_dp=8", "chunk_tokens=4096")
    assert "--chunked-prefill-size 32768" in emit_serving(plan, "sglang").files["serve.sh"]


@pytest.mark.parametrize(("fix", "expected"), [
    (("tp=4", "pp=1", "replicas=2"), "for slot in 0 1; do bash serve.sh $slot & done; wait"),
    (("tp=8", "pp=1"), "bash serve.sh"),
    (("prefill.tp=2", "decode.tp=4", "prefill.replicas=1", "decode.replicas=1", "pp=1"),
     "bash prefill.sh & bash decode.sh & bash router.sh"),
])  # fmt: skip
def test_the_next_step_is_a_command_that_starts_all(fix: tuple[str, ...], expected: str) -> None:
    assert emit_serving(planned("vllm", "llama-3.1-70b", "8xh100-sxm-80gb", *fix), "vllm").next_step == expected


def test_the_next_step_over_nodes_names_what_each_gives() -> None:
    emitted = emit_serving(planned("vllm", "llama-3.1-70b", "dgx-h100:2", "tp=8", "pp=2"), "vllm")
    assert emitted.next_step == "bash serve.sh RANK HEAD_ADDRESS"
    assert any("its first lines have the arguments" in note for note in emitted.warnings)


def test_the_command_writes_the_script(tmp_path: Path) -> None:
    asked = ("--model", "llama-3.1-8b", "--cluster", "8xh100-sxm-80gb", "--input", "500", "--output", "100")
    assert run_here("plan", "--workload", "serve", *asked, "--rate", "2/s", "-o", "p.json", cwd=tmp_path).code == 0
    written = run_here("emit", "p.json", "-d", "run", cwd=tmp_path)
    assert written.code == 0, written.err
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"serve.sh", "plan.json"}
    assert run_here("emit", "p.json", "--launcher", "slurm", cwd=tmp_path).code == 2
    assert run_here("emit", "p.json", "--choice", "99", cwd=tmp_path).code == 2
    other = run_here("memory", "p.json", cwd=tmp_path)
    assert other.code == 2
    assert "`explain`" in other.err
