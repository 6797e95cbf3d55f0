"""The training part of AReaL's configs."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

CONFIG = """\
seed: 1
cluster: {n_nodes: 6, n_gpus_per_node: 8}
rollout: {backend: "sglang:d8t2", max_concurrent_rollouts: 64, consumer_batch_size: "${train_dataset.batch_size}"}
gconfig: {n_samples: 4, max_new_tokens: 3072}
actor:
  backend: "BACKEND"
  path: MODEL
  gradient_checkpointing: true
  dtype: bfloat16
  mb_spec: {max_tokens_per_mb: 8192}
  optimizer: {type: adam, lr: 1e-6}
  ppo_n_minibatches: 2
  max_new_tokens: ${gconfig.max_new_tokens}
ref: {path: "${actor.path}"}
train_dataset: {batch_size: 128, path: x, type: rl, max_length: 1024}
"""


def imported(folder: Path, backend: str, model: str = "Qwen/Qwen3-8B", old: str = "", new: str = "") -> Imported:
    path = folder / "grpo.yaml"
    text = CONFIG.replace("BACKEND", backend).replace("MODEL", model)
    assert old in text
    path.write_text(text.replace(old, new) if old else text, encoding="utf-8")
    return import_config("areal", [path], {"gpu": "h100-sxm-80gb"}, None, ())


@pytest.mark.parametrize(("backend", "model", "layout"), [
    ("fsdp:d8", "Qwen/Qwen3-8B", "dp8-mbs2-z3-rfull"),
    ("fsdp:d4t2", "Qwen/Qwen3-8B", "tp2-dp4-mbs2-z3-rfull"),
    ("fsdp:d4c2", "Qwen/Qwen3-8B", "cp2u-dp4-mbs2-z3-rfull"),
    ("megatron:d2p2t4", "Qwen/Qwen3-8B", "tp4-pp2-dp2-mbs2-z1-rfull"),
    ("megatron:(attn:d4p2t2|ffn:d2p2t1e4)", "Qwen/Qwen3-30B-A3B", "tp2-pp2-dp4-ep4-mbs2-z1-rfull"),
    ("megatron:(attn:d4p2t2|ffn:t2e4)", "Qwen/Qwen3-30B-A3B", "tp2-pp2-dp4-ep4-etp2-mbs2-z1-rfull"),
    ("megatron:d4p2t2e4", "Qwen/Qwen3-30B-A3B", "tp2-pp2-dp4-ep4-mbs2-z1-rfull"),
])  # fmt: skip
def test_layout_by_the_backend(tmp_path: Path, backend: str, model: str, layout: str) -> None:
    found = imported(tmp_path, backend, model)
    assert (str(found.layout), found.gaps) == (layout, ())
    assert (found.request.workload.seq_len, found.request.workload.global_batch) == (4096, 256)


def test_layouts_that_fsdp2_is_compared_with(tmp_path: Path) -> None:
    """It always shards weights, and has no stages."""
    request = imported(tmp_path, "fsdp:d4t2").request
    assert request.fix == {"pp": 1, "ep": 1, "cp": 1, "zero": 3}


def script(folder: Path, *files: str, command: str = "", **arguments: str) -> Imported:
    path = folder / "run.sh"
    text = "#!/bin/bash\npython3 -m areal.launcher.ray train.py --config examples/grpo.yaml \\\n    " + command + "\n"
    path.write_text(text, encoding="utf-8")
    (folder / "grpo.yaml").write_text(CONFIG.replace("BACKEND", "fsdp:d8").replace("MODEL", "Qwen/Qwen3-8B"))
    words = [f"{name}={each}" for name, each in arguments.items()]
    return import_config("areal", [path, *(folder / name for name in files)], {"gpu": "h100-sxm-80gb"}, None, words)


def test_a_command_changes_its_config(tmp_path: Path) -> None:
    """References follow what the command sets: the batch of the rollout is that of the data."""
    found = script(tmp_path, "grpo.yaml", command="actor.backend=fsdp:d$N train_dataset.batch_size=64 seed=2", N="4")
    assert (str(found.layout), found.gaps) == ("dp4-mbs2-z3-rfull", ())
    assert (found.request.model, found.request.workload.global_batch) == ("qwen3-8b", 128)
    alone = script(tmp_path, command="actor.backend=fsdp:d4")
    assert (alone.gaps[0].field, alone.gaps[0].line) == ("--config", 2)
    assert "give it as a further FILE" in alone.gaps[0].message


def test_problems_are_in_the_file_that_states_them(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        script(tmp_path, "grpo.yaml", command="actor.dtype=[ actor.path={ +actor.mb_spec.n_mbs=none-at-all")
    assert [(problem.field, problem.line) for problem in caught.value.problems] == [("actor.dtype", 3),
                                                                                   ("actor.path", 3)]  # fmt: skip
    with pytest.raises(InputError) as caught:
        script(tmp_path, "grpo.yaml", command="actor.mb_spec.n_mbs=two gconfig.n_samples=1.5")
    places = {problem.field: Path(problem.file).name for problem in caught.value.problems}
    assert places == {"actor.mb_spec.n_mbs": "run.sh", "gconfig.n_samples": "run.sh"}
    path = tmp_path / "grpo.yaml"
    path.write_text(path.read_text().replace("max_length: 1024", "max_length: many"))
    with pytest.raises(InputError, match=r"grpo\.yaml, line 15, train_dataset\.max_length"):
        import_config("areal", [tmp_path / "run.sh", path], {"gpu": "h100-sxm-80gb"}, None, ())


def test_a_config_on_defaults_of_hydra(tmp_path: Path) -> None:
    (tmp_path / "math").mkdir()
    parent = CONFIG.replace("BACKEND", "fsdp:d8").replace("MODEL", "Qwen/Qwen3-8B")
    (tmp_path / "math" / "grpo.yaml").write_text(parent, encoding="utf-8")
    path = tmp_path / "own" / "child.yaml"
    path.parent.mkdir()
    path.write_text("defaults: [../math/grpo@_global_, _self_]\n"
                    "actor: {backend: 'fsdp:d4', grad_reduce_dtype: float32}\n")  # fmt: skip
    found = import_config("areal", [path], {"gpu": "h100-sxm-80gb"}, None, ())
    assert (str(found.layout), found.gaps) == ("dp4-mbs2-z3-rfull", ())
    (tmp_path / "math" / "grpo.yaml").unlink()
    gaps = import_config("areal", [path], {"gpu": "h100-sxm-80gb"}, None, ()).gaps
    assert gaps[0].field == "defaults"


@pytest.mark.parametrize(("text", "layout"), [
    ("sglang:d4t2+fsdp:d8", "dp8-mbs2-z3-rfull"),
    ("sglang.d4p1t2+d4p2t1", "pp2-dp4-mbs2-z1-rfull"),
    ("sglang:d8|fsdp:d8", "dp8-mbs2-z3-rfull"),
    ("sglang[rollout]:d4+megatron[actor]:d2t2|fsdp[critic]:d4", "tp2-dp2-mbs2-z1-rfull"),
])  # fmt: skip
def test_layout_by_the_allocation_mode_of_older_releases(tmp_path: Path, text: str, layout: str) -> None:
    found = imported(tmp_path, "fsdp:d8", old='  backend: "fsdp:d8"\n', new="")
    assert any("degrees" in gap for gap in map(str, found.gaps))
    found = imported(tmp_path, "fsdp:d8", old='actor:\n  backend: "fsdp:d8"\n',
                     new=f'allocation_mode: "{text}"\nactor:\n')  # fmt: skip
    assert (str(found.layout), found.gaps) == (layout, ())


def test_a_micro_batch_without_tokens_is_the_whole_share(tmp_path: Path) -> None:
    found = imported(tmp_path, "fsdp:d8", old="mb_spec: {max_tokens_per_mb: 8192}", new="mb_spec: {n_mbs: 4}")
    assert found.layout is not None
    assert found.layout.micro_batch == 8


def test_adapters(tmp_path: Path) -> None:
    found = imported(tmp_path, "fsdp:d8", old="  dtype:", new="  use_lora: true\n  lora_rank: 16\n"
                     "  target_modules: [q_proj, v_proj]\n  dtype:")  # fmt: skip
    lora = found.request.workload.train.lora
    assert lora is not None
    assert (lora.rank, lora.targets) == (16, ("q", "v"))


@pytest.mark.parametrize(("backend", "old", "new", "words"), [
    ("archon:d8", "", "", "no actor on FSDP2"),
    ("megatron:d8", "  dtype: bfloat16", "  dtype: int7", "no counterpart"),
    ("megatron:d8", "  dtype:", "  megatron: {fp8_config: {mode: e4m3}}\n  dtype:", "fp8_config"),
    ("fsdp:d8", "  dtype:", "  enable_tree_training: true\n  dtype:", "prefixes"),
    ("fsdp:d8", "{type: adam,", "{type: lion,", "lion"),
])  # fmt: skip
def test_gaps(tmp_path: Path, backend: str, old: str, new: str, words: str) -> None:
    gaps = imported(tmp_path, backend, old=old, new=new).gaps
    assert any(words in str(gap) for gap in gaps), gaps


@pytest.mark.parametrize(("backend", "old", "new", "words"), [
    ("eight", "", "", "no text of degrees"),
    ("megatron:d0t2", "", "", "no text of degrees"),
    ("fsdp:d4p2", "", "", "neither stages nor experts"),
    ("fsdp:d8", "ppo_n_minibatches: 2", "ppo_n_minibatches: 0", "`0` is not 1 or more"),
    ("fsdp:d8", "{max_tokens_per_mb: 8192}", "{n_mbs: 0}", "`0` is not 1 or more"),
    ("fsdp:d8", "seed: 1", "exp_ctrl: {total_train_epochs: 5}", "AReaL 0.1 or 0.2"),
])  # fmt: skip
def test_refused(tmp_path: Path, backend: str, old: str, new: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        imported(tmp_path, backend, old=old, new=new)
