"""Encoder-decoder models against transformers and torch: parameters, FLOPs, kept bytes; their stages."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.cost_models import build_ledger
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.even_stages import Stacks, stack_sizes
from meshwright.cost_models.quantities.layer_operations import name_of
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.quantities.stacks import (
    arriving_bytes,
    kept_once,
    message_bytes,
    sent_bytes,
    stashed_once,
)
from meshwright.cost_models.quantities.stages import (
    EMBEDDING,
    EMBEDDING_COPY,
    HEAD,
    Partition,
    chunk_rows,
    mean_splits,
    split_rows,
)
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.specs.workload import Workload
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.stack.load import load_stack
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration
from transformers.models.whisper.configuration_whisper import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperForConditionalGeneration

from .kept_bytes import KeptBytes

SOURCE, TARGET = 96, 64
SIZES: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 3, "num_decoder_layers": 2,
                         "num_heads": 4, "vocab_size": 512, "dropout_rate": 0.0}  # fmt: skip
T5, GATED = T5Config(**SIZES), T5Config(**SIZES, feed_forward_proj="gated-gelu")
WHISPER = WhisperConfig(
    d_model=64, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=256, decoder_ffn_dim=192, num_mel_bins=20, vocab_size=512, max_source_positions=SOURCE,
    pad_token_id=0,
)  # fmt: skip


def problem(config: Any, source_len: int = SOURCE, **fields: Any) -> Problem:
    spec, _ = read_config({**config.to_dict(), "model_type": config.model_type, **fields}, "small")
    return Problem(spec, Workload(seq_len=TARGET, source_len=source_len, global_batch=8), load_stack("generic"), 8, 8)


def operations(of: Problem, name: str, **layout: int) -> LayerOperations:
    tables = build(of, index_keys(Layouts.of([Layout(**{"dp": 8, **layout})]))[0])
    return next(ops for ops in tables.operations if ops.name == name)


def of_theirs(config: Any) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model of transformers on meta, and the inputs of one sequence."""
    decoded = torch.zeros(1, TARGET, dtype=torch.long, device="meta")
    with torch.device("meta"):
        if config.model_type == "whisper":
            sound = torch.zeros(1, config.num_mel_bins, 2 * SOURCE)
            return WhisperForConditionalGeneration(config), {"input_features": sound, "decoder_input_ids": decoded}
        text = torch.zeros(1, SOURCE, dtype=torch.long)
        return T5ForConditionalGeneration(config), {"input_ids": text, "decoder_input_ids": decoded}


@pytest.mark.parametrize("config", [T5, GATED, WHISPER], ids=["t5", "t5 v1.1", "whisper"])
def test_parameters_and_flops_are_those_of_transformers(config: Any) -> None:
    """Both passes; torch counts all scores of the decoder, MFU their causal half."""
    model, inputs = of_theirs(config)
    of = problem(config)
    trained = {id(p): p.numel() for p in model.parameters() if p.requires_grad}
    assert sum(trained.values()) == total_parameters(of.model)
    with FlopCounterMode(display=False) as forward:
        logits = model(**inputs).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    times = Counter(of.pattern)
    ours = sum(of.flops[:, kind] * number for kind, number in times.items()) + of.flops[:, HEAD]
    masked = 2 * 2 * TARGET * TARGET * 64 / 2 * 2  # of scores and values in two layers
    assert ours + np.array([masked, 2 * masked]) == pytest.approx(
        [forward.get_total_flops(), backward.get_total_flops()], rel=1e-9
    )


def test_an_untied_head_has_parameters_of_its_own() -> None:
    tied, untied = (total_parameters(problem(GATED, tie_word_embeddings=tied).model) for tied in (True, False))
    assert untied - tied == 512 * 64


