"""`emit --to megatron`: what is written, what is refused, and that it reads back as the same layout."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from meshwright.cli.main import main
from meshwright.cost_models.layouts import FIELD_NAMES, parse
from meshwright.cost_models.specs.variants import text_of
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner import api
from meshwright.planner.document.candidate import Candidate
from meshwright.planner.document.placement import Placement
from meshwright.planner.document.plan import Plan
from meshwright.planner.explain.nearest import nearest, nearest_hint
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.space.stage_string import read_stages, write_stages
from meshwright.planner.targets.emit import LayoutRefusedError, emit, refusals
from meshwright.planner.targets.facts import layout_of, request_part
from meshwright.planner.targets.megatron.cannot_build import cannot_build
from meshwright.planner.targets.megatron.layer_patterns import read_pattern
from meshwright.planner.targets.megatron.model import MODEL
from meshwright.planner.targets.megatron.options import TABLE, table
from meshwright.planner.targets.option_lists import OptionList, option_list, versions
from meshwright.planner.targets.options import Table
from meshwright.planner.targets.registry import TARGETS
from meshwright.planner.targets.scripts import read_arguments
from meshwright.planner.targets.setup import Setup
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.load import load_model, model_names

from meshwright.errors import InputError, UnsupportedError

from .emit_plans import nondefault, random_plans, without_whole_windows

DENSE = {"model": "llama-3-70b", "cluster": "dgx-h100:8", "workload": {"seq_len": 8192, "global_batch": 512}}
MOE = {"model": "mixtral-8x7b", "cluster": "dgx-h100:2", "workload": {"seq_len": 4096, "global_batch": 64}}


def plan_of(asked: Mapping[str, object], layout: str) -> Plan:
    return api.evaluate(request_from_dict({**asked, "target": "megatron"}), layout)


def arguments(plan: Plan) -> list[str]:
    text = emit(plan, "megatron").files["megatron.args"]
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    return random_plans("megatron", 200)[0]


def test_every_field_of_a_layout_is_in_the_table() -> None:
    assert set(FIELD_NAMES) <= TABLE.fields


@pytest.mark.slow
def test_every_field_is_tried_ten_times(plans: list[Plan]) -> None:
    tried = Counter(name for plan in plans for name in nondefault(plan.best.to_layout()))
    assert set(tried) == set(FIELD_NAMES)
    assert min(tried.values()) >= 10, tried


def test_random_plans_read_back_as_themselves(plans: list[Plan]) -> None:
    for plan in plans:
        setup = Setup.of(plan, 1)
        text = emit(plan, "megatron").files["megatron.args"]
        given = read_arguments("megatron.args", text, option_list("megatron")[0])
        assert not given.problems
        assert not given.unknown
        facts = TABLE.read(given.settings)
        assert layout_of(facts, setup.layout.num_gpus) == setup.layout
        if setup.layout.pp > 1:
            assert facts["stages"] == setup.chunk_sizes
        model, _ = read_explicit_form(request_part(facts, "model"), "model")
        whole = setup.model
        named = replace(model, name=whole.name, family=whole.family, source=whole.source, assumed=whole.assumed)
        assert named == whole
        workload = request_part(facts, "workload")
        assert workload == {name: getattr(setup.workload, name) for name in ("seq_len", "global_batch", "optimizer")}


# `emit` refuses these releases for them. A graph of the whole iteration needs the first to hold experts, and the next
# to offload modules; the others scale positions of gpt-oss.
PAGES = {"--moe-paged-stash", *(f"--moe-paged-stash-buffer-size-factor-{place}" for place in ("cuda", "cpu")),
         "--moe-expert-rank-capacity-factor", "--use-transformer-engine-op-fuser", "--moe-mlp-glu-interleave-size"}
_IN_FLIGHT = {"--fine-grained-offloading-max-inflight-offloads"}
_YARN = {"--yarn-beta-fast", "--yarn-beta-slow", "--yarn-original-max-position-embeddings",
         "--no-yarn-correction-range-round-to-int"}  # fmt: skip
NEWER = {"0.16.1": PAGES | _IN_FLIGHT | _YARN, "0.17.0": PAGES | _IN_FLIGHT | _YARN, "0.18.0": _YARN}


def test_random_plans_use_options_that_every_recorded_release_has(plans: list[Plan]) -> None:
    setups = [Setup.of(plan, 1) for plan in plans]
    for version in versions("megatron"):
        release = option_list("megatron", version)[0]
        able = [setup for setup in setups if not cannot_build(setup.model, setup.workload, release)]
        assert {setup.workload.optimizer for setup in able} >= {"adamw", "adamw-bf16"}
        used = {option for setup in able for option in table(release).write(setup)}
        assert used - set(release.options) <= NEWER.get(version, set())
        assert len(used) > 60


def test_the_layout_of_a_dense_model() -> None:
    plan = plan_of(DENSE, "tp8-cp2r-pp4-vpp5-dp1-mbs1-z1-rsel")
    lines = arguments(plan)
    for line in (
        "--tensor-model-parallel-size 8", "--sequence-parallel", "--pipeline-model-parallel-size 4",
        "--num-layers-per-virtual-pipeline-stage 4", "--context-parallel-size 2", "--cp-comm-type p2p",
        "--use-distributed-optimizer", "--micro-batch-size 1", "--global-batch-size 512", "--seq-length 8192",
        "--recompute-granularity selective", "--recompute-modules core_attn", "--bf16", "--num-layers 80",
    ):  # fmt: skip
        assert line in lines
    script = emit(plan, "megatron").files["launch.sh"]
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in script
    assert "--nnodes 8 --nproc-per-node 8" in script


def test_experts_and_fsdp() -> None:
    lines = arguments(plan_of(MOE, "tp2-dp8-ep4-mbs1-z3-rfull"))
    for line in (
        "--num-experts 8", "--expert-model-parallel-size 4", "--expert-tensor-parallel-size 1",
        "--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend deepep", "--moe-router-dtype fp32",
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy optim_grads_params", "--ckpt-format fsdp_dtensor",
        "--recompute-method uniform", "--recompute-num-layers 1",
    ):  # fmt: skip
        assert line in lines
    script = emit(plan_of(MOE, "tp2-dp8-ep4-mbs1-z3-rfull"), "megatron").files["launch.sh"]
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in script  # Megatron-FSDP refuses a value of 1


@pytest.mark.parametrize(
    ("token", "flags"),
    [
        ("r", ["--cp-comm-type p2p"]), ("g", ["--cp-comm-type all_gather"]), ("u", ["--cp-comm-type a2a"]),
        ("ru", ["--cp-comm-type a2a+p2p", "--hierarchical-context-parallel-sizes 2 2"]),
    ],
)  # fmt: skip
def test_how_context_parallel_ranks_exchange(token: str, flags: list[str]) -> None:
    lines = arguments(plan_of(DENSE, f"tp2-cp4{token}-dp8-mbs1-z1-rfull"))
    assert set(flags) <= set(lines)
    assert "--context-parallel-size 4" in lines


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_keys_are_not_passed_on_under_a_window_that_cuts(target: str) -> None:
    """TransformerEngine's attn_forward_func_with_cp asserts a2a or all_gather for a sliding window, a2a for sinks."""
    mistral = {"model": "mistral-7b", "cluster": "dgx-h100:1"}
    found = TARGETS[target]

    def refused(length: int, token: str, asked: Mapping[str, object] = mistral) -> list[str]:
        whole = request_from_dict({**asked, "workload": {"seq_len": length, "global_batch": 64}, "target": target})
        setup = Setup.of(api.evaluate(whole, f"cp4{token}-dp2-mbs1-z1-rfull"), 1)
        return [text for fields, text in refusals(found, setup, option_list(target)[0]) if "cp_algorithm" in fields]

    for token, algorithm in (("r", "ring"), ("ru", "ring+ulysses")):
        assert refused(4096, token) == []  # as long as the window: nothing is cut
        (text,) = refused(8192, token)
        assert text.startswith(f"cp 4 by {algorithm}: TransformerEngine has sliding windows only with")
    assert refused(8192, "g") == refused(8192, "u") == []
    sinks = {"layers": 4, "hidden": 1024, "heads": 8, "ffn_hidden": 2048, "vocab": 32000, "max_positions": 8192,
             "sink_attention": True}  # fmt: skip
    assert ["attention sinks" in text for text in refused(4096, "g", {**mistral, "model": sinks})] == [True]
    assert refused(4096, "u", {**mistral, "model": sinks}) == []


