"""An encoder and its decoder compute what T5 of transformers computes, from the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.profiles.model.huggingface import read_config
from meshwright.runtime.checkpoint.export import tensors
from meshwright.runtime.checkpoint.huggingface import converted
from meshwright.runtime.checkpoint.pretrained import Pretrained, whole_weights
from meshwright.runtime.model import blocked
from meshwright.runtime.model.decoder import DecoderChunk
from meshwright.runtime.model.initial_weights import init_param
from meshwright.runtime.model.relative_bias import buckets_of
from meshwright.runtime.reference import whole_model
from safetensors.torch import save_file
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.t5.modeling_t5 import T5Attention, T5ForConditionalGeneration, T5LayerNorm

from meshwright.errors import InputError

from ..jobs import job
from .families import filled

SOURCE, TARGET = 24, 16
SIZES: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
                         "vocab_size": 61, "dropout_rate": 0.0, "n_positions": 64,
                         "relative_attention_num_buckets": 16}  # fmt: skip
# The first version is tied, with ReLU; 1.1 is neither.
CONFIGS = {"t5": {}, "t5 v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}


def theirs_of(changes: dict[str, Any]) -> Any:
    """With random numbers where initial weights are ones, and the head of version 1.1, which transformers 5.24 ties."""
    model: Any = T5ForConditionalGeneration(T5Config(**SIZES, **changes))
    model = model.eval()
    if "tie_word_embeddings" in changes:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator) * (8**-0.5 if name.endswith("q.weight") else 1)
            weight.add_(0.3 * noise) if weight.dim() == 1 else weight.copy_(1.5 * noise / weight.shape[1] ** 0.5)
    return model


def spec_of(changes: dict[str, Any]) -> ModelSpec:
    return read_config({**T5Config(**SIZES, **changes).to_dict(), **changes, "model_type": "t5"}, "tiny")[0]


def ours_of(spec: ModelSpec, theirs: Any) -> DecoderChunk:
    model = whole_model(job("dp1-mbs1-z0-rnone", spec, dtype="fp64", seq_len=TARGET, source_len=SOURCE))
    return filled(model, converted(spec, dict(theirs.named_parameters())))


def losses(
    changes: dict[str, Any], lengths: tuple[int, int] = (SOURCE, SOURCE), **of_ours: Any
) -> tuple[Any, DecoderChunk, float, float]:
    """Both models after a backward pass, and their losses. lengths: tokens of the two sources before padding. of_ours:
    changes of our model."""
    theirs = theirs_of(changes).double()
    ours = ours_of(replace(spec_of(changes), **of_ours), theirs)
    draw = torch.Generator().manual_seed(1)
    source, row = (torch.randint(61, (2, length), generator=draw) for length in (SOURCE, TARGET + 1))
    inputs, targets = row[:, :-1], row[:, 1:]
    padding = torch.arange(SOURCE) >= torch.tensor(lengths)[:, None]
    logits = theirs(input_ids=source, attention_mask=(~padding).long(), decoder_input_ids=inputs).logits
    their_loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    our_loss = ours(source, inputs, targets, *([padding] if padding.any() else []))
    their_loss.backward()  # type: ignore[no-untyped-call]
    our_loss.backward()
    return theirs, ours, their_loss.item(), our_loss.item()


@pytest.fixture(autouse=True)
def norms_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of T5 compute variances in float32 (transformers 5.24), which would hide differences up to 5e-6."""

    def forward(self: T5LayerNorm, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = x * (x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
        return self.weight * normed

    monkeypatch.setattr(T5LayerNorm, "forward", forward)


@pytest.mark.parametrize("lengths", [(SOURCE, SOURCE), (SOURCE, 9), (1, 17)], ids=["whole", "one short", "both short"])
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_loss_and_gradients_are_those_of_transformers(changes: dict[str, Any], lengths: tuple[int, int]) -> None:
    theirs, ours, their_loss, our_loss = losses(changes, lengths)
    assert our_loss == pytest.approx(their_loss, rel=1e-12)
    wanted = converted(ours.spec, {name: weight.grad for name, weight in theirs.named_parameters()})
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        assert float((parameter.grad - wanted[name]).abs().max()) < 1e-12 * float(wanted[name].abs().max()), name


@pytest.mark.parametrize("change", [{"logit_scale": 1.0}, {"norm_epsilon": 0.1}, {"activation": "relu2"}])
def test_other_numbers_show_in_the_loss(change: dict[str, Any]) -> None:
    _, _, their_loss, our_loss = losses({}, **change)
    assert abs(our_loss / their_loss - 1) > 1e-4


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_initial_weights_deviate_as_those_of_transformers(changes: dict[str, Any]) -> None:
    """Tables of tokens by 1, products by the root of what they take, queries by that of the width of a head, too."""
    sizes = {**SIZES, "d_model": 256, "d_kv": 16, "d_ff": 384, "num_heads": 16, "relative_attention_num_buckets": 64}
    theirs: Any = T5ForConditionalGeneration(T5Config(**sizes, **changes))
    if "tie_word_embeddings" in changes:  # transformers 5.24 ties it
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())
    spec = read_config({**T5Config(**sizes, **changes).to_dict(), **changes, "model_type": "t5"}, "wide")[0]
    wanted = converted(spec, {name: weight.detach() for name, weight in theirs.named_parameters()})
    for name, split in whole_weights(spec).items():
        ours = torch.empty(split.shape)
        init_param(ours, name, split, 0, tied=spec.tied_embeddings)
        assert float(ours.std()) == pytest.approx(float(wanted[name].std()), rel=0.08), name
        assert float(ours.mean()) == pytest.approx(float(wanted[name].mean()), abs=0.1), name


@pytest.mark.parametrize("number", [16, 32])
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_those_of_transformers(number: int, causal: bool) -> None:
    distances = torch.arange(-600, 601)
    theirs = T5Attention._relative_position_bucket(distances, not causal, number, 128)  # type: ignore[no-untyped-call]
    assert torch.equal(buckets_of(distances, number, causal=causal), theirs)


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_weights_go_in_and_out_under_their_names(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs, spec = theirs_of(changes), spec_of(changes)
    files = {name: weight.detach().contiguous() for name, weight in theirs.named_parameters()}
    tables = {f"{stack}.embed_tokens.weight": files["shared.weight"].clone() for stack in ("encoder", "decoder")}
    save_file({**files, **tables}, tmp_path / "model.safetensors")  # as those of Flan-T5
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    pretrained = Pretrained(tmp_path, spec)
    save_file({**files, "decoder.embed_tokens.weight": files["shared.weight"] + 1}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"differs from shared\.weight"):
        Pretrained(tmp_path, spec)
    save_file(files, tmp_path / "model.safetensors")
    pretrained = Pretrained(tmp_path, spec)
    shapes = {name: tuple(weight.shape) for name, weight in files.items()}
    assert {each.name: tuple(each.shape) for each in tensors(spec)} == shapes
    ours = converted(spec, files)
    for name, split in whole_weights(spec).items():
        taken = torch.empty(split.shape)
        pretrained.init_param(taken, name, split, 0, tied=spec.tied_embeddings)
        assert torch.equal(taken, ours[name]), name


@pytest.mark.parametrize("padded", [0, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_biases_of_scores_are_those_of_torch(causal: bool, padded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several blocks of queries, with fewer heads of keys."""
    monkeypatch.setattr(blocked, "_ELEMENTS", 1)
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 37, 8, dtype=torch.float64, generator=draw).requires_grad_()
               for heads in (4, 2, 2))  # fmt: skip
    bias = torch.randn(4, 37, 37, dtype=torch.float64, generator=draw).requires_grad_()
    padding = torch.arange(37) >= torch.tensor([[37 - padded], [37]])
    hidden = (torch.ones(37, 37, dtype=torch.bool).triu(1) & causal) | padding[:, None, None]
    mask = torch.zeros(2, 1, 37, 37, dtype=torch.float64).masked_fill_(hidden, float("-inf"))
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias + mask, enable_gqa=True)
    ours = blocked.blocked(q, k, v, how=blocked.Scores(causal=causal), bias=bias,
                           padding=padding if padded else None)  # fmt: skip
    assert torch.allclose(ours, theirs, atol=1e-12)
    weight = torch.randn(theirs.shape, dtype=torch.float64, generator=draw)
    gradients = [torch.autograd.grad((out * weight).sum(), (q, k, v, bias)) for out in (ours, theirs)]
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*gradients, strict=True))
