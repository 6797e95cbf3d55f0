"""All targets: what is emitted reads back as the same layout, is the same every time, and is in the option lists."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from meshwright.cost_models.layouts import FIELD_NAMES
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.importing import FORMATS
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.config_modules import read_config_module
from meshwright.planner.targets.documents import read_config
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.facts import layout_of
from meshwright.planner.targets.launchers.base import Job
from meshwright.planner.targets.launchers.registry import LAUNCHERS
from meshwright.planner.targets.option_lists import option_list, versions
from meshwright.planner.targets.post_training.registry import RL_TARGETS
from meshwright.planner.targets.registry import TARGETS, target_of
from meshwright.planner.targets.setup import Setup

from ...snapshots import ROOT
from ...table import Row
from .emit_corruptions import CATALOGUE
from .emit_plans import config_of, nondefault, random_plans

WRITTEN = tuple(name for name, target in TARGETS.items() if target.config is not None)
# Fields of which a target expresses only the default: its rules refuse all else.
ONLY_DEFAULT = {
    "megatron": set[str](),
    "megatron-bridge": set[str](),
    "nemo": {"cuda_graphs", "ep_overlap", "offload", "offload_layers", "offload_modules"},
    "torchtitan": {"cuda_graphs", "ep_overlap", "etp", "offload", "offload_layers", "offload_modules",
                   "recompute_layers", "recompute_modules"},
    "deepspeed": {"cuda_graphs", "ep_overlap", "etp", "offload_layers", "offload_modules", "recompute_layers",
                  "recompute_modules", "schedule", "sequence_parallel", "shard", "vpp"},
    "accelerate": {"cuda_graphs", "ep", "ep_overlap", "etp", "offload", "offload_layers", "offload_modules", "pp",
                   "recompute_layers", "recompute_modules", "schedule", "sequence_parallel", "vpp"},
}  # fmt: skip
ONLY_DEFAULT["trl"] = {*ONLY_DEFAULT["accelerate"], "tp"}
ONLY_DEFAULT["llama-factory"] = {*ONLY_DEFAULT["trl"], "cp", "cp_algorithm", "shard"}
ONLY_DEFAULT["axolotl"] = {*ONLY_DEFAULT["accelerate"], "cp", "cp_algorithm"}
ONLY_DEFAULT["nanotron"] = {*ONLY_DEFAULT["torchtitan"], "cp", "cp_algorithm", "ep", "precision", "shard", "vpp",
                            "zero"}  # fmt: skip
ONLY_DEFAULT["maxtext"] = {*ONLY_DEFAULT["torchtitan"], "ep", "pp", "precision", "schedule", "vpp"}
ONLY_DEFAULT["maxtext"].remove("recompute_modules")
# Targets that load a model whole.
WHOLE = ("trl", "llama-factory")
DENSE = {"model": "llama-3-70b", "cluster": "dgx-h100:8", "workload": {"seq_len": 8192, "global_batch": 512}}


def plan_of(layout: str, **more: object) -> Plan:
    return api.evaluate(request_from_dict({**DENSE, **more}), layout)


@pytest.fixture(scope="module", params=WRITTEN)
def drawn(request: pytest.FixtureRequest) -> tuple[str, list[Plan]]:
    return request.param, random_plans(request.param, 200)[0]


def test_every_folder_of_a_target_is_registered_under_its_name() -> None:
    folders = {path.parent.name for path in (ROOT / "planner" / "targets").glob("*/target.py")}
    assert folders == {name.replace("-", "_") for name in (*TARGETS, *RL_TARGETS)} - {"any"}


def test_every_target_has_an_import_format_of_its_own() -> None:
    read = [name for name in WRITTEN if config_of(name).import_format]
    assert [entry.compared({}).target for entry in list(FORMATS.values())[: len(read)]] == read
    helped = (ROOT / "tests" / "snapshots" / "help-import.txt").read_text(encoding="utf-8")
    assert all(re.search(rf"FORMAT <str>.*\b{name}[,.]", helped, re.DOTALL) for name in FORMATS)


def test_every_target_is_in_the_tables_of_these_tests() -> None:
    assert set(ONLY_DEFAULT) == set(CATALOGUE) == set(WRITTEN)


def test_every_field_is_in_the_table() -> None:
    for name in WRITTEN:
        assert set(FIELD_NAMES) <= config_of(name).table(option_list(name)[0]).fields


@pytest.mark.slow
def test_every_expressible_field_is_tried_ten_times(drawn: tuple[str, list[Plan]]) -> None:
    target, plans = drawn
    tried = Counter(name for plan in plans for name in nondefault(plan.best.to_layout()))
    assert set(tried) == set(FIELD_NAMES) - ONLY_DEFAULT[target]
    assert min(tried.values()) >= 10, tried


def test_random_plans_read_back_as_themselves(drawn: tuple[str, list[Plan]], row: Row) -> None:
    target, plans = drawn
    config = config_of(target)
    refused = even_only = equal = 0
    for version in versions(target)[-1:] if target == "megatron" else versions(target):
        options = option_list(target, version)[0]
        for plan in plans:
            try:
                files = emit(plan, target, version=version).files
            except LayoutRefusedError as error:
                refused += 1
                even_only += "stages: layers of" in str(error)
                continue
            assert target_of(files) == target
            given = config.read_folder(files, options)
            assert not given.problems
            assert not given.unknown
            setup = Setup.of(plan, 1)
            facts = config.table(options).read(given.settings)
            assert layout_of(facts, setup.layout.num_gpus) == setup.layout
            if setup.layout.pp > 1 and "stages" in facts:
                assert facts["stages"] == setup.chunk_sizes
            per_rank = facts.get("batch_per_rank", 0) * setup.layout.dp
            assert facts.get("workload.global_batch", per_rank) == setup.workload.global_batch
            equal += 1
    row(target, "emit, import: same layout and batch", f"{equal} of {equal + refused}")
    assert refused == even_only <= (10 if target == "deepspeed" else 0)  # DeepSpeed divides layers evenly


@pytest.mark.parametrize("target", WRITTEN)
def test_equal_plans_give_equal_bytes_without_secrets_or_meshwright(target: str, tmp_path: Path) -> None:
    cut = "tp8-pp4-dp2-mbs1-z1-rfull"
    layout = {"megatron": cut, "megatron-bridge": cut, "deepspeed": cut.replace("tp8", "tp8-nosp"),
              "nanotron": "tp8-dp8-mbs1-z0-rfull", **dict.fromkeys(WHOLE, "dp64-mbs1-z3-rfull")}  # fmt: skip
    plan = plan_of(layout.get(target, "tp8-nosp-dp8-mbs1-z3-rfull"))
    again = Plan.model_validate(json.loads(plan.to_json()))
    for launcher in LAUNCHERS:
        files = emit(plan, target, launcher).files
        assert files == emit(again, target, launcher).files
        for name, text in files.items():
            if name.endswith((".sh", ".sbatch")):
                (tmp_path / name).write_text(text, encoding="utf-8")
                assert subprocess.run(["sh", "-n", str(tmp_path / name)], check=False).returncode == 0
            if name.endswith(".py"):
                imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
                assert not any("meshwright" in ast.unparse(node) for node in imports)
            assert name == "plan.json" or str(Path.cwd()) not in text


@pytest.mark.parametrize("target", WRITTEN)
def test_headers_say_plan_tool_and_release(target: str) -> None:
    layout = {"megatron": "tp8-dp8-mbs1-z2-rfull", "nanotron": "tp8-dp8-mbs1-z0-rfull",
              "maxtext": "tp8-dp8-mbs1-z3-rfull", **dict.fromkeys(WHOLE, "dp64-mbs1-z2-rfull")}  # fmt: skip
    plan = plan_of(layout.get(target, "tp8-nosp-dp8-mbs1-z2-rfull"))
    text = emit(plan, target).files["launch.sh"]
    assert f"Plan {plan.request_sha256[:12]}, layout 1. Written by meshwright " in text
    options = option_list(target)[0]
    assert f"{options.version} ({options.commit})" in text
    assert ("s per step predicted for `--target" in text) == (plan.resolved["target"] != target)


def test_what_the_json_of_deepspeed_cannot_say() -> None:
    written = emit(plan_of("tp8-nosp-pp4-dp2-mbs1-z1-rfull"), "deepspeed")
    assert any("pp 4 is not in ds_config.json" in each for each in written.warnings)
    module = written.files["ds_plan.py"]
    assert "PIPELINE_STAGES = 4" in module
    assert "PipeModelDataParallelTopology" in module
    config = json.loads(written.files["ds_config.json"])
    assert config["tensor_parallel"] == {"autotp_size": 8}
    assert config["train_batch_size"] == 512
    assert config["train_batch_size"] == (
        config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * 2
    )


def with_stages(plan: Plan, sizes: list[int], redone: list[int]) -> Plan:
    """The plan with its chunks cut elsewhere."""
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    chunks = tuple(
        chunk.model_copy(update={"layers": (start, start + size - 1), "recompute_layers": again})
        for chunk, start, size, again in zip(plan.best.stages, starts, sizes, redone, strict=True)
    )
    candidate = plan.best.model_copy(update={"stages": chunks})
    return plan.model_copy(update={"candidates": (candidate,)})


def test_stages_of_their_own() -> None:
    sizes = [18, 21, 22, 19]
    plan = with_stages(plan_of("tp8-pp4-dp2-mbs1-z1-rsel", target="megatron"), sizes, [0, 0, 0, 0])
    text = emit(plan, "megatron").files["megatron.args"]
    assert "--pipeline-model-parallel-layout Et*18|t*21|t*22|t*19L\n" in text
    recipe = emit(plan, "megatron-bridge").files["bridge_plan.py"]
    assert 'pipeline_model_parallel_layout="Et*18|t*21|t*22|t*19L",' in recipe
    titan = with_stages(plan_of("tp8-pp4-dp2-mbs1-z2-rnone"), sizes, [0, 0, 0, 0])
    module = emit(titan, "torchtitan").files["torchtitan_plan.py"]
    assert '*(f"layers.{i}" for i in range(18, 39))' in module
    with pytest.raises(LayoutRefusedError, match="divides the layers among the stages itself"):
        emit(with_stages(plan_of("tp8-nosp-pp4-dp2-mbs1-z1-rnone"), sizes, [0, 0, 0, 0]), "deepspeed")


def test_stages_that_recompute_differently() -> None:
    plan = with_stages(plan_of("tp8-pp4-dp2-mbs1-z1-rfull", target="megatron"), [20, 20, 20, 20], [20, 10, 5, 0])
    for target in ("megatron", "megatron-bridge"):
        with pytest.raises(LayoutRefusedError, match="recomputes equally many layers of every stage"):
            emit(plan, target)


def test_the_two_dialects_of_torchtitan() -> None:
    plan = plan_of("tp8-pp4-vpp5-dp2-mbs2-z2-rfull")
    old = emit(plan, "torchtitan", version="0.3.0").files["torchtitan_plan.py"]
    new = emit(plan, "torchtitan", version="0.4.0.dev").files["torchtitan_plan.py"]
    for line in ("local_batch_size=256,", "pipeline_parallel_microbatch_size=2,", "seq_len=8192,"):
        assert line in old
        assert line not in new
    for line in ("num_tokens_per_microbatch_per_dp_rank=16384,", "num_pp_microbatches=128,"):
        assert line in new
        assert line not in old
    assert 'model_registry("70B")' in old
    assert "disable_cuda_graphs=True" in old  # pipelines refuse CUDA graphs, which are on by default
    assert old.count('*(f"layers.{i}" for i in range(') == 20


def test_a_model_that_torchtitan_does_not_register() -> None:
    with pytest.raises(LayoutRefusedError, match=r"registers none with the shapes of mistral-7b"):
        emit(plan_of("dp64-mbs1-z3-rfull", model="mistral-7b"), "torchtitan")


def test_accelerate_refuses_what_crashes_it() -> None:
    for layout in ("tp64-nosp-dp1-mbs1-z3-rfull", "tp4-nosp-cp2g-dp8-sh1-mbs1-z3-rfull"):
        with pytest.raises(LayoutRefusedError, match="FSDP2 needs data-parallel ranks"):
            emit(plan_of(layout), "accelerate")


def test_titan_modules_are_read_without_running_them() -> None:
    text = """
