"""`import`: a team's own config as a layout, priced, with something at least as fast; what is wrong in it, by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.cli.main import main
from meshwright.planner import api
from meshwright.planner.importing import FORMATS, Imported, import_config
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.emit import emit
from meshwright.planner.targets.engines.command_line import READ_ENGINES
from meshwright.planner.targets.post_training.step_readers import STEP_READERS

from meshwright.errors import InputError, UnknownNameError

from ..snapshots import ROOT

CONFIGS = ROOT / "tests" / "data" / "imports"


def layout_of(kind: str, name: str, **given: object) -> Imported:
    return import_config(kind, [CONFIGS / name], given)


def test_the_help_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--help"]) == 0
    listed = " ".join(capsys.readouterr().out.split()).partition("FORMAT <str> ")[2].partition(".")[0]
    assert sorted(listed.split(", ")) == sorted({*FORMATS, *STEP_READERS, *READ_ENGINES})


def test_a_published_launch_line_of_llama_3_70b(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(CONFIGS / "llama3_70b_megatron.sh")
    assert main(["import", "megatron-args", path, "--cluster", "dgx-h100:8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["layout_id"] == "tp4-pp8-vpp5-dp2-mbs1-z1-rnone-fp8"
    assert document["unknown"] == {}
    assert document["best"]["step_s"] <= document["candidate"]["step_s"]
    # Published: 1,602 tokens/s per GPU.
    assert document["candidate"]["tokens_per_s_per_gpu"] == pytest.approx(1602, rel=0.15)


def test_the_screen_says_what_is_faster_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(CONFIGS / "llama3_70b_megatron.sh")
    assert main(["import", "megatron-args", path, "--cluster", "dgx-h100:8"]) == 0
    out = capsys.readouterr().out
    assert "31 options set the layout, 6 set other things" in out
    assert "yours    tp4-pp8-vpp5-dp2-mbs1-z1-rnone-fp8" in out
    assert "if it runs for you" not in out  # it fits, as it did for those who published it
    assert "% faster; fits" in out
    assert "tp comm, exposed" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("kind", "name", "given", "layout"),
    [
        ("torchtitan", "llama3_8b.toml", {"cluster": "dgx-h100:8"}, "tp2-dp32-mbs1-z3-rfull"),
        ("deepspeed", "ds_zero3.json", {"cluster": "dgx-h100:2", "model": "llama-3.1-8b"}, "dp16-mbs2-z3-rnone"),
        ("accelerate", "fsdp.yaml", {"gpu": "h100-sxm-80gb", "model": "llama-3.1-8b"}, "tp2-nosp-dp8-mbs1-z3-rfull"),
    ],
)
def test_configs_of_other_frameworks(kind: str, name: str, given: dict[str, object], layout: str) -> None:
    found = layout_of(kind, name, **given)
    assert str(found.layout) == layout
    assert api.evaluate(found.request, layout).best.step_s > 0


def test_overlaps_and_the_loss_are_priced_as_they_are_switched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config that emit wrote costs what the plan says; every switch that is off costs something."""
    asked = {"model": "llama-3-70b", "cluster": "dgx-h100:8", "workload": {"seq_len": 8192, "global_batch": 512}}
    plan = api.evaluate(request_from_dict({**asked, "target": "megatron"}), "tp8-pp4-vpp5-dp2-mbs1-z1-rsel")
    text = emit(plan, "megatron").files["megatron.args"]
    path = tmp_path / "megatron.args"

    def priced(text: str) -> tuple[Imported, float]:
        path.write_text(text, encoding="utf-8")
        found = import_config("megatron-args", [path], {"cluster": "dgx-h100:8"})
        return found, found.price().best.step_s

    found, step_s = priced(text)
    assert not found.switched
    assert step_s == pytest.approx(plan.best.step_s, rel=1e-9)
    reduce, gather = "--overlap-grad-reduce", "--overlap-param-gather"
    for options in ([reduce, gather], [gather], ["--tp-comm-overlap"], ["--cross-entropy-loss-fusion"]):
        lines = [line for line in text.splitlines(keepends=True) if line.strip() not in options]
        found, slower = priced("".join(lines))
        assert list(found.switched) == options
        assert slower > step_s
    with pytest.raises(InputError, match="overlap_param_gather: on: it goes with overlap_grad_reduce on"):
        priced(text.replace(f"{reduce}\n", ""))
    path.write_text(text.replace("--cross-entropy-loss-fusion\n", ""), encoding="utf-8")
    assert main(["import", "megatron-args", str(path), "--cluster", "dgx-h100:8"]) == 0
    assert "with --cross-entropy-loss-fusion: " in capsys.readouterr().out


