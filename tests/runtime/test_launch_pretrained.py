"""From a Hugging Face model through training under two layouts to a Hugging Face model, by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.cli.main import main
from meshwright.planner import api
from meshwright.planner.document.reading import load_plan
from meshwright.planner.request.load import request_from_dict
from meshwright.runtime.checkpoint.checkpoint import Checkpoints
from meshwright.runtime.job import job_of
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer
from torch import Tensor

from .fork import TIMEOUT_S, fork
from .launched import LiveRun, all_gone, finish, start
from .model.families import logits_of

LENGTH = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights in `hf`, tokens, and plans of one, two and four ranks for it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=61, max_position_embeddings=64)  # fmt: skip
    out = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(out / "hf", max_shard_size=60_000)
    np.random.default_rng(0).integers(0, 61, 4000).astype(np.uint16).tofile(out / "tokens.bin")
    for ranks, fixed in ((1, {"tp": 1}), (2, {"pp": 1, "tp": 1}), (4, {"pp": 2, "tp": 2})):
        asked = {"model": str(out / "hf"), "cluster": f"{ranks}xh100-sxm-80gb", "fix": fixed, "target": "meshwright",
                 "workload": {"seq_len": LENGTH, "global_batch": 8, "precision": "fp32"}}  # fmt: skip
        (out / f"{ranks}.json").write_text(api.plan(request_from_dict(asked)).to_json(), encoding="utf-8")
    return out


def our_logits(plan: Path, checkpoints: Path, tokens: Tensor) -> tuple[int, Tensor]:
    """The step of the newest checkpoint, and what the runtime makes of tokens with it, in one process."""
    wanted = job_of(load_plan(plan), 1)

    def one(rank: int) -> tuple[int, Tensor]:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        found = Checkpoints(trainer, checkpoints, keep=2).resume()
        with torch.no_grad():
            return found.step, logits_of(trainer.chunks[0], tokens)

    result: tuple[int, Tensor] = fork(1, one)[0]
    return result


@pytest.mark.slow
def test_trains_is_killed_goes_on_elsewhere_and_comes_back(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    checkpoints, plan = tmp_path / "ckpt", tmp_path / "plan.json"
    plan.write_text((folder / "2.json").read_text(encoding="utf-8"), encoding="utf-8")  # by which ranks are found
    words = ("--init-from", str(folder / "hf"), "--data", str(folder / "tokens.bin"), "--checkpoint", str(checkpoints),
             "--checkpoint-every", "1", "--device", "cpu", "--lr", "0.01")  # fmt: skip
    with LiveRun(plan, *words, "--steps", "1000000") as run:
        run.wait(lambda: len(run.saved) >= 2)
    assert all_gone(plan)
    last = run.saved[-1] + 3
    code, out, err = finish(start(str(folder / "4.json"), *words, "--resume", "--steps", str(last)))
    assert code == 0, err
    assert "saved under dp2-" in out
    assert f"step {last}/{last}" in out
    code, out, err = finish(start("export", str(checkpoints), "--to-hf", str(tmp_path / "out")))
    assert code == 0, err
    assert f"step {last}, 39 tensors in fp32" in out
    tokens = torch.randint(61, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    step, ours = our_logits(folder / "1.json", checkpoints, tokens)
    assert step == last
    before, after = (transformers.AutoModelForCausalLM.from_pretrained(each)(tokens).logits.detach()
                     for each in (folder / "hf", tmp_path / "out"))  # fmt: skip
    assert float((after - ours).abs().max()) < 1e-5
    assert float((after - before).abs().max()) > 0.01  # it has learned something


def config_of(folder: Path, to: Path, **changes: Any) -> Path:
    to.mkdir()
    config = json.loads((folder / "hf" / "config.json").read_text(encoding="utf-8"))
    (to / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    return to


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["launch", *words]) == 2
    return capsys.readouterr().err


def test_a_folder_of_another_model_is_refused_before_it_starts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = config_of(folder, tmp_path / "other", hidden_size=64, head_dim=8, tie_word_embeddings=True)
    tokens = {"model": {"vocab": {"a": 0, "b": 62}}, "added_tokens": [{"id": 63, "content": "<s>"}]}
    (other / "tokenizer.json").write_text(json.dumps(tokens), encoding="utf-8")
    said = refusal(capsys, str(folder / "2.json"), "--dry-run", "--init-from", str(other))
    assert "4 things are wrong" in said
    assert "neither model.safetensors nor model.safetensors.index.json is in it" in said
    assert "config.json, hidden: 64 in the folder, 32 in the plan" in said
    assert "config.json, tied_embeddings: True in the folder, False in the plan" in said
    assert "tokenizer.json: 64 tokens, the plan's model has 61 rows" in said
    (other / "tokenizer.json").write_text("[]", encoding="utf-8")
    assert "no tokenizer" in refusal(capsys, str(folder / "2.json"), "--dry-run", "--init-from", str(other))


@pytest.mark.filterwarnings("ignore")
def test_a_number_that_the_plan_rounds_is_that_of_its_folder(tmp_path: Path) -> None:
    """Gemma multiplies embeddings by the root of its width, of which a plan keeps nine digits."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Gemma2Config(hidden_size=32, intermediate_size=64, num_hidden_layers=2, head_dim=8,
                                       num_attention_heads=4, num_key_value_heads=2, vocab_size=61)  # fmt: skip
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path / "hf")
    asked = {"model": str(tmp_path / "hf"), "cluster": "1xh100-sxm-80gb", "target": "meshwright",
             "workload": {"seq_len": LENGTH, "global_batch": 8}}  # fmt: skip
    (tmp_path / "plan.json").write_text(api.plan(request_from_dict(asked)).to_json(), encoding="utf-8")
    scale = json.loads((tmp_path / "plan.json").read_text())["resolved"]["model"]["embedding_scale"]
    assert scale == pytest.approx(32**0.5)
    assert scale != 32**0.5
    assert main(["launch", str(tmp_path / "plan.json"), "--dry-run", "--init-from", str(tmp_path / "hf")]) == 0


