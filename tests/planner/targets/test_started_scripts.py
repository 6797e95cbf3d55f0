"""Scripts that start other scripts, and the ranks that directives of a scheduler state."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

SIZES = ("--num-layers $LAYERS --hidden-size 512 --num-attention-heads 8 --seq-length 1024 "
         "--max-position-embeddings 1024")  # fmt: skip
INNER = f"""#SBATCH --gres=gpu:8
source configs/train/moe.sh
torchrun --nproc_per_node $SLURM_GPUS_ON_NODE --nnodes $SLURM_NNODES pretrain_gpt.py {SIZES} --bf16 \\
  --micro-batch-size $1 --global-batch-size 64 "${{TRAIN[@]}}" --tensor-model-parallel-size ${{TP:-1}}
"""
STEP = "#!/bin/bash\nTRAIN=(--recompute-granularity full --recompute-method uniform --recompute-num-layers 1)\n"
GPU = {"gpu": "h100-sxm-80gb"}


def imported(folder: Path, files: dict[str, str], **given: object) -> Imported:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return import_config("megatron-args", [folder / name for name in files], given or GPU)


@pytest.mark.parametrize("starts", [
    "export LAYERS=4\nsbatch --job-name=x --nodes=2 scripts/step.sh 2\n",
    "export LAYERS=4\nsbatch -N 2 scripts/step.sh 2\n", "LAYERS=4 sbatch -N2 ./scripts/step.sh 2 | tee log\n",
])  # fmt: skip
def test_a_script_that_another_one_starts(tmp_path: Path, starts: str) -> None:
    """Its parameters, the variables around it, and the nodes of sbatch; of two files of one name that of its folder."""
    files = {"run.sh": starts, "scripts/step.sh": INNER, "configs/model/moe.sh": "LAYERS=7\n",
             "configs/train/moe.sh": STEP}  # fmt: skip
    found = imported(tmp_path, files)
    assert (str(found.layout), found.gaps) == ("dp16-mbs2-z0-rfull", ())
    assert isinstance(found.request.model, dict)
    assert found.request.model["layers"] == 4


def test_what_a_started_script_sets_is_lost(tmp_path: Path) -> None:
    outer = f"LAYERS=4\nbash other.sh\ntorchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {SIZES} --bf16 " \
            "--micro-batch-size 1 --global-batch-size 64\n"  # fmt: skip
    found = imported(tmp_path, {"run.sh": outer, "other.sh": "LAYERS=8\necho $LAYERS\n"})
    assert isinstance(found.request.model, dict)
    assert found.request.model["layers"] == 4


def test_a_started_script_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 2: starts train_llama.sh, which is not here") as error:
        imported(tmp_path, {"run.sh": 'cd "$HERE"\nMICRO_BATCH=2 bash "${HERE}/train_llama.sh" |& tee log\n'})
    assert error.value.hint == "give it as a further FILE"


@pytest.mark.parametrize("directives", [
    "#SBATCH -p batch --nodes=2 --exclusive --mem=0 --gres=gpu:8 # two of them", "#SBATCH -N2 --gpus-per-node h100:8",
    "#PBS -q large\n#PBS -l select=2:ncpus=192:ngpus=8", "#PBS -N name -l select=2:ngpus=8:mem=100gb",
    "#PBS -l select=1:ngpus=8+1:ncpus=4:ngpus=8", "#PBS -l select=ngpus=8+ngpus=8",
])  # fmt: skip
def test_ranks_of_directives(tmp_path: Path, directives: str) -> None:
    text = f"#!/bin/bash\n{directives}\nLAYERS=4\npython pretrain_gpt.py {SIZES} --bf16 --micro-batch-size 1 " \
           "--global-batch-size 64\n"  # fmt: skip
    assert imported(tmp_path, {"run.sh": text}).layout.dp == 16


def test_unlike_nodes_are_a_gap(tmp_path: Path) -> None:
    text = f"#PBS -l select=1:ngpus=8+2:ngpus=4\nLAYERS=4\npython pretrain_gpt.py {SIZES} --bf16 " \
           "--micro-batch-size 1 --global-batch-size 64\n"  # fmt: skip
    (gap,) = imported(tmp_path, {"run.sh": text}).gaps
    assert gap.message == "#PBS asks for nodes of unlike numbers of GPUs"
    started = text.replace("python", "torchrun --nproc_per_node 8 --nnodes 2")
    assert imported(tmp_path, {"run.sh": started}).layout.dp == 16


def test_options_in_a_file_of_the_program(tmp_path: Path) -> None:
    text = 'CONF=$1\nsrun bash -c "cd /workspace && torchrun pretrain_gpt.py --config $CONF --save out"\n'
    with pytest.raises(InputError, match=r"line 2: its program reads its options from \$1") as error:
        imported(tmp_path, {"run.sh": text})
    assert error.value.hint == "give them as a file of lines `--option value`"


JOB = f"torchrun --nproc_per_node 8 --nnodes ${{NODES:-1}} pretrain_gpt.py {SIZES.replace('$LAYERS', '4')} --bf16 " \
      "--micro-batch-size $M --global-batch-size 64"  # fmt: skip
MANIFEST = """spec:
  containers:
  - name: train
    command:
    - /bin/bash
    - -lc
    - |
      set -e
      NODES=2
      %s