def test_a_recipe_that_changes_another(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text("""
def mine():
    cfg = llama3_70b_pretrain_config()
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 8
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.sequence_parallel = True
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 128
    cfg.ddp.use_distributed_optimizer = True
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"
    return cfg
""", encoding="utf-8")  # fmt: skip
    given = {"cluster": "dgx-h100:8"}
    (gap,) = import_config("megatron-bridge", [recipe], given).gaps
    assert (gap.line, gap.message) == (3, "starts from llama3_70b_pretrain_config, which is in another file")
    base = tmp_path / "base.py"
    base.write_text("""
def llama3_70b_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").get_model_config()
    cfg.model.seq_length = 8192
    cfg.model.tensor_model_parallel_size = 8
    return cfg
""", encoding="utf-8")  # fmt: skip
    found = import_config("megatron-bridge", [recipe, base], given)
    assert (found.request.model, found.request.workload.seq_len) == ("llama-3-70b", 8192)
    assert str(found.layout) == "tp4-pp8-vpp5-dp2-mbs1-z1-rnone-fp8"
    assert found.unknown == {}
    assert dict(found.settings) == {
        "tp_comm_overlap": "on", "overlap_grad_reduce": "on", "overlap_param_gather": "on", "fp8_recipe": "current",
        "grad_reduce_dtype": "fp32", "fp8_param_gather": "on", "cross_entropy": "fused",
    }  # fmt: skip
    assert found.switched == ()


def test_unknown_options_are_listed_with_their_line() -> None:
    assert layout_of("deepspeed", "ds_zero3.json", cluster="dgx-h100:2", model="llama-3.1-8b").unknown == {
        "zero_optimization.stage3_prefetch_buckets": 10
    }
    assert layout_of("torchtitan", "llama3_8b.toml", cluster="dgx-h100:8").unknown == {
        "parallelism.enable_async_tensor_parallel": 21
    }


def test_a_flavour_is_the_release_that_rotates_as_it_does() -> None:
    """Llama 3 has the shapes of 3.1, and is not scaled."""
    found = layout_of("torchtitan", "llama3_8b.toml", cluster="dgx-h100:8")
    assert found.request.model == "llama-3.1-8b"
    assert any("llama3/8B is taken for llama-3.1-8b, with its rotary positions" in each for each in found.assumed)


def test_the_batch_of_a_rank_makes_the_batch_of_all() -> None:
    found = layout_of("deepspeed", "ds_zero3.json", cluster="dgx-h100:2", model="llama-3.1-8b")
    assert found.request.workload.global_batch == 2 * 4 * 16
    assert any("--seq-len" in each for each in found.assumed)


def test_headers_and_comments_say_nothing(tmp_path: Path) -> None:
    asked = {"model": "llama-3-70b", "cluster": "dgx-h100:8", "workload": {"seq_len": 8192, "global_batch": 512}}
    plan = api.evaluate(request_from_dict({**asked, "target": "megatron"}), "tp8-pp4-vpp5-dp2-mbs1-z1-rsel")
    text = emit(plan, "megatron").files["megatron.args"]
    bare = "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))
    (tmp_path / "a.args").write_text(bare, encoding="utf-8")
    (tmp_path / "b.args").write_text(f"# --tensor-model-parallel-size 1\n{bare}# --bf16 --fp16\n", encoding="utf-8")
    for name in ("a.args", "b.args"):
        found = import_config("megatron-args", [tmp_path / name], {"cluster": "dgx-h100:8"})
        assert str(found.layout) == "tp8-pp4-vpp5-dp2-mbs1-z1-rsel"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("--tensor-model-parallel-size 5 --micro-batch-size 1", "tp 5 x cp 1 x pp 1 = 5 does not divide the 64 GPUs"),
        ("--tensor-model-parallel-size four", "line 3, --tensor-model-parallel-size: `four` is not a whole number"),
        ("--pipeline-model-parallel-size 3 --micro-batch-size 1", "80 layers do not split over pp 3"),
        ("--bf16 --fp16 --micro-batch-size 1", "line 3, --fp16: cannot be given together with --bf16"),
    ],
)
def test_configs_that_could_never_run(tmp_path: Path, extra: str, message: str) -> None:
    text = f"""--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --ffn-hidden-size 28672 --swiglu
--seq-length 8192 --max-position-embeddings 8192 --global-batch-size 512 --vocab-size 128256
{extra}
"""
    with pytest.raises(InputError, match=message):
        import_config("megatron-args", [written(tmp_path, text)], {"cluster": "dgx-h100:8"})


