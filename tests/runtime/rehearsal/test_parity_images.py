"""A model with a vision tower, trained and frozen, trains under layouts what one process trains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from meshwright.cost_models.specs.workload import Images, Lora
from meshwright.profiles.model.load import load_model
from meshwright.runtime.model.images import SequenceImages
from meshwright.runtime.model.vision_tower import Tower
from meshwright.runtime.rehearsal.parity import LEAST_CHANGE
from meshwright.runtime.rehearsal.scale import scale_down
from meshwright.runtime.trainer import Trainer

from ..jobs import moe, vision, with_images
from .test_parity import parity_of


@pytest.mark.parametrize(
    ("layout_id", "frozen"),
    [
        ("dp2-sh2-mbs1-z3-rfull", False), ("dp4-sh2-mbs2-z2-rnone", True), ("tp2-dp2-mbs1-z1-rsel(norm+act)", False),
        ("tp2-dp2-mbs1-z3-rfull", True), ("tp4-dp1-mbs1-z0-rnone", False), ("pp2-dp1-mbs1-z0-rnone", True),
        ("tp2-pp2-vpp2-dp1-mbs1-z1-rsel", False), ("tp2-pp2-zbh1-dp1-mbs1-z0-rfull", False),
        ("pp2-zbv-vpp2-dp1-mbs2-z1-rnone", True), ("dp2-mbs1-z1-rnone-oact", False),
    ],
)  # fmt: skip
def test_trains_what_one_process_trains(layout_id: str, frozen: bool) -> None:
    model = vision(8 if "vpp" in layout_id else 4, **({} if "tp4" not in layout_id else {"kinds": _four_kv_heads()}))
    verdict = parity_of(with_images(layout_id, model, freezes_tower=frozen))
    assert verdict.agrees, verdict.first_difference
    assert verdict.least_change > LEAST_CHANGE


def _four_kv_heads() -> Any:
    layer = vision().kinds[0]
    assert layer.attention is not None
    return (replace(layer, attention=replace(layer.attention, kv_heads=4)),)


@pytest.mark.parametrize("changes", [{"optimizer": "adamw", "learning_rate": 0.01, "clip": 0.1},
                                     {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.5,
                                      "no_decay": frozenset({"norms", "biases", "embeddings"})},
                                     {"lora": Lora(rank=4, targets=("q", "down"))}])  # fmt: skip
def test_optimizer_and_adapters(changes: dict[str, Any]) -> None:
    assert parity_of(with_images("tp2-dp2-mbs1-z1-rnone", **changes)).agrees


def test_experts_behind_a_tower() -> None:
    assert parity_of(with_images("tp2-dp1-ep2-mbs1-z1-rnone", vision(base=moe))).agrees


def test_a_rehearsal_has_images_and_text() -> None:
    """Also where the first stage keeps fewer layers than the tower adds to."""
    tower = load_model("qwen3-vl-8b")[0].tower
    large, images = replace(vision(8), tower=tower, max_positions=8192), Images(per_sequence=4, height=1024, width=768)
    planned = with_images("tp2-pp4-dp1-mbs1-z1-rfull", large, seq_len=8192, images=images)
    small, _ = scale_down(planned, {"pp": 4})
    assert small.model.tower is not None
    assert small.images is not None
    assert (small.images.per_sequence, small.model.tower.deepstack, small.model.tower.heads) == (2, 1, 4)
    assert sum(small.model.tower.rope_sections) == 4
    assert 0 < len(SequenceImages(small.model.tower, small.images, small.seq_len).places) < small.seq_len
    half, _ = scale_down(planned)
    assert parity_of(replace(half, dtype="fp64", clip=None, learning_rate=0.3, steps=2)).agrees


def _no_taps(trainer: Trainer, rank: int) -> None:
    (tower,) = towers(trainer)
    place: Any = tower.place
    tower.place = lambda x, features, *, add=False: x if add else place(x, features)  # type: ignore[method-assign]


def _copies_summed(trainer: Trainer, rank: int) -> None:
    """Gradients that every tp rank has whole are added up once more."""
    for unit in trainer.units:
        if unit.name == "embedding copied":
            unit.groups = replace(unit.groups, partial=trainer.mesh["tp"])


def _other_images(trainer: Trainer, rank: int) -> None:
    """One rank sees other pixels."""
    (tower,) = towers(trainer)
    forward = tower.forward
    tower.forward = lambda tokens: forward(tokens + rank)  # type: ignore[method-assign]


def towers(trainer: Trainer) -> list[Tower]:
    return [module for chunk in trainer.chunks for module in chunk.modules() if isinstance(module, Tower)]


@pytest.mark.parametrize("fault", [_no_taps, _copies_summed, _other_images])
def test_planted_faults_are_noticed(fault: Any) -> None:
    assert not parity_of(with_images("tp2-dp1-mbs1-z1-rnone"), fault).agrees
