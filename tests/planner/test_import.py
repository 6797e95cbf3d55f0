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

from meshwright.errors import InputError, UnknownNameError

from ..snapshots import ROOT

CONFIGS = ROOT / "tests" / "data" / "imports"


def layout_of(kind: str, name: str, **given: object) -> Imported:
    return import_config(kind, [CONFIGS / name], given)


def test_the_help_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--help"]) == 0
    assert f"FORMAT <str> {', '.join(FORMATS)}." in " ".join(capsys.readouterr().out.split())


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
    assert "31 options say the layout, 6 say other things" in out
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
    cfg.model.made_up = 3
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 128
    cfg.ddp.use_distributed_optimizer = True
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"
    return cfg
""", encoding="utf-8")  # fmt: skip
    found = import_config("megatron-bridge", [recipe], {"cluster": "dgx-h100:8", "model": "llama-3-70b"})
    assert str(found.layout) == "tp4-pp8-vpp5-dp2-mbs1-z1-rnone-fp8"
    assert found.unknown == {"model.made_up": 8}
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
        ("--micro-batch-size ${MBS}", r"line 3, --micro-batch-size: `\$\{MBS\}` is not set here"),
        ("--pipeline-model-parallel-size 3 --micro-batch-size 1", "80 layers do not split over pp 3"),
        ("--cp-comm-type ring --context-parallel-size 2", "`ring` is none of p2p, all_gather, a2a, a2a"),
        ("--optimizer lion --micro-batch-size 1", "--optimizer lion has no counterpart"),
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
    with pytest.raises(InputError, match="does not say which model"):
        layout_of("accelerate", "fsdp.yaml")
    with pytest.raises(InputError, match="on which GPUs") as caught:
        layout_of("accelerate", "fsdp.yaml", model="llama-3.1-8b")
    assert "it starts 16 ranks" in caught.value.hint
    with pytest.raises(UnknownNameError, match="unknown format `nemo`"):
        import_config("nemo", [CONFIGS / "fsdp.yaml"], {})
    with pytest.raises(InputError, match="no option of Megatron-LM in it"):
        import_config("megatron-args", [written(tmp_path, "echo hello\n")], {"cluster": "dgx-h100:8"})
    with pytest.raises(InputError, match="no such file"):
        import_config("megatron-args", [tmp_path / "absent.sh"], {"cluster": "dgx-h100:8"})


def test_the_faster_plan_is_written_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, path = tmp_path / "plan.json", str(CONFIGS / "llama3_70b_megatron.sh")
    assert main(["import", "megatron-args", path, "--cluster", "dgx-h100:8", "-o", str(plan)]) == 0
    assert f"Next: meshwright emit {plan} --to megatron" in capsys.readouterr().out
    assert main(["emit", str(plan), "--to", "megatron"]) == 0