def test_a_layout_that_no_rule_allows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --seq-length 8192 --global-batch-size 511
--max-position-embeddings 8192 --tensor-model-parallel-size 8 --micro-batch-size 1 --vocab-size 128256"""
    assert main(["import", "megatron-args", str(written(tmp_path, text)), "--cluster", "dgx-h100:8"]) == 2
    assert "global batch 511 is not a multiple of dp 8 x micro batch 1" in capsys.readouterr().err


def test_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not name its model"):
        layout_of("accelerate", "fsdp.yaml")
    with pytest.raises(InputError, match="does not name its GPUs") as caught:
        layout_of("accelerate", "fsdp.yaml", model="llama-3.1-8b")
    assert "it starts 16 ranks: add `--gpu" in caught.value.hint
    other = tmp_path / "other.toml"
    text = (CONFIGS / "llama3_8b.toml").read_text(encoding="utf-8")
    other.write_text(text.replace('"8B"', '"14B"').replace('"llama3"', '"llama2"'), encoding="utf-8")
    with pytest.raises(InputError, match="the model llama2/14B is not in the catalogue"):
        import_config("torchtitan", [other], {"cluster": "dgx-h100:8"})
    with pytest.raises(UnknownNameError, match="unknown format `ours`"):
        import_config("ours", [CONFIGS / "fsdp.yaml"], {})
    with pytest.raises(InputError, match="no option of Megatron-LM in it"):
        import_config("megatron-args", [written(tmp_path, "echo hello\n")], {"cluster": "dgx-h100:8"})
    with pytest.raises(InputError, match="no such file"):
        import_config("megatron-args", [tmp_path / "absent.sh"], {"cluster": "dgx-h100:8"})


def test_the_faster_plan_is_written_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, path = tmp_path / "plan.json", str(CONFIGS / "llama3_70b_megatron.sh")
    assert main(["import", "megatron-args", path, "--cluster", "dgx-h100:8", "-o", str(plan)]) == 0
    assert f"Next: meshwright emit {plan} --to megatron" in capsys.readouterr().out
    assert main(["emit", str(plan), "--to", "megatron"]) == 0


PLAIN = """--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --ffn-hidden-size 28672 --swiglu
--seq-length 8192 --max-position-embeddings 8192 --global-batch-size 512 --vocab-size 128256
"""


@pytest.mark.parametrize(
    ("extra", "gap"),
    [
        ("--micro-batch-size 1 --cp-comm-type ring", "line 3, --cp-comm-type: `ring` is none of p2p, all_gather"),
        ("--micro-batch-size 1 --optimizer lion", "line 3, --optimizer: lion has no counterpart in a plan"),
        ("--micro-batch-size 1 --shuffle-experts", "line 3, --shuffle-experts: unknown: it may change the layout"),
        ("--micro-batch-size 1 --use-tp-pp-dp-mapping", "line 3, --use-tp-pp-dp-mapping: puts pipeline stages beside"),
    ],
)
def test_what_is_not_understood_is_named_and_nothing_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: str, gap: str
) -> None:
    path = written(tmp_path, PLAIN + extra)
    imported = import_config("megatron-args", [path], {"cluster": "dgx-h100:8"})
    assert [gap in str(each) for each in imported.gaps] == [True]
    assert {name: imported.stated[name] for name in ("model.hidden", "model.heads", "workload.seq_len")} == {
        "model.hidden": 8192, "model.heads": 64, "workload.seq_len": 8192}  # fmt: skip
    with pytest.raises(InputError):
        imported.price()
    assert main(["import", "megatron-args", str(path), "--cluster", "dgx-h100:8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["candidate"] is None
    assert document["best"] is None
    assert main(["import", "megatron-args", str(path), "--cluster", "dgx-h100:8"]) == 0
    assert "Not compared, because these may change the layout" in capsys.readouterr().out


@pytest.mark.parametrize(
    "extra",
    ["--tokenizer-type OurOwn", "--save $CKPT/run --tensorboard-dir ${LOGS}", "--log-everything-twice", "--seed four",
     "--kill-switch-path /x --structured-logs"],
)  # fmt: skip
def test_what_says_nothing_is_left_aside(tmp_path: Path, extra: str) -> None:
    imported = layout_in(tmp_path, f"{PLAIN}--micro-batch-size 1 {extra}")
    assert not imported.gaps
    assert str(imported.layout) == "dp64-mbs1-z0-rnone-fp32"


def layout_in(tmp_path: Path, text: str, *arguments: str, **given: object) -> Imported:
    path = written(tmp_path, text)
    return import_config("megatron-args", [path], {"cluster": "dgx-h100:8", **given}, None, arguments)


SCRIPT = """#!/bin/bash
#SBATCH --nodes=8
#SBATCH --gres=gpu:8
MBS=${3:-2}
TP=$1
if [ "$2" = fp8 ]; then PRECISION="--bf16 --fp8-hybrid"; else PRECISION="--bf16"; fi
ARGS=(
    --tensor-model-parallel-size ${TP}
    "--micro-batch-size ${MBS}"  # of one rank
    --global-batch-size $((8 * 64)) \
)
run_cmd="torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES pretrain_gpt.py ${ARGS[@]} $PRECISION $(echo "$MODEL") $@"
MODEL="--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --seq-length 8192 --max-position-embeddings 8192"
eval "$run_cmd $MODEL --save $CKPT"
"""


def test_positional_parameters_are_given_by_arg(tmp_path: Path) -> None:
    """A condition on one that is not given leaves both ways open; --arg decides."""
    texts = [str(gap) for gap in layout_in(tmp_path, SCRIPT).gaps]
    assert any("--tensor-model-parallel-size: `$1` is not set here" in text for text in texts)
    assert any("`$PRECISION by $2` may hold" in text for text in texts)
    found = layout_in(tmp_path, SCRIPT, "8", "fp8")
    assert str(found.layout) == "tp8-nosp-dp8-mbs2-z0-rnone-fp8"
    assert str(layout_in(tmp_path, SCRIPT, "1=4", "2=bf16", "3=1").layout) == "tp4-nosp-dp16-mbs1-z0-rnone"
    assert found.request.workload.global_batch == 512


def test_a_sourced_file_is_given_beside(tmp_path: Path) -> None:
    (tmp_path / "model.sh").write_text('MODEL_ARGS="--num-layers 80 --hidden-size 8192 --num-attention-heads 64"\n')
    text = """source ${HERE}/model.sh
