"""Parallel streams in training: parameters, products, activations and messages by hand, through `evaluate`."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner.document.candidate import Candidate

from meshwright.errors import InputError

from .test_techniques import priced

HIDDEN, LAYERS, HEADS, INNER, VOCAB, TOKENS = 2048, 8, 16, 8192, 32000, 1024
MODEL: dict[str, Any] = {"name": "plain", "hidden": HIDDEN, "layers": LAYERS, "heads": HEADS, "kv_heads": 4,
                         "ffn_hidden": INNER, "vocab": VOCAB, "max_positions": TOKENS}  # fmt: skip
KEYS = 4 * HIDDEN // HEADS
LAYER = 2 * HIDDEN**2 + 2 * HIDDEN * KEYS + 3 * HIDDEN * INNER


def of(streams: int | None, layout_id: str = "dp16-mbs2-z0-rnone", **asked: Any) -> Candidate:
    technique = streams and {"parscale": {"streams": streams, "prefix": asked.pop("prefix", 48)}}
    return priced(layout_id, technique, **{"model": MODEL, "seq_len": TOKENS, "global_batch": 64, **asked})


def seconds(candidate: Candidate, *names: str) -> float:
    return sum(term.seconds for term in candidate.terms if term.name in names)


def test_prefixes_and_weights_of_streams_are_states() -> None:
    """Adam's 16 bytes and an fp32 gradient for each; a pipeline has the prefixes where their layers are."""
    plain, four = of(None).memory[0], of(4).memory[0]
    prefixes = 4 * LAYERS * 2 * 48 * KEYS
    weighing = 4 * HIDDEN**2 + HIDDEN + 4 * HIDDEN + 4
    assert four.weights_bytes - plain.weights_bytes == pytest.approx(2 * (prefixes + weighing))
    assert four.optimizer_bytes - plain.optimizer_bytes == pytest.approx(12 * (prefixes + weighing))

    plain, four = (of(streams, "tp2-pp2-dp4-mbs2-z0-rnone").memory[0] for streams in (None, 4))
    assert four.weights_bytes - plain.weights_bytes == pytest.approx(2 * prefixes / 4)


def test_layers_compute_every_stream_and_the_head_computes_their_sum() -> None:
    """Forward and backward products: 6 FLOPs per parameter and token, of layers for each stream."""
    plain, eight = of(None), of(8)
    tokens, head = 4 * TOKENS, VOCAB * HIDDEN
    weighing = 8 * HIDDEN**2 + 8 * HIDDEN
    products = (8 * LAYERS * LAYER + weighing + head) / (LAYERS * LAYER + head)
    assert seconds(eight, "matmul") / seconds(plain, "matmul") == pytest.approx(products, rel=0.06)  # larger: faster

    model_flops: float = 6 * tokens * 16 * (LAYERS * LAYER + head) + 3 * 4 * tokens * 16 * HIDDEN * LAYERS * TOKENS / 2
    streams: float = 6 * tokens * 16 * (8 * LAYERS * LAYER + weighing + head)
    streams += 8 * 3 * 4 * tokens * 16 * HIDDEN * LAYERS * (TOKENS / 2 + 48)
    assert eight.mfu * eight.step_s / (plain.mfu * plain.step_s) == pytest.approx(streams / model_flops, rel=1e-3)


def test_activations_of_layers_are_those_of_as_many_sequences() -> None:
    """Eight streams of a sequence keep in a layer what eight sequences do, and prefixes."""
    asked: dict[str, Any] = {"prefix": 0, "global_batch": 128}
    deep = {**MODEL, "layers": 2 * LAYERS}
    streams = [of(8, "dp16-mbs1-z0-rnone", model=model, **asked).memory[0] for model in (MODEL, deep)]
    sequences = [of(None, "dp16-mbs8-z0-rnone", model=model, global_batch=128).memory[0] for model in (MODEL, deep)]
    of_layers = [more.activations_bytes - less.activations_bytes for less, more in (streams, sequences)]
    assert of_layers[0] == pytest.approx(of_layers[1], rel=1e-7)  # of 9 digits
    # 48 keys and values before those of 1,024 tokens, in bf16.
    prefixes = 8 * LAYERS * 48 * 2 * KEYS * 2
    with_prefixes = of(8, "dp16-mbs1-z0-rnone", global_batch=128).memory[0]
    assert with_prefixes.activations_bytes - streams[0].activations_bytes == pytest.approx(prefixes, rel=1e-6)


def test_stages_hand_on_every_stream() -> None:
    plain, four = (of(streams, "pp16-dp1-mbs1-z0-rnone", model={**MODEL, "layers": 16}, global_batch=16)
                   for streams in (None, 4))  # fmt: skip
    sent = "pp comm, exposed", "pp comm, hidden"
    assert seconds(four, *sent) > 2 * seconds(plain, *sent) > 0  # and latencies, which stay


@pytest.mark.parametrize(("asked", "why"), [
    ({"model": "deepseek-v3", "cluster": "dgx-h100:2"}, "keys of its own"),
    ({"train": {"lora": {"rank": 8}}}, "all weights to train"),
    ({"technique": {"parscale": {"streams": 65}}}, "streams is 65, must be a whole number in 1 to 64"),
    ({"technique": {"parscale": {}, "vocabulary-parallel": {}}}, "streams are summed before the head"),
])  # fmt: skip
def test_what_streams_cannot_be_of_is_refused(asked: dict[str, Any], why: str) -> None:
    technique: dict[str, Any] = {"parscale": {}}
    with pytest.raises(InputError, match=why):
        priced("dp16-mbs1-z0-rnone", asked.pop("technique", technique),
               **{"model": MODEL, "seq_len": TOKENS, "global_batch": 64, **asked})  # fmt: skip
