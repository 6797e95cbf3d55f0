"""Commands in scripts that start MaxText's training."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

PLAIN = """\
export MODEL=llama3-8b
python3 -m MaxText.train src/MaxText/configs/base.yml run_name=$1 model_name=${MODEL} \\
    per_device_batch_size=2 max_target_length=4096 ici_tensor_parallelism=2 remat_policy=full dataset_path=/data
"""
WITHIN = """\
python multihost_runner.py --INTERNAL_IP=true --COMMAND="
    docker run -w /root image bash -c \\"
        python3 -m MaxText.train MaxText/configs/base.yml model_name=llama3-8b per_device_batch_size=2 \\
            max_target_length=4096 ici_tensor_parallelism=2 remat_policy=full
    \\"
"
"""


def imported(folder: Path, text: str, *arguments: str) -> Imported:
    path = folder / "train.sh"
    path.write_text(text, encoding="utf-8")
    return import_config("maxtext", [path], {"cluster": "dgx-h100:1"}, None, arguments)


@pytest.mark.parametrize("text", [
    PLAIN, WITHIN, PLAIN.replace("-m MaxText.train", "src/MaxText/train.py"),
    PLAIN.replace("MaxText.train", "maxtext.trainers.pre_train.train"),
])  # fmt: skip
def test_the_command_is_read_as_its_overrides(tmp_path: Path, text: str) -> None:
    found = imported(tmp_path, text)
    assert (str(found.layout), found.gaps) == ("tp2-nosp-dp4-mbs4-z3-rfull", ())
    assert (found.request.model, found.request.workload.seq_len) == ("llama-3-8b", 4096)


def test_the_model_of_base_yml(tmp_path: Path) -> None:
    found = imported(tmp_path, "python3 MaxText/train.py MaxText/configs/base.yml steps=5 remat_policy=full\n")
    assert isinstance(found.request.model, dict)
    assert (found.request.model["hidden"], found.request.model["layers"]) == (2048, 16)
    assert (found.layout.micro_batch, found.request.workload.seq_len) == (12, 2048)


OWN = """\
base_config: "base.yml"
model_name: llama3-8b
per_device_batch_size: 4
max_target_length: 4096
remat_policy: full
ici_tensor_parallelism: 2
"""


def test_a_yaml_on_another(tmp_path: Path) -> None:
    """A child changes its parent, given beside it or in its folder, and a command changes both."""
    child, parent = tmp_path / "child.yml", tmp_path / "own.yml"
    parent.write_text(OWN, encoding="utf-8")
    child.write_text("base_config: own.yml\nper_device_batch_size: 2\n", encoding="utf-8")
    for files in ([child], [child, parent], [parent, child]):
        found = import_config("maxtext", files, {"cluster": "dgx-h100:1"})
        assert (str(found.layout), found.gaps) == ("tp2-nosp-dp4-mbs4-z3-rfull", ())
        assert found.request.model == "llama-3-8b"
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\npython3 -m MaxText.train configs/child.yml max_target_length=2048\n")
    found = import_config("maxtext", [script, child], {"cluster": "dgx-h100:1"})
    assert (str(found.layout), found.request.workload.seq_len) == ("tp2-nosp-dp4-mbs4-z3-rfull", 2048)
    parent.write_text(OWN.replace("base.yml", "child.yml"), encoding="utf-8")
    with pytest.raises(InputError, match="names a file that builds on this one"):
        import_config("maxtext", [child, parent], {"cluster": "dgx-h100:1"})


def test_all_values_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        imported(tmp_path, PLAIN.replace("batch_size=2", "batch_size=[").replace("length=4096", "length={"))
    assert [problem.field for problem in caught.value.problems] == ["per_device_batch_size", "max_target_length"]
    with pytest.raises(InputError) as caught:
        imported(tmp_path, PLAIN.replace("batch_size=2", "batch_size=["), "max_target_length=[")
    assert len(caught.value.problems) == 2


def test_another_file_and_variables(tmp_path: Path) -> None:
    own = imported(tmp_path, PLAIN.replace("base.yml", "own.yml"))
    assert [(gap.field, gap.line) for gap in own.gaps] == [("base_config", 2)]
    text = PLAIN.replace("batch_size=2", "batch_size=$SIZE")
    assert imported(tmp_path, text, "SIZE=4").layout.micro_batch == 8
    with pytest.raises(InputError, match="starts no training of MaxText"):
        imported(tmp_path, "#!/bin/bash\npython3 MaxText/decode.py MaxText/configs/base.yml\n")
    with pytest.raises(InputError, match="different options"):
        imported(tmp_path, PLAIN + PLAIN.replace("4096", "8192"))