python pretrain_gpt.py $MODEL_ARGS --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --bf16
"""
    alone = layout_of_paths([written(tmp_path, text)], model="llama-3-70b")
    assert any("`model.sh` (line 1) is sourced and missing" in each for each in alone.assumed)
    found = layout_of_paths([written(tmp_path, text), tmp_path / "model.sh"])
    assert found.request.model["hidden"] == 8192  # type: ignore[index]


def layout_of_paths(paths: list[Path], **given: object) -> Imported:
    return import_config("megatron-args", paths, {"cluster": "dgx-h100:8", **given})


@pytest.mark.parametrize("second", ["--micro-batch-size 2", "--micro-batch-size 1 --nnodes 2"])
def test_a_script_that_starts_two_jobs(tmp_path: Path, second: str) -> None:
    options = f"pretrain_gpt.py {PLAIN.replace(chr(10), ' ')}"
    micro_batch, _, ranks = second.partition(" --nnodes")
    text = f"torchrun --nproc_per_node 8 {options} --micro-batch-size 1\n"
    text += f"torchrun --nnodes{ranks or ' 1'} --nproc_per_node 8 {options} {micro_batch}\n"
    message = r"line 2: starts 2 jobs with different options or ranks: 1 \(line 1\); 2 \(line 2"
    with pytest.raises(InputError, match=message) as caught:
        layout_in(tmp_path, text)
    assert "--arg job=N" in caught.value.hint


OLDER = """deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py --model-parallel-size 4 --batch-size 2 \\
  --global-batch-size 64 --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \\
  --seq-length 2048 --max-position-embeddings 2048 \\
  --checkpoint-activations --fp16 --deepspeed --zero-stage 1 --normalization rmsnorm --num-key-value-heads 4 \\
  --num-experts 64 --moe-expert-parallel-size 8 --topk 2 --expert-interval 1 --disable-moe-token-dropping \\
  --glu-activation swiglu --sequence-parallel