def test_saved_bytes_of_a_decoder_layer_are_those_that_torch_keeps() -> None:
    """Layers of torch modules in bf16 on the CPU, as Whisper's; the encoder's output is one tensor of all layers."""
    h, heads, inner = 64, 4, 192
    norms = [torch.nn.LayerNorm(h).bfloat16() for _ in range(3)]
    qkv, out, q, kv, cross, up, down = (
        torch.nn.Linear(i, o).bfloat16()
        for i, o in ((h, 3 * h), (h, h), (h, h), (h, 2 * h), (h, h), (h, inner), (inner, h))
    )
    kept = KeptBytes(*norms, qkv, out, q, kv, cross, up, down)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> torch.Tensor:
        a, b, c = (x.view(1, -1, heads, h // heads).transpose(1, 2) for x in (query, key, value))
        return F.scaled_dot_product_attention(a, b, c, is_causal=causal).transpose(1, 2).reshape(-1, h)

    encoded = torch.randn(SOURCE, h, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        x = torch.randn(TARGET, h, dtype=torch.bfloat16, requires_grad=True)
        x = x + out(attend(*qkv(norms[0](x)).chunk(3, dim=-1), causal=True))
        x = x + cross(attend(q(norms[1](x)), *kv(encoded).chunk(2, dim=-1), causal=False))
        x + down(F.gelu(up(norms[2](x))))
    ours = sum(float(saved.num_bytes[0]) for saved in operations(problem(WHISPER), "decoder layer").saved)
    statistics = 2 * 3 * 4 * TARGET  # torch keeps mean and deviation of each norm
    assert ours == pytest.approx(kept.num_bytes - encoded.nbytes - statistics, rel=0.01)


def test_the_first_layer_of_a_stack_holds_what_comes_before() -> None:
    of = problem(WHISPER)
    first, other = (operations(of, name) for name in ("first decoder layer", "decoder layer"))
    more = sum(float(saved.num_bytes[0]) for saved in first.saved) - sum(float(s.num_bytes[0]) for s in other.saved)
    assert more == 2 * 64 * SOURCE  # bf16 input of the encoder's norm
    assert float(np.ravel(first.input_bytes)[0]) - float(np.ravel(other.input_bytes)[0]) == more
    names = [gemm.name for gemm in operations(of, "first encoder layer").gemms]
    assert names.count("frontend 1") == names.count("frontend 2") == 1
    assert not any(gemm.name.startswith("frontend") for gemm in operations(problem(T5), "first encoder layer").gemms)


def test_tensor_parallelism_splits_cross_attention() -> None:
    of = problem(T5)
    whole, half = (operations(of, "decoder layer", tp=tp, dp=8 // tp, sequence_parallel=tp - 1) for tp in (1, 2))
    by_name = [{gemm.name: 2 * gemm.m * gemm.n * gemm.k for gemm in ops.gemms} for ops in (whole, half)]
    assert all(by_name[0][name] == 2 * by_name[1][name] for name in by_name[0] if name.startswith("cross"))
    sent = [exchange for exchange in half.exchanges if float(exchange.num_bytes[0]) == 2 * 64 * SOURCE]
    assert sorted((exchange.op, exchange.forward_calls, exchange.backward_calls) for exchange in sent) == [
        ("all_gather", 1, 0), ("reduce_scatter", 0, 1)]  # fmt: skip


@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_a_stage_keeps_biases_and_the_output_of_the_encoder_once(attention: Any) -> None:
    """In bf16: biases of 4 heads, which a fused kernel alone keeps, and a hidden width of 64. Rows of stages: layers of
    the encoder, of both, of the decoder, and the head alone."""
    of = problem(T5)
    of = replace(of, stack=replace(of.stack, attention=attention))
    tables = build(of, index_keys(Layouts.of([Layout(dp=8), Layout(tp=2, dp=4, sequence_parallel=1)]))[0])
    rows = split_rows(of.pattern, of.num_kinds, of.edges, 4, 1, False, [2, 2, 1, 0])
    of_source, of_target, output = 2 * 4 * SOURCE**2, 2 * 4 * TARGET**2, 2 * 64 * SOURCE
    fused = attention == "flash"
    wanted = [fused * of_source, fused * (of_source + of_target) + output, fused * of_target + output, 0]
    for key, ranks in enumerate((1, 2)):
        assert kept_once(tables, rows, np.full(4, key)).tolist() == [each / ranks for each in wanted]
        assert stashed_once(tables, rows, np.full(4, key)).tolist() == [0, output / ranks, output / ranks, 0]


@pytest.mark.parametrize(
    ("sizes", "sent"),
    [([1, 2, 1, 1], [SOURCE, SOURCE, SOURCE + TARGET]), ([2, 2, 1, 0], [SOURCE, SOURCE + TARGET, TARGET]),
     ([0, 4, 1, 0], [SOURCE, SOURCE + TARGET, TARGET])],
)  # fmt: skip
def test_stages_send_what_the_next_one_needs(sizes: list[int], sent: list[int]) -> None:
    of, columns = problem(T5), Layouts.of([Layout(pp=4, dp=2)])
    keys, index = index_keys(columns)
    ledger = build_ledger.build(of, build(of, keys), columns, index, Partition(tuple(sizes)))
    assert sent_bytes(ledger, ledger.splits.counts[0])[:-1].tolist() == [2 * 64 * tokens for tokens in sent]
    assert float(message_bytes(ledger)[0]) == pytest.approx(2 * 64 * sum(sent) / 3)
    arriving = [sent[0], (sent[0] + sent[1]) / 2, (sent[1] + sent[2]) / 2, sent[2]]
    assert [float(arriving_bytes(ledger, j)[0]) for j in range(4)] == [2 * 64 * tokens for tokens in arriving]


def test_no_message_is_smaller_than_that_of_a_bound() -> None:
    for source_len in (SOURCE, 16):
        of, columns = problem(T5, source_len), Layouts.of([Layout(pp=pp, dp=8 // pp) for pp in (2, 4)])
        keys, index = index_keys(columns)
        ledger = build_ledger.build(of, build(of, keys), columns, index)
        splits = mean_splits(of.pattern, of.num_kinds, of.edges, [(2, 1, False), (4, 1, False)])
        assert (message_bytes(replace(ledger, splits=splits)) <= message_bytes(ledger)).all()
        assert (message_bytes(ledger) > 0).all()


def test_stages_hold_layers_of_one_stack() -> None:
    assert stack_sizes(48, 4, Stacks(24, 2.4, 0.1)) == [8, 8, 8, 24]
    assert stack_sizes(64, 4, Stacks(32, 2.0, 2.0)) == [16, 16, 16, 16]
    assert stack_sizes(48, 1, Stacks(24, 1.0, 0.0)) == [48]
    for chunks in range(2, 8):
        for worth in (0.1, 1.0, 10.0):
            sizes = stack_sizes(7, chunks, Stacks(3, worth, 0.5))
            assert sum(sizes) == 7
            assert len(sizes) == chunks
            assert min(sizes) > 0
            assert 3 in np.cumsum(sizes)
    assert problem(T5).most_chunks == 5


@pytest.mark.parametrize(
    ("config", "embedding", "copies"), [(T5, 0, [1, 3]), (WHISPER, 1, [3])], ids=["table of both", "of the decoder"]
)
def test_the_table_is_where_tokens_are_looked_up(config: Any, embedding: int, copies: list[int]) -> None:
    """T5 looks up source and target in one table, which its head reads as well; Whisper the target alone."""
    of = problem(config)
    rows = split_rows(of.pattern, of.num_kinds, of.edges, 4, 1, False, [3, 1, 0, 1])
    assert np.flatnonzero(rows[:, EMBEDDING]).tolist() == [embedding]
    assert np.flatnonzero(rows[:, EMBEDDING_COPY]).tolist() == copies
    one = split_rows(of.pattern, of.num_kinds, of.edges, 1, 1, False)
    assert (one[0, EMBEDDING], one[0, EMBEDDING_COPY]) == (1, 0)
    assert (chunk_rows(of.pattern, of.num_kinds, of.edges, 4, 1, False, [3, 1, 0, 1]) == rows).all()


def test_messages_carry_the_output_of_the_encoder() -> None:
    with_source, alone = (
        build(of, index_keys(Layouts.of([Layout(dp=8)]))[0]).message[0] for of in (problem(T5), problem(T5, TARGET))
    )
    assert with_source / alone == (TARGET + SOURCE) / (2 * TARGET)


def test_kinds_have_names() -> None:
    kinds = problem(T5).model.kinds
    assert [name_of(kind) for kind in kinds] == ["first encoder layer", "encoder layer", "first decoder layer",
                                                 "decoder layer"]  # fmt: skip