"""


@pytest.mark.parametrize("script", [
    f"sbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=2\nNODES=\\$SLURM_NNODES\n{JOB.replace('${', chr(92) + '${')}\nEOF\n",
    f"cat << 'EOF' | sbatch --nodes=2\nM=2 NODES=2\n{JOB}\nEOF\n",
    f"ssh node1 bash <<EOF\nNODES=2\n{JOB.replace('${', chr(92) + '${')}\nEOF\n",
    f"cat <<EOF | kubectl apply -f -\n{MANIFEST % JOB.replace('${', chr(92) + '${')}EOF\n",
])  # fmt: skip
def test_scripts_in_here_documents(tmp_path: Path, script: str) -> None:
    """The shell expands an unquoted one before it is passed on."""
    found = imported(tmp_path, {"run.sh": f"M=2\n{script}echo done\n"})
    assert (found.gaps, str(found.layout)) == ((), "dp16-mbs2-z0-rnone")


def test_input_of_a_script_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"starts step\.sh, which is not here"):
        imported(tmp_path, {"run.sh": f"bash step.sh <<EOF\nM=2\n{JOB}\nEOF\n"})


@pytest.mark.parametrize("manifest", ["a: [", "- 3", "command: [bash]", "command: 5", "[" * 5000,
                                      "{command: {a: [sh, -c]}}"])  # fmt: skip
def test_manifests_without_a_script(tmp_path: Path, manifest: str) -> None:
    with pytest.raises(InputError, match="no option of Megatron-LM in it"):
        imported(tmp_path, {"run.sh": f"cat <<EOF | kubectl apply -f -\n{manifest}\nEOF\n"})


CHILD = f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {SIZES} --bf16 --micro-batch-size ${{MBS:-1}} " \
        "--global-batch-size 64 --tensor-model-parallel-size ${TP:-1}\n"  # fmt: skip


@pytest.mark.parametrize(("outer", "layout"), [
    ("export LAYERS=4\nMBS=2\nTP=2\nbash train.sh\n", "dp8-mbs1-z0-rnone"),
    ("export LAYERS=4 MBS=2\nTP=2 bash train.sh\n", "tp2-nosp-dp4-mbs2-z0-rnone"),
    ("LAYERS=4\nMBS=2\nexport LAYERS MBS\ndeclare -x TP=4\nbash train.sh\n", "tp4-nosp-dp2-mbs2-z0-rnone"),
    ("set -a\nLAYERS=4\nMBS=4\nset +a\nTP=2\nbash train.sh\n", "dp8-mbs4-z0-rnone"),
    ("export LAYERS=4\nMBS=2\nsource train.sh\n", "dp8-mbs2-z0-rnone"),
])  # fmt: skip
def test_a_script_sees_what_is_exported(tmp_path: Path, outer: str, layout: str) -> None:
    assert str(imported(tmp_path, {"run.sh": outer, "train.sh": CHILD}).layout) == layout


def test_a_variable_that_is_given_is_exported(tmp_path: Path) -> None:
    for name, text in {"run.sh": "LAYERS=${LAYERS:-8}\nbash train.sh\n", "train.sh": CHILD}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    paths = [tmp_path / "run.sh", tmp_path / "train.sh"]
    found = import_config("megatron-args", paths, GPU, None, ["LAYERS=4"])
    assert isinstance(found.request.model, dict)
    assert found.request.model["layers"] == 4


def test_ranks_that_a_started_script_states_in_variables(tmp_path: Path) -> None:
    inner = CHILD.replace("torchrun --nproc_per_node 8 --nnodes 1", "export NPROC_PER_NODE=8 NNODES=2\npython")
    found = imported(tmp_path, {"run.sh": "export LAYERS=4\nbash train.sh\n", "train.sh": inner})
    assert str(found.layout) == "dp16-mbs1-z0-rnone"


@pytest.mark.parametrize(("launcher", "ranks"), [
    ("time jsrun --nrs 16 --tasks_per_rs 1 --gpu_per_rs 1 --rs_per_host 8 python", 16),
    ("jsrun -n4 -a4 -r 1 python", 16), ("jsrun -n 4 -a 4 -r 1 python", 16),
    ("deepspeed --num_nodes 2 --num_gpus 4 --no_python bash -c 'python", 8), ("jsrun -n 5 -a 1 -r 2 python", 5),
    ("mpirun -n 16 python", 16),
    ("srun -n 2 torchrun --nproc_per_node 4 --nnodes 2", 8),
    ("srun --ntasks=2 python -m torch.distributed.run --nproc_per_node 4 --nnodes 2", 8),
])  # fmt: skip
def test_ranks_of_launchers(tmp_path: Path, launcher: str, ranks: int) -> None:
    quote = "'" if "'" in launcher else ""
    text = f"export LAYERS=4 CUDA_VISIBLE_DEVICES=0\n{launcher} pretrain_gpt.py {SIZES} --bf16 --micro-batch-size 1 " \
           f"--global-batch-size 80{quote}\n"  # fmt: skip
    assert imported(tmp_path, {"run.sh": text}).layout.dp == ranks


def test_an_open_output_is_given_by_the_name_of_its_variable(tmp_path: Path) -> None:
    files = {"run.sh": "export LAYERS=4\nTP=$(wc -l < $NODES)\n" + CHILD}
    (gap,) = imported(tmp_path, files).gaps
    assert gap.message == "`$TP` is not set here"
