"""Towers that see the images of requests, and the tiers that run their pieces, against counts by hand and all cuts."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.quantities import vision
from meshwright.cost_models.rates.collectives import Curve
from meshwright.cost_models.serving.image_placement import front_s, placement
from meshwright.cost_models.serving.iteration import Batch, iteration_seconds
from meshwright.cost_models.serving.load import steady_state
from meshwright.cost_models.serving.pool import Pool
from meshwright.cost_models.serving.seen_images import SeenImages
from meshwright.cost_models.specs.vision import VisionTower
from meshwright.cost_models.specs.workload import Images
from meshwright.profiles.model.load import load_model

from .test_passes import BARE
from .test_serving import CONSTANTS, column, load, pool

PIXELS, TOKENS = 896 * 896 * 3, 256 * 3840  # of Gemma 3 12B: an image, and the tokens that it becomes
PATCHES, WIDTH, INNER, LAYERS = 64 * 64, 1152, 4304, 27
LAYER = 2 * PATCHES * (4 * WIDTH**2 + 2 * WIDTH * INNER) + 4 * PATCHES**2 * WIDTH
TOWER = LAYERS * LAYER + 2 * PATCHES * WIDTH * 14**2 * 3 + 2 * 256 * WIDTH * 3840


def tower_of(model: str) -> VisionTower:
    tower = load_model(model)[0].tower
    assert tower is not None
    return tower


def sees(prompt: float = 1000.0, **methods: Any) -> Pool:
    plain = pool("gemma-3-12b", weight_bytes=2.0)
    images = SeenImages.of(tower_of("gemma-3-12b"), Images(per_sequence=1, height=896, width=896), prompt)
    return replace(plain, images=images, methods=replace(plain.methods, pixel_bits=8.0, feature_bits=16.0, **methods))


@pytest.mark.parametrize(("model", "size"), [
    ("gemma-3-12b", (896, 896)), ("qwen2.5-vl-7b", (1036, 784)), ("qwen3-vl-8b", (1024, 768)),
    ("phi-4-multimodal", (896, 448)), ("internvl3-38b", (448, 448)), ("llama-4-scout", (336, 336)),
])  # fmt: skip
def test_pieces_of_a_tower_are_all_of_it(model: str, size: tuple[int, int]) -> None:
    tower = tower_of(model)
    pieces, elements = vision.piece_flops(tower, *size), vision.piece_elements(tower, *size)
    assert len(pieces) == len(elements) == tower.layers + 2
    assert min(pieces) > 0
    assert sum(pieces) == pytest.approx(vision.image_flops(tower, *size), rel=1e-12)


def test_outputs_that_were_tapped_cross_a_cut_as_well() -> None:
    """Qwen3-VL adds the outputs of three layers, as tokens, to the first layers of the language model."""
    tower = tower_of("qwen3-vl-8b")
    elements, tokens = vision.piece_elements(tower, 1024, 1024), 32 * 32 * tower.output
    patches = 64 * 64 * tower.hidden
    assert elements[1] == patches
    assert elements[1 + tower.taps[0]] == patches + tokens
    assert elements[-2] == patches + 3 * tokens
    assert elements[-1] == 4 * tokens


def test_an_iteration_runs_the_tower_on_the_images_of_its_prompts() -> None:
    """Half of a prompt: half of an image, on GPUs of 1 PFLOP/s; its weights are read once, 0.43 billion in 16 bits."""
    batch = Batch(sequences=column(0), context=column(0), prompt_tokens=column(500), prompt_context=column(250),
                  prompt_groups=column(1))  # fmt: skip
    blind = replace(sees(), images=None)
    parameters = sum(vision.parameters(tower_of("gemma-3-12b")).values())
    assert parameters == pytest.approx(0.43e9, rel=0.03)
    by_hand = ((TOWER / 2 / 1e15) ** 4 + (2 * parameters / 4.6e12) ** 4) ** 0.25
    more_s = iteration_seconds(sees(), BARE, batch) - iteration_seconds(blind, BARE, batch)
    assert more_s[0] == pytest.approx(by_hand, rel=1e-9)
    answers = replace(batch, sequences=column(8), context=column(100), prompt_tokens=column(0))
    assert iteration_seconds(sees(), BARE, answers) == iteration_seconds(blind, BARE, answers)
    assert sees().weights_bytes - blind.weights_bytes == pytest.approx(2 * parameters)


def test_tensor_parallelism_splits_the_tower_and_sums_twice_a_layer() -> None:
    batch = Batch(sequences=column(0), context=column(0), prompt_tokens=column(1000), prompt_context=column(500),
                  prompt_groups=column(1))  # fmt: skip
    four = replace(sees(), tp=column(4))
    slow = replace(four, all_reduce=Curve(column(1e-3), column(1e-9), column(0)))

    def tower_s(of: Pool) -> float:
        blind = replace(of, images=None)
        return float((iteration_seconds(of, BARE, batch) - iteration_seconds(blind, BARE, batch))[0])

    whole, split, summed = (tower_s(it) for it in (sees(), four, slow))
    assert split == pytest.approx(whole / 4, rel=1e-6)
    each = BARE.latency_share * 1e-3 + 2 * WIDTH * PATCHES * 1e-9 / BARE.traffic_share
    assert summed - split == pytest.approx(2 * LAYERS * each, rel=1e-6)


@pytest.mark.parametrize("uplink", [1e4, 1e5, 1e6, 1e7, 1e8, 1e9])
@pytest.mark.parametrize(("device", "edge"), [(0.0, 0.0), (1e12, 0.0), (1e13, 0.0), (0.0, 5e13), (2e12, 5e13)])
def test_the_cuts_are_the_best_of_all(uplink: float, device: float, edge: float) -> None:
    of = sees(uplink_bytes_per_s=uplink, backhaul_bytes_per_s=2e7, link_s=0.02, device_flops_per_s=device,
              edge_flops_per_s=edge)  # fmt: skip
    images = of.images
    assert images is not None
    done = np.cumsum([0.0, *images.flops])
    sent = np.array([PIXELS, *(2 * it for it in images.elements)])

    def seconds(first: int, last: int) -> float:
        total = (done[first] / device if first else 0.0) + sent[first] / uplink + 0.02
        if edge:
            total += (done[last] - done[first]) / edge + sent[last] / 2e7 + 0.02
        return float(total + (done[-1] - done[last]) / (1e15 * BARE.compute_share))

    allowed = [(i, j) for i, j in combinations_with_replacement(range(len(done)), 2)
               if (device or not i) and (edge or i == j)]  # fmt: skip
    placed = placement(of, BARE)
    first, last = int(placed.device[0]), int(placed.device[0] + placed.edge[0])
    best = min(seconds(i, j) for i, j in allowed)
    assert seconds(first, last) == pytest.approx(best, rel=1e-12)
    assert placed.before_s[0] + placed.left[0] * done[-1] / (1e15 * BARE.compute_share) == pytest.approx(best, rel=1e-9)


def test_the_tower_moves_to_the_device_where_tokens_are_sent_sooner_than_pixels() -> None:
    """2.41 MB of pixels become 1.97 MB of tokens. A device of 10 TFLOP/s takes 0.55 s for the tower, the GPU 5 ms: it
    pays below 0.8 MB/s."""
    assert 5.4e12 < TOWER < 5.5e12
    crossing = (PIXELS - 2 * TOKENS) / (TOWER / 1e13 - TOWER / 1e15)
    above, below = (placement(sees(uplink_bytes_per_s=crossing * times, device_flops_per_s=1e13), BARE)
                    for times in (1.001, 0.999))  # fmt: skip
    assert (above.device[0], above.left[0]) == (0, 1)
    assert (below.device[0], below.left[0]) == (LAYERS + 2, 0)


def test_the_way_to_the_user_is_part_of_the_time_to_a_first_token() -> None:
    near, far = sees(), sees(uplink_bytes_per_s=1e6, link_s=0.05)
    one = load(concurrency=1)
    # Fewer requests are at the GPU meanwhile, so that its iterations are shorter by 0.1 ms.
    first = [float(steady_state(it, it, np.array([False]), one, CONSTANTS).ttft_s[0]) for it in (near, far)]
    assert first[1] - first[0] == pytest.approx(PIXELS / 1e6 + 0.05, rel=1e-4)
    prompt = column(1000)
    assert front_s(far, CONSTANTS, prompt) - front_s(near, CONSTANTS, prompt) == pytest.approx(PIXELS / 1e6 + 0.05)