from torchtitan.models.llama3 import model_registry

def small() -> Trainer.Config:
    return Trainer.Config(training=TrainingConfig(seq_len=1024))

def big() -> Trainer.Config:
    config = Trainer.Config(
        model_spec=model_registry("8B", converters=[Float8LinearConverter.Config()]),
        training=TrainingConfig(local_batch_size=2 * 4, seq_len=8 * 1024, made_up=3),
        parallelism=ParallelismConfig(data_parallel_shard_degree=-1, tensor_parallel_degree="four"),
        activation_checkpoint=SelectiveAC.Config(),
    )
    config.parallelism.context_parallel_degree = 2
    return config
"""
    options = option_list("torchtitan", "0.3.0")[0]
    found = read_config_module("recipe.py", text, options, "Trainer.Config", "big")
    assert found.settings == {
        "model_spec": "llama3/8B", "converters": "float8", "training.local_batch_size": 8, "training.seq_len": 8192,
        "parallelism.data_parallel_shard_degree": -1, "activation_checkpoint": "selective",
        "parallelism.context_parallel_degree": 2,
    }  # fmt: skip
    assert found.unknown == {"training.made_up": 10}
    (problem,) = found.problems
    assert str(problem) == "recipe.py, line 11, parallelism.tensor_parallel_degree: `four` is not a whole number"
    small = read_config_module("recipe.py", text, options, "Trainer.Config", "small")
    assert small.settings == {"training.seq_len": 1024}


def test_unknown_and_misspelt_keys_have_their_line() -> None:
    lines = ('{', ' "train_batch_size": 8,', ' "zero_optimization": {"stage": 2,', '  "overlap_com": true},',
             ' "tensor_paralel": {}', '}')  # fmt: skip
    text = "\n".join(lines)
    found = read_config("ds.json", text, option_list("deepspeed")[0])
    assert found.unknown == {"zero_optimization.overlap_com": 4, "tensor_paralel": 5}
    assert found.settings == {"train_batch_size": 8, "zero_optimization.stage": 2}


def test_launch_scripts_of_several_nodes_have_places_for_the_fabric() -> None:
    several = emit(plan_of("dp64-mbs1-z3-rfull"), "accelerate").files["launch.sh"]
    small = plan_of("dp8-mbs1-z3-rfull", model="llama-3.2-1b", cluster="dgx-h100:1")
    one = emit(small, "accelerate").files["launch.sh"]
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"):
        assert f"# export {name}=" in several
        assert name not in one


LOCKED = {"capabilities": {"add": ["IPC_LOCK"]}}
_PLACES = re.compile(r"^( *)# ((?:rdma/|securityContext:|  capabilities:|    add:).*)$", re.MULTILINE)


def unmarked(text: str) -> str:
    """The text with the places of RDMA adapters taken."""
    assert len(_PLACES.findall(text)) == 4
    return _PLACES.sub(r"\1\2", text)


def pod_of_jobs(spec: dict[str, Any]) -> dict[str, Any]:
    return dict(spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"])


def pod_of_patch(trainjob: dict[str, Any]) -> dict[str, Any]:
    patch = trainjob["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    return pod_of_jobs(patch)


def test_ray_has_a_pod_for_its_workers() -> None:
    text = emit(plan_of("dp64-mbs1-z3-rfull"), "accelerate", "ray").files["ray_worker.yaml"]
    for each in (text, unmarked(text)):
        pod = yaml.safe_load(each)["spec"]
        (worker,) = pod["containers"]
        assert {mount["mountPath"] for mount in worker["volumeMounts"]} == {"/dev/shm", "/data"}
        assert [volume["name"] for volume in pod["volumes"]] == [mount["name"] for mount in worker["volumeMounts"]]
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": 8, "rdma/hca_shared_devices_a": 1}
    assert worker["securityContext"] == LOCKED
    small = plan_of("dp8-mbs1-z3-rfull", model="llama-3.2-1b", cluster="dgx-h100:1")
    assert "rdma/" not in emit(small, "accelerate", "ray").files["ray_worker.yaml"]


def test_slurm_has_a_place_for_a_container(tmp_path: Path) -> None:
    """The words that srun gets, expanded by a shell: none as it is, three options where the place is taken."""
    script = emit(plan_of("dp64-mbs1-z3-rfull"), "accelerate", "slurm").files["launch.sbatch"]
    assert '\nexec srun --kill-on-bad-exit=1 $container sh -c "$node" sh "$@"\n' in script
    places = re.findall(r'^(?:# )?(container="[^\n]*")$', script, re.MULTILINE)
    options = [subprocess.run(["sh", "-c", f'{place}; printf "%s\\n" $container'], cwd=tmp_path, text=True,
                              capture_output=True, check=True).stdout.split() for place in places]  # fmt: skip
    assert [len(words) for words in options] == [0, 3]
    mounts, folder = f"--container-mounts={tmp_path}:{tmp_path},/data:/data", f"--container-workdir={tmp_path}"
    assert options[1][1:] == [mounts, folder]


def test_kubernetes_and_skypilot_mark_what_a_cluster_names_itself() -> None:
    plan = plan_of("tp8-nosp-dp8-mbs1-z3-rfull")
    files = {**emit(plan, "accelerate", "kubernetes").files, **emit(plan, "accelerate", "skypilot").files}
    trainjob, jobset = (yaml.safe_load(files[name]) for name in ("trainjob.yaml", "jobset.yaml"))
    for spec in (pod_of_patch(trainjob), pod_of_jobs(jobset["spec"])):
        mounted = {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
        assert mounted == {"plan": "/plan", "shm": "/dev/shm", "data": "/data"}
        assert {each["name"] for each in spec["volumes"]} == set(mounted)
        assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]
    for name in ("trainjob.yaml", "jobset.yaml"):
        assert "rdma/hca_shared_devices_a" in str(yaml.safe_load(unmarked(files[name])))
    unmarked_jobs = [yaml.safe_load(unmarked(files[name])) for name in ("trainjob.yaml", "jobset.yaml")]
    (container,) = pod_of_patch(unmarked_jobs[0])["containers"]
    assert container["securityContext"] == LOCKED
    (container,) = pod_of_jobs(unmarked_jobs[1]["spec"])["containers"]
    assert container["securityContext"] == LOCKED
    task = yaml.safe_load(files["sky.yaml"])
    assert (task["num_nodes"], task["resources"]) == (8, {"accelerators": "H100:8"})
    assert task["envs"] == {"TRAIN_SCRIPT": ""}
    assert "$SKYPILOT_NODE_RANK" in task["run"]


@pytest.mark.parametrize("name", ["---", "qwen3-coder-480b-a35b-instruct-of-our-own-team-v2-deepspeed", "Ünïcode 7B"])
def test_kubernetes_names_are_labels_of_dns(name: str) -> None:
    """RFC 1123: lower case, digits and dashes inside; with what JobSet appends at most 63 characters."""
    job = Job(name=name, title="t", header=(), num_nodes=2, gpus_per_node=8, command="torchrun", files={})
    for text in LAUNCHERS["kubernetes"].files(job).values():
        found = [document["metadata"]["name"] for document in yaml.safe_load_all(text)]
        assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", each) and len(each) <= 63 for each in found), found


SCRIPTS = {"accelerate": ("dp64-mbs1-z3-rfull", "tp8-nosp-dp8-mbs1-z3-rfull"),
           "deepspeed": ("tp8-nosp-dp8-mbs1-z1-rfull", "tp8-nosp-pp4-dp2-mbs1-z1-rfull")}  # fmt: skip


@pytest.mark.parametrize("target", SCRIPTS)
def test_a_training_script_comes_along_where_the_layout_needs_no_other_model(target: str) -> None:
    with_script, without = (emit(plan_of(layout), target, "hostfile").files for layout in SCRIPTS[target])
    assert "SEQUENCE_LENGTH = 8192\nPARAMETERS = 70_553_706_496  #" in with_script["train.py"]
    assert ': "${TRAIN_SCRIPT:=$here/train.py}"\n' in with_script["launch.sh"]
    assert "${TRAIN_SCRIPT:+-x TRAIN_SCRIPT}" in with_script["launch-mpi.sh"]
    assert "train.py" not in without
    assert ': "${TRAIN_SCRIPT:?must be your training script' in without["launch.sh"]


def test_the_script_of_deepspeed_trains_weights_that_are_read() -> None:
    """transformers reads weights in evaluation mode (modeling_utils.py, from_pretrained), in which a checkpointed layer
    keeps its activations (modeling_layers.py, GradientCheckpointingLayer); deepspeed.initialize leaves the mode."""
    text = emit(plan_of("tp8-nosp-dp8-mbs1-z1-rfull"), "deepspeed").files["train.py"]
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    at = {name: text.index(f"{name}(") for name in ("deepspeed.initialize", "engine.train", "engine.backward")}
    assert at["deepspeed.initialize"] < at["engine.train"] < at["engine.backward"]
    assert "RepeatingLoader" in calls  # data that end before the steps do begin again


def test_the_learning_rate_of_deepspeed_is_a_marked_place() -> None:
    plan = plan_of("tp8-nosp-dp8-mbs1-z1-rfull")
    written = emit(plan, "deepspeed")
    config = json.loads(written.files["ds_config.json"])
    assert config["optimizer"]["params"] == {"lr": "auto"}
    assert any("`optimizer.params.lr` is `auto`" in warning for warning in written.warnings)
    filled = written.files["ds_config.json"].replace('"auto"', "0.0003")
    assert check_files({**written.files, "ds_config.json": filled}).problems == []


def test_deepspeed_gets_no_batch_that_it_would_refuse() -> None:
    """Without an mpu its config counts the ranks of AutoTP as data-parallel ones."""
    split = json.loads(emit(plan_of("tp8-nosp-dp8-mbs1-z1-rfull"), "deepspeed").files["ds_config.json"])
    assert "train_batch_size" not in split
    assert split["train_micro_batch_size_per_gpu"] * split["gradient_accumulation_steps"] * 8 == 512