def test_modules_as_megatron_calls_them() -> None:
    layout = "dp16-ep8-mbs1-z1-rsel(attn+norm+act+moe+mla+mlp+shared)"
    lines = arguments(plan_of({**MOE, "model": "deepseek-v2-lite"}, layout))
    assert "--recompute-modules core_attn layernorm moe_act moe mla_up_proj mlp" in lines
    assert "--multi-latent-attention" in lines
    assert "--moe-layer-freq ([0]*1+[1]*26)" in lines


def test_optimizer_on_the_host_and_replicas_of_shards() -> None:
    lines = arguments(plan_of(DENSE, "tp8-dp8-sh4-mbs1-z1-rfull-oopt"))
    for line in ("--num-distributed-optimizer-instances 2", "--optimizer-cpu-offload",
                 "--optimizer-offload-fraction 1.0", "--use-precision-aware-optimizer"):  # fmt: skip
        assert line in lines


@pytest.mark.parametrize(("dtype", "flags"), [("fp8", ["--fp8-format hybrid", "--fp8-recipe mxfp8"]),
                                              ("fp4", ["--fp4-format e2m1", "--fp4-recipe nvfp4"])])  # fmt: skip
def test_recipes_of_blackwell(dtype: str, flags: list[str]) -> None:
    workload = {"seq_len": 8192, "global_batch": 512, "precision": dtype}
    asked = {**DENSE, "cluster": "dgx-b200:8", "workload": workload}
    lines = arguments(plan_of(asked, f"tp8-dp8-mbs1-z1-rfull-{dtype}"))
    assert {"--bf16", *flags} <= set(lines)
    given = read_arguments("megatron.args", "\n".join(lines), option_list("megatron")[0])
    assert TABLE.read(given.settings)["precision"] == dtype


