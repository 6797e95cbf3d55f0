"""Scripts that fill DeepSpeed's JSON from a template by sed, and words that only the place of a rank decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cli.screens.import_config import gaps_screen
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.targets.shell.script import follow

SIZES = ("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048 "
         "--micro-batch-size 2 --global-batch-size 16 --vocab-size 1024")  # fmt: skip
TEMPLATE = """{"train_batch_size": BATCH, "zero_optimization": {"stage": STAGE},
 "fp16": {"enabled": HALF}, "bf16": {"enabled": false}}
"""
FILLED = """NAME="run-$(hostname)"
sed "s/BATCH/16/" ${TEMPLATE:-template.json} \\
    | sed "s/STAGE/%s/" \\
    | sed 's#HALF#true#g' > ds_$NAME.json
"""
COMMAND = f"deepspeed --num_gpus 8 pretrain_gpt.py {SIZES} --fp16 --deepspeed --deepspeed_config %s\n"


def imported(folder: Path, script: str, **others: str) -> Imported:
    paths = []
    for name, text in {"run.sh": script, **{f"{name}.json": text for name, text in others.items()}}.items():
        (folder / name).write_text(text, encoding="utf-8")
        paths.append(folder / name)
    return import_config("megatron-args", paths, {"gpu": "h100-sxm-80gb"})


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_template_that_sed_fills(tmp_path: Path, stage: int) -> None:
    found = imported(tmp_path, FILLED % stage + COMMAND % "ds_$NAME.json", template=TEMPLATE)
    assert (found.gaps, found.layout.zero) == ((), stage)


def test_a_template_that_sed_fills_in_place(tmp_path: Path) -> None:
    script = ("cp a template.json\nsed -i -e 's/BATCH/16/' -e 's/HALF/true/; s/x/y/' template.json\n"
              "sed -i s/STAGE/2/ template.json\n")  # fmt: skip
    found = imported(tmp_path, script + COMMAND % "template.json", template=TEMPLATE)
    assert (found.gaps, found.layout.zero) == ((), 2)


@pytest.mark.parametrize("script", [
    "s/STA.E/1/", "s/STAGE/$(nproc)/", "1d", "y/ab/cd/", "s/STAGE/1", "s/STAGE/&1/",
    "-E s/(STAGE)/1/", "s/STAGE/\\\\n/",
])
def test_a_template_that_more_than_words_fill(tmp_path: Path, script: str) -> None:
    text = (FILLED % 1).replace("s/STAGE/1/", script)
    (gap,) = imported(tmp_path, text + COMMAND % "ds_$NAME.json", template=TEMPLATE).gaps
    assert (gap.field, gap.message) == ("--deepspeed_config",
                                        "the ZeRO stage is in this file: give it as a further FILE")  # fmt: skip


def test_only_the_first_match_of_a_line_is_replaced() -> None:
    """GNU sed 4.9 prints `b a`, then `b b` for the flag g."""
    files = {"t.json": "a a"}
    assert follow("sed s/a/b/ t.json > u", beside=files).files["u"] == "b a"
    assert follow("cat t.json | sed s/a/b/g > u", beside=files).files["u"] == "b b"
    for text in ("sed s/a/b/ missing.json > u", "sed s/a/b/ t.json", "sed > v", "sed -i", "cat > w",
                 "cat t.json | sed -i s/a/b/"):  # fmt: skip
        assert not follow(text, beside=files).files


def test_brackets_are_words_in_a_plain_pattern() -> None:
    """GNU sed 4.9 prints `4 c` for both."""
    files = {"t.json": "{{TP}} c", "u.json": "${TP} c"}
    assert follow("sed 's/{{TP}}/4/' t.json > v", beside=files).files["v"] == "4 c"
    assert follow('sed "s/\\${TP}/4/" u.json > v', beside=files).files["v"] == "4 c"


def test_a_json_that_trains_in_another_format(tmp_path: Path) -> None:
    json = '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}'
    (gap,) = imported(tmp_path, COMMAND % "ds.json", ds=json).gaps
    assert (gap.field, gap.message) == ("--deepspeed_config", "it trains in bf16, the command in fp16")


def test_one_expert_needs_no_degree(tmp_path: Path) -> None:
    """ds_pretrain_gpt_*.sh take the degree from the GPUs, although there is one expert."""
    script = ("GPUS=$(nvidia-smi -L | wc -l)\nif [[ 1 -gt $GPUS ]]; then EP=$GPUS; else EP=1; fi\n"
              + COMMAND.strip() % "ds.json" + " --num-experts 1 --moe-expert-parallel-size $EP\n")  # fmt: skip
    json = '{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}}'
    found = imported(tmp_path, script, ds=json)
    assert (found.gaps, found.layout.ep) == ((), 1)


RANKED = """if [ ${%s} -ge 4 ]; then RECOMPUTE=""; else RECOMPUTE="--checkpoint-activations"; fi
torchrun --nproc_per_node 8 pretrain_gpt.py --no-cuda $RECOMPUTE %s --bf16
"""


@pytest.mark.parametrize("name", ["PMIX_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_PROCID", "MV2_COMM_WORLD_RANK"])
def test_options_by_the_place_of_a_rank(tmp_path: Path, name: str) -> None:
    """Nobody sets the variable in the script; an option without a type does not take the word behind it."""
    found = imported(tmp_path, RANKED % (name, SIZES))
    (gap,) = found.gaps
    assert (gap.field, found.read_layout) == ("--checkpoint-activations", None)


def test_a_precision_that_the_gpus_lack(tmp_path: Path) -> None:
    """The config is read; it has no price on a V100, which multiplies in fp16."""
    path = tmp_path / "run.sh"
    path.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --bf16\n", encoding="utf-8")
    found = import_config("megatron-args", [path], {"gpu": "v100-sxm-32gb"})
    (gap,) = found.gaps
    assert (gap.field, gap.line, gap.message) == ("--bf16", 1, "v100-sxm-32gb has no bf16 matrix units")
    assert (str(found.layout), found.unpriced) == ("dp8-mbs2-z0-rnone", True)
    assert "Not compared, because it has no price on these GPUs:" in gaps_screen(found, several=False)
