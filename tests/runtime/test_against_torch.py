"""Runs in unlike layouts train what models of transformers train under torch's AdamW, which share no code with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.variants import with_capacity
from meshwright.runtime.checkpoint.pretrained import Pretrained
from meshwright.runtime.data import Synthetic
from meshwright.runtime.job import Job
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer
from safetensors.torch import save_file
from torch import Tensor

from .fork import TIMEOUT_S, fork
from .jobs import job
from .model.families import Case, spec_of, state_of, theirs_of

RATE, STEPS = 0.01, 5
_NO_PREDICTIONS = {"n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0}
_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "beta_fast": 2.0,
         "truncate": False}  # fmt: skip
RUNS = [
    ("tp2-dp2-mbs1-z1-rnone", Case("llama-3.1-8b", {"rope_scaling": None, "rope_theta": 100.0})),
    ("pp2-vpp2-dp1-mbs2-z0-rfull", Case("gpt2", {"layer_norm_epsilon": 1e-3})),
    ("tp2-dp1-mbs2-z0-rsel", Case("gemma-2-9b", {})),
    ("dp2-ep2-mbs2-z3-rnone", Case("qwen3-30b-a3b", {})),
    ("pp2-zbv-vpp2-dp1-mbs2-z0-rnone", Case("deepseek-v3", _NO_PREDICTIONS)),
    ("dp4-mbs1-z2-rfull", Case("gpt-oss-20b", {"rope_scaling": _YARN})),
    ("cp2u-dp2-mbs1-z1-rnone", Case("nemotron-h-56b", {
        "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 6, "chunk_size": 5,
        "hybrid_override_pattern": "M*-M"})),
    ("tp2-dp2-ep2-mbs1-z1-rnone", Case("qwen3-next-80b-a3b", {
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 6,
        "rms_norm_eps": 0.1, "head_dim": 16, "rope_theta": 100.0, "full_attention_interval": 2})),
]  # fmt: skip


class InDouble:
    """torch, in which fp32 is float64: models of transformers have routers and norms in fp32 whatever they are in."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def loss_of(model: Any, tokens: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())


def theirs_trained(
    model: Any, wanted: Job, loss_of: Callable[[Any, Tensor], Tensor] = loss_of
) -> list[tuple[float, float]]:  # fmt: skip
    """Loss and gradient norm of each step of a model of transformers under torch's own optimizer and clipping."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    source = Synthetic(wanted.model.vocab, wanted.seq_len, wanted.global_batch, wanted.seed,
                       1 + wanted.model.mtp_layers)  # fmt: skip
    steps = []
    for index in range(STEPS):
        loss = loss_of(model, source.batch(index))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        steps.append((float(loss.detach()), float(norm)))
    return steps


def agree(
    model: Any, wanted: Job, spec: ModelSpec, folder: Path, monkeypatch: pytest.MonkeyPatch,
    loss_of: Callable[[Any, Tensor], Tensor] = loss_of,
) -> None:  # fmt: skip
    """Our run from the weights in `folder`, which are those of `model`, has its losses and norms, in float64."""
    with monkeypatch.context() as patched:
        for module in {type(part).__module__ for part in model.modules()}:
            if module.startswith("transformers.models."):
                patched.setattr(sys.modules[module], "torch", InDouble())
        patched.setattr(torch.Tensor, "float", torch.Tensor.double)
        expected = theirs_trained(model.double(), wanted, loss_of)

    def one(rank: int) -> list[tuple[float, float]]:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"),
                          init_param=Pretrained(folder, spec).init_param)  # fmt: skip
        steps = [trainer.step(index) for index in range(STEPS)]
        return [(step.loss, step.gradient_norm) for step in steps]

    found = fork(wanted.world_size, one)[0]
    # Frequencies of rotations are in fp32 still, and AdamW's first steps make small gradients as large as others.
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], rel=1e-6)
    assert [norm for _, norm in found] == pytest.approx([norm for _, norm in expected], rel=1e-5)
    assert all(norm > 0.5 for _, norm in expected[:2])  # clipped


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("layout", "case"), RUNS, ids=[case.config for _, case in RUNS])
def test_a_run_trains_what_transformers_and_torch_train(
    layout: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    theirs, spec = theirs_of(case.data()), replace(spec_of(case.data()), moe_aux_loss_coeff=0.0)
    theirs.save_pretrained(tmp_path)
    wanted = job(layout, spec, optimizer="adamw", learning_rate=RATE, steps=STEPS, clip=0.5)
    agree(theirs, wanted, spec, tmp_path, monkeypatch)


class Predicting(torch.nn.Module):
    """DeepSeek-V3 with one prediction module by equations 21 to 25 of arXiv 2412.19437: the last layer of `whole`, with
    an enorm, hnorm, eh_proj and norm of its own."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole, width = whole, whole.config.hidden_size
        self.enorm, self.hnorm, self.norm = (torch.nn.RMSNorm(width, whole.config.rms_norm_eps) for _ in range(3))
        self.eh_proj = torch.nn.Linear(2 * width, width, bias=False)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for weight in (self.enorm.weight, self.hnorm.weight, self.norm.weight):
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
            self.eh_proj.weight.copy_(torch.randn(self.eh_proj.weight.shape, generator=generator) / width**0.5)

    def through(self, x: Tensor, first: int, last: int) -> Tensor:
        """Layers `first` to `last` - 1, without the norm behind them: [b, s, h] -> [b, s, h]."""
        model = self.whole.model
        positions = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)[None, None]
        rotations = model.rotary_emb(x, positions)
        for layer in model.layers[first:last]:
            x = layer(x, attention_mask=mask, position_embeddings=rotations, position_ids=positions)
        return x

    def loss(self, tokens: Tensor) -> Tensor:
        """Of [b, s + 2] tokens: the model predicts the next one, the module the one after it."""
        model, head, last = self.whole.model, self.whole.lm_head, len(self.whole.model.layers) - 1
        inputs, following, later = tokens[:, :-2], tokens[:, 1:-1], tokens[:, 2:]
        hidden = self.through(model.embed_tokens(inputs), 0, last)
        joined = torch.cat([self.enorm(model.embed_tokens(following)), self.hnorm(hidden)], dim=-1)
        predicted = self.norm(self.through(self.eh_proj(joined), last, last + 1))
        losses = [torch.nn.functional.cross_entropy(head(x).flatten(0, 1), targets.flatten())
                  for x, targets in ((model.norm(hidden), following), (predicted, later))]  # fmt: skip
        return losses[0] + 0.3 * losses[1]

    def save(self, folder: Path, config: dict[str, Any]) -> None:
        """Writes the folder with the names that published files have."""
        prefix = f"model.layers.{config['num_hidden_layers']}."
        own = {f"{prefix}{name}.weight": getattr(self, name).weight for name in ("enorm", "hnorm", "eh_proj")}
        own[f"{prefix}shared_head.norm.weight"] = self.norm.weight
        own[f"{prefix}shared_head.head.weight"] = self.whole.lm_head.weight
        own[f"{prefix}embed_tokens.weight"] = self.whole.model.embed_tokens.weight
        state = {name: value.detach().clone() for name, value in (state_of(self.whole) | own).items()}
        save_file(state, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["tp2-dp2-ep2-mbs1-z1-rnone", "pp2-dp1-mbs2-z0-rnone"])
