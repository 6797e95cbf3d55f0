"""Commands of vLLM and SGLang that people run: read with their layout, with gaps named, or refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.drivers.imported_service import import_service
from meshwright.planner.targets.engines.command_line import CommandLine, commands_of, instance_of, known_options
from meshwright.planner.targets.engines.emit import emit_serving
from meshwright.planner.targets.engines.pool_commands import read_service

from meshwright.errors import InputError

from ...snapshots import run_here
from .drawn_services import drawn, for_engine, planned

SCRIPT = """\
#!/bin/bash
TP=${TP:-8}
export VLLM_USE_V1=1
vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size $TP \\
  --max-num-seqs 256 --max_num_batched_tokens=4096 --kv-cache-dtype fp8_e4m3 \\
  --tensor-paralel-size 4 --port 8000
"""


def read(engine: str, text: str, *given: str) -> CommandLine:
    (command,) = read_service(engine, {"serve.sh": text}, given).commands
    return command


def fix(engine: str, options: str, *, is_moe: bool = False) -> dict[str, int]:
    start = {"vllm": "vllm serve m", "sglang": "python3 -m sglang.launch_server --model-path m"}[engine]
    return instance_of(read(engine, f"{start} {options}\n"), is_moe=is_moe).fix


def test_a_script_is_followed() -> None:
    command = read("vllm", SCRIPT)
    instance = instance_of(command, is_moe=False)
    assert command.facts["model"] == "meta-llama/Llama-3.1-70B-Instruct"
    assert instance.fix == {"tp": 8, "pp": 1, "attention_dp": 1, "ep": 1, "chunk_tokens": 4096}
    assert instance.cache == "fp8"
    assert command.unread == ["--port"]
    assert command.unknown == {"--tensor-paralel-size": 6}
    assert instance_of(read("vllm", SCRIPT, "TP=2"), is_moe=False).fix["tp"] == 2


def test_a_list_of_options_is_a_command() -> None:
    command = read("vllm", "--model meta-llama/Llama-3.1-8B  # ours\n-tp 2\n--enable-prefix-caching\n")
    facts = {"model": "meta-llama/Llama-3.1-8B", "tp": 2}
    assert (command.facts, command.unread) == (facts, ["--enable-prefix-caching"])


def test_data_parallelism_of_vllm_is_of_attention_where_there_are_experts() -> None:
    options = "-tp 1 -dp 8 --enable-expert-parallel"
    assert fix("vllm", options, is_moe=True) == {"tp": 1, "pp": 1, "attention_dp": 8, "ep": 8, "chunk_tokens": 8192}
    assert fix("vllm", options.replace(" --enable-expert-parallel", ""))["attention_dp"] == 1


def test_the_last_of_a_switch_counts() -> None:
    """`--no-X` undoes an `--X` before it, by any spelling, and an `--X` after it stands."""
    ranks = "-tp 1 -dp 8"
    assert fix("vllm", f"{ranks} -ep --no-enable-expert-parallel", is_moe=True)["ep"] == 1
    assert fix("vllm", f"{ranks} --no-enable-expert-parallel -ep", is_moe=True)["ep"] == 8
    assert not read("vllm", "vllm serve m --enforce-eager --no-enforce-eager\n").gaps
    assert [gap.field for gap in read("vllm", "vllm serve m --no-enforce-eager --enforce-eager\n").gaps] == [
        "--enforce-eager"]  # fmt: skip


def test_old_and_new_spellings_of_sglang_mean_the_same() -> None:
    new = fix("sglang", "--tp-size 8 --attn-dp-size 8 --ep-size 8", is_moe=True)
    assert new == {"tp": 1, "pp": 1, "attention_dp": 8, "ep": 8, "chunk_tokens": 8192 // 8}
    assert fix("sglang", "--tp 8 --dp 8 --enable-dp-attention --ep 8", is_moe=True) == new
    assert fix("sglang", "--tp 4 --dp 2", is_moe=True)["attention_dp"] == 1
    with pytest.raises(InputError, match="tp 4 is not a multiple of 3"):
        fix("sglang", "--tp 4 --attn-dp-size 3", is_moe=True)


@pytest.mark.parametrize(("engine", "option", "message"), [
    ("vllm", "--speculative-config '{\"method\":\"eagle\"}'", "speculation"),
    ("vllm", "--kv-transfer-config '{}'", "disaggregated prefill"),
    ("vllm", "--quantization bitsandbytes", "number format"),
    ("sglang", "--disaggregation-mode prefill", "one pool"),
    ("sglang", "--chunked-prefill-size -1", "one piece"),
])  # fmt: skip
def test_what_no_plan_holds_is_a_gap(engine: str, option: str, message: str) -> None:
    start = {"vllm": "vllm serve m", "sglang": "sglang serve --model-path m"}[engine]
    (gap,) = read(engine, f"{start} \\\n  {option}\n").gaps
    assert message in gap.message
    assert (gap.line, gap.field) == (2, option.split()[0])


@pytest.mark.parametrize(("text", "message"), [
    ("torchrun train.py --tp 2\n", "no command of vllm"),
    ("vllm serve m -tp two\n", "line 1, -tp: `two` is not a number from 1"),
    ("vllm serve m -tp 2\nvllm serve m -tp 4\n", "2 different commands"),
    ("vllm serve m -tp 0 -pp x\n", "`0` is not"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read("vllm", text)


def test_the_variable_to_give_is_named() -> None:
    with pytest.raises(InputError, match="is not a number from 1") as caught:
        read("vllm", "COUNT=$(nvidia-smi -L | wc -l)\nvllm serve m -tp $COUNT\n")
    assert "--arg COUNT=NUMBER" in str(caught.value.problems[0].hint)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_is_emitted_reads_back(engine: str) -> None:
    count = 0
    for plan in (for_engine(it, engine) for it in drawn(planned(), 60)):
        files = emit_serving(plan, engine).files
        scripts = {name: text for name, text in files.items() if name.endswith(".sh")}
        service = read_service(engine, scripts, ("0", "node0"))
        pools = plan.best.pools
        assert not service.gaps
        assert service.instances == (tuple(pool.instances for pool in pools) if len(pools) > 1 else ())
        for command, pool in zip(service.commands, pools, strict=True):
            instance = instance_of(command, is_moe=True)
            assert command.role == pool.role
            assert instance.fix == {"tp": pool.tp, "pp": pool.pp, "attention_dp": pool.attention_dp, "ep": pool.ep,
                                    "chunk_tokens": pool.chunk_tokens}  # fmt: skip
            assert (instance.weights or "bf16", instance.cache or "bf16") == (pool.weights, pool.kv_cache)
            assert not command.unknown
        count += len(pools)
    assert count > 80


KV = """--kv-transfer-config '{"kv_connector":"%s","kv_role":"%s"}'"""
TWO_POOLS = f"""\
for i in 0 1; do
  vllm serve meta-llama/Llama-3.1-8B --port $((8100+i)) -tp 1 {KV % ("NixlConnector", "kv_both")} &