def test_flags_that_do_not_go_together(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, hf = str(folder / "2.json"), str(folder / "hf")
    assert "a rehearsal trains a small model" in refusal(capsys, plan, "--scale-down", "--init-from", hf)
    assert "no config.json" in refusal(capsys, plan, "--dry-run", "--init-from", str(tmp_path))
    assert "has no checkpoint" in refusal(capsys, "export", str(tmp_path), "--to-hf", str(tmp_path / "out"))
    assert "none of bf16, fp32" in refusal(capsys, "export", str(tmp_path), "--to-hf", "out", "--dtype", "int8")
    assert main(["launch", plan, "--dry-run", "--init-from", hf]) == 0
    assert f"--init-from {hf}" in capsys.readouterr().out


def test_a_missing_shard_is_found_before_ranks_start(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (folder / "hf").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    next(tmp_path.glob("model-00002*")).unlink()
    said = refusal(capsys, str(folder / "2.json"), "--dry-run", "--init-from", str(tmp_path))
    assert "model-00002-of-00003.safetensors: is missing" in said


@pytest.mark.slow
def test_a_wrong_shape_is_named_with_the_ranks_gone(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for path in (folder / "hf").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shard = next(tmp_path.glob("model-00002*"))
    state = load_file(shard)
    name = next(iter(sorted(state)))
    save_file({**state, name: state[name][1:].clone()}, shard)
    code, _, err = finish(start(str(folder / "2.json"), "--init-from", str(tmp_path), "--device", "cpu"))
    assert code == 2
    assert "these weights cannot be taken" in err
    assert f"{shard.name}, {name}: has the shape" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch"], "nosuch has no checkpoint"),
        (["nosuch", "--file-size", "5"], "--file-size 5 has no unit"),
        (["nosuch", "--file-size", "0 GB"], "--file-size 0 GB: must be above 0"),
    ],
)
def test_a_bad_export_is_refused_before_torch_is_loaded(words: list[str], message: str, tmp_path: Path) -> None:
    code = "import sys; from meshwright.cli.main import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code, "launch", "export", *words, "--to-hf", "out"], cwd=tmp_path,
                           capture_output=True, text=True, check=False)  # fmt: skip
    assert message in found.stderr
    assert found.stdout == "False\n"
