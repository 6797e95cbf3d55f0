"""The balancing loss of experts is that of transformers and of Megatron Core, whatever the layout."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.model import MixtureOfExperts, ModelSpec
from meshwright.runtime.checkpoint.huggingface import converted
from meshwright.runtime.job import Job
from meshwright.runtime.model.balancing import Balancing
from meshwright.runtime.model.decoder import DecoderChunk
from meshwright.runtime.model.experts import Experts
from torch import Tensor

from ..jobs import deepseek, gpt_oss, job, mixed, moe, shared_experts
from ..planted_faults import capped
from ..rehearsal.test_parity import parity_of
from .families import filed, ours_of, spec_of, theirs_of
from .test_families import CASES, block_of, gradient

COEFFICIENT = 0.7
_EXPERTS = ["gpt_oss", "mixtral", "qwen2_moe", "qwen2_moe, dense layers", "qwen3_moe"]


def weigh(model: DecoderChunk, spec: ModelSpec, num_tokens: int) -> None:
    """Adds the loss to a model that was built without."""
    for block in [module for module in model.modules() if isinstance(module, Experts)]:
        block.context = replace(block.context, balancing=Balancing.of(spec, num_tokens))


def their_loss(theirs: Any, tokens: Tensor, data: Mapping[str, Any]) -> Tensor:
    """As transformers has it where one layer has experts: `aux_loss`. Else the mean of its function over layers."""
    out = theirs(tokens, output_router_logits=True)
    module = importlib.import_module(type(theirs).__module__)
    config = theirs.config
    experts, top_k = out.router_logits[0].shape[-1], config.num_experts_per_tok
    layers = [module.load_balancing_loss_func((logits,), experts, top_k) for logits in out.router_logits]
    loss: Tensor = config.router_aux_loss_coef * (out.aux_loss if len(layers) == 1 else torch.stack(layers).mean())
    return loss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("family", _EXPERTS)
def test_the_loss_is_that_of_transformers(family: str, layers: int) -> None:
    """Gradients of all weights, of the balancing loss together with the other one."""
    if layers == 1 and "," in family:
        pytest.skip("its only layer would be dense")
    data = {**CASES[family].data(), "router_aux_loss_coef": COEFFICIENT, "num_hidden_layers": layers}
    theirs, spec = theirs_of(data), spec_of(data)
    ours = ours_of(spec, filed(theirs, dict(theirs.named_parameters())))
    tokens = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(1))
    targets = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(2))
    loss = torch.nn.functional.cross_entropy(theirs(tokens).logits.flatten(0, 1), targets.flatten())
    (loss + their_loss(theirs, tokens, data)).backward()  # type: ignore[no-untyped-call]
    wanted = converted(spec, filed(theirs, {name: gradient(weight) for name, weight in theirs.named_parameters()}))
    plain = gradients(ours, tokens, targets)
    weigh(ours, spec, targets.numel())
    found = gradients(ours, tokens, targets)
    ranges: dict[str, float] = {}
    for name, values in wanted.items():
        ranges[block_of(name)] = max(ranges.get(block_of(name), 0.0), float(values.abs().max()))
    assert not {name: value for name, values in found.items()
                if not (value := float((values - wanted[name]).abs().max()) / ranges[block_of(name)]) < 1e-5}
    routers = [name for name in found if name.endswith("router")]
    assert all(float((plain[name] - wanted[name]).abs().max()) > 1e-3 * ranges[block_of(name)] for name in routers)


def gradients(model: DecoderChunk, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Of the mean loss per token."""
    model.zero_grad()
    (model(tokens, targets) / targets.numel()).backward()
    return {name: gradient(weight).clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("per_sequence", [False, True])
@pytest.mark.parametrize("model", [moe(2), deepseek(2)], ids=["softmax", "sigmoid"])
def test_the_loss_is_the_formula_of_the_papers(model: ModelSpec, per_sequence: bool) -> None:
    """Switch Transformers, (4) to (6), DeepSeek-V3, (17) to (20), token by token; even loads give the coefficient."""
    spec = model.kinds[-1].feed_forward
    assert isinstance(spec, MixtureOfExperts)
    balancing = Balancing(COEFFICIENT / 32, per_sequence)
    scores = torch.rand(32, spec.experts, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = scores / scores.sum(1, keepdim=True) if spec.router_scores == "softmax" else scores
    chosen = scores.topk(spec.top_k).indices
    expected, parts = 0.0, 2 if per_sequence else 1
    for rows in torch.arange(32).chunk(parts):
        for expert in range(spec.experts):
            fraction = sum(float(expert in chosen[row]) for row in rows) / (spec.top_k * len(rows))
            mean = sum(float(scores[row, expert] / scores[row].sum()) for row in rows) / len(rows)
            expected += COEFFICIENT * spec.experts * fraction * mean / parts
    assert float(balancing.loss(spec, scores, chosen, 2, ())) == pytest.approx(expected, rel=1e-12)
    in_turn = (torch.arange(32 * spec.top_k) % spec.experts).view(32, spec.top_k)
    assert float(balancing.loss(spec, scores, in_turn, 2, ())) == pytest.approx(COEFFICIENT, rel=1e-12)


MODELS: dict[str, Callable[[], ModelSpec]] = {"moe": moe, "shared": shared_experts, "deepseek": deepseek,
                                              "gpt_oss": gpt_oss, "capped": capped}  # fmt: skip


def balanced(name: str, **changes: Any) -> ModelSpec:
    return replace(MODELS[name](), moe_aux_loss_coeff=COEFFICIENT, **changes)


LAYOUTS = [
    "moe:dp1-mbs2-z0-rnone", "moe:dp2-mbs2-z3-rsel(act+moe)", "moe:dp1-mbs2-z0-rfull", "moe:tp2-dp1-mbs2-z0-rnone",
    "moe:cp2r-dp1-mbs2-z0-rnone", "moe:tp2-cp2r-dp1-mbs1-z0-rfull", "moe:dp2-ep2-mbs1-z1-rnone",
    "moe:tp2-dp2-ep2-etp2-mbs1-z0-rnone", "moe:pp2-dp1-mbs2-z0-rnone", "moe:pp2-zbv-vpp2-dp1-mbs2-z0-rnone",
    "shared:tp2-pp2-zbh1-dp1-ep2-mbs1-z0-rfull1", "capped:tp2-dp1-mbs2-z0-rnone", "gpt_oss:cp2u-dp1-mbs2-z0-rnone",
    "deepseek:dp2-ep2-mbs1-z3-rnone", "deepseek:tp2-pp2-zbv-vpp2-dp1-ep2-mbs1-z0-rsel(act+mla)",
]  # fmt: skip


@pytest.mark.parametrize("text", [*LAYOUTS, *(f"{text} by sequence" for text in LAYOUTS[3:5] + LAYOUTS[-1:])])
def test_every_layout_has_the_loss_of_one_process(text: str) -> None:
    name, _, layout_id = text.removesuffix(" by sequence").partition(":")
    model = balanced(name, moe_aux_loss_per_sequence=text.endswith(" by sequence"))
    verdict = parity_of(job(layout_id, model, stack_changes={"sharded_states": "zero"}))
    assert verdict.agrees, verdict.as_dict()


def test_layers_with_strategies_of_their_own_count_their_own_micro_batches() -> None:
    data, both = "dp2-mbs1-z0-rnone", "tp2-dp1-mbs2-z0-rnone"
    wanted: Job = mixed(f"{data} {both} {data} {both} {data} {data}", balanced("moe"))
    verdict = parity_of(wanted)
    assert verdict.agrees, verdict.as_dict()


def test_the_loss_changes_what_is_trained() -> None:
    """Else the comparisons above could pass without it."""
    layout_id = "dp1-mbs2-z0-rnone"
    with_it, without = (parity_of(job(layout_id, model)).steps for model in (balanced("moe"), moe()))
    assert with_it[0].loss == without[0].loss
    assert with_it[0].gradient_norm > 1.01 * without[0].gradient_norm
    assert with_it[-1].loss != without[-1].loss