def test_uneven_stages_are_written_out() -> None:
    plan = plan_of({**DENSE, "cluster": "dgx-h100:6", "workload": {"seq_len": 8192, "global_batch": 96}},
                   "tp8-pp6-dp1-mbs1-z0-rfull")  # fmt: skip
    assert '--pipeline-model-parallel-layout Et*13|t*13|t*14|t*14|t*13|t*13L' in arguments(plan)


def test_layer_strings_as_megatron_writes_them() -> None:
    assert write_stages([2, 1, 0, 3], 1) == "Et*2|t||t*3mL"
    assert [len(chunk) for chunk in read_stages("Ettt|(tt|)*29,m|L")] == [4, *[2] * 29, 1, 1]
    with pytest.raises(InputError, match="`x` is no part of a model"):
        read_stages("Et|xL")


def test_patterns_of_layers_as_megatron_writes_them() -> None:
    assert read_pattern("--moe-layer-freq", "([0]*3+[1]*2)", 5) == [0, 0, 0, 1, 1]
    assert read_pattern("--moe-layer-freq", "([0]+[1]*2)*2", 6) == [0, 1, 1, 0, 1, 1]
    assert read_pattern("--moe-layer-freq", "[0,1]*2", 4) == [0, 1, 0, 1]
    assert read_pattern("--moe-layer-freq", 2, 4) == [1, 0, 1, 0]
    with pytest.raises(InputError, match="has 2 layers, --num-layers 3"):
        read_pattern("--moe-layer-freq", "[1]*2", 3)


