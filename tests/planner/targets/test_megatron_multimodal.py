"""`import` on scripts of Megatron-LM's examples/multimodal: a tower beside a decoder, and what of them trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cost_models.quantities import params, vision
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.variants import text_of
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.request.resolve import Resolved, resolve

from meshwright.errors import InputError

PROGRAM = "examples/multimodal/train.py"
START = f"torchrun --nproc_per_node 8 {PROGRAM}"
MISTRAL = """--language-model-type mistral_7b --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --group-query-attention --num-query-groups 8 --normalization RMSNorm --position-embedding-type rope \\
  --untie-embeddings-and-output-weights --apply-layernorm-1p --max-position-embeddings 4096"""
RUN = "--seq-length 576 --decoder-seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --bf16"
SIDE = "--img-h 336 --img-w 336 --patch-dim 14 --disable-vision-class-token"
CLIP = f"{START} {MISTRAL} {RUN} {SIDE} --tensor-model-parallel-size 4"
TILES = "--pixel-shuffle --use-tiling --max-num-tiles 4 --use-thumbnail"
INTERN = f"{START} {MISTRAL} {RUN} {SIDE.replace('336', '448')} --vision-model-type internvit {TILES}"


def imported(folder: Path, text: str) -> Imported:
    path = folder / "run.sh"
    path.write_text(text + "\n", encoding="utf-8")
    return import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"})


def resolved(folder: Path, text: str) -> Resolved:
    return resolve(imported(folder, text).request)


def of_tower(model: ModelSpec) -> dict[str, int]:
    assert model.tower is not None
    return vision.parameters(model.tower)


def test_llava_has_the_parameters_of_megatron(tmp_path: Path) -> None:
    """CLIPViTModel has no biases of the first product, 577 positions, and a norm in front; its projector is two
    products. The language model is that of the name: no --apply-layernorm-1p, SwiGLU, no biases."""
    model = resolved(tmp_path, CLIP).model
    h, f = 1024, 4096
    layer = 4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h
    ends, projector = 3 * 14 * 14 * h + 577 * h + h + 2 * h, h * 14336 + 14336 * 4096
    assert sum(of_tower(model).values()) == ends + 24 * layer + projector
    text = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096) + 2 * 32768 * 4096 + 4096
    assert params.total_parameters(text_of(model)) == text
    assert not model.unit_offset_norms


def test_the_most_tiles_are_the_images(tmp_path: Path) -> None:
    workload = resolved(tmp_path, INTERN).workload
    assert workload.images is not None
    assert (workload.images.per_sequence, workload.images.height, workload.seq_len) == (5, 448, 2048)
    frames = resolved(tmp_path, f"{INTERN} --num-frames 7").workload.images
    assert frames is not None
    assert frames.per_sequence == 7


def test_what_trains_is_read(tmp_path: Path) -> None:
    works = [resolved(tmp_path, f"{CLIP} {frozen}").workload
             for frozen in ("", "--freeze-ViT", "--freeze-LM", "--freeze-ViT --freeze-LM")]  # fmt: skip
    assert [(work.freeze_tower, work.freeze_language) for work in works] == [
        (False, False), (True, False), (False, True), (True, True)]  # fmt: skip


def test_a_frozen_model_needs_less_time_and_memory(tmp_path: Path) -> None:
    """No states of 7 B parameters over 8 ranks, and no gradients of weights."""
    whole, projector = (imported(tmp_path, f"{CLIP} --use-distributed-optimizer {frozen}").price().best
                        for frozen in ("", "--freeze-ViT --freeze-LM"))  # fmt: skip
    assert projector.step_s < 0.85 * whole.step_s
    assert projector.device_bytes < 0.4 * whole.device_bytes


def test_heads_of_internvit_are_padded_and_layers_stay_even(tmp_path: Path) -> None:
    """Megatron puts the tower beside the embedding and divides the layers evenly all the same."""
    read = imported(tmp_path, f"{INTERN} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --freeze-ViT")
    assert read.stages == (8, 8, 8, 8)
    tower = resolve(read.request).model.tower
    assert tower is not None
    assert (tower.heads, tower.pads_heads, tower.qk_norm, tower.projector_norm) == (25, True, True, "none")


@pytest.mark.parametrize(("text", "gap"), [
    (CLIP.replace("--disable-vision-class-token", ""), "the class token of each image becomes a token"),
    (CLIP.replace("--img-w 336", "--img-w 448"), "images that are no squares"),
    (CLIP.replace("mistral_7b", "nemotron5-8b"), "`nemotron5-8b` is none of mistral_7b"),
    (f"{CLIP} --vision-model-type siglip", "no formulas for the tower `siglip`"),
    (f"{CLIP} --vision-projection-type affine", "a projector of one product"),
    (f"{CLIP} --packing-buffer-size 50", "their images are not in the script"),
    (f"{CLIP} --encoder-pipeline-model-parallel-size 1", "on ranks of its own"),
    (f"{CLIP} --recompute-granularity full --recompute-method uniform", "recomputation of the language model alone"),
    (f"{CLIP} --recompute-granularity selective --recompute-vision", "recomputation of single modules in a tower"),
    (CLIP.replace("--patch-dim 14", "--patch-dim 15"), "--img-h 336: no multiple of 1 x --patch-dim 15"),
    (f"{CLIP} --use-tiling".replace(PROGRAM, "pretrain_gpt.py"), "--use-tiling: a vision model beside the decoder"),
    (CLIP.replace(PROGRAM, "pretrain_vlm.py"), "does not train a plain decoder"),
])  # fmt: skip
def test_what_no_plan_holds_is_a_gap(text: str, gap: str, tmp_path: Path) -> None:
    gaps = imported(tmp_path, text).gaps
    assert gap in " | ".join(f"{found.field}: {found.message}" for found in gaps)


def test_recomputation_beside_a_frozen_tower_is_that_of_the_language_model(tmp_path: Path) -> None:
    read = imported(tmp_path, f"{CLIP} --freeze-ViT --recompute-granularity full --recompute-method block "
                    "--recompute-num-layers 32")  # fmt: skip
    assert str(read.layout) == "tp4-nosp-dp2-mbs1-z0-rfull"


@pytest.mark.parametrize(("text", "problem"), [
    (CLIP.replace("--decoder-seq-length 2048", ""), "--decoder-seq-length: the program needs it"),
    (CLIP.replace("--img-h 336", ""), "--img-h: the program needs it"),
    (f"{INTERN} --num-frames 9", "9 x 256 tokens = 2,304 are more than the 2,048 of a sequence"),
])  # fmt: skip
def test_bad_input_is_named(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        imported(tmp_path, text)
    assert problem in str(caught.value)


def test_a_variable_that_only_a_run_knows_is_given(tmp_path: Path) -> None:
    """`which srun; BATCH=$((1-$?))` of the scripts, whose value decides what trains."""
    text = f"which srun\nBATCH=$((1-$?))\nif [[ $BATCH -eq 0 ]]; then\n  MORE=--freeze-LM\nfi\n{CLIP} $MORE"
    assert "may hold --freeze-LM" in imported(tmp_path, text).gaps[0].message
    assert "$BATCH by --arg" in imported(tmp_path, text).gaps[0].hint
    path, frozen = tmp_path / "run.sh", []
    for value in (0, 1):
        read = import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"}, None, [f"BATCH={value}"])
        frozen.append(read.request.workload.freeze_language)
    assert frozen == [True, False]
