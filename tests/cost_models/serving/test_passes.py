"""Passes of models that fill in masked tokens, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.rates.collectives import Curve
from meshwright.cost_models.serving.arrivals import Requests
from meshwright.cost_models.serving.instance_iterations import decoding_batch
from meshwright.cost_models.serving.iteration import Batch, iteration_seconds
from meshwright.cost_models.serving.lengths import RequestLengths
from meshwright.cost_models.serving.load import steady_state
from meshwright.cost_models.serving.methods import PLAIN
from meshwright.cost_models.serving.pool import Pool
from meshwright.cost_models.serving.service import Load
from meshwright.cost_models.serving.simulation import simulate
from meshwright.profiles.model.load import load_model

from .test_serving import CONSTANTS, column, pool

BARE = replace(CONSTANTS, short_s=0.0, sequence_s=0.0, step_s=0.0, compute_share=1.0, bandwidth_share=1.0)
PROMPT, ANSWER = 200.0, 824.0


def llada(tokens: float = 1.0, block: float = 0.0) -> Pool:
    plain = pool("llada-8b", weight_bytes=2.0)
    methods = replace(plain.methods, fills=True, block_tokens=block)
    return replace(plain, methods=methods, step_tokens=column(tokens))


def batch(sequences: float) -> Batch:
    load = Load.equal(column(PROMPT), column(ANSWER), concurrency=column(sequences), rate=column(0),
                      burst_share=column(0), transfer_s=column(0))  # fmt: skip
    return decoding_batch(column(sequences), llada(), load)


def by_hand(tokens: float) -> float:
    """Seconds of a pass of one sequence over so many of its 1,024 tokens on GPUs of 1 PFLOP/s (attention: 0.6) and 4.6
    TB/s: 6.98 billion parameters of 32 layers and a head of 126,464 x 4,096, each token attending to all."""
    head, layers = 126464 * 4096, 32 * (4 * 4096**2 + 3 * 4096 * 12288 + 2 * 4096)
    products, reads = 2 * (head + layers) * tokens / 1e15, 2 * (head + layers) / 4.6e12
    scores = tokens * 1024 * 32 * 2 * 32 * (128 + 128) / 6e14
    keys = 2 * 1024 * 32 * 2 * 4096 / (4.6e12 * BARE.cache_share)
    norms = 16 * 32 * 4096 * tokens / 4.6e12
    return float((products**4 + reads**4) ** 0.25 + (scores**4 + keys**4) ** 0.25 + norms)


def test_a_pass_is_over_prompt_and_answer() -> None:
    assert load_model("llada-8b")[0].unmasks
    assert batch(1).context == PROMPT + ANSWER
    assert iteration_seconds(llada(), BARE, batch(1))[0] == pytest.approx(by_hand(1024), rel=1e-9)


def test_caches_leave_the_tokens_of_a_block_but_for_its_first_pass() -> None:
    """Blocks of 32 tokens, of which a pass gives 8: one pass of four is over all tokens."""
    seconds = iteration_seconds(llada(tokens=8, block=32), BARE, batch(1))[0]
    assert seconds == pytest.approx(by_hand(1024) / 4 + 3 * by_hand(32) / 4, rel=1e-9)
    # No pass is left between two blocks, where one pass gives as many tokens as a block has.
    assert iteration_seconds(llada(tokens=32, block=32), BARE, batch(1))[0] == pytest.approx(by_hand(1024), rel=1e-9)


def test_an_answer_takes_as_many_passes_as_tokens_over_those_of_a_pass() -> None:
    load = Load.equal(column(PROMPT), column(ANSWER), concurrency=column(1), rate=column(0), burst_share=column(0),
                      transfer_s=column(0))  # fmt: skip
    disagg = np.array([False])
    for tokens in (1.0, 4.0, 22.8):
        service = steady_state(llada(tokens), llada(tokens), disagg, load, BARE)
        assert service.tpot_s[0] == pytest.approx(by_hand(1024) / tokens, rel=1e-9)


def test_copies_of_a_sequence_are_sequences() -> None:
    doubled = replace(llada(), methods=replace(llada().methods, copies=2.0))
    assert iteration_seconds(doubled, BARE, batch(1)) == iteration_seconds(llada(), BARE, batch(2))


def test_patches_have_a_part_of_the_tokens_and_hide_what_they_gather() -> None:
    """Four ranks of 256 tokens, each attending to its own and to half of the others: 640 of 1,024."""
    alone = llada()
    four = replace(alone, tp=column(4), methods=replace(alone.methods, patches=True, patch_context=0.5))
    head, layers = 126464 * 4096, 32 * (4 * 4096**2 + 3 * 4096 * 12288 + 2 * 4096)
    products, reads = 2 * (head + layers) * 256 / 1e15, 2 * (head + layers) / 4.6e12
    scores, keys = 256 * 640 * 32 * 2 * 32 * 256 / 6e14, 2 * 640 * 32 * 2 * 4096 / (4.6e12 * BARE.cache_share)
    by_hand_s = (products**4 + reads**4) ** 0.25 + (scores**4 + keys**4) ** 0.25 + 16 * 32 * 4096 * 256 / 4.6e12
    assert iteration_seconds(four, BARE, batch(1))[0] == pytest.approx(by_hand_s, rel=1e-9)
    slow = replace(four, all_gather=Curve(column(0), column(1e-9), column(0)))
    # Keys and values of a layer, 2 x 4,096 in 16 bits of 1,024 tokens, half of them, over 1 GB/s.
    assert iteration_seconds(slow, BARE, batch(1))[0] == pytest.approx(32 * 2 * 2 * 4096 * 1024 * 0.5 * 1e-9, rel=0.01)
    assert four.weights_bytes == alone.weights_bytes


def test_room_is_of_what_a_pass_holds() -> None:
    """LLaDA: in 16 bits the logits of each of 1,024 tokens, 126,464 of them, and its hidden state of 4,096, which the
    inner 3 x 12,288 numbers of a block do not exceed; caches, keys and values of 32 layers, only with blocks. Patches
    keep the keys and values that the next pass reads: in four ranks 640 of 1,024 tokens with half of the others."""
    prompt, answer = column(PROMPT), column(ANSWER)
    logits, cache = 2 * 1024 * (4096 + 126464), 2 * 1024 * 32 * 2 * 4096
    assert llada().held_bytes(prompt, answer) == pytest.approx(logits)
    assert llada(block=32).held_bytes(prompt, answer) == pytest.approx(logits + cache)
    alone = llada()
    doubled = replace(alone, methods=replace(alone.methods, copies=2.0))
    assert doubled.held_bytes(prompt, answer) == pytest.approx(2 * logits)
    four = replace(alone, tp=column(4), methods=replace(alone.methods, patches=True, patch_context=0.5))
    assert four.held_bytes(prompt, answer) == pytest.approx(logits / 4 + cache * 640 / 1024)
    split = replace(alone, tp=column(4))  # a block of a layer has more than the quarter of the logits
    assert split.held_bytes(prompt, answer) == pytest.approx(2 * 1024 * (4096 + max(4096 + 3 * 12288 / 4, 126464 / 4)))


def test_a_block_is_no_longer_than_the_answer() -> None:
    """A block of 2,048 tokens is the answer of 824, of which a pass gives 8: one pass of 103 is over all tokens."""
    seconds = iteration_seconds(llada(tokens=8, block=2048), BARE, batch(1))[0]
    assert seconds == pytest.approx((by_hand(1024) + 102 * by_hand(824)) / 103, rel=1e-9)


def test_room_has_the_activations_of_passes_once() -> None:
    """Of 4 GiB beside weights and room those of an engine's largest batch, 8,192 tokens, are left out: in 16 bits the
    hidden state, the input of a block, and its inner 3 x 12,288 numbers."""
    plain = replace(llada(), methods=PLAIN)
    activations = 8192 * 2 * (2 * 4096 + 3 * 12288)
    assert llada().cache_bytes - plain.cache_bytes == pytest.approx(activations)


def test_a_simulated_pass_gives_no_more_than_the_answer() -> None:
    """Of 22.8 tokens of a pass an answer of 8 takes one whole pass, not 8 / 22.8 of one."""
    lengths = RequestLengths.equal(PROMPT, 8.0)
    requests = Requests(lengths=lengths, rate=0.0, concurrency=1, number=10, front_s=0.0)
    one = replace(batch(1), context=column(PROMPT + 8))
    simulated = simulate(llada(22.8), BARE, requests, 10.0)
    assert simulated.tpot_s == pytest.approx(iteration_seconds(llada(22.8), BARE, one)[0] / 8)


def test_prompts_take_no_iterations_of_their_own() -> None:
    alone = iteration_seconds(llada(), BARE, batch(2))
    beside = replace(batch(2), prompt_tokens=column(5000))
    assert iteration_seconds(llada(), BARE, beside) == alone
