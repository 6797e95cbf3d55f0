"""compression_training in DeepSpeed's JSON: rounding is read and priced, pruning is a gap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.importing import Imported, import_config

WEIGHTS = {"enabled": True, "quantization_type": "asymmetric", "quantize_weight_in_forward": True}
GROUPS = {"wq1": {"params": {"start_bits": 8, "target_bits": 4}, "modules": ["*"]}}
INPUTS = {"enabled": True, "quantization_type": "symmetric", "range_calibration": "static"}
PLAIN = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1},
         "bf16": {"enabled": True}}  # fmt: skip


def imported(folder: Path, block: dict[str, Any]) -> Imported:
    path = folder / "ds.json"
    path.write_text(json.dumps({**PLAIN, "compression_training": block}), encoding="utf-8")
    return import_config("deepspeed", [path], {"cluster": "dgx-h100:1", "model": "gpt2"})


def weights(**changes: Any) -> dict[str, Any]:
    return {"weight_quantization": {"shared_parameters": {**WEIGHTS, **changes}, "different_groups": GROUPS}}


@pytest.mark.parametrize(("block", "rounding"), [
    (weights(), {"weights": "forward", "symmetric_weights": False}),
    (weights(quantize_weight_in_forward=False), {"weights": "step", "symmetric_weights": False}),
    ({"activation_quantization": {"shared_parameters": INPUTS}}, {"inputs": "static"}),
    ({**weights(), "activation_quantization": {"shared_parameters": {"enabled": True}}},
     {"weights": "forward", "symmetric_weights": False, "inputs": "dynamic"}),
])  # fmt: skip
def test_rounding_is_read(tmp_path: Path, block: dict[str, Any], rounding: dict[str, Any]) -> None:
    found = imported(tmp_path, block)
    assert not found.gaps
    assert found.request.workload.rounding is not None
    read = vars(found.request.workload.rounding)
    default = {"weights": "none", "inputs": "none", "symmetric_weights": True, "symmetric_inputs": True}
    assert read == {**default, **rounding}
    assert found.request.target == "any"
    assert found.price().best.step_s > imported(tmp_path, {}).price().best.step_s


def test_what_is_off_says_nothing(tmp_path: Path) -> None:
    off = {"weight_quantization": {"shared_parameters": {"enabled": False}}, "layer_reduction": {"enabled": False}}
    found = imported(tmp_path, off)
    assert (found.gaps, found.request.workload.rounding, found.request.target) == ((), None, "deepspeed")


@pytest.mark.parametrize(("block", "words"), [
    ({"layer_reduction": {"enabled": True, "keep_number_layer": 6}}, "layer_reduction compresses layers"),
    ({"sparse_pruning": {"shared_parameters": {"enabled": True}}}, "sparse_pruning compresses layers"),
    (weights(quantizer_kernel=True), "a kernel of its own"), (weights(rounding="stochastic"), "by chance"),
    (weights(fp16_mixed_quantize={"enabled": True}), "mixes both weights"),
    ({"weight_quantization": {"shared_parameters": WEIGHTS, "different_groups": {"a": {"params": {"target_bits": 1}}}}},
     "1 bits"),
    ({"weight_quantization": {"enabled": True}}, "enabled without `shared_parameters`"),
    ({"weight_quantization": {"shared_parameters": WEIGHTS, "different_groups": {"a": {"params": 4}}}},
     "target_bits of a group is not a whole number"),
    ({"weight_quantization": {"shared_parameters": WEIGHTS, "different_groups": ["a"]}}, "no mapping of names"),
    (weights(fp16_mixed_quantize=True), "fp16_mixed_quantize is no mapping"),
    (weights(quantization_type="foo"), "neither symmetric nor asymmetric"),
])  # fmt: skip
def test_other_compression_is_a_gap(tmp_path: Path, block: dict[str, Any], words: str) -> None:
    (gap,) = imported(tmp_path, block).gaps
    assert gap.field == "compression_training"
    assert words in gap.message


def test_a_json_beside_another_file_is_a_gap(tmp_path: Path) -> None:
    imported(tmp_path, weights())
    recipe = "model_name_or_path: gpt2\nper_device_train_batch_size: 4\nmax_length: 1024\nbf16: true\n"
    (tmp_path / "run.yaml").write_text(recipe, encoding="utf-8")
    found = import_config("hf-trainer", [tmp_path / "run.yaml", tmp_path / "ds.json"], {"cluster": "dgx-h100:1"})
    assert [gap.field for gap in found.gaps] == ["compression_training"]
