"""A tiny model trains from emitted files: two ranks over gloo on the CPU, three steps, and the loss falls.

Frameworks that are absent or need a GPU are `not run`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.targets.emit import emit

from ..table import Row
from .pythons import FOLDER, has, python_of

if not FOLDER:
    pytest.skip("`make test-upstream` runs these", allow_module_level=True)
pytestmark = pytest.mark.upstream
STAND_IN = Path(__file__).parent / "gpu_stand_in"
CONFIG = """{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 128,
"tie_word_embeddings": false}"""
# Makes a folder with weights and a tokenizer, and one with texts.
FOLDERS = """
import json, pathlib, torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
text = "one two three four five six seven eight nine ten " * 20
words = Tokenizer(models.BPE(unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.ByteLevel()
words.train_from_iterator([text], trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "</s>"]))
PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>").save_pretrained("model")
torch.manual_seed(0)
AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model")).save_pretrained("model")
pathlib.Path("texts").mkdir()
pathlib.Path("texts/dataset_info.json").write_text(
    json.dumps({"texts": {"file_name": "train.jsonl", "columns": {"prompt": "text"}}}))
pathlib.Path("texts/train.jsonl").write_text((json.dumps({"text": text}) + chr(10)) * 200)
"""
STAND_IN_VARIABLES = {"ACCELERATE_TORCH_DEVICE": "cpu", "PYTHONPATH": str(STAND_IN), "HF_HUB_OFFLINE": "1"}
SCRIPT = "--model model --from-scratch --steps 3 --lr 3e-3"
# Target, perhaps with words after it -> (layout, arguments of launch.sh, variables that put CPU ranks in the place of
# GPUs).
CASES = {
    "accelerate": ("dp2-mbs2-z3-rfull", "--model model --from_scratch --max_steps 3 --learning_rate 3e-3",
                   STAND_IN_VARIABLES),
    "trl": ("dp2-mbs2-z3-rfull", "--model_name_or_path model --dataset_name texts --max_steps 3 --logging_steps 1 "
            "--learning_rate 1e-2 --output_dir out --report_to none", STAND_IN_VARIABLES),
    "llama-factory": ("dp2-mbs2-z3-rfull", "model_name_or_path=model stage=pt dataset=texts dataset_dir=texts "
                      "template=default max_steps=3 logging_steps=1 learning_rate=1e-2 output_dir=out report_to=none",
                      STAND_IN_VARIABLES),
    "deepspeed": ("dp2-mbs2-z3-rfull", SCRIPT, {"DS_ACCELERATOR": "cpu"}),
    "deepspeed with tp": ("tp2-nosp-dp1-mbs2-z1-rnone", SCRIPT, {"DS_ACCELERATOR": "cpu"}),
}  # fmt: skip
# Targets that train adapters of a model with weights, on texts.
TUNERS = {"trl": "trl", "llama-factory": "llamafactory"}


def losses(text: str) -> list[float]:
    """The losses of steps that train.py of either framework prints."""
    return [float(loss) for loss in re.findall(r"(?:'loss': '?|step \d+  loss )(\d+\.\d+)", text)]


@pytest.mark.parametrize("name", CASES)
def test_a_tiny_model_trains(name: str, tmp_path: Path, row: Row) -> None:
    target = name.partition(" ")[0]
    layout, given, environment = CASES[name]
    if not has(target, TUNERS.get(target, target)):
        row(target, f"trains {layout} on 2 CPU ranks", "not run")
        pytest.skip(f"{target} is not there")
    model, folder = tmp_path / "model", tmp_path / "run"
    model.mkdir()
    folder.mkdir()
    (model / "config.json").write_text(CONFIG, encoding="utf-8")
    plan = api.evaluate(None, layout, model=str(model / "config.json"), cluster="2xh100-sxm-80gb", seq_len=64,
                        global_batch=16, target=target, lora="8:q,v" if target in TUNERS else None)  # fmt: skip
    for file, text in emit(plan, target).files.items():
        (folder / file).write_text(text, encoding="utf-8")
    path = f"{Path(python_of(target)).parent}{os.pathsep}{os.environ['PATH']}"
    if target in TUNERS:
        subprocess.run([python_of(target), "-c", FOLDERS], cwd=tmp_path, check=True, capture_output=True)
    # The first run of DeepSpeed compiles its optimizer: minutes.
    done = subprocess.run(
        ["sh", str(folder / "launch.sh"), *shlex.split(given)], cwd=tmp_path, text=True,
        capture_output=True, check=False, timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": "29571", **environment, "PATH": path},
    )  # fmt: skip
    found = losses(done.stdout + done.stderr)
    assert len(found) == 3, (done.stdout + done.stderr)[-4000:]
    row(target, f"trains {layout} on 2 CPU ranks", " > ".join(f"{loss:.3f}" for loss in found))
    assert found[0] > found[1] > found[2]
    assert "parameters, the planned model" not in done.stderr


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "torchtitan", "axolotl", "nanotron", "maxtext"])
def test_what_needs_a_gpu_is_not_run(target: str, row: Row) -> None:
    row(target, "trains three steps", "not run: needs a GPU")
    pytest.skip(f"{target} needs a GPU")
