"""Prices of iterations and steady states: counts by hand, limits that hardware sets, conditions of a fixed point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.quantities import params
from meshwright.cost_models.rates.collectives import Curve
from meshwright.cost_models.serving.iteration import Batch, iteration_seconds, touched_experts
from meshwright.cost_models.serving.load import steady_state
from meshwright.cost_models.serving.pool import Pool, stage_layers
from meshwright.cost_models.serving.served_model import ServedModel, stacked
from meshwright.cost_models.serving.service import Load, Service
from meshwright.planner.request.model_reference import text_model
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.engines import shipped_engines
from meshwright.profiles.stack.load import stack_for

from meshwright.errors import UnsupportedError

CONSTANTS = shipped_engines().constants
STACK = stack_for("generic")[0]
GIB = 2.0**30


def column(value: float) -> np.ndarray:
    return np.array([float(value)])


def pool(model: str = "llama-3.1-70b", *, tp: int = 1, attention_dp: int = 1, ep: int = 1, memory_gib: float = 141.0,
         weight_bytes: float = 1.0, instances: int = 1) -> Pool:  # fmt: skip
    """H200-like GPUs, without collectives and host."""
    none = Curve(column(0), column(0), column(0))
    return Pool(
        model=stacked([ServedModel.of(load_model(model)[0], STACK)]), draft=stacked([ServedModel.none()]),
        draft_tokens=column(0), step_tokens=column(1), tp=column(tp), attention_dp=column(attention_dp),
        pp=column(1), ep=column(ep), instances=column(instances), weight_bytes=column(weight_bytes),
        expert_bytes=column(weight_bytes), kv_bytes=column(2), kv_read_bytes=column(2), flops_per_s=column(1e15),
        dense_flops_per_s=column(1e15),
        attention_flops_per_s=column(6e14), memory_bw_bytes_per_s=column(4.6e12), memory_bytes=column(memory_gib * GIB),
        all_reduce=none, in_node=column(1), own_sum_bytes=column(np.inf), all_to_all=none, all_gather=none, p2p=none,
        host_s=column(0.02), chunk_tokens=column(8192), largest_batch=column(8192), max_sequences=column(1024),
        mixes_prompts=column(1), decodes_first=column(1), reserved_output=column(1),
        int4_flops_per_s=column(0), launch_s=column(0), host_bw_bytes_per_s=column(25e9),
    )  # fmt: skip


def load(prompt: float = 1000, output: float = 300, *, concurrency: float = 16, rate: float = 0.0) -> Load:
    return Load.equal(prompt=column(prompt), output=column(output), concurrency=column(concurrency), rate=column(rate),
                burst_share=column(0.1), transfer_s=column(0))  # fmt: skip


def test_an_engine_without_graphs_launches_every_kernel() -> None:
    batch = Batch(sequences=column(4), context=column(100), prompt_tokens=column(0), prompt_context=column(0),
                  prompt_groups=column(1))  # fmt: skip
    plain = iteration_seconds(pool(), CONSTANTS, batch)
    eager = iteration_seconds(replace(pool(), launch_s=column(0.5)), CONSTANTS, batch)
    assert plain < 0.1
    assert eager == pytest.approx(0.5 + CONSTANTS.step_s + 4 * CONSTANTS.sequence_s)


def test_sums_above_the_largest_of_the_engine_are_those_of_nccl() -> None:
    """70B, of 80 layers and width 8,192: an own sum holds 100 tokens at most."""
    curve = Curve(column(1e-5), column(1e-9), column(0))
    summing = replace(pool(tp=8), all_reduce=curve, own_sum_bytes=column(2 * 8192 * 100))

    def sum_s(tokens: float) -> float:
        batch = Batch(sequences=column(tokens), context=column(100), prompt_tokens=column(0), prompt_context=column(0),
                      prompt_groups=column(1))  # fmt: skip
        whole, without = (iteration_seconds(it, CONSTANTS, batch) for it in (summing, pool(tp=8)))
        return float((whole - without)[0]) / (2 * 80)

    def own_s(tokens: float) -> float:
        return CONSTANTS.latency_share * 1e-5 + 2e-9 * 8192 * tokens / CONSTANTS.traffic_share

    assert sum_s(50) == pytest.approx(own_s(50), rel=1e-6)
    assert sum_s(100) == pytest.approx(own_s(100), rel=1e-6)
    assert sum_s(1000) == pytest.approx(1e-5 + 2e-9 * 8192 * 1000, rel=1e-6)
    assert own_s(100) > 1e-5 + 2e-9 * 8192 * 101
    assert sum_s(101) == pytest.approx(own_s(100), rel=1e-6), "a larger sum takes no less"


def serve(of_pool: Pool, of_load: Load) -> Service:
    return steady_state(of_pool, of_pool, np.array([False]), of_load, CONSTANTS)


def decoding(sequences: float, context: float = 1000.0, prompt_tokens: float = 0.0) -> Batch:
    return Batch(sequences=column(sequences), context=column(context), prompt_tokens=column(prompt_tokens),
                 prompt_context=column(500), prompt_groups=column(1))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "elements"),
    # 2 x layers x heads x width; DeepSeek-V3 caches 512 + 64 numbers in each of 61 layers (arXiv 2412.19437).
    [("llama-3.1-70b", 2 * 80 * 8 * 128), ("llama-3.1-8b", 2 * 32 * 8 * 128), ("deepseek-v3", 61 * 576)],
)
def test_the_cache_holds_what_attention_reads_again(name: str, elements: int) -> None:
    assert float(ServedModel.of(load_model(name)[0], STACK).kv_elements) == elements


def test_windows_bound_the_cache() -> None:
    """gpt-oss: every other layer sees 128 tokens."""
    of_pool = pool("gpt-oss-120b")
    short, long = (float(of_pool.kv_elements(column(tokens))[0]) for tokens in (128, 10_128))
    assert long - short == 18 * 2 * 8 * 64 * 10_000


def test_capacity_is_the_memory_that_weights_leave() -> None:
    """70.6 GB of weights in fp8 on 141 GiB; a sequence of 1,300 tokens takes 426 MB."""
    of_pool = pool()
    per_sequence = 2 * 2 * 80 * 8 * 128 * 1300
    room = 141 * GIB * 0.9 - float(of_pool.weights_bytes[0]) - 4 * GIB
    assert float(of_pool.capacity(column(1000), column(300))[0]) == room // per_sequence
    assert 70e9 < float(of_pool.weights_bytes[0]) < 74e9
    assert float(pool(memory_gib=64).capacity(column(1000), column(300))[0]) == 0


def test_a_tied_head_is_the_token_table_until_stages_part_them() -> None:
    """gemma-3-1b has 999,885,952 parameters with its table of 262,144 x 1,152 once (transformers), here in 2 bytes."""
    one = pool("gemma-3-1b", weight_bytes=2)
    two = replace(one, pp=column(2))
    table = 262_144 * 1152
    assert float(one.weights_bytes[0]) == 2 * 999_885_952 - 2 * 1152  # without the norm before the head
    assert float(2 * two.weights_bytes[0] - one.weights_bytes[0]) == 2 * table


def test_a_module_for_further_tokens_has_no_tables() -> None:
    """One layer of DeepSeek-V3 and the projection of 2 x 7,168 columns; its table and head are the model's."""
    model = load_model("deepseek-v3")[0]
    with_module = replace(pool("deepseek-v3"), draft=stacked([ServedModel.of_next_tokens(model, STACK)]))
    layer = sum(params.layer_parameters(model, model.kinds[model.pattern[-1]]).values())
    more = float((with_module.weights_bytes - pool("deepseek-v3").weights_bytes)[0])
    assert more == pytest.approx(layer + 2 * 7168**2, rel=1e-9)


