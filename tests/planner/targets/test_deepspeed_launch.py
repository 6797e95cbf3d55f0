"""Launch scripts beside DeepSpeed's JSON, or in its place: ranks, and the JSON that a script writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import import_config

from meshwright.errors import InputError

GIVEN = {"gpu": "h100-sxm-80gb", "model": "llama-3.1-8b", "seq_len": 2048}
JSON = '{"train_batch_size": 32, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
RUN = "deepspeed {launcher} benchmark.py --grad_checkpoint --deepspeed_config $DS_CONFIG\n"
WRITES = """\
STAGE=${1:-2}
DS_CONFIG="./ds_config.json"
cat <<EOT > $DS_CONFIG
{"train_batch_size": 32, "zero_optimization": {"stage": $STAGE}, "bf16": {"enabled": true}}
EOT
"""


def test_a_script_that_writes_its_json(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(WRITES + RUN.format(launcher="--num_gpus 4"), encoding="utf-8")
    for arguments, zero in (((), 2), (("3",), 3)):
        found = import_config("deepspeed", [path], GIVEN, None, arguments)
        assert not found.gaps
        assert str(found.layout) == f"dp4-mbs8-z{zero}-rnone"
        assert "benchmark.py: its own options are not read beside DeepSpeed's JSON" in found.assumed


@pytest.mark.parametrize(
    ("text", "dp"),
    [("#!/bin/bash\n#SBATCH --ntasks=1\n#SBATCH --gres=gpu:v100:4\nsrun " + RUN.format(launcher=""), 4),
     ("#!/bin/bash\n" + RUN.format(launcher="--include localhost:0,1"), 2),
     ("torchrun --nproc_per_node 8 train.py --deepspeed ds_config.json\n", 8)],
)  # fmt: skip
def test_the_ranks_of_a_script(tmp_path: Path, text: str, dp: int) -> None:
    """The launcher of DeepSpeed is one task of Slurm and starts a rank for each GPU of the node."""
    first, second = tmp_path / "ds_config.json", tmp_path / "run.sh"
    first.write_text(JSON, encoding="utf-8")
    second.write_text(text, encoding="utf-8")
    assert str(import_config("deepspeed", [first, second], GIVEN).layout) == f"dp{dp}-mbs{32 // dp}-z2-rnone"


@pytest.mark.parametrize(("text", "words"), [("python train.py --lr 1\n", "starts no program with --deepspeed_config"),
                                             (RUN.format(launcher="--num_gpus 4") + RUN.format(launcher="--num_gpus 8"),
                                              "2 programs on unlike numbers of ranks")])  # fmt: skip
def test_scripts_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        import_config("deepspeed", [path], GIVEN)
