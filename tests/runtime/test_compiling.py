"""Layers by torch.compile: one graph, the same numbers; layouts that would be many graphs are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from meshwright.cli.main import main
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict
from meshwright.runtime import reference
from meshwright.runtime.compiling import check_compiled, check_compiler, compile_layers
from meshwright.runtime.model.decoder import DecoderChunk
from torch import Tensor

from meshwright.errors import InputError, UnsupportedError

from .jobs import gpt, job, llama, mixers, moe
from .launched import finish, start

REFUSED = [
    ("tp2-dp1-mbs1-z0-rnone", llama(), "messages with the other ranks of tp or cp"),
    ("cp2u-dp1-mbs1-z0-rnone", llama(), "messages with the other ranks of tp or cp"),
    ("dp1-mbs1-z0-rsel(norm)", llama(), "recompute some of their modules"),
    ("pp2-zbh1-dp1-mbs1-z0-rnone", llama(), "splits the backward pass"),
    ("dp1-mbs1-z0-rnone-oact", llama(), "activations are offloaded"),
    ("dp1-mbs1-z0-rnone", moe(), "has experts"),
    ("dp1-mbs1-z0-rnone", mixers(), "has layers with a state"),
]


@pytest.mark.parametrize(("text", "model", "reason"), REFUSED)
def test_layers_of_many_graphs_are_refused(text: str, model: ModelSpec, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"--compile: .*{reason}"):
        check_compiled(job(text, model))


def test_the_others_are_not_refused() -> None:
    for text in ("dp2-mbs1-z3-rnone", "pp2-vpp2-dp1-mbs1-z0-rfull", "dp1-mbs1-z0-rnone-oopt"):
        check_compiled(job(text, gpt()))


def test_a_cpu_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    with pytest.raises(InputError, match="no C\\+\\+ compiler") as caught:
        check_compiler()
    assert "apt-get install g++" in caught.value.hint
    (tmp_path / "g++").touch(0o755)
    check_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"\(g\+\+, clang\+\+, c\+\+\)"):
        check_compiler()


def planned(path: Path, **fixed: int) -> Path:
    model = {"hidden": 64, "layers": 2, "heads": 4, "ffn_hidden": 128, "vocab": 256, "max_positions": 64}
    path.write_text(api.plan(request_from_dict({
        "model": model, "gpu": "h100-sxm-80gb", "gpus": 2, "target": "meshwright", "fix": fixed,
        "workload": {"seq_len": 16, "global_batch": 4, "precision": "fp32"},
    })).to_json())  # fmt: skip
    return path


def test_the_command_refuses_before_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", str(planned(tmp_path / "tp.json", tp=2)), "--dry-run", "--compile"]) == 2
    assert "exchange messages" in capsys.readouterr().err
    assert main(["launch", str(planned(tmp_path / "dp.json", tp=1, pp=1)), "--dry-run", "--compile"]) == 0
    assert " --compile" in capsys.readouterr().out


def gradients(model: DecoderChunk) -> tuple[float, dict[str, Tensor]]:
    tokens = torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return float(loss.detach()), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_a_layer_is_one_graph_with_the_same_gradients() -> None:
    from torch._dynamo.utils import counters

    model = reference.whole_model(job("dp1-mbs2-z0-rnone", llama(2)))
    loss, grads = gradients(model)
    counters.clear()
    compile_layers([model])
    compiled_loss, compiled = gradients(model)
    assert counters["stats"]["unique_graphs"] == 1
    assert abs(compiled_loss - loss) < 1e-12 * loss
    assert set(compiled) == set(grads)
    for name, grad in grads.items():
        assert float((compiled[name] - grad).norm()) <= 1e-12 * float(grad.norm()), name


@pytest.mark.slow
def test_sharded_weights_train_the_same(tmp_path: Path) -> None:
    """Steps 3 and 4 are compiled."""
    plan = planned(tmp_path / "dp.json", tp=1, pp=1, zero=3)
    code, out, err = finish(start(str(plan), "--scale-down", "--check-parity", "--compile", "--timeout", "110"))
    assert code == 0, err
    assert "losses and gradient norms agree" in out