def test_ranks_copy_the_down_projections_of_latent_attention() -> None:
    """In each of 61 layers of DeepSeek-V3 7,168 x (1,536 + 576), norms of 2 x 7,168 + 1,536 + 512, and in 58 a router
    of 7,168 x 256: 8 ranks have those 8 times, and read them each."""
    whole = 61 * (7168 * (1536 + 576) + 2 * 7168 + 1536 + 512) + 58 * 7168 * 256
    one, eight = pool("deepseek-v3"), pool("deepseek-v3", tp=8)
    assert float(8 * eight.weights_bytes[0] - one.weights_bytes[0]) == pytest.approx(7 * whole, rel=1e-9)
    model = one.model
    read = whole + (model.dense_parameters - whole) / 8 + 2 * model.head_parameters / 8
    without_experts = replace(eight, model=replace(model, expert_parameters=column(0), moe_layers=column(0)))
    more = iteration_seconds(without_experts, CONSTANTS, decoding(1, context=1)) - CONSTANTS.step_s
    more = more - CONSTANTS.sequence_s - model.kernels * CONSTANTS.short_s
    assert float(more[0]) == pytest.approx(float(read[0]) / (4.6e12 * CONSTANTS.bandwidth_share), rel=5e-3)


def test_the_fullest_stage_has_a_layer_more_and_the_ends_the_tables() -> None:
    """vLLM's 61 layers of 16 stages are 3, 13 times 4, 3 + ... : 13 are left over 48, before the last from behind."""
    pp = np.array([1.0, 2.0, 3.0, 4.0, 16.0])
    assert stage_layers(np.full(5, 61.0), pp).T.tolist() == [
        [61, 0, 61], [31, 0, 30], [20, 21, 20], [15, 16, 15], [3, 4, 3]]  # fmt: skip
    assert stage_layers(column(62), column(3))[:, 0].tolist() == [21, 21, 20]


