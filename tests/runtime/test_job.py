"""From a plan to a job: damaged and edited plans are refused with the field's name, unsupported ones with a way out."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models.specs.documents import spec_to_dict
from meshwright.planner.document.placement import Placement
from meshwright.planner.document.reading import load_plan, read_plan
from meshwright.planner.document.specs import model_of
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from meshwright.runtime.agent import ALLOCATOR, OLD_ALLOCATOR, SEGMENTS, grow_segments
from meshwright.runtime.failures import RunFailed, TorchrunKilled, diagnose
from meshwright.runtime.job import job_of
from meshwright.runtime.nodes import Nodes, nodes_for, shell_line
from meshwright.runtime.parallel.comm import backend_reason
from meshwright.runtime.parallel.mesh import rank_lists
from meshwright.runtime.parent import PARENT
from meshwright.runtime.preparation import prepare
from meshwright.runtime.settings import Settings
from meshwright.runtime.status import Status, read_all

from meshwright.errors import InputError, UnsupportedError

from ..published_configs import LISTED
from ..sample_plan import unsealed
from ..snapshots import environment
from .jobs import job

Edit = Callable[[dict[str, Any]], None]


def edited(plan_file: Path, edit: Edit) -> str:
    data = json.loads(plan_file.read_text(encoding="utf-8"))
    edit(data)
    return json.dumps(unsealed(data))


def set_(*path: Any, value: Any) -> Edit:
    def edit(data: dict[str, Any]) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return edit


def test_a_plan_becomes_a_job(plan_file: Path) -> None:
    found = job_of(load_plan(plan_file), 1)
    assert (found.world_size, found.model.num_layers, found.dtype) == (8, 32, "bf16")
    assert found.predicted_step_s == load_plan(plan_file).best.step_s


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (set_("resolved", "model", "hidden", value="4096"), "resolved.model.hidden"),
        (set_("resolved", "model", "hidden", value=-1), "resolved.model.hidden"),
        (set_("resolved", "model", "width", value=1), "resolved.model.width"),
        (set_("resolved", "model", "rope_theta", value="big"), "resolved.model.rope_theta"),
        (set_("resolved", "model", "norm_epsilon", value=-1e-5), "resolved.model.norm_epsilon"),
        (set_("resolved", "model", "partial_rotary_factor", value=0), "resolved.model.partial_rotary_factor"),
        (set_("resolved", "model", "rope_scaling", value="llama3"), "resolved.model.rope_scaling: not an object"),
        (set_("resolved", "model", "rope_scaling", value={"kind": "yarn"}), "rope_scaling.factor: missing"),
        (set_("resolved", "model", "rope_scaling", value={"kind": "yern", "factor": 2.0}), "rope_scaling: no scaling"),
        (set_("resolved", "model", "rope_scaling", value={"kind": "yarn", "factor": 2.0, "mscale": "1"}), "no scaling"),
        (set_("resolved", "model", "kinds", value=[]), "resolved.model.kinds"),
        (set_("resolved", "model", "kinds", 0, "attention", "heads", value=0), "kinds.0.attention.heads"),
        (set_("resolved", "model", "pattern", value=[0] * 31 + [7]), "resolved.model.pattern"),
        (set_("resolved", "stack", value=None), "resolved.stack"),
        (set_("resolved", "workload", value={}), "resolved: cluster or workload is damaged"),
        (set_("resolved", "workload", "global_batch", value=63), "candidates.0.tokens_per_s_per_gpu"),
        (set_("resolved", "cluster", "groups", 0, "num_nodes", value=2), "candidates.0.tokens_per_s_per_gpu"),
        (set_("candidates", 0, "stages", 0, "layers", value=[0, 1]), "candidates.0.stages"),
        (set_("candidates", 0, "stages", 0, "stage", value=1), "candidates.0.stages"),
        (set_("candidates", 0, "stages", 0, "embedding", value=False), "candidates.0.stages"),
        (set_("candidates", 0, "placement", "logical_of_rank", value=[0, 0, 1]), "placement.logical_of_rank"),
        (set_("candidates", 0, "placement", "hosts", value=["a", "a"]), "placement.hosts: names 1 hosts, a twice"),
        (set_("candidates", 0, "layout", "tp", value=2), "candidates.0.layout_id"),
        (set_("candidates", 0, "step_s", value=1.0), "candidates.0.step_s"),
    ],
)
def test_a_damaged_plan_names_the_field(plan_file: Path, edit: Edit, field: str) -> None:
    with pytest.raises(InputError) as caught:
        job_of(read_plan(edited(plan_file, edit), "plan.json"), 1, "plan.json")
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("hosts", "logical", "said"),
    [
        (("a", "b", "c"), range(8), "names 3 hosts, the cluster has 4 nodes"),
        (("a", "b", "b", "c"), range(8), "names 3 hosts, b twice, the cluster has 4 nodes"),
        (("a", "b", "c", "d"), (6, 7, 0, 1), "maps 4 of 8 ranks: none of c, d"),
        ((), (6, 7, 0, 1, 2, 3), "maps 6 of 8 ranks: none of node 3"),
        ((), (0, 0, 1, 2, 3, 4, 5, 7), "is not an order of the 8 ranks: 6 is nowhere"),
        (("a", "b", "c", "d"), (2, 3, 0, 1, 6, 7, 4, 5), None),
        ((), None, None),
    ],
)
def test_a_host_that_a_rank_map_forgets_is_named(hosts: tuple[str, ...], logical: Any, said: str | None) -> None:
    placement = Placement(hosts=hosts, logical_of_rank=logical and tuple(logical))
    found = placement.problem(num_ranks=8, num_nodes=4)
    assert (found and found[1]) == said


def test_a_plan_of_an_older_version_trains_as_that_version_did(plan_file: Path) -> None:
    def older(data: dict[str, Any]) -> None:
        for name in ("rope_theta", "norm_epsilon", "activation", "rope_scaling", "assumed"):
            del data["resolved"]["model"][name]

    assert job_of(load_plan(plan_file), 1).model.rope_theta == 500_000.0
    model = job_of(read_plan(edited(plan_file, older), "plan.json"), 1).model
    assert (model.rope_theta, model.norm_epsilon, model.activation) == (10_000.0, 1e-5, "silu")
    assert model.assumed == ("rope_theta", "norm_epsilon", "activation", "rope_scaling")


def test_a_plan_that_does_not_say_whether_positions_are_scaled(plan_file: Path) -> None:
    """Plans of format 1.1 were made of Llama 3.1 too."""
    whole = load_plan(plan_file).resolved["model"]
    assert "rope_scaling" in whole
    older = {name: value for name, value in whole.items() if name != "rope_scaling"}
    said = "assumed, since the model's config lacks them: rope_scaling none"
    assert model_of({"model": older}, "").assumptions == (said,)
    assert not model_of({"model": whole}, "").assumptions
    assert not model_of({"model": {**older, "learned_positions": 8192, "rope_theta": None}}, "").assumptions


def test_scaled_positions_survive_the_plan() -> None:
    for name in ("llama-3.1-8b", "deepseek-v3", "nemotron-4-340b"):
        spec, _ = load_model(name)
        assert model_of({"model": json.loads(json.dumps(spec_to_dict(spec)))}, "") == spec


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "minimax-text-01", "rwkv-7-2.9b"])
def test_mixers_that_lack_a_part_survive_the_plan(name: str) -> None:
    """Sizes of parts that they lack are 0."""
    spec, _ = read_config(LISTED[name], name)
    assert model_of({"model": json.loads(json.dumps(spec_to_dict(spec)))}, "") == spec


def test_a_newer_plan_is_refused(plan_file: Path) -> None:
    with pytest.raises(InputError, match=r"format 2\.0"):
        read_plan(edited(plan_file, set_("format_version", value="2.0")), "plan.json")


def test_no_such_choice(plan_file: Path) -> None:
    with pytest.raises(InputError, match="has no layout 9"):
        job_of(load_plan(plan_file), 9)


def test_what_cannot_run_names_the_best_that_can(plan_file: Path) -> None:
    def half_first(data: dict[str, Any]) -> None:
        first = data["candidates"][0]
        first["layout"]["precision"] = "fp16"
        first["layout_id"] += "-fp16"

    plan = read_plan(edited(plan_file, half_first), "plan.json")
    with pytest.raises(UnsupportedError) as caught:
        job_of(plan, 1)
    assert "trains in bf16 or fp32" in caught.value.message
    best = min(range(1, len(plan.candidates)), key=lambda place: plan.candidates[place].step_s)
    assert caught.value.hint.startswith(f"`--choice {best + 1}`")
    assert plan.candidates[best].layout_id in caught.value.hint


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("resolved", "workload", "lora"), {"rank": 8, "targets": ["q"], "base_dtype": "nf4"}, "in bf16, not in nf4"),
        (("resolved", "workload", "trains_layers"), 2, "nothing but adapters"),
        (("resolved", "workload", "optimizer"), "adamw-8bit", "optimizer"),
        (("resolved", "model", "activation"), "quick_gelu", "activation quick_gelu"),
        (("resolved", "model", "rope_theta"), None, "ALiBi"),
        (("resolved", "model", "family"), "cohere", "family cohere"),
        (("resolved", "model", "unmodelled"), ["parallel_embeddings"], "the model's parallel_embeddings"),
        (("resolved", "model", "kinds", 0, "attention", "kv_lora_rank"), 512, "per rank of its latents"),
        (("resolved", "model", "kinds", 0, "num_norms"), 3, "2 or 4 norms"),
    ],
)
def test_models_and_workloads_that_cannot_run(plan_file: Path, path: tuple[Any, ...], value: Any, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        job_of(read_plan(edited(plan_file, set_(*path, value=value)), "plan.json"), 1)
    assert "--target meshwright" not in caught.value.hint
    assert "--target" in caught.value.hint


def test_predictions_need_a_head_of_their_own(plan_file: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["resolved"]["model"] |= {"mtp_layers": 1, "tied_embeddings": True}

    with pytest.raises(UnsupportedError, match="multi-token prediction needs a head of its own"):
        job_of(read_plan(edited(plan_file, edit), "plan.json"), 1)


def test_settings_survive_the_command_line(plan_file: Path, tmp_path: Path) -> None:
    data = tmp_path / "x.bin"
    data.touch()
    wanted = Settings(plan=str(plan_file), choice=2, steps=7, data=str(data), learning_rate=1e-5, clip=0.0,
                      scale_down=True, run_dir="somewhere", timeout_s=5.0)  # fmt: skip
    assert Settings.parse(wanted.words()) == wanted
    small, notes = prepare(wanted)
    assert small.clip is None
    assert notes


def nodes(plan_file: Path, **given: Any) -> Nodes:
    asked = {"scaled": False, "nnodes": None, "nproc_per_node": None, "node_rank": 0, "master_addr": None,
             "master_port": None, **given}  # fmt: skip
    plan = load_plan(plan_file)
    return nodes_for(plan, job_of(plan, 1), **asked)


def test_the_world_is_that_of_the_plan(plan_file: Path) -> None:
    found = nodes(plan_file)
    assert (found.nnodes, found.nproc_per_node) == (1, 8)
    with pytest.raises(InputError, match=r"1 x 4 ranks.*runs on 8"):
        nodes(plan_file, nproc_per_node=4, nnodes=1)
    with pytest.raises(InputError, match="the address of node 0 is missing"):
        nodes(plan_file, nproc_per_node=4, nnodes=2)
    with pytest.raises(InputError, match="is not one of 2 nodes"):
        nodes(plan_file, nnodes=2, master_addr="n0", node_rank=2)
    for name, value in (("nnodes", 0), ("nproc_per_node", -1), ("master_port", 0), ("master_port", 65536)):
        with pytest.raises(InputError, match=rf"--{name.replace('_', '-')} {value}: "):
            nodes(plan_file, **{name: value})
    two = nodes(plan_file, nnodes=2, node_rank=1, master_addr="n0")
    line = shell_line(Settings("plan.json"), two)
    assert "--nnodes 2 --nproc-per-node 4 --node-rank 1 --master-addr n0 --master-port 29500" in line


def test_every_axis_partitions_the_ranks_in_ascending_order() -> None:
    for layout_id in ("tp2-pp2-dp4-sh2-mbs1-z3-rnone", "dp8-mbs1-z0-rnone", "tp2-pp4-dp1-mbs1-z1-rnone",
                      "tp2-dp4-sh2-ep4-mbs1-z1-rnone", "tp2-pp2-dp2-ep2-mbs1-z0-rnone",
                      "tp2-cp2r-pp2-dp4-sh2-ep4-mbs1-z1-rnone", "tp2-cp4u-dp2-mbs1-z0-rnone"):  # fmt: skip
        layout = job(layout_id).layout
        for axis, groups in rank_lists(layout).items():
            ranks = sorted(rank for group in groups for rank in group)
            ends_only = axis == "tied" and layout.pp > 2
            assert ranks == list(range(layout.num_gpus)) or (ends_only and len(set(ranks)) == len(ranks)), axis
            assert all(group == sorted(group) for group in groups), axis


STATES = {
    0: {"rank": 0, "step": 2, "doing": "x", "failed": "receive from rank 1 over pp (ranks 0, 1), step 3: Timed out",
        "code": "communication"},
    1: {"rank": 1, "step": 2, "doing": "forward pass of micro-batch 1, chunk 0", "failed": "", "code": ""},
}  # fmt: skip


def test_a_hanging_rank_is_named_with_the_collective() -> None:
    found = diagnose(STATES, [], 1, 2)
    assert isinstance(found, RunFailed)
    assert "rank 1 did not answer; it was last seen in step 3: forward pass of micro-batch 1" in found.message
    assert "rank 0 was in receive from rank 1 over pp (ranks 0, 1), step 3: Timed out" in found.message


def test_a_killed_rank_is_named() -> None:
    tail = ["[0]:", "  rank      : 1 (local_rank: 1)", "  exitcode  : -9 (pid: 17)"]
    found = diagnose(STATES, tail, 1, 2)
    assert "rank 1 was killed by SIGKILL (as when memory runs out) in step 3: forward pass" in found.message


def test_a_killed_torchrun_is_named_and_a_saving_run_can_go_on() -> None:
    found = diagnose({}, ["some line"], -9, 2, saves=True)
    assert isinstance(found, TorchrunKilled)
    assert found.message == "torchrun was killed by SIGKILL"
    assert found.hint == ("all 2 ranks were stopped; `--verbose` shows what they printed, `--resume` goes on from the "
                          "last checkpoint")  # fmt: skip
    assert "--resume" not in diagnose({}, [], 1, 2).hint


def test_a_signal_without_a_name_has_its_number() -> None:
    tail = ["[0]:", "  rank      : 1 (local_rank: 1)", "  exitcode  : -36 (pid: 17)"]
    assert "rank 1 was killed by signal 36 in step 3: forward pass" in diagnose(STATES, tail, 1, 2).message
    assert diagnose({}, [], -36, 2).message == "torchrun was killed by signal 36"


def test_a_rank_that_ended_at_its_start_is_quoted() -> None:
    """It has no state yet, and torchrun prints its summary below."""
    tail = ["Traceback (most recent call last):", "AttributeError: module 'math' has no attribute 'pi'", "",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "Root Cause:", "=" * 60]  # fmt: skip
    expected = "torchrun ended with exit code 1: AttributeError: module 'math' has no attribute 'pi'"
    assert diagnose({}, tail, 1, 2).message == expected
    assert diagnose({}, ["stopped by hand", "=" * 60], 1, 2).message.endswith("1: stopped by hand")


def test_a_rank_of_another_node_is_not_blamed_on_this_one() -> None:
    """Each launcher sees the states of its own ranks."""
    found = diagnose({0: STATES[0]}, [], 1, 1, num_nodes=2)
    assert found.message.startswith("a rank of another node ended or did not answer\nrank 0 was in receive from rank 1")
    assert "another node" in found.hint


@pytest.mark.parametrize("words", [
    "[/src/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:35504: Connection reset by peer. "
    "This is typically caused by a remote worker hanging.\nmore",
    "Read error [127.0.0.1]:35504: Connection reset by peer.",
])  # fmt: skip
def test_a_back_end_says_its_reason_in_a_line(words: str) -> None:
    assert backend_reason(RuntimeError(words)) == "Read error [127.0.0.1]:35504: Connection reset by peer."


@pytest.mark.parametrize(("flag", "value"), [
    ("timeout_s", 0.0), ("timeout_s", -5.0), ("timeout_s", math.inf), ("learning_rate", math.nan),
    ("learning_rate", -1.0), ("clip", -1.0), ("clip", math.nan), ("lora_alpha", 0.0), ("seed", -1), ("seed", 1 << 32),
])  # fmt: skip
def test_numbers_with_which_no_run_can_train(plan_file: Path, flag: str, value: float) -> None:
    names = {"timeout_s": "--timeout", "learning_rate": "--lr", "clip": "--clip", "lora_alpha": "--lora-alpha",
             "seed": "--seed"}  # fmt: skip
    changed: dict[str, Any] = {flag: value}
    with pytest.raises(InputError, match=f"{names[flag]} {value if flag == 'seed' else format(value, 'g')}: must be "):
        prepare(replace(Settings(str(plan_file)), **changed))


def test_bad_data_is_the_users_input() -> None:
    states = {0: {"rank": 0, "step": 0, "doing": "", "failed": "no such file\ngive one", "code": "invalid_input"}}
    found = diagnose(states, [], 1, 1)
    assert isinstance(found, InputError)
    assert found.hint == "give one"


def test_all_differences_of_a_refused_checkpoint_are_the_message_and_the_hint_stays(tmp_path: Path) -> None:
    lines = [f"model.kinds.0.field_{i}: 1 in the checkpoint, 2 now" for i in range(99)]
    spec_to_dict = ["was saved by another model:", *lines, "give the plan of that model"]
    Status(tmp_path, 0).fail("\n".join(spec_to_dict), "invalid_input")
    found = diagnose(read_all(tmp_path), [], 1, 1)
    assert found.message.startswith("was saved by another model:\nmodel.kinds.0.field_0: 1 in the checkpoint, 2 now\n")
    assert found.message.endswith(lines[-1])
    assert found.hint == "give the plan of that model"


@pytest.mark.parametrize(("parent", "said"), [(os.getpid, "alive\n"), (os.getppid, "")])
def test_a_process_whose_parent_is_gone_before_it_looks_ends(parent: Callable[[], int], said: str) -> None:
    code = "from meshwright.runtime.parent import die_with_parent; die_with_parent(); print('alive', flush=True)"
    env = environment({PARENT: str(parent())})
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == said


def test_a_worker_loads_no_catalogue_and_no_solver() -> None:
    code = "import meshwright.runtime.worker, sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"pulp", "networkx", "scipy", "yaml", "typer", "meshwright.profiles"}


def test_the_launcher_loads_no_torch() -> None:
    code = "import meshwright.cli.commands.launch, meshwright.runtime.launcher, sys\n"
    code += "import meshwright.runtime.rehearsal.pricing\n"
    code += "import meshwright.runtime.preparation, meshwright.runtime.rehearsal.parity; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("given", "set_"),
    [({}, (SEGMENTS, SEGMENTS)), ({OLD_ALLOCATOR: "max_split_size_mb:64"}, (None, "max_split_size_mb:64")),
     ({ALLOCATOR: "max_split_size_mb:64"}, ("max_split_size_mb:64", None))],
)  # fmt: skip
def test_segments_grow_unless_the_environment_configures_the_allocator(
    given: dict[str, str], set_: tuple[str | None, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (ALLOCATOR, OLD_ALLOCATOR):
        monkeypatch.setenv(name, given[name]) if name in given else monkeypatch.delenv(name, raising=False)
    with monkeypatch.context():
        grow_segments()
        assert (os.environ.get(ALLOCATOR), os.environ.get(OLD_ALLOCATOR)) == set_
        for name in (ALLOCATOR, OLD_ALLOCATOR):
            os.environ.pop(name, None)