def test_equal_plans_give_equal_bytes_and_scripts_that_shells_accept(tmp_path: Path) -> None:
    plan = plan_of(DENSE, "tp8-pp4-dp2-mbs1-z1-rsel")
    again = Plan.model_validate(json.loads(plan.to_json()))
    for launcher in ("torchrun", "slurm"):
        files = emit(plan, "megatron", launcher).files
        assert files == emit(again, "megatron", launcher).files
        for name, text in files.items():
            if name.endswith((".sh", ".sbatch")):
                (tmp_path / name).write_text(text, encoding="utf-8")
                assert subprocess.run(["sh", "-n", str(tmp_path / name)], check=False).returncode == 0
                assert "meshwright" not in "".join(line for line in text.splitlines() if line[:1] != "#")


def test_the_script_gives_every_argument_as_one_word(tmp_path: Path) -> None:
    """Layer strings hold `*` and `|`: the shell must not touch them."""
    plan = plan_of({**DENSE, "cluster": "dgx-h100:6", "workload": {"seq_len": 8192, "global_batch": 96}},
                   "tp8-pp6-dp1-mbs1-z0-rfull")  # fmt: skip
    folder = tmp_path / "a job"
    folder.mkdir()
    for name, text in emit(plan, "megatron").files.items():
        (folder / name).write_text(text, encoding="utf-8")
    fake = tmp_path / "torchrun"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$CUDA_DEVICE_MAX_CONNECTIONS" "$@"\n', encoding="utf-8")
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MEGATRON_PATH": "/m l", "NODE_RANK": "5", "MASTER_ADDR": "n0"}
    words = ["sh", str(folder / "launch.sh"), "--data-path", "my data"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert done[0] == "1"
    assert done[done.index("--node-rank") + 1] == "5"
    assert done[done.index("/m l/pretrain_gpt.py") + 1 :] == [
        *(word for line in arguments(plan) for word in line.split()), "--data-path", "my data",
    ]  # fmt: skip
    missing = subprocess.run(words, env={"PATH": environment["PATH"]}, capture_output=True, text=True, check=False)
    assert missing.returncode
    assert "MEGATRON_PATH: must be the folder of a Megatron-LM checkout" in missing.stderr


def test_every_refused_field_is_named_with_the_nearest_layout() -> None:
    plan = plan_of(DENSE, "tp8-pp4-zbh1-dp2-mbs1-z3-rfull-oact")
    with pytest.raises(LayoutRefusedError) as caught:
        emit(plan, "megatron")
    assert {"schedule", "zero", "offload"} <= set(caught.value.fields)
    text = str(caught.value)
    assert "zb-h1" in text
    assert "z3 is Megatron-FSDP" in text
    assert "offloads named inputs" in text
    found = nearest(plan, 1, "megatron", caught.value.fields)
    assert found is not None
    close = found.to_layout()
    assert (close.tp, close.cp, close.pp, close.dp, close.micro_batch) == (8, 1, 4, 2, 1)  # what could stay has stayed
    emit(api.evaluate(request_from_dict({**DENSE, "target": "megatron"}), found.layout_id), "megatron")
    hint = nearest_hint(plan, 1, "megatron", caught.value.fields)
    assert found.layout_id in hint
    assert re.search(r"[\d.]+ s per step there \([+-][\d.]+%\)", hint)


def test_a_refusal_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_of(DENSE, "tp8-pp4-zbh1-dp2-mbs1-z1-rfull").to_json(), encoding="utf-8")
    assert main(["emit", str(path), "--to", "megatron", "-d", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()
    assert "schedule: Megatron has no zb-h1 schedule" in capsys.readouterr().err


def test_models_that_no_argument_builds() -> None:
    plan = plan_of({**MOE, "model": "gemma-2-9b"}, "dp16-mbs1-z1-rfull")
    with pytest.raises(LayoutRefusedError, match="GeGLU"):
        emit(plan, "megatron")
    lora = {**DENSE, "workload": {"seq_len": 8192, "global_batch": 512, "train": {"lora": {"rank": 8}}}}
    with pytest.raises(LayoutRefusedError, match="trains no adapters"):
        emit(plan_of(lora, "tp8-pp4-dp2-mbs1-z1-rfull"), "megatron")


@pytest.mark.parametrize(
    ("router", "refused", "written"),
    [
        # TransformerConfig raises for one expert without pre-softmax, and for a bias of experts with softmax scores.
        ({"topk": 1}, "the score of a token's only expert is not divided by itself", ""),
        ({"topk": 1, "router_normalised": False}, "", "--moe-router-pre-softmax"),
        ({"topk": 1, "router_scores": "sigmoid", "router_normalised": False}, "",
         "--moe-router-score-function sigmoid"),
        ({"topk": 2, "router_scores": "sigmoid", "router_normalised": False}, "are divided by their sum", ""),
        ({"topk": 2, "router_bias": True}, "experts and router have bias terms all or none", ""),
        ({"topk": 2, "router_scores": "sigmoid", "choice_bias": True}, "", "--moe-router-enable-expert-bias"),
        ({"topk": 2, "choice_bias": True}, "it is added to sigmoid scores only", ""),
    ],
)  # fmt: skip
def test_routers_that_transformer_config_takes(router: dict[str, object], refused: str, written: str) -> None:
    model = {"layers": 4, "hidden": 1024, "heads": 8, "vocab": 32000, "max_positions": 4096,
             "moe": {"experts": 8, "expert_ffn": 2048, **router}}  # fmt: skip
    plan = plan_of({**MOE, "model": model}, "dp16-ep8-mbs1-z1-rfull")
    if refused:
        with pytest.raises(LayoutRefusedError, match=refused):
            emit(plan, "megatron")
        return
    text = emit(plan, "megatron").files["megatron.args"]
    assert written in text.splitlines()
    given = read_arguments("megatron.args", text, option_list("megatron")[0])
    read, _ = read_explicit_form(request_part(TABLE.read(given.settings), "model"), "model")
    assert read.kinds == Setup.of(plan, 1).model.kinds


def test_models_of_the_catalogue_are_written_as_they_are_or_refused() -> None:
    table, refused = Table(MODEL), {}
    for name in model_names():
        whole = text_of(load_model(name)[0])
        workload = Workload(seq_len=whole.max_positions, global_batch=8)
        if reasons := TARGETS["megatron"].cannot_build(whole, workload):
            refused[name] = "; ".join(reasons)
            continue
        setup = SimpleNamespace(model=whole, workload=workload, chunk_sizes=[whole.num_layers])
        settings = table.write(cast(Setup, setup))
        facts = table.read(settings | {"--seq-length": workload.seq_len})
        found, _ = read_explicit_form(request_part(facts, "model"), name, whole.source)
        # Megatron has one GELU, which it computes by tanh where it fuses it with biases.
        activation = whole.activation.replace("gelu_tanh", "gelu")
        theta = whole.rope_theta and float(round(whole.rope_theta))  # --rotary-base is a whole number
        # Dropouts are written as numbers, so that their names in config.json do not come back.
        expected = replace(without_whole_windows(whole), family="", assumed=(), activation=activation, rope_theta=theta,
                           unmodelled=(), rope_scaling=whole.trained_scaling)  # fmt: skip
        assert replace(found, family="", assumed=()) == expected
    for name, reason in (
        ("olmo-2-7b", "norms are those of one head"), ("opt-1.3b", "relu is none of gelu"), ("gemma-2-9b", "GeGLU"),
        ("falcon-40b", "in parallel"), ("gpt-neox-20b", "in parallel"), ("granite-3.1-8b", "scaled embeddings"),
        ("bloom-7b1", "positions are rotary or learned"),
    ):  # fmt: skip
        assert reason in refused[name]
    assert not {"nemotron-4-340b", "nemotron-h-56b", "nemotron-3-nano-30b-a3b"} & set(refused)


def test_gpt_oss() -> None:
    """Its activation is a clamped gate with an offset. Biases of its experts and their router are those of all linear
    layers, and TransformerConfig takes such experts only whole."""
    asked = {**MOE, "model": "gpt-oss-120b"}
    plan = plan_of(asked, "dp16-ep8-mbs1-z1-rnone")
    lines = arguments(plan)
    clamped = {"--quick-geglu", "--activation-func-clamp-value 7.0", "--glu-linear-offset 1.0"}
    assert clamped <= set(lines)
    assert not {"--swiglu", "--disable-bias-linear", "--moe-router-enable-expert-bias"} & set(lines)
    module = emit(plan, "megatron-bridge").files["bridge_plan.py"]
    for field in ('activation_func="quick_gelu"', "activation_func_clamp_value=7.0", "gated_linear_unit=True"):
        assert f"            {field},\n" in module
    with pytest.raises(LayoutRefusedError, match="experts with biases are not split over etp 2"):
        emit(plan_of(asked, "dp16-ep4-etp2-mbs1-z1-rnone"), "megatron")


def test_a_clamp_that_no_plan_has_is_refused() -> None:
    table = Table(MODEL)
    with pytest.raises(InputError, match=r"--activation-func-clamp-value 5.0 has no counterpart in a plan"):
        table.read({"--swiglu": True, "--activation-func-clamp-value": 5.0})


def test_squared_relu() -> None:
    """With biases TransformerConfig refuses to fuse them with any function but GELU and gated ones."""
    asked = {**DENSE, "model": "nemotron-4-340b", "cluster": "dgx-h100:32",
             "workload": {"seq_len": 4096, "global_batch": 256}}  # fmt: skip
    plan = plan_of(asked, "tp8-pp8-dp4-mbs1-z1-rfull")
    assert "--squared-relu" in arguments(plan)
    assert "--no-bias-gelu-fusion" not in arguments(plan)
    assert '            activation_func="squared_relu",\n' in emit(plan, "megatron-bridge").files["bridge_plan.py"]
    assert emit(plan, "megatron").warnings == emit(plan, "megatron-bridge").warnings == (
        "assumed, since the model's config lacks them: rope_theta 10000.0, norm_epsilon 1e-05",)  # fmt: skip
    model = {"layers": 4, "hidden": 1024, "heads": 8, "ffn_hidden": 4096, "gated_mlp": False, "bias": True,
             "activation": "squared relu", "vocab": 32000, "max_positions": 8192}  # fmt: skip
    lines = arguments(plan_of({**DENSE, "model": model}, "dp64-mbs1-z1-rfull"))
    assert {"--squared-relu", "--no-bias-gelu-fusion"} <= set(lines)


def test_llama_4_is_more_than_its_sizes() -> None:
    plan = plan_of({**DENSE, "model": "llama-4-scout"}, "tp8-dp8-ep8-mbs1-z1-rfull")
    for target in ("megatron", "megatron-bridge"):
        with pytest.raises(LayoutRefusedError, match="attention in chunks"):
            emit(plan, target)


def test_a_release_without_an_option_is_refused_by_field() -> None:
    plan = plan_of({**DENSE, "cluster": "dgx-h100:6", "workload": {"seq_len": 8192, "global_batch": 96}},
                   "tp8-pp6-dp1-mbs1-z0-rfull")  # fmt: skip
    known = option_list("megatron", "0.16.1")[0]
    older = OptionList("megatron", "0.12.3", "x", {
        name: option for name, option in known.options.items() if name != "--pipeline-model-parallel-layout"
    })  # fmt: skip
    ((fields, text),) = refusals(TARGETS["megatron"], Setup.of(plan, 1), older)
    assert "stages" in fields
    assert "has no --pipeline-model-parallel-layout" in text


def test_the_nearest_release_is_taken_and_said() -> None:
    plan = plan_of(DENSE, "tp8-pp4-dp2-mbs1-z1-rsel")
    assert emit(plan, "megatron", version="core_v0.16.1").warnings == ()
    for asked, used in (("0.17.3", "0.17.0"), ("0.9.0", "0.16.1"), ("1.4", "0.20.0.dev")):
        (warning,) = emit(plan, "megatron", version=asked).warnings
        assert used in warning
    assert "Megatron-LM 0.16.1 (55ac7082)" in emit(plan, "megatron", version="0.16.1").files["megatron.args"]


def placed(plan: Plan, **placement: object) -> Plan:
    candidate: Candidate = plan.best.model_copy(update={"placement": Placement.model_validate(placement)})
    return plan.model_copy(update={"candidates": (candidate,)})


def test_placement_is_host_order_and_device_order() -> None:
    plan = plan_of(MOE, "tp2-dp8-ep4-mbs1-z1-rfull")
    turned = [*range(8, 16), *reversed(range(8))]  # node 1 first, and node 0 of the framework backwards
    files = emit(placed(plan, hosts=("a", "b"), logical_of_rank=tuple(turned)), "megatron", "slurm").files
    assert files["hosts"] == "b\na\n"
    assert "--distribution=arbitrary" in files["launch.sbatch"]
    assert "0) export CUDA_VISIBLE_DEVICES=7,6,5,4,3,2,1,0" in files["launch.sh"]
    assert "1) export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in files["launch.sh"]
    spread = tuple(rank for pair in zip(range(8), range(8, 16), strict=True) for rank in pair)
    with pytest.raises(UnsupportedError, match=r"placement.logical_of_rank: ranks 0 to 7 are on 2 hosts"):
        emit(placed(plan, logical_of_rank=spread), "megatron")


def test_shell_scripts_with_variables_and_arrays() -> None:
    script = """
#!/bin/bash
TP=8
PP=${PP:-4}   # stages
export GBS=$((128 * 4))
MODEL_ARGS=(
    --num-layers 80 --hidden-size 8192
    --group-query-attention
)
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \\
  ${MODEL_ARGS[@]} --tensor-model-parallel-size $TP --pipeline-model-parallel-size=${PP} \\
  --global-batch-size ${GBS} --recompute-modules core_attn moe --made-up 3 --bf16
"""
    found = read_arguments("train.sh", script, option_list("megatron")[0])
    assert found.ranks == {"gpus_per_node": 8, "num_nodes": 4}
    assert found.settings == {
        "--num-layers": 80, "--hidden-size": 8192, "--group-query-attention": True, "--tensor-model-parallel-size": 8,
        "--pipeline-model-parallel-size": 4, "--global-batch-size": 512, "--recompute-modules": ["core_attn", "moe"],
        "--bf16": True,
    }  # fmt: skip
    assert found.unknown == {"--made-up": 12}
    assert found.lines["--tensor-model-parallel-size"] == 11


def test_assignments_share_a_line() -> None:
    script = """\
export TP=8; PP=4 # MBS=9; TP=1
# TP=2; PP=2
NAME='a; TP=3'; torchrun pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP; wait
"""
    found = read_arguments("train.sh", script, option_list("megatron")[0])
    assert found.problems == []
    assert found.settings == {"--tensor-model-parallel-size": 8, "--pipeline-model-parallel-size": 4}
    assert found.environment == {"TP": "8", "PP": "4", "NAME": "a; TP=3"}


def test_layout_ids_of_the_tests_are_canonical() -> None:
    assert str(parse("tp8-cp2r-pp4-vpp5-dp1-mbs1-z1-rsel")) == "tp8-cp2r-pp4-vpp5-dp1-mbs1-z1-rsel"