def test_stages_hold_as_much_as_the_one_with_least_room() -> None:
    """llama-3.1-8b in 2 bytes on 5 stages: 6 of 32 layers with the table of 128,256 x 4,096 first, 7 between. A token
    takes 4 KiB of a layer. The ends have room for most of a layer less, and the middle for a cache of 7 layers."""
    of_pool = replace(pool("llama-3.1-8b", memory_gib=16, weight_bytes=2), pp=column(5))
    layer = 2 * (4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336 + 2 * 4096)
    ends, between = 6 * layer + 2 * 128_256 * 4096, 7 * layer
    assert float(of_pool.weights_bytes[0]) == max(ends, between)
    left = 16 * GIB * 0.9 - 4 * GIB
    tokens = min((left - ends) / (6 * 4096), (left - between) / (7 * 4096))
    assert float(of_pool.capacity(column(1000), column(300))[0]) == tokens // 1300


@pytest.mark.parametrize(
    ("name", "state_bytes"),
    [  # shapes of vLLM's MambaStateShapeCalculator: what a convolution sees before, and the state of heads
        ("mamba2-codestral-7b", 64 * 2 * (3 * (8192 + 2 * 8 * 128) + 128 * 64 * 128)),
        ("qwen3-next-80b-a3b", 36 * 2 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128)),
    ],
)
def test_recurrences_keep_a_state_of_each_sequence(name: str, state_bytes: int) -> None:
    """In capacity, whatever the length; split over ranks; a copy for each token to verify; read and written."""
    one, short = pool(name, tp=2), column(16.0)
    caches = 2 * one.kv_elements(short)
    assert float((one.held_bytes(short, column(0)) - caches)[0]) == state_bytes / 2
    proposing = replace(one, draft_tokens=column(3))
    assert float((proposing.held_bytes(short, column(0)) - caches)[0]) == 4 * state_bytes / 2
    without = replace(one, model=replace(one.model, state_bytes=column(0)))
    more = iteration_seconds(one, CONSTANTS, decoding(512, context=0))
    more = more - iteration_seconds(without, CONSTANTS, decoding(512, context=0))
    assert float(more[0]) == pytest.approx(512 * state_bytes / (4.6e12 * CONSTANTS.cache_share), rel=1e-3)


def test_sparse_attention_reads_chosen_latents_and_all_keys_of_its_index() -> None:
    """DeepSeek-V3.2 caches 576 elements a token and layer, 656 bytes in fp8, and 128 + 4 of the index. Of 100,000
    tokens it reads 2,048 latents and all keys; 128 heads of 1,088 products, and 64 of 128 in the index, in fp8."""
    of_pool, tokens = pool("deepseek-v3.2"), column(100_000)
    assert float(of_pool.sequence_bytes(tokens)[0]) == 61 * 1e5 * (2 * 576 + 132)
    in_fp8 = replace(of_pool, kv_bytes=column(1), kv_read_bytes=column(1))
    assert float(in_fp8.sequence_bytes(tokens)[0]) == 61 * 1e5 * (656 + 132)
    assert float(in_fp8.prefix_bytes(tokens, 0.8)[0]) == 61 * 80_000 * (656 + 132)
    model = of_pool.model
    assert float(model.read_elements(tokens)[0]) == 61 * 2048 * 576
    flops = 61 * (2048 * 2 * 128 * 1088 / 8 + 1e5 * 64 * 128)
    assert float(model.decode_flops(tokens, column(8))[0]) == float(model.prompt_flops(tokens, column(8))[0]) == flops
    dense = iteration_seconds(pool("deepseek-v3"), CONSTANTS, decoding(32, context=1e5))
    sparse = iteration_seconds(of_pool, CONSTANTS, decoding(32, context=1e5))
    assert float((dense - sparse)[0]) > 0.5 * 32 * 61 * 576 * 2 * 1e5 / 4.6e12  # most of what reads took