"""


def test_older_names_mean_what_they_mean(tmp_path: Path) -> None:
    found = import_config("megatron-args", [written(tmp_path, OLDER)], {"gpu": "h100-sxm-80gb"})
    assert not found.gaps
    assert str(found.layout) == "tp4-dp16-ep8-mbs2-z1-rfull-fp16"
    model = found.request.model
    assert isinstance(model, dict)
    assert (model["norm_bias"], model["kv_heads"], model["gated_mlp"]) == (False, 4, True)
    assert (model["moe"]["experts"], model["moe"]["topk"], found.request.gpus) == (64, 2, 64)


def test_a_file_of_another_framework(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("checkpoints: {}\ndata_stages: []\ngeneral: {}\nlogging: {}\nparallelism: {dp: 2}\ntokens: {}\n")
    with pytest.raises(InputError, match="accelerate has no such option, nor 5 more of the 6 here") as caught:
        import_config("accelerate", [path], {"gpu": "h100-sxm-80gb", "model": "llama-3.1-8b"})
    assert caught.value.hint == "it looks like a file of nanotron: `import nanotron`"


@pytest.mark.parametrize(
    ("lines", "layout"),
    [
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu}",
         "dp16-mbs1-z2-rnone-oopt"),
        ("distributed_type: FSDP\ndowncast_bf16: 'no'\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}",
         "dp16-sh8-mbs1-z3-rnone"),
        ("distributed_type: FSDP\nfsdp_config: {sharding_strategy: SHARD_GRAD_OP, activation_checkpointing: true, "
         "fsdp: full_shard}", "dp16-mbs1-z2-rfull"),
        ("distributed_type: MULTI_GPU\nmixed_precision: 'no'", "dp16-mbs1-z0-rnone-fp32"),
    ],
)  # fmt: skip
def test_accelerate_files_as_people_have_them(tmp_path: Path, lines: str, layout: str) -> None:
    path = tmp_path / "accelerate.yaml"
    head = "compute_environment: LOCAL_MACHINE\nnum_machines: 2\nnum_processes: 16\nsame_network: true\n"
    path.write_text(f"{head}{lines}\n", encoding="utf-8")
    found = import_config("accelerate", [path], {"gpu": "h100-sxm-80gb", "model": "llama-3.1-8b"})
    assert str(found.layout) == layout


def test_ranks_other_than_the_gpus_that_are_named_are_said(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n", encoding="utf-8")
    found = import_config("accelerate", [path], {"cluster": "dgx-h100:1", "model": "llama-3.1-8b"})
    assert "the config starts 4 ranks: read for the 8 GPUs that are named" in found.assumed
    found = import_config("accelerate", [path], {"gpu": "h100-sxm-80gb", "model": "llama-3.1-8b"})
    assert not any("starts" in note for note in found.assumed)


def test_the_first_toml_of_torchtitan(tmp_path: Path) -> None:
    path = tmp_path / "llama.toml"
    path.write_text("""[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 2
seq_len = 8192
data_parallel_shard_degree = 8
tensor_parallel_degree = 4
compile = true
[experimental]
pipeline_parallel_degree = 1
[float8]
enable_float8_linear = true
[activation_checkpoint]
mode = "full"
""", encoding="utf-8")  # fmt: skip
    found = import_config("torchtitan", [path], {"gpu": "h100-sxm-80gb"})
    assert str(found.layout) == "tp4-dp8-mbs2-z3-rfull-fp8"


@pytest.mark.parametrize(("experts", "gaps"), [("", []), ("expert_parallel_degree = 1\n", []),
                                               ("expert_parallel_degree = 4\n", ["expert_tensor_parallel_degree"])])
def test_the_degree_inside_experts_of_torchtitan(tmp_path: Path, experts: str, gaps: list[str]) -> None:
    """torchtitan 0.2.2, torchtitan/config/job_config.py: without a degree of experts it has no effect."""
    path = tmp_path / "moe.toml"
    path.write_text(f"""[model]
name = "llama4"
flavor = "17bx16e"
[training]
local_batch_size = 1
[parallelism]
tensor_parallel_degree = 8
expert_tensor_parallel_degree = 8
{experts}""", encoding="utf-8")
    found = import_config("torchtitan", [path], {"cluster": "dgx-h100:8", "model": "llama-4-scout"})
    assert [gap.field.rpartition(".")[2] for gap in found.gaps] == gaps


MEGABLOCKS = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 32 --bf16"
)
EXPERTS = f"{MEGABLOCKS} --moe-num-experts 64"


def imported_script(tmp_path: Path, options: str, launcher: str = "") -> Imported:
    path = written(tmp_path, f"{launcher} pretrain_gpt.py {options}\n" if launcher else f"{options}\n")
    return import_config("megatron-args", [path], {"cluster": "dgx-h100:1"})


def test_the_fork_of_megablocks(tmp_path: Path) -> None:
    """Experts in every layer, over all data-parallel ranks."""
    everywhere = f"{EXPERTS} --moe-expert-model-parallelism"
    found = imported_script(tmp_path, everywhere, "torchrun --nproc_per_node 8")
    assert str(found.layout) == "dp8-ep8-mbs32-z0-rnone"
    assert isinstance(found.request.model, dict)
    moe = found.request.model["moe"]
    assert (moe["experts"], moe["topk"], found.request.workload.expert_capacity_factor) == (64, 1, None)
    found = imported_script(tmp_path, f"{EXPERTS} --moe-top-k 2 --moe-capacity-factor 1.5")
    assert (found.layout.ep, found.request.workload.expert_capacity_factor) == (1, 1.5)
    (gap,) = imported_script(tmp_path, everywhere).gaps
    assert "experts over all data-parallel ranks" in gap.message


def test_without_a_global_batch_every_rank_takes_one_micro_batch(tmp_path: Path) -> None:
    found = imported_script(tmp_path, f"{MEGABLOCKS} --tensor-model-parallel-size 2")
    assert found.request.workload.global_batch == 32 * 4


def test_an_option_that_deepspeed_never_asks_for_is_no_gap(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    rest = '"zero_optimization": {"stage": 1}, "pipeline": {"seed_layers": true}'
    given = {"cluster": "dgx-h100:1", "model": "llama-3.1-8b"}
    path.write_text(f'{{{rest}, "own_parallel_engine": false}}')
    assert not import_config("deepspeed", [path], given).gaps
    path.write_text(f'{{{rest}, "own_parallel_engine": true}}')
    found = import_config("deepspeed", [path], given)
    assert not found.gaps
    assert "own_parallel_engine: DeepSpeed has no such option and passes over it" in found.assumed


TEMPLATE = """{
  "train_batch_size": GBSIZE,
  "train_micro_batch_size_per_gpu" : MBSIZE,
  "steps_per_print": LOG_INTERVAL,
  "zero_optimization": {
    "stage": ZERO_STAGE
  },
  "bf16": {"enabled": true}
}
"""


def test_a_template_of_deepspeed_is_filled(tmp_path: Path) -> None:
    path, given = tmp_path / "ds.json", {"cluster": "dgx-h100:1", "model": "llama-3.1-8b"}
    path.write_text(TEMPLATE)
    gaps = import_config("deepspeed", [path], given).gaps
    assert [(gap.field, gap.line, gap.hint) for gap in gaps] == [
        ("train_batch_size", 2, "give it: --arg GBSIZE=VALUE"),
        ("train_micro_batch_size_per_gpu", 3, "give it: --arg MBSIZE=VALUE"),
        ("zero_optimization.stage", 6, "give it: --arg ZERO_STAGE=VALUE"),
    ]
    found = import_config("deepspeed", [path], given, script_arguments=["GBSIZE=64", "MBSIZE=2", "ZERO_STAGE=3"])
    assert (str(found.layout), found.request.workload.global_batch) == ("dp8-mbs2-z3-rnone", 64)


def test_a_block_that_deepspeed_lacks_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 2, "fp32": {"enabled": true}}', encoding="utf-8")
    found = import_config("deepspeed", [path], {"gpu": "h100-sxm-80gb", "gpus": 4, "model": "gpt2"})
    assert (str(found.layout), found.gaps) == ("dp4-mbs2-z0-rnone-fp32", ())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ('"train_micro_batch_size_per_gpu": 0', "line 1, train_micro_batch_size_per_gpu: `0` is not 1 or more"),
        ('"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 3', "no multiple of .* 1 x .* 3 = 3"),
        ('"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2', "those of dp 4 .* leave dp 2 of 2"),
    ],
)
def test_batch_sizes_that_deepspeed_refuses_are_refused(tmp_path: Path, batch: str, message: str) -> None:
    """`_batch_assertion` of DeepSpeedConfig: batch = micro-batch x accumulation steps x data-parallel ranks."""
    path = tmp_path / "ds.json"
    path.write_text(f'{{"train_batch_size": 8, {batch}}}')
    with pytest.raises(InputError, match=message):
        import_config("deepspeed", [path], {"model": "gpt2", "gpu": "h100-sxm-80gb", "gpus": 2})


@pytest.mark.parametrize(("extra", "gap"), [
    ('"torch_autocast": {"enabled": true, "dtype": "bfloat16"}', "torch_autocast: another mixed precision"),
    ('"torch_autocast": {"enabled": false}', ""),
    ('"weight_quantization": {"quantize_weight_in_forward": true}', "weight_quantization: quantised weights"),
    ('"bf16": {"enabled": true, "bf16_optimizer_states": true}', "bf16.bf16_optimizer_states: states of another size"),
    ('"amp": {"enabled": false}', ""),
])  # fmt: skip
def test_options_of_deepspeed_that_change_states(tmp_path: Path, extra: str, gap: str) -> None:
    path = tmp_path / "ds.json"
    path.write_text(f'{{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {{"stage": 3}}, {extra}}}')
    found = import_config("deepspeed", [path], {"cluster": "dgx-h100:1", "model": "llama-3.1-8b"})
    assert [str(each).partition("line 1, ")[2] for each in found.gaps] == ([gap] if gap else [])
