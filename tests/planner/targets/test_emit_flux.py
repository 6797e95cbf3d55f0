"""`--to torchtitan` for Flux: its FluxTrainer.Config, and the layouts that its trainer does not run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.importing import import_config
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.option_lists import option_list
from meshwright.profiles.model.load import load_model

MODULE = "torchtitan_plan.py"
DATA = """\
        dataloader=FluxDataLoader.Config(
            img_size=512,
            dataset="cc12m-wds",
            prompt_dropout_prob=0.447,
        ),
        tokenizer=FluxTokenizerContainer.Config(
            max_t5_encoding_len=512,
            t5_tokenizer_path="google/t5-v1_1-xxl",
            clip_tokenizer_path="openai/clip-vit-large-patch14",
        ),
        training=TrainingConfig(
            local_batch_size=16,
            seq_len=1536,
            global_batch_size=512,
            disable_cuda_graphs=True,
        ),
"""


@cache
def plan_of(layout: str, model: str = "flux.1-schnell", images: str = "1@512x512", precision: str = "bf16") -> Plan:
    workload = {"global_batch": 512, "images": images, "precision": precision}
    return api.evaluate(request_from_dict({"model": model, "cluster": "dgx-h100:4", "target": "any",
                                           "workload": workload}), layout)  # fmt: skip


def problems(files: dict[str, str]) -> str:
    return "\n".join(str(each) for each in check_files(files).problems)


def test_the_model_is_that_of_torchtitan() -> None:
    """torchtitan 0.3.0 builds flux-dev without the embedding of guidance (recorded from its model on meta)."""
    recorded = next(model for model in option_list("torchtitan")[0].models if model.name == "flux/flux-dev")
    spec = load_model("flux.1-schnell")[0]
    assert (spec.num_layers, spec.hidden, total_parameters(spec)) == (57, 3072, recorded.parameters)
    guidance = 256 * 3072 + 3072 + 3072 * 3072 + 3072
    assert total_parameters(load_model("flux.1-dev")[0]) - recorded.parameters == guidance


def test_images_and_text_are_written() -> None:
    files = emit(plan_of("dp32-mbs16-z3-rfull"), "torchtitan").files
    assert DATA in files[MODULE]
    assert "def plan() -> FluxTrainer.Config:" in files[MODULE]
    assert "as_planned" not in files[MODULE]
    assert not problems(files)


@pytest.mark.parametrize(("old", "new", "found"), [
    ("img_size=512", "img_size=256", "workload.images is 1@256x256, plan.json has 1@512x512"),
    ("max_t5_encoding_len=512", "max_t5_encoding_len=256", "text_tokens is 256, plan.json has 512"),
    ("seq_len=1536", "seq_len=2048", "workload.seq_len is 2048, plan.json has 1536"),
    ("local_batch_size=16", "local_batch_size=8", "FluxTrainer accumulates no gradients: the step has 2 micro-batches"),
    ("shard_degree=32", "shard_degree=16,\n            tensor_parallel_degree=2", "no tp 2, no pp 1"),
    ("img_size=512", "image_size=512", "dataloader.image_size: unknown option"),
])  # fmt: skip
def test_edits_are_found(old: str, new: str, found: str) -> None:
    files = dict(emit(plan_of("dp32-mbs16-z3-rfull"), "torchtitan").files)
    assert old in files[MODULE]
    assert found in problems({**files, MODULE: files[MODULE].replace(old, new)})


@pytest.mark.parametrize(("layout", "reason"), [
    ("tp2-dp16-mbs32-z3-rfull", "data and context parallelism alone: no tp 2"),
    ("pp2-dp16-mbs16-z0-rfull", "data and context parallelism alone: no tp 1, no pp 2"),
    ("dp32-mbs16-z2-rfull", "gathers them again for the backward pass: z3, not z2"),
    ("dp32-mbs8-z3-rfull", "the step has 2 micro-batches of 8, not 1"),
])  # fmt: skip
def test_layouts_of_other_trainers_are_refused(layout: str, reason: str) -> None:
    with pytest.raises(LayoutRefusedError, match=reason):
        emit(plan_of(layout), "torchtitan")


@pytest.mark.parametrize(("model", "images", "reason"), [
    ("flux.1-dev", "1@512x512", "no embedding of guidance and the sizes of flux.1-schnell"),
    ("flux.1-schnell", "1@512x768", "cut to squares"),
    ("wan2.1-t2v-14b", "1@480x832x17", "the only diffusion transformer of torchtitan is Flux"),
])  # fmt: skip
def test_what_it_does_not_build_is_refused(model: str, images: str, reason: str) -> None:
    with pytest.raises(LayoutRefusedError, match=reason):
        emit(plan_of("dp32-mbs16-z3-rfull", model, images), "torchtitan")


def test_other_releases_and_frameworks_are_refused() -> None:
    plan = plan_of("dp32-mbs16-z3-rfull")
    with pytest.raises(LayoutRefusedError, match=r"Flux is written for torchtitan 0.3.0, not for 0.4.0.dev"):
        emit(plan, "torchtitan", version="0.4.0.dev")
    with pytest.raises(LayoutRefusedError, match="plans of diffusion transformers are not written for it"):
        emit(plan, "megatron")


TOML = """\
[model]
name = "flux"
flavor = "flux-dev"
[training]
local_batch_size = 32
classifier_free_guidance_prob = 0.447
img_size = 512
[encoder]
t5_encoder = "google/t5-v1_1-xxl"
max_t5_encoding_len = {text}
[parallelism]
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
"""


def test_the_toml_of_older_releases(tmp_path: Path) -> None:
    """experiments/flux of torchtitan 0.2: every block is wrapped, whatever the mode of recomputation is."""
    file = tmp_path / "flux.toml"
    file.write_text(TOML.format(text=512), encoding="utf-8")
    read = import_config("torchtitan", [file], {"cluster": "dgx-h100:4"})
    assert str(read.layout) == "dp32-mbs32-z3-rfull"
    assert (read.request.model, read.request.workload.global_batch) == ("flux.1-schnell", 1024)
    assert any("encoders of text" in note for note in read.assumed)
    assert read.price().best.step_s > 0
    file.write_text(TOML.format(text=256), encoding="utf-8")
    (gap,) = import_config("torchtitan", [file], {"cluster": "dgx-h100:4"}).gaps
    assert gap.message == "256 tokens of text: plans of Flux have 512"


def test_a_config_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / MODULE
    file.write_text(emit(plan_of("cp2g-dp16-mbs32-z3-rfull"), "torchtitan").files[MODULE], encoding="utf-8")
    read = import_config("torchtitan", [file], {"cluster": "dgx-h100:4"})
    assert str(read.layout) == "cp2g-dp16-mbs32-z3-rfull"
    assert read.request.model == "flux.1-schnell"
    assert read.request.workload.seq_len is None or "seq_len" not in read.request.workload.model_fields_set