def test_shared_blocks_lie_in_the_cache_once() -> None:
    """Of 1,000 tokens 62 blocks of 16 are shared; ten prefixes take ten times those, sequences the rest."""
    of_pool, token = pool(), 2 * 2 * 80 * 8 * 128
    room = 141 * GIB * 0.9 - float(of_pool.weights_bytes[0]) - 4 * GIB
    for prefixes in (1, 10, 1e6):
        held = float(of_pool.capacity(column(1000), column(300), 0.999, prefixes)[0])
        assert held == max(room - prefixes * 992 * token, 0) // ((1300 - 992) * token)


def test_kv_heads_are_copied_where_ranks_are_more() -> None:
    assert float(pool(tp=16).kv_elements(column(1))[0]) == float(pool(tp=8).kv_elements(column(1))[0])


def test_experts_that_a_batch_touches() -> None:
    """One token touches k of E, many touch all; two touch k (2 - k/E)."""
    touched = touched_experts(np.full(3, 128.0), np.full(3, 8.0), np.array([1.0, 2.0, 1e6]))
    assert touched == pytest.approx([8.0, 8.0 * (2 - 8 / 128), 128.0])


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-30b-a3b"])
def test_an_iteration_is_no_faster_than_memory_and_products(name: str) -> None:
    of_pool = pool(name)
    one, many = (float(iteration_seconds(of_pool, CONSTANTS, decoding(n))[0]) for n in (1, 4096))
    model = of_pool.model
    active = model.dense_parameters + model.expert_parameters * model.top_k / model.experts
    assert one > float(active[0]) / 4.6e12
    assert many > 2 * float(active[0]) * 4096 / 1e15


def test_stages_send_hidden_states_and_residual_in_parts_of_tp() -> None:
    """4 stages of tp 2: 3 times two tensors of 8 x 8,192 x 2 bytes, half of each over the link, then gathered."""
    none = pool(tp=2)
    staged = replace(none, pp=column(4), p2p=Curve(column(10e-6), column(1e-10), column(0)),
                     all_gather=Curve(column(4e-6), column(1e-11), column(0)))  # fmt: skip
    seconds = 3 * 2 * (10e-6 + 8 * 8192 * 1e-10 + 4e-6 + 8 * 8192 * 2 * 1e-11)
    more = iteration_seconds(staged, CONSTANTS, decoding(8)) - iteration_seconds(none, CONSTANTS, decoding(8))
    assert float(more[0]) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize("field", ["sequences", "context", "prompt_tokens"])
def test_more_work_takes_longer(field: str) -> None:
    batch = decoding(8, 1000.0, 100.0)
    more = replace(batch, **{field: getattr(batch, field) * 4})
    assert float((iteration_seconds(pool(), CONSTANTS, more) - iteration_seconds(pool(), CONSTANTS, batch))[0]) > 0


def test_a_closed_loop_meets_its_own_rate() -> None:
    """N = X (TTFT + (o - 1) TPOT), Little's law."""
    found = serve(pool(tp=2), load(concurrency=32))
    rate = float(found.output_tokens_per_s[0]) / 300
    assert rate * (float(found.ttft_s[0]) + 299 * float(found.tpot_s[0])) == pytest.approx(32, rel=1e-4)
    assert float(found.output_tokens_per_s_per_gpu[0]) == pytest.approx(rate * 300 / 2)


def test_an_open_loop_meets_its_own_batch() -> None:
    """b = rate (o - 1) TPOT."""
    found = serve(pool(tp=2), load(rate=2.0, concurrency=np.inf))
    assert float(found.sequences[0]) == pytest.approx(2.0 * 299 * float(found.tpot_s[0]), rel=1e-3)
    assert float(found.output_tokens_per_s[0]) == pytest.approx(600)


