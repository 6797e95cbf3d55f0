"""Scripts with several jobs, one of which --arg chooses by its number."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

OPTIONS = ("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length $2 --max-position-embeddings 4096 "
           "--micro-batch-size $1 --global-batch-size 32 --bf16")  # fmt: skip
CASES = f"run_case() {{\n  torchrun --nproc_per_node 8 pretrain_gpt.py {OPTIONS} $3\n}}\n" + (
    "run_case 1 1024\nrun_case 1 2048\nrun_case 2 1024 --swiglu\nrun_case 1 1024\n")  # fmt: skip


def imported(folder: Path, text: str, *arguments: str) -> Imported:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"}, None, arguments)


def test_jobs_are_named_with_their_options(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        imported(tmp_path, CASES)
    assert ("starts 3 jobs with different options or ranks: 1 (line 2); 2 (line 2, --seq-length 2048); "
            "3 (line 2, --micro-batch-size 2, --swiglu)") in str(caught.value)  # fmt: skip
    command = f"torchrun --nproc_per_node 8 pretrain_gpt.py {OPTIONS.replace('$1', '$i')}"
    loop = f"for i in {{1..12}}; do\n  {command}\ndone\n"
    with pytest.raises(InputError, match=r"starts 12 jobs .* 8 \(line 2, --micro-batch-size 8\); 4 more"):
        imported(tmp_path, loop.replace("$2", "1024"))


@pytest.mark.parametrize(("number", "layout"), [
    (1, "dp8-mbs1-z0-rnone"), (2, "dp8-mbs1-z0-rnone"), (3, "dp8-mbs2-z0-rnone")])  # fmt: skip
def test_a_job_by_its_number(tmp_path: Path, number: int, layout: str) -> None:
    found = imported(tmp_path, CASES, f"job={number}")
    assert (str(found.layout), found.gaps) == (layout, ())
    assert found.request.workload.seq_len == (2048 if number == 2 else 1024)


@pytest.mark.parametrize("word", ["job=4", "job=0", "job=x"])
def test_a_number_of_no_job(tmp_path: Path, word: str) -> None:
    with pytest.raises(InputError, match="starts 3 jobs"):
        imported(tmp_path, CASES, word)


def test_options_that_a_function_prints(tmp_path: Path) -> None:
    lines = "\n".join(f"  echo {part}" for part in OPTIONS.replace("$2", "1024").split(" --"))
    text = f"flags() {{\n{lines.replace('echo ', 'echo --').replace('echo ----', 'echo --')}\n}}\n"
    assert str(imported(tmp_path, f"{text}torchrun --nproc_per_node 8 pretrain_gpt.py $(flags 2)\n").layout) == (
        "dp8-mbs2-z0-rnone")  # fmt: skip


def test_a_tokenizer_whose_folder_is_open(tmp_path: Path) -> None:
    """An option of a tokenizer that is not known, or not set, leaves the table to a note, and a size needs neither."""
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {OPTIONS.replace('$2', '1024').replace('$1', '1')} "
    text += "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path $ROOT/mine"
    found = imported(tmp_path, text)
    assert found.gaps == ()
    assert any("128,256 taken" in note for note in found.assumed)
    sized = imported(tmp_path, f"{text} --padded-vocab-size 1024")
    assert (sized.gaps, any("taken" in note for note in sized.assumed)) == ((), False)
