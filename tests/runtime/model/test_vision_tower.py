"""A vision tower and its language model compute what Qwen3-VL of transformers computes, from the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.workload import Images
from meshwright.profiles.model.huggingface import read_config
from meshwright.runtime.checkpoint.export import tensors
from meshwright.runtime.checkpoint.huggingface import converted
from meshwright.runtime.checkpoint.pretrained import Pretrained, whole_weights
from meshwright.runtime.checkpoint.sources import put
from meshwright.runtime.model.decoder import DecoderChunk
from meshwright.runtime.model.vision_tower import freezes
from meshwright.runtime.reference import whole_model
from safetensors.torch import save_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from ..jobs import job
from .families import filed, filled

LENGTH, IMAGE = 40, 60  # tokens of a sequence, the token that stands for an image
IMAGES = Images(per_sequence=2, height=16, width=24)  # 4 x 6 patches, 2 x 3 tokens
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 64, "rope_theta": 100.0,
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]}}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1,
           "norm_topk_prob": True}  # fmt: skip
VISION = {"depth": 4, "hidden_size": 32, "hidden_act": "gelu_pytorch_tanh", "intermediate_size": 48, "num_heads": 4,
          "in_channels": 3, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 32,
          "num_position_embeddings": 9, "deepstack_visual_indexes": [0, 2]}  # fmt: skip


def config(kind: str) -> dict[str, Any]:
    experts = EXPERTS if kind == "qwen3_vl_moe" else {}
    return {"model_type": kind, "tie_word_embeddings": False, "image_token_id": IMAGE, "video_token_id": 59,
            "vision_start_token_id": 58, "vision_end_token_id": 57,
            "text_config": {"model_type": f"{kind}_text", **TEXT, **experts},
            "vision_config": {"model_type": kind, **VISION}}  # fmt: skip


def spec_of(kind: str) -> ModelSpec:
    """Without the bound below which images grow: those here are small."""
    spec = read_config(config(kind), "tiny")[0]
    assert spec.tower is not None
    return replace(spec, tower=replace(spec.tower, least_pixels=0))


def theirs_of(kind: str) -> Any:
    """With random numbers where initial weights are ones or zeros."""
    whole = CONFIG_MAPPING[kind].from_dict(config(kind))
    whole._experts_implementation = "eager"
    kinds: Any = AutoModelForImageTextToText
    model = kinds.from_config(whole, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                weight.add_(0.3 * noise)
            else:
                weight.copy_(1.5 * noise / weight[0].numel() ** 0.5)
    return model


def published(theirs: Any, tensors: dict[str, Any]) -> dict[str, Tensor]:
    """Tensors by the names of files, experts with their inputs first, as published."""
    written = filed(theirs, tensors)
    return {name: each.transpose(1, 2) if ".experts." in name else each for name, each in written.items()}


def ours_of(spec: ModelSpec, theirs: Any, **how: Any) -> DecoderChunk:
    model = whole_model(job("dp1-mbs1-z0-rnone", spec, dtype="fp32", seq_len=LENGTH, images=IMAGES, **how))
    return filled(model, converted(spec, published(theirs, dict(theirs.named_parameters()))))


def losses(kind: str, **changes: Any) -> tuple[Any, DecoderChunk, float, float]:
    """Both models after a backward pass, and their losses. changes: of our tower."""
    theirs, spec = theirs_of(kind), spec_of(kind)
    assert spec.tower is not None
    ours = ours_of(replace(spec, tower=replace(spec.tower, **changes)), theirs)
    seen, head = ours.seen, ours.head
    assert seen is not None
    assert head is not None
    head.ignores = True
    tokens = torch.randint(57, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    inputs, targets = tokens[:, :-1], torch.where(seen.without_target, -1, tokens[:, 1:])
    pixels, ids = seen.pixels(inputs[:, seen.places], torch.float32).flatten(0, 1), inputs.clone()
    ids[:, seen.places] = IMAGE
    grid = torch.tensor([[1, 4, 6]] * 2 * IMAGES.per_sequence)
    kinds = (ids == IMAGE).int()
    logits = theirs(input_ids=ids, pixel_values=pixels, image_grid_thw=grid, mm_token_type_ids=kinds).logits
    their_loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum",
                                                   ignore_index=-1)  # fmt: skip
    our_loss = ours(inputs, targets)
    their_loss.backward()  # type: ignore[no-untyped-call]
    our_loss.backward()
    return theirs, ours, their_loss.item(), our_loss.item()


def gradient(weight: Any) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["qwen3_vl", "qwen3_vl_moe"])
def test_loss_and_gradients_are_those_of_transformers(kind: str) -> None:
    theirs, ours, their_loss, our_loss = losses(kind)
    assert our_loss == pytest.approx(their_loss, rel=1e-6)
    wanted = converted(ours.spec, published(theirs, {name: gradient(each) for name, each in theirs.named_parameters()}))
    block = {name: name.rpartition(".")[0] for name in wanted}
    ranges = {each: max(float(wanted[name].abs().max()) for name in wanted if block[name] == each)
              for each in set(block.values())}  # fmt: skip
    for name, parameter in ours.named_parameters():
        assert float((gradient(parameter) - wanted[name]).abs().max()) < 2e-5 * ranges[block[name]], name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", [{"rope_sections": ()}, {"rope_sections": (2, 3, 3)}, {"activation": "gelu"}])
def test_other_numbers_of_the_tower_show_in_the_loss(change: dict[str, Any]) -> None:
    _, _, their_loss, our_loss = losses("qwen3_vl", **change)
    assert abs(our_loss / their_loss - 1) > 3e-6


def test_positions_are_those_of_transformers() -> None:
    """Also of images at the ends of a sequence, and of a sequence of images alone."""
    theirs = theirs_of("qwen3_vl").model
    spec = spec_of("qwen3_vl")
    for length, images in ((40, IMAGES), (12, IMAGES), (14, replace(IMAGES, height=24, width=8)),
                           (31, replace(IMAGES, per_sequence=3, height=8, width=8))):  # fmt: skip
        model = whole_model(job("dp1-mbs1-z0-rnone", spec, seq_len=length, images=images))
        seen = model.seen
        assert seen is not None
        ids = torch.zeros(1, length, dtype=torch.long)
        ids[:, seen.places] = IMAGE
        grid = torch.tensor([[1, images.height // 4, images.width // 4]] * images.per_sequence)
        # A text token between neighbours would part them there: without one they are one group of their types.
        kinds = (ids == IMAGE).int()
        if images.per_sequence * seen.tokens == length:
            continue
        wanted = theirs.get_rope_index(ids, kinds, image_grid_thw=grid)[0][:, 0]
        assert torch.equal(seen.positions(), wanted), (length, images)


def test_a_frozen_tower_has_no_gradient_and_its_mergers_have() -> None:
    spec = spec_of("qwen3_vl")
    model = whole_model(job("dp1-mbs1-z0-rnone", spec, dtype="fp32", seq_len=LENGTH, images=IMAGES, freezes_tower=True))
    tokens = torch.randint(57, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    model(tokens, tokens).backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    frozen = {name for name, _ in model.named_parameters()} - trained
    assert frozen == {name for name, _ in model.named_parameters() if freezes(name)}
    assert {name.split(".")[2] for name in frozen} == {"layers", "patches", "patches_bias", "positions"}
    assert {"embedding.tower.merger.up", "embedding.tower.mergers.1.norm.weight", "embedding.tokens"} <= trained


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["qwen3_vl", "qwen3_vl_moe"])
def test_weights_go_in_and_out_bit_by_bit(kind: str, tmp_path: Path) -> None:
    """Of a folder in the form of published files: into our weights, and from those into the tensors of an export."""
    theirs, spec = theirs_of(kind), spec_of(kind)
    files = {name: each.contiguous() for name, each in published(theirs, dict(theirs.named_parameters())).items()}
    (tmp_path / "hf").mkdir()
    save_file(files, tmp_path / "hf" / "model.safetensors")
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config(kind)))
    pretrained = Pretrained(tmp_path / "hf", spec)
    shapes = {each.name: each for each in tensors(spec)}
    assert set(shapes) == set(files)
    assert all(tuple(each.shape) == shapes[name].shape for name, each in files.items())
    ours = converted(spec, files)
    for name, split in whole_weights(spec).items():
        taken = torch.empty(split.shape)
        pretrained.init_param(taken, name, split, 0, tied=False)
        assert torch.equal(taken, ours[name]), name
    for name, each in shapes.items():
        whole = torch.zeros(each.shape)
        for part in each.parts:
            put(part.source, ours[part.weight], whole)
        assert torch.equal(whole, files[name]), name