def test_a_run_trains_the_predictions_of_plain_torch(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    changes = {"n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 1, "rope_scaling": None, "rope_theta": 100.0}
    data = Case("deepseek-v3", changes).data()
    theirs = Predicting(theirs_of(data | {"num_hidden_layers": data["num_hidden_layers"] + 1}))
    theirs.save(tmp_path, data)
    spec = replace(spec_of(data), moe_aux_loss_coeff=0.0)
    assert spec.mtp_layers == 1
    wanted = job(layout, spec, optimizer="adamw", learning_rate=RATE, steps=STEPS, clip=0.5)
    agree(theirs, wanted, spec, tmp_path, monkeypatch, Predicting.loss)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("layout", "factor"), [("dp2-ep2-mbs1-z1-rnone", 0.6), ("pp2-dp1-mbs1-z0-rfull", 1.25)])
def test_a_run_drops_the_tokens_of_plain_torch(
    layout: str, factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Experts of Mixtral with a capacity: the weights of tokens beyond it are zero. A micro-batch is one sequence."""
    data = Case("mixtral-8x7b", {}).data()
    theirs, spec = theirs_of(data), replace(with_capacity(spec_of(data), factor), moe_aux_loss_coeff=0.0)
    theirs.save_pretrained(tmp_path)
    wanted = job(layout, spec, optimizer="adamw", learning_rate=RATE, steps=STEPS, clip=0.5)
    experts, top_k, dropped = data["num_local_experts"], data["num_experts_per_tok"], 0
    capacity = ceil(top_k * wanted.seq_len / experts * factor)

    def drop(block: torch.nn.Module, given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        nonlocal dropped
        x, chosen, weights = given
        kept = torch.zeros_like(weights)
        for first in range(0, len(x), wanted.seq_len):
            seen = weights[first : first + wanted.seq_len]
            for expert in range(experts):
                places = (chosen[first : first + wanted.seq_len] == expert).nonzero().tolist()
                # In fp32, since a sequence that begins with one token twice has equal weights up to rounding.
                places.sort(key=lambda place: -float(seen[place[0], place[1]].to(torch.float32)))
                dropped += max(len(places) - capacity, 0)
                for token, choice in places[:capacity]:
                    kept[first + token, choice] = 1
        return x, chosen, weights * kept

    for layer in theirs.model.layers:
        layer.mlp.experts.register_forward_pre_hook(drop)
    agree(theirs, wanted, spec, tmp_path, monkeypatch)
    assert dropped > 0
