"""Files of a script: those that it writes and starts itself, and those that it takes values from."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

WORDS = """--num-layers $layers --hidden-size $hidden --num-attention-heads 8 --seq-length 2048 \\
  --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 16 --vocab-size 32000 --bf16"""
COMMAND = f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {WORDS}"


def imported(folder: Path, text: str, **beside: str) -> Imported:
    (folder / "run.sh").write_text(text, encoding="utf-8")
    paths = [folder / "run.sh"]
    for name, inside in beside.items():
        paths.append(folder / name.replace("_", "."))
        paths[-1].write_text(inside, encoding="utf-8")
    return import_config("megatron-args", paths, {"gpu": "h100-sxm-80gb"})


@pytest.mark.parametrize("query", ["yq '.training.{}' m.yaml", "yq e .training.{} $M", "jq -r .training.{} m.json",
                                   "cat m.yaml | yq .training.{}"])  # fmt: skip
def test_values_of_files(tmp_path: Path, query: str) -> None:
    """A value of a file that is given beside the script; a query that is not followed is a gap."""
    lines = "".join(f"{name}=$({query.replace('{}', key)})\n"
                    for name, key in (("layers", "num_layers"), ("hidden", "hidden")))  # fmt: skip
    files = {"m_yaml": "training:\n  num_layers: 4\n  hidden: 512\n"}
    if "json" in query:
        files = {"m_json": '{"training": {"num_layers": 4, "hidden": 512}}'}
    found = imported(tmp_path, f"M=./conf/m.yaml\n{lines}{COMMAND}\n", **files)
    if "|" in query:
        assert {gap.field for gap in found.gaps} == {"--num-layers", "--hidden-size"}
        return
    model = found.request.model
    assert isinstance(model, dict)
    assert (found.gaps, model["layers"], model["hidden"]) == ((), 4, 512)
    absent = imported(tmp_path, f"M=./conf/m.yaml\n{lines}{COMMAND}\n")
    assert {gap.field for gap in absent.gaps} == {"--num-layers", "--hidden-size"}


def test_a_script_that_writes_the_script_that_it_submits(tmp_path: Path) -> None:
    job = f"srun bash -c 'torchrun --nproc_per_node 4 --nnodes 2 pretrain_gpt.py {WORDS}'"
    text = f"layers=4\nhidden=512\ncat > out/job.sbatch <<EOF\n#SBATCH --nodes=2\n{job}\nEOF\nsbatch out/job.sbatch\n"
    found = imported(tmp_path, text)
    assert (found.gaps, str(found.layout)) == ((), "dp8-mbs1-z0-rnone")


def test_options_where_a_program_should_be(tmp_path: Path) -> None:
    """bash takes the first word of a line as a command, where the line before lacks a backslash."""
    lost = "$more"
    text = f'layers=4\nhidden=512\nmore=" --fp16 --recompute-granularity full"\n{COMMAND} --no-bias\n{lost}\n'
    found = imported(tmp_path, text)
    assert (str(found.layout), found.gaps) == ("dp8-mbs1-z0-rnone", ())
    assert [note[:22] for note in found.assumed if "backslash" in note] == ["line 6 begins with --f"]


def test_an_option_of_a_fork_that_is_off(tmp_path: Path) -> None:
    sizes = "layers=4\nhidden=512\n"
    assert not imported(tmp_path, f"{sizes}{COMMAND} --is-tensor-compress False\n").gaps
    assert [gap.field for gap in imported(tmp_path, f"{sizes}{COMMAND} --is-tensor-compress True\n").gaps] == [
        "--is-tensor-compress"]  # fmt: skip


def test_names_of_positional_parameters(tmp_path: Path) -> None:
    """They are listed where a gap depends on one, and not where only a path does."""
    text = f'layers=${{2:-4}}\nhidden="$3"  # width\nexport OUT=$1\n{COMMAND} --save $OUT\n'
    found = imported(tmp_path, text)
    assert [gap.field for gap in found.gaps] == ["--hidden-size"]
    assert "the script takes by --arg, in turn: 1 OUT, 2 layers, 3 hidden" in found.assumed
    assert not imported(tmp_path, text.replace('"$3"', "512")).gaps
    assert not [note for note in imported(tmp_path, text.replace('"$3"', "512")).assumed if "takes by" in note]


@pytest.mark.parametrize(("launcher", "word"), [
    ("torchrun --nproc_per_node 8 --nnodes $NNODES", "$NNODES"),
    ("deepspeed --hostfile=hosts --num_gpus 8", "hosts"), ("mpirun -np 8 --hostfile hosts python", ""),
    ("deepspeed --hostfile=hosts --num_nodes 1 --num_gpus 8", ""),
])  # fmt: skip
def test_a_number_of_nodes_that_is_not_set(tmp_path: Path, launcher: str, word: str) -> None:
    """One node is taken and named, unless the degrees need more, or the ranks are stated."""
    text = f"layers=4\nhidden=512\n{COMMAND}\n".replace("torchrun --nproc_per_node 8 --nnodes 1", launcher)
    found = imported(tmp_path, text)
    assert (str(found.layout), found.gaps) == ("dp8-mbs1-z0-rnone", ())
    notes = [note for note in found.assumed if "nodes" in note]
    assert notes == ([f"the number of nodes is open (`{word}`): one node is taken"] if word else [])
    if not word:
        return
    with pytest.raises(InputError, match="gpus: is missing"):
        imported(tmp_path, f"{text.rstrip()} --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2\n")


@pytest.mark.parametrize(("nodes", "ranks", "sizes"), [(3, 4, (3, 4)), (2, 4, (2, 4)), (1, 4, (1, 4)), (2, 8, (2, 8))])
def test_nodes_as_small_as_the_script_starts(tmp_path: Path, nodes: int, ranks: int, sizes: tuple[int, int]) -> None:
    """They have a quarter of the network cards where they have a quarter of the GPUs."""
    launcher = f"torchrun --nproc_per_node {ranks} --nnodes {nodes}"
    text = f"layers=4\nhidden=512\n{COMMAND} --global-batch-size 48\n"
    found = imported(tmp_path, text.replace("torchrun --nproc_per_node 8 --nnodes 1", launcher))
    assert str(found.layout) == f"dp{nodes * ranks}-mbs1-z0-rnone"
    cluster = found.resolved().cluster
    assert [(group.num_nodes, group.gpus_per_node) for group in cluster.groups] == [sizes]
    if nodes > 1:
        assert cluster.levels[-1].bw_bytes_per_s == 50e9
    smaller = f"the config starts {nodes} nodes of {ranks} ranks: dgx-h100 with {ranks} GPUs are taken"
    assert (smaller in found.assumed) == (nodes > 1 and ranks < 8)