done
vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-num-seqs 64 --port 8200 {KV % ("NixlConnector", "kv_both")} &
"""
PROXY = ("python3 toy_proxy_server.py --port 8192 --prefiller-hosts localhost localhost --prefiller-ports 8100 8101 "
         "--decoder-hosts localhost --decoder-ports 8200\n")  # fmt: skip
ROUTER = "vllm-router --prefill http://a:8100 --prefill=http://b:8101/ --decode http://c:8200 --policy round_robin\n"


@pytest.mark.parametrize("router", [PROXY, ROUTER])
def test_the_router_tells_the_pools_of_a_script(router: str) -> None:
    service = read_service("vllm", {"pd.sh": TWO_POOLS + router})
    assert [(it.role, it.line, it.facts["tp"]) for it in service.commands] == [("prefill", 2, 1), ("decode", 4, 2)]
    assert (service.instances, service.gaps, service.assumed) == ((2, 1), [], ())


def test_a_server_with_replicas_is_as_many_instances(tmp_path: Path) -> None:
    text = (TWO_POOLS + PROXY).replace("-tp 1", "-tp 1 --data-parallel-size 2")
    (tmp_path / "pd.sh").write_text(text)
    asked = {"cluster": "8xh100-sxm-80gb", "input": "1000", "output": "100"}
    fix = import_service("vllm", [tmp_path / "pd.sh"], asked).fix
    assert fix is not None
    assert (fix["prefill.replicas"], fix["decode.replicas"]) == (4, 1)


def test_pools_are_told_by_options_or_by_names_of_files() -> None:
    by_role = {f"{role}.sh": f"vllm serve m -tp {tp} {KV % ('MooncakeConnector', role)}\n"
               for role, tp in (("kv_consumer", 2), ("kv_producer", 4))}  # fmt: skip
    service = read_service("vllm", by_role)
    assert [(it.role, it.facts["tp"]) for it in service.commands] == [("prefill", 4), ("decode", 2)]
    assert (service.instances, service.assumed) == ((), ())
    by_name = {f"{name}.sh": f"vllm serve m -tp 2 {KV % ('NixlConnector', 'kv_both')}\n"
               for name in ("my-decode", "Prefill")}  # fmt: skip
    service = read_service("vllm", by_name)
    assert [it.file for it in service.commands] == ["Prefill.sh", "my-decode.sh"]
    assert service.assumed[0] == "my-decode.sh starts the pool of its name: decode"


@pytest.mark.parametrize(("text", "message"), [
    (TWO_POOLS, "nothing shows which pool"),
    (f"vllm serve m {KV % ('NixlConnector', 'kv_producer')}\n", "of one pool"),
    (f"vllm serve m {KV % ('LMCacheConnectorV1', 'kv_both')}\n", "a cache outside the GPUs"),
])  # fmt: skip
def test_half_of_a_deployment_is_a_gap(text: str, message: str) -> None:
    assert message in read_service("vllm", {"serve.sh": text}).gaps[0].message


def test_disaggregated_pools_are_compared(tmp_path: Path) -> None:
    """With their numbers of instances, and without a router with the best ones."""
    (tmp_path / "pd.sh").write_text(TWO_POOLS + PROXY)
    asked = {"cluster": "4xh100-sxm-80gb", "input": "1000", "output": "100", "ttft": "1s", "tpot": "50ms"}
    imported = import_service("vllm", [tmp_path / "pd.sh"], asked)
    assert imported.theirs is not None
    assert imported.theirs.best.deployment_id == "2 x tp1 + 1 x tp2"
    (tmp_path / "prefill.sh").write_text(TWO_POOLS.splitlines()[1])
    (tmp_path / "decode.sh").write_text(TWO_POOLS.splitlines()[3])
    free = import_service("vllm", [tmp_path / "prefill.sh", tmp_path / "decode.sh"], asked)
    assert free.theirs is not None
    assert free.theirs.best.largest_load >= imported.theirs.best.largest_load * (1 - 1e-6)
    assert any("the numbers that carry most" in line for line in free.assumed)
    shown = run_here("import", "vllm", "pd.sh", *(f"--{name}={value}" for name, value in asked.items()), cwd=tmp_path)
    assert "decode: pd.sh, line 4" in shown.out
    (tmp_path / "decode.sh").write_text(TWO_POOLS.splitlines()[3].replace("8B", "70B"))
    with pytest.raises(InputError, match=r"serve .*8B and .*70B: a plan has one model"):
        import_service("vllm", [tmp_path / "prefill.sh", tmp_path / "decode.sh"], asked)
    (tmp_path / "decode.sh").write_text(TWO_POOLS.splitlines()[3].replace("-tp 2", "-tp 2 --quantization fp8"))
    with pytest.raises(InputError, match="weights in none and fp8"):
        import_service("vllm", [tmp_path / "prefill.sh", tmp_path / "decode.sh"], asked)


def test_every_option_that_is_read_is_one_of_the_engine() -> None:
    for engine in ("vllm", "sglang"):
        assert len(known_options(engine)) > 400


def test_the_best_deployment_of_the_same_gpus_carries_more(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve meta-llama/Llama-3.1-8B-Instruct-FP8 -tp 4\n")
    asked = {"cluster": "4xh100-sxm-80gb", "input": "1000", "output": "100", "ttft": "1s", "tpot": "50ms"}
    imported = import_service("vllm", [tmp_path / "serve.sh"], {**asked, "rate": "4/s"})
    assert imported.theirs is not None
    assert imported.best is not None
    assert imported.theirs.best.deployment_id == "1 x tp4"
    assert imported.theirs.best.pools[0].weights == "fp8"
    assert imported.best.best.largest_load > 1.1 * imported.theirs.best.largest_load
    with pytest.raises(InputError, match="= 4 GPUs, the cluster 2"):
        import_service("vllm", [tmp_path / "serve.sh"], {**asked, "cluster": "2xh100-sxm-80gb"})
    with pytest.raises(InputError, match="does not name its GPUs"):
        import_service("vllm", [tmp_path / "serve.sh"], {**asked, "cluster": None})


def test_the_command_compares(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve meta-llama/Llama-3.1-8B -tp 4 --tpp 2\n")
    asked = ("--cluster", "4xh100-sxm-80gb", "--input", "1000", "--output", "100", "--tpot", "50ms", "--rate", "1/s")
    shown = run_here("import", "vllm", "serve.sh", *asked, "-o", "p.json", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert "unknown to vllm 0.32: --tpp (line 1)" in shown.out
    assert "enough for 1" in shown.out
    assert "% more" in shown.out
    assert (tmp_path / "p.json").is_file()
    (tmp_path / "gap.sh").write_text("vllm serve meta-llama/Llama-3.1-8B --speculative-config x\n")
    gap = run_here("import", "vllm", "gap.sh", *asked, cwd=tmp_path)
    assert "line 1: --speculative-config: speculation" in gap.out
    training = run_here("import", "megatron-args", "serve.sh", *asked, cwd=tmp_path)
    assert training.code == 2
    assert "--input goes with vllm and sglang" in training.err


@pytest.mark.slow
def test_a_limit_on_sequences_is_priced(tmp_path: Path) -> None:
    asked = {"cluster": "1xh100-sxm-80gb", "input": "500", "output": "200", "tpot": "50ms"}
    loads, best = [], 0.0
    for limit in (4, 32, 4096):
        (tmp_path / "serve.sh").write_text(f"vllm serve meta-llama/Llama-3.1-8B -tp 1 --max-num-seqs {limit}\n")
        imported = import_service("vllm", [tmp_path / "serve.sh"], asked)
        assert imported.theirs is not None
        assert imported.best is not None
        loads.append(imported.theirs.best.largest_load)
        best = imported.best.best.largest_load
    assert loads[0] < 0.3 * loads[1] < 0.3 * loads[2]
    assert loads[2] == pytest.approx(best, rel=0.1)


def test_sglang_divides_its_limit_by_the_groups() -> None:
    text = "sglang serve --model-path m --tp-size 8 --attn-dp-size 8 --max-running-requests 64\n"
    assert instance_of(read("sglang", text), is_moe=True).max_sequences == 8
    text = "vllm serve m -dp 8 --max-num-seqs 64\n"
    assert instance_of(read("vllm", text), is_moe=True).max_sequences == 64


def test_weights_of_a_command_are_those_of_the_checkpoint() -> None:
    (command,) = commands_of("sglang", "run.sh", "sglang serve --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 "
                             "--dp-size 8 --enable-dp-attention --chunked-prefill-size 32768\n")  # fmt: skip
    instance = instance_of(command, is_moe=True)
    assert (instance.weights, instance.fix["chunk_tokens"]) == ("fp8", 4096)
