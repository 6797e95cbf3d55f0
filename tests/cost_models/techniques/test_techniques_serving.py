"""Techniques of serving change what an iteration computes, moves and holds, and neutral knobs change nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.rates.collectives import Curve
from meshwright.cost_models.serving.image_placement import front_s
from meshwright.cost_models.serving.iteration import Batch, iteration_seconds
from meshwright.cost_models.serving.load import steady_state
from meshwright.cost_models.serving.phases import phases
from meshwright.cost_models.serving.pool import Pool
from meshwright.cost_models.serving.seen_images import SeenImages
from meshwright.cost_models.serving.service import Load
from meshwright.cost_models.specs.workload import Images
from meshwright.cost_models.techniques.prompt_decoding import accepted_tokens
from meshwright.cost_models.techniques.registry import GAINING, SERVING, applied, broken_needs
from meshwright.planner.serving.instance import Instance, InstanceLayout, Speculation, passes_of, pool
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.engines import shipped_engines

from meshwright.errors import InputError

ENGINES = shipped_engines()
# Technique -> (model, cluster, degrees) that it serves by.
DENSE = ("llama-2-70b", "8xa100-sxm-80gb", {"tp": 8})
EXPERTS = ("qwen3-30b-a3b", "8xa100-sxm-80gb", {"attention_dp": 8, "ep": 8})
DEVICES = ("llama-2-70b", {"groups": [{"name": "single", "gpu": "rtx-4090", "gpus_per_node": 1, "count": 8}],
                           "links": {"inter_node": {"bandwidth": "1 Gb/s", "latency": "1 ms"}}}, {"tp": 8})  # fmt: skip
IMAGES = ("dit-xl-2-256", "8xa100-sxm-80gb", {"tp": 8})
SEES = ("gemma-3-12b", "8xa100-sxm-80gb", {"tp": 2})
MASKED = ("llada-8b", "1xa100-sxm-80gb", {"tp": 1})
RUNS: dict[str, tuple[str, Any, dict[str, int]]] = {
    **dict.fromkeys(SERVING, DENSE), "exflow": EXPERTS, "speculative-moe": EXPERTS, "tpi-llm": DEVICES, "ai-flow": SEES,
    **dict.fromkeys(("learn2pd", "dparallel", "parallelbench"), MASKED),
    "pcpp": IMAGES, "streamdiffusion": IMAGES}  # fmt: skip


def instances(name: str, techniques: dict[str, dict[str, float]], *, backwards: bool = False) -> Pool:
    """backwards: the last of the techniques is applied first."""
    model, given, degrees = RUNS[name]
    cluster = load_cluster(given, gpu=None, num_gpus=None, exclude=())
    layout = InstanceLayout(**{"tp": 1, "attention_dp": 1, "pp": 1, "ep": 1, "instances": 1, **degrees})
    draft = Speculation(tokens=4, step_tokens=3.0, draft=load_model("llama-2-7b")[0]) if name == "mirror-sd" else None
    return pool([Instance(
        model=load_model(model)[0], gpu=cluster.gpu, levels=cluster.levels, weights="bf16", cache="bf16",
        engine=ENGINES.of("vllm"), host_s=0.0, layout=layout, chunk_tokens=8192, max_sequences=256, speculation=draft,
        passes=passes_of(load_model(model)[0], 8, 256.0) if name == "streamdiffusion" else None,
        images=images_of(model) if name == "ai-flow" else None,
        techniques=applied(techniques, SERVING)[:: -1 if backwards else 1])])  # fmt: skip


def images_of(model: str) -> SeenImages:
    tower = load_model(model)[0].tower
    assert tower is not None
    return SeenImages.of(tower, Images(per_sequence=1, height=896, width=896), 1000.0)


def batch(prompt_tokens: float) -> Batch:
    one = np.ones(1)
    return Batch(sequences=64 * one, context=1000 * one, prompt_tokens=prompt_tokens * one, prompt_context=500 * one,
                 prompt_groups=one)  # fmt: skip


def quantities(of: Pool) -> list[float]:
    """Seconds of prompts and of answers, room, swaps, and the way from the user."""
    prompts, answers, _ = phases(of)
    tokens = np.array([1000.0])
    swap_s = answers.swap_s(tokens) if answers.methods.swaps else np.zeros(1)
    return [float(np.ravel(value)[0]) for value in (
        iteration_seconds(prompts, ENGINES.constants, batch(4096)),
        iteration_seconds(answers, ENGINES.constants, batch(0)),
        of.capacity(tokens, tokens), of.weights_bytes, answers.step_tokens, swap_s,
        front_s(prompts, ENGINES.constants, tokens))]  # fmt: skip


@pytest.mark.parametrize("name", SERVING)
def test_neutral_knobs_change_nothing(name: str) -> None:
    plain = quantities(instances(name, {}))
    assert quantities(instances(name, {name: dict(SERVING[name].neutral)})) == plain
    assert quantities(instances(name, {name: {}})) != plain
    assert not any(broken.any() for *_, broken in broken_needs(instances(name, {}), applied({name: {}}, SERVING)))


@pytest.mark.parametrize(("one", "other"), list(combinations(SERVING, 2)))
def test_pairs_show_both_or_exclude_each_other(one: str, other: str) -> None:
    """Where both serve by the same instances, each changes what the other leaves, in any order unless it is given."""
    if SERVING[one].exclusion(SERVING[other]):
        with pytest.raises(InputError, match="exclude one another"):
            applied({one: {}, other: {}}, SERVING)
        return
    both = applied({one: {}, other: {}}, SERVING)
    where = next((name for name in (one, other) if not any(
        broken.any() for *_, broken in broken_needs(instances(name, {}), both))), None)  # fmt: skip
    if where is not None:
        together = quantities(instances(where, {one: {}, other: {}}))
        assert all(together != quantities(instances(where, {name: {}})) for name in (one, other))
        if SERVING[one].order == SERVING[other].order:
            backwards = quantities(instances(where, {one: {}, other: {}}, backwards=True))
            assert together == pytest.approx(backwards, rel=1e-9)


def gains(plain: Pool, changed: Pool) -> bool:
    """Whether anything is better: a number, or prompts that do not stop answers."""
    fewer = np.array([1, 1, -1, 1, -1, 1, 1])  # seconds, room, bytes, tokens, swaps, way: where less is better
    better = np.array(quantities(changed)) * fewer < np.array(quantities(plain)) * fewer
    return bool(better.any() or phases(changed)[2].any())


@pytest.mark.parametrize("name", SERVING)
def test_all_has_the_techniques_that_may_gain(name: str) -> None:
    """Those that only add time double the sets of `all` for nothing."""
    known, plain = SERVING[name], instances(name, {})
    knobs = [{}, *({knob.name: value} for knob in known.knobs for value in (knob.low, knob.high))]
    assert any(gains(plain, instances(name, {name: chosen})) for chosen in knobs) == (name in GAINING)


@pytest.mark.parametrize(("prompt_tokens", "hides"), [(0, False), (448, False), (959, False), (960, True)])
def test_tokenweave_is_off_where_halves_are_too_small(prompt_tokens: float, hides: bool) -> None:
    """Beside 64 sequences that decode. Half of its least tokens are 512, below which its paper splits nothing."""
    pools = instances("tokenweave", {}), instances("tokenweave", {"tokenweave": {}})
    seconds = [float(iteration_seconds(it, ENGINES.constants, batch(prompt_tokens))[0]) for it in pools]
    assert (seconds[0] != seconds[1]) == hides


def test_sums_hide_behind_the_rest() -> None:
    """Ladder-residual: the shorter of the sums and of the rest of the iteration is gone."""
    plain, hidden = instances("ladder-residual", {}), instances("ladder-residual", {"ladder-residual": {}})
    none = np.zeros(1)
    rest = iteration_seconds(replace(plain, all_reduce=Curve(none, none, none)), ENGINES.constants, batch(4096))
    assert iteration_seconds(hidden, ENGINES.constants, batch(4096)) == pytest.approx(rest, rel=1e-9)


def test_prompts_of_an_iteration_hide_together_behind_the_cache_and_not_each() -> None:
    """NanoFlow: with two prompts in the mean iteration, it takes as long as one with both."""
    cluster = load_cluster("1xa100-sxm-80gb", gpu=None, num_gpus=None, exclude=())
    crowded = pool([Instance(
        model=load_model("llama-2-7b")[0], gpu=cluster.gpu, levels=cluster.levels, weights="bf16", cache="bf16",
        engine=ENGINES.of("vllm"), host_s=0.0, chunk_tokens=8192, max_sequences=1024,
        layout=InstanceLayout(tp=1, attention_dp=1, pp=1, ep=1, instances=1),
        techniques=applied({"nanoflow": {}}, SERVING))])  # fmt: skip
    tokens, none = np.array([200.0]), np.zeros(1)
    load = Load.equal(tokens, tokens, concurrency=np.array([378.0]), rate=none, burst_share=none, transfer_s=none)
    service = steady_state(crowded, crowded, np.array([False]), load, ENGINES.constants)
    prompts = service.sequences / 199.0
    together = Batch(sequences=service.sequences, context=np.array([300.0]), prompt_tokens=200.0 * prompts,
                     prompt_context=np.array([100.0]), prompt_groups=np.ones(1))  # fmt: skip
    assert prompts > 1.7
    assert service.tpot_s == pytest.approx(iteration_seconds(crowded, ENGINES.constants, together), rel=0.015)


@pytest.mark.parametrize(("techniques", "seconds"), [({}, 0.03), ({"nanoflow": {"batches": 1}}, 0.03),
                                                      ({"nanoflow": {}}, 0.0)])  # fmt: skip
def test_the_host_works_beside_nano_batches(techniques: dict[str, dict[str, float]], seconds: float) -> None:
    """An iteration with prompts takes the host's 30 ms beside; NanoFlow launches while the iteration before runs."""
    with_host, without = (replace(instances("nanoflow", techniques), host_s=np.array([it])) for it in (0.03, 0.0))
    took_s, device_s = (float(iteration_seconds(it, ENGINES.constants, batch(4096.0))[0])
                        for it in (with_host, without))  # fmt: skip
    assert took_s - device_s == pytest.approx(seconds)


def test_the_best_tree_by_hand() -> None:
    """Guesses of 0.5 at any depth: nodes of 1/2, then 1/4 (its second rank, and the next depth), then four of 1/8."""
    assert accepted_tokens(0.5, 1.0)[:8] == pytest.approx((1, 1.5, 1.75, 2.0, 2.125, 2.25, 2.375, 2.5))


@pytest.mark.parametrize(("requested", "message"), [
    ({"nexus": {"prompts": 2}}, "nexus: prompts is 2, must be in 0 to 0.95"),
    ({"nexus": {"promts": 0.5}}, "nexus has no knob `promts`"), ({"nexsus": {}}, "unknown technique `nexsus`"),
    ({"diloco": {}}, "diloco trains, and no plan serves by it"),
    ({"nexus": {}, "semi-pd": {}}, "both choose how prompts and answers share a GPU"),
])  # fmt: skip
def test_what_is_refused(requested: dict[str, dict[str, float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        applied(requested, SERVING)


def test_training_refuses_techniques_of_serving() -> None:
    with pytest.raises(InputError, match="nexus serves, and no plan trains by it"):
        applied({"nexus": {}})
