"""Options of DeepSpeed's JSON, accelerate's YAML and torchtitan's TOML: a gap, a sentence, or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.importing import Imported, import_config

from .test_readers import RECIPE, imported

GIVEN = {"cluster": "dgx-h100:1", "model": "llama-3.1-8b", "seq_len": 2048}


def of_json(folder: Path, zero: dict[str, Any] | None = None, **options: Any) -> Imported:
    path = folder / "ds.json"
    blocks = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1, **options}
    path.write_text(json.dumps({**blocks, "zero_optimization": {"stage": 2, **(zero or {})}}), encoding="utf-8")
    return import_config("deepspeed", [path], GIVEN)


@pytest.mark.parametrize("name", ["Lion", "Adagrad", "ZeroOneAdam", "OneBitLamb"])
def test_an_optimizer_with_other_states_is_a_gap(tmp_path: Path, name: str) -> None:
    (gap,) = of_json(tmp_path, optimizer={"type": name}).gaps
    assert gap.field == "optimizer.type"
    assert "states or messages have another size"


@pytest.mark.parametrize(("name", "known"), [("FusedAdam", "adamw"), ("SGD", "sgd"), ("Lamb", "adamw")])
def test_names_of_optimizers(tmp_path: Path, name: str, known: str) -> None:
    assert of_json(tmp_path, optimizer={"type": name}).request.workload.optimizer == known


def test_a_stage_that_another_file_states_is_a_gap(tmp_path: Path) -> None:
    (gap,) = of_json(tmp_path, zero={"stage": "auto"}).gaps
    assert (gap.field, gap.message) == ("zero_optimization.stage", "is `auto`: the trainer fills it in")


@pytest.mark.parametrize(
    ("zero", "options", "words"),
    [({"reduce_scatter": False}, {}, "every rank gets all gradients"),
     ({"allgather_partitions": False}, {}, "weights are broadcast"),
     ({}, {"activation_checkpointing": {"cpu_checkpointing": True}}, "models that call deepspeed.checkpointing"),
     ({}, {"compile": {"deepcompile": True}}, "another program of the layers")],
)  # fmt: skip
def test_switches_without_a_price_are_named(tmp_path: Path, zero: dict[str, Any], options: dict[str, Any],
                                            words: str) -> None:  # fmt: skip
    found = of_json(tmp_path, zero, **options)
    assert not found.gaps
    assert any(words in note for note in found.assumed)


@pytest.mark.parametrize(
    ("zero", "options"),
    [({"mics_hierarchical_params_gather": False}, {}), ({"offload_param": {"device": "none", "fast_init": True}}, {}),
     ({"offload_optimizer": {"device": "cpu", "buffer_size": 1, "max_in_cpu": 1}}, {}),
     ({}, {"amp": {"enabled": "auto", "opt_level": "auto"}}), ({}, {"fp32_allreduce": True}),
     ({"stage": 3, "reduce_scatter": False}, {}), ({}, {"max_grad_norm": 1.0}),
     ({}, {"activation_checkpointing": {"partition_activations": True}})],
)  # fmt: skip
def test_options_without_effect_leave_nothing_open(tmp_path: Path, zero: dict[str, Any],
                                                   options: dict[str, Any]) -> None:  # fmt: skip
    found = of_json(tmp_path, zero, **options)
    assert not found.gaps
    assert not any("priced as" in note for note in found.assumed)


@pytest.mark.parametrize(
    ("text", "words"),
    [("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing_offload: true}",
      "saved activations on the host"),
     ("distributed_type: MULTI_CPU", "trains on CPUs"), ("distributed_type: TPU", "trains on TPUs"),
     ("mixed_precision: fp8\nfp8_config: {backend: MSAMP, optimization_level: O2}", "states in fp8"),
     ("mixed_precision: fp8\nfp8_config: {backend: TE, opt_level: O2}", ""),
     ("distributed_type: MULTI_GPU\nmax_restarts: 1\nimage_uri: x", "")],
)  # fmt: skip
def test_options_of_accelerate(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(f"num_processes: 8\n{text}\n", encoding="utf-8")
    found = import_config("accelerate", [path], GIVEN)
    assert [words in gap.message for gap in found.gaps] == [True] * bool(words)


TITAN = """\
[model]
name = "llama3"
flavor = "{flavor}"
[training]
local_batch_size = 1
seq_len = 8192
dataloader.num_workers = 4
debug_moe_force_load_balance = true
[parallelism]
pipeline_parallel_degree = {pp}
pipeline_parallel_schedule = "1f1b"
{sections}
"""
AC = "[activation_checkpoint]\n"


@pytest.mark.parametrize(
    ("sections", "pp", "layout"),
    [("", 1, "rfull16"), (AC, 1, "rfull16"), (f'{AC}mode = "selective"', 2, "rfull8"),
     (f'{AC}mode = "selective"\nselective_ac_option = 3', 1, "rfull10"),
     (f'{AC}selective_ac_option = "1"', 1, "rfull"), (f'{AC}selective_ac_option = "op"', 1, "rsel(norm+act)"),
     (f'{AC}mode = "none"\nselective_ac_option = "2"', 1, "rnone")],
)  # fmt: skip
@pytest.mark.parametrize("flavor", ["8B", "mine"])
def test_whole_layers_that_torchtitan_recomputes(tmp_path: Path, sections: str, pp: int, layout: str,
                                                 flavor: str) -> None:  # fmt: skip
    """The TOML of all releases recomputes every second layer unless told otherwise: 16 of 32, 8 of a stage's 16."""
    path = tmp_path / "job.toml"
    path.write_text(TITAN.format(flavor=flavor, pp=pp, sections=sections), encoding="utf-8")
    named = {"model": "llama-3.1-8b"} if flavor == "mine" else {}
    found = import_config("torchtitan", [path], {"cluster": "dgx-h100:1"} | named)
    assert not found.gaps
    assert str(found.layout).endswith(f"-{layout}")
    assert found.layout.pp == pp


def test_copies_that_exchange_few_gradients_are_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    text = TITAN.format(flavor="8B", pp=1, sections="[fault_tolerance]\nenable = {}\nsemi_sync_method = 'diloco'")
    path.write_text(text.format("true"), encoding="utf-8")
    (gap,) = import_config("torchtitan", [path], {"cluster": "dgx-h100:1"}).gaps
    assert (gap.field, gap.line) == ("fault_tolerance.semi_sync_method", 14)
    path.write_text(text.format("false"), encoding="utf-8")
    assert not import_config("torchtitan", [path], {"cluster": "dgx-h100:1"}).gaps


def test_names_of_other_releases_of_transformers(tmp_path: Path) -> None:
    """per_gpu_train_batch_size counts first; activation_checkpointing is gradient_checkpointing."""
    found = imported(tmp_path, "hf-trainer", f"{RECIPE}per_gpu_train_batch_size: 3\n")
    assert found.layout.micro_batch == 3
    text = "\n".join(line for line in RECIPE.splitlines() if "gradient_checkpointing" not in line)
    for line, mode in (("", "rnone"), ("activation_checkpointing: true", "rfull")):
        assert mode in str(imported(tmp_path, "hf-trainer", f"{text}\n{line}\n").layout)
