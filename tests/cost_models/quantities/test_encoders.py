"""Encoders of masked tokens against transformers and torch: parameters, FLOPs, kept bytes, matrices of Muon."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.quantities.stages import EMBEDDING, HEAD
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.specs.workload import Workload
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
)
from transformers.models.roberta.configuration_roberta import RobertaConfig
from transformers.models.roberta.modeling_roberta import RobertaForMaskedLM, RobertaForSequenceClassification

from .kept_bytes import KeptBytes

TOKENS = 96
H, HEADS, INNER, VOCAB = 64, 4, 192, 512
SIZES: dict[str, Any] = {
    "hidden_size": H, "num_hidden_layers": 3, "num_attention_heads": HEADS, "intermediate_size": INNER,
    "vocab_size": VOCAB, "max_position_embeddings": 128, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
CLASSES = [(BertForMaskedLM, BertConfig), (BertForPreTraining, BertConfig), (RobertaForMaskedLM, RobertaConfig),
           (BertForSequenceClassification, BertConfig), (RobertaForSequenceClassification, RobertaConfig)]  # fmt: skip


def problem(model_type: str = "bert", head: str = "BertForMaskedLM", **workload: Any) -> Problem:
    spec, _ = read_config({**SIZES, "model_type": model_type, "architectures": [head]}, "small")
    return Problem(spec, Workload(seq_len=TOKENS, global_batch=8, **workload), load_stack("generic"), 8, 8)


def operations(of: Problem, name: str, **layout: int) -> LayerOperations:
    tables = build(of, index_keys(Layouts.of([Layout(**{"dp": 8, **layout})]))[0])
    return next(ops for ops in tables.operations if ops.name == name)


def kept(of: Problem, name: str, **layout: int) -> float:
    return sum(float(np.ravel(saved.num_bytes)[0]) for saved in operations(of, name, **layout).saved)


@pytest.mark.parametrize(("head", "config"), CLASSES, ids=[head.__name__ for head, _ in CLASSES])
def test_parameters_and_flops_are_those_of_transformers(head: Any, config: Any) -> None:
    """Both passes; every token attends to all tokens, and the head takes all tokens, masked or not."""
    with torch.device("meta"):
        model = head(config(**SIZES))
        tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    of = problem(config.model_type, head.__name__)
    assert sum({id(p): p.numel() for p in model.parameters()}.values()) == total_parameters(of.model)
    with FlopCounterMode(display=False) as forward:
        outputs = model(tokens, position_ids=tokens, token_type_ids=tokens)
    loss = sum(output.sum() for output in outputs.values())
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    ours = sum(of.flops[:, kind] * number for kind, number in Counter(of.pattern).items()) + of.flops[:, HEAD]
    assert ours == pytest.approx([forward.get_total_flops(), backward.get_total_flops()], rel=1e-9)


def test_published_models_have_their_parameters() -> None:
    """Those of BertForMaskedLM and RobertaForMaskedLM of transformers on the meta device, by their sizes. Those of BERT
    base are the defaults of its class."""
    base = read_config({**BertConfig().to_dict(), "architectures": ["BertForMaskedLM"]}, "bert-base-uncased")[0]
    assert total_parameters(base) == 109_514_298
    assert total_parameters(load_model("google-bert/bert-large-uncased")[0]) == 335_174_458
    assert total_parameters(load_model("FacebookAI/roberta-base")[0]) == 124_697_433
    # BertModel with its pooler has 109,482,240; a class more is a row of 768 with its bias.
    config = {**BertConfig().to_dict(), "architectures": ["BertForSequenceClassification"],
              "id2label": {str(number): str(number) for number in range(5)}}  # fmt: skip
    assert total_parameters(read_config(config, "bert-base-5")[0]) == 109_482_240 + 5 * 769


STATISTICS = 2 * 2 * TOKENS  # torch keeps mean and deviation of each norm, here in bf16


def _linear(inputs: int, outputs: int) -> torch.nn.Linear:
    return torch.nn.Linear(inputs, outputs).bfloat16()


def test_saved_bytes_of_a_layer_are_those_that_torch_keeps() -> None:
    """Norms after the sums: each keeps the sum, the products behind it what it makes."""
    norms = [torch.nn.LayerNorm(H).bfloat16() for _ in range(2)]
    qkv, out, up, down = _linear(H, 3 * H), _linear(H, H), _linear(H, INNER), _linear(INNER, H)
    hook = KeptBytes(*norms, qkv, out, up, down)
    x = torch.randn(TOKENS, H, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(hook, lambda tensor: tensor):
        q, k, v = (part.view(1, -1, HEADS, H // HEADS).transpose(1, 2) for part in qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, H)
        y = norms[0](x + out(mixed))
        norms[1](y + down(F.gelu(up(y))))
    assert kept(problem(), "layer") == pytest.approx(hook.num_bytes - 2 * STATISTICS, rel=0.01)


def test_saved_bytes_of_the_ends_are_those_that_torch_keeps() -> None:
    """Before the layers the sum of three rows; behind them inputs of two products, an activation and a norm. The logits
    are a buffer of their own, and the last product keeps its input, not them."""
    norm, dense, last = torch.nn.LayerNorm(H).bfloat16(), _linear(H, H), _linear(H, VOCAB)
    hook = KeptBytes(norm, dense, last)
    x = torch.randn(TOKENS, H, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(hook, lambda tensor: tensor):
        last(norm(F.gelu(dense(x))))
    assert kept(problem(), "head") == pytest.approx(hook.num_bytes - STATISTICS, rel=0.01)
    hook = KeptBytes(norm)
    with torch.autograd.graph.saved_tensors_hooks(hook, lambda tensor: tensor):
        norm(x + x + x)
    assert kept(problem(), "embedding") == hook.num_bytes - STATISTICS


def test_ranks_of_tensor_parallelism_have_all_of_what_is_beside_the_vocabulary() -> None:
    of = problem("bert", "BertForPreTraining")
    head, embedding = of.parameters[HEAD], of.parameters[EMBEDDING]
    dense = H * H + H
    assert (head.sharded, head.replicated) == (VOCAB, 2 * H + dense + dense + 2 * (H + 1))
    assert (embedding.sharded, embedding.replicated) == (VOCAB * H, (128 + 2) * H + 2 * H)
    whole, split = (
        {gemm.name: float(gemm.m[0] * gemm.n[0]) for gemm in operations(of, "head", **layout).gemms}
        for layout in ({}, {"tp": 2, "dp": 4, "sequence_parallel": 1})
    )
    assert split["head transform"] == whole["head transform"] / 2  # by its tokens
    assert split["head"] == whole["head"] / 2  # by its vocabulary


def test_muon_has_the_matrices_of_both_ends() -> None:
    of = problem("bert", "BertForPreTraining", optimizer="muon")
    whole = {matrix.parts: float(numbers.sum()) for matrix, numbers in of.matrices.items() if not matrix.split}
    assert whole == {((128, H),): 1, ((2, H),): 2, ((H, H),): 2}  # token types and classes are of one shape