def test_requests_beyond_the_cache_wait() -> None:
    of_pool = pool(memory_gib=88)
    room = float(of_pool.capacity(column(1000), column(300))[0])
    assert 1 < room < 64
    fits, waits = serve(of_pool, load(concurrency=room)), serve(of_pool, load(concurrency=4 * room))
    assert float(waits.output_tokens_per_s[0]) == pytest.approx(float(fits.output_tokens_per_s[0]), rel=1e-6)
    cycle = room * 3 / (float(fits.output_tokens_per_s[0]) / 300)
    assert float((waits.ttft_s - fits.ttft_s)[0]) == pytest.approx(cycle, rel=1e-3)


def test_apart_decoding_does_not_wait_for_prompts() -> None:
    of_pool, of_load = pool(tp=2), load(prompt=8000, concurrency=32)
    disagg = steady_state(of_pool, of_pool, np.array([True]), of_load, CONSTANTS)
    assert float(disagg.tpot_s[0]) < float(serve(of_pool, of_load).tpot_s[0])


def test_two_instances_serve_twice_the_load() -> None:
    one = serve(pool(tp=2), load(concurrency=16))
    two = serve(pool(tp=2, instances=2), load(concurrency=32))
    assert float(two.output_tokens_per_s_per_gpu[0]) == pytest.approx(float(one.output_tokens_per_s_per_gpu[0]))
    assert float(two.tpot_s[0]) == pytest.approx(float(one.tpot_s[0]))


def test_caches_that_are_not_modelled_are_refused_by_the_name_of_the_model() -> None:
    with pytest.raises(UnsupportedError, match="deepseek-v4-flash keeps caches of compressed attention"):
        text_model("deepseek-v4-flash")
    assert text_model("deepseek-v4-flash", trains=True)[0].name == "deepseek-v4-flash"


def test_kernels_of_layers_by_hand() -> None:
    """Llama: 6 of attention and 4 of a dense block. DeepSeek-V3: 12 of latent attention, and 13 of experts with shared
    ones in 58 of 61 layers. Qwen3-Next: 10 of a recurrence with 3 around it in 36 of 48 layers, else attention with
    norms of heads; experts with shared ones in all."""
    counts = {"llama-3.1-8b": 32 * (6 + 4), "deepseek-v3": 61 * 12 + 3 * 4 + 58 * 13,
              "qwen3-next-80b-a3b": 36 * 13 + 12 * 8 + 48 * 13}  # fmt: skip
    for name, count in counts.items():
        assert float(ServedModel.of(load_model(name)[0], STACK).kernels) == count


def test_recurrences_of_prompts_by_hand() -> None:
    """Qwen3-Next: 36 layers of 32 value heads and 16 key heads of width 128, chunks of 64 (arXiv 2412.06464)."""
    inside = 2 * 64 * 128 * (16 + 32 * 4)  # scores; values by scores, keys by keys, transformed values and keys
    states = 2 * 128 * 128 * 32 * 3  # made, read, subtracted
    model = ServedModel.of(load_model("qwen3-next-80b-a3b")[0], STACK)
    assert float(model.scan_flops) == pytest.approx(36 * (inside + states), rel=1e-9)
    passed = 8 * 32 * 128 * 128 / 64 + 20 * 32  # states of chunks in fp32, read and written; decays
    around = 2 * (2 * (2 * 16 + 32) * 128 + 3 * 32 * 128)  # convolution and gated norm in 16 bits
    assert float(model.scan_bytes) == pytest.approx(36 * (passed + around), rel=1e-9)


def test_groups_schedule_their_own_sequences() -> None:
    model = replace(pool("deepseek-v3", attention_dp=8), model=stacked([ServedModel.none()]))
    more = replace(CONSTANTS, sequence_s=CONSTANTS.sequence_s + 1e-3)
    batch = decoding(80, context=1)
    added = iteration_seconds(model, more, batch) - iteration_seconds(model, CONSTANTS, batch)
    assert float(added[0]) == pytest.approx(10e-3)


def test_weights_of_four_bits_are_read_at_a_rate_of_their_own() -> None:
    narrow, wide = pool(weight_bytes=0.5), pool(weight_bytes=1.0)
    bare = replace(CONSTANTS, short_s=0.0, sequence_s=0.0, step_s=0.0)
    head = 2.0 * narrow.model.head_parameters / (4.6e12 * CONSTANTS.bandwidth_share)
    read = [float((iteration_seconds(it, bare, decoding(1, context=1)) - head)[0]) for it in (narrow, wide)]
    assert read[0] / read[1] == pytest.approx(0.5 / CONSTANTS.narrow_share, rel=0.01)
