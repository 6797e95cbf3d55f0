"""Runs in unlike layouts train what models of transformers train under torch's AdamW, which share no code with them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.runtime.checkpoint.pretrained import Pretrained
from meshwright.runtime.data import Synthetic
from meshwright.runtime.job import Job
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from .fork import TIMEOUT_S, fork
from .jobs import job
from .model.families import Case, spec_of, theirs_of

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
]  # fmt: skip


class InDouble:
    """torch, in which fp32 is float64: models of transformers have routers and norms in fp32 whatever they are in."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def theirs_trained(model: Any, wanted: Job) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step of a model of transformers under torch's own optimizer and clipping."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    source = Synthetic(wanted.model.vocab, wanted.seq_len, wanted.global_batch, wanted.seed, 1)
    steps = []
    for index in range(STEPS):
        tokens = source.batch(index)
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        steps.append((float(loss.detach()), float(norm)))
    return steps


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("layout", "case"), RUNS, ids=[case.config for _, case in RUNS])
def test_a_run_trains_what_transformers_and_torch_train(
    layout: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    theirs, spec = theirs_of(case.data()), replace(spec_of(case.data()), moe_aux_loss_coeff=0.0)
    theirs.save_pretrained(tmp_path)
    wanted = job(layout, spec, optimizer="adamw", learning_rate=RATE, steps=STEPS, clip=0.5)
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[type(theirs).__module__], "torch", InDouble())
        patched.setattr(torch.Tensor, "float", torch.Tensor.double)
        expected = theirs_trained(theirs.double(), wanted)

    def one(rank: int) -> list[tuple[float, float]]:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"),
                          init_param=Pretrained(tmp_path, spec).init_param)  # fmt: skip
        steps = [trainer.step(index) for index in range(STEPS)]
        return [(step.loss, step.gradient_norm) for step in steps]

    found = fork(wanted.world_size, one)[0]
    # Frequencies of rotations are in fp32 still, and AdamW's first steps make small gradients as large as others.
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], rel=1e-6)
    assert [norm for _, norm in found] == pytest.approx([norm for _, norm in expected], rel=1e-5)
    assert all(norm > 0.5 for _, norm in expected[:2])  # clipped
