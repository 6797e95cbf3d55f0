"""Adapters out: peft loads them beside the weights of transformers, and merged weights compute the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.workload import Lora
from meshwright.runtime import reference
from meshwright.runtime.checkpoint.adapter_export import (
    CONFIG,
    WEIGHTS,
    adapter_config,
    adapter_tensors,
    check_readable,
    modules,
)
from meshwright.runtime.checkpoint.checkpoint import Checkpoints
from meshwright.runtime.checkpoint.export import export
from meshwright.runtime.checkpoint.huggingface import converted
from meshwright.runtime.checkpoint.manifest import newest
from meshwright.runtime.checkpoint.pretrained import Pretrained
from meshwright.runtime.job import Job
from meshwright.runtime.model.adapters import Adapters
from meshwright.runtime.model.decoder import DecoderChunk
from meshwright.runtime.model.initial_weights import init_param
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer
from torch import Tensor

from meshwright.errors import InputError, UnsupportedError

from ..fork import TIMEOUT_S, fork
from ..jobs import job
from ..model.families import LENGTH, logits_of, spec_of, state_of, theirs_of
from ..model.test_families import CASES
from .test_pretrained import FILE_BYTES, saved, weights_of

peft = pytest.importorskip("peft")
LORA = Lora(rank=3, targets=("q", "k", "v", "o", "gate", "up", "down"))
ALPHA = 6.0  # a scale of 2
TOKENS = torch.randint(61, (2, LENGTH), generator=torch.Generator().manual_seed(1))
# One per way in which our weights are parts of theirs.
FAMILIES = ("llama", "ernie4_5", "phi3", "gpt2", "falcon", "deepseek_v3", "qwen3_next", "mixtral", "nemotron_h")
WITH_SHARED_EXPERTS = ("deepseek_v3", "qwen3_next")


def adapted(spec: ModelSpec, **changes: Any) -> Job:
    return job("dp1-mbs2-z0-rnone", spec, **{"dtype": "fp32", "seq_len": LENGTH, "lora": LORA, "lora_alpha": ALPHA,
                                             **changes})  # fmt: skip


def perturbed(model: DecoderChunk, frozen: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fills in the frozen weights, and adapters that have an effect. Returns the adapters by name."""
    generator = torch.Generator().manual_seed(2)
    factors = {}
    with torch.no_grad():
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            if name in frozen:
                each.copy_(frozen[name])
            else:
                factors[name] = each.copy_(0.3 * torch.randn(each.shape, generator=generator)).detach()
    return factors


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_peft_computes_the_same(family: str, tmp_path: Path) -> None:
    """Whatever our weights are in theirs: a module, some rows of it, every third column, permuted rows."""
    from safetensors.torch import save_file

    data = CASES[family].data()
    theirs, spec = theirs_of(data), spec_of(data)
    wanted = adapted(spec, lora=Lora(rank=3, targets=("q", "k", "v", "o")) if family in WITH_SHARED_EXPERTS else LORA)
    ours = reference.whole_model(wanted)
    factors = perturbed(ours, converted(spec, state_of(theirs)))
    assert wanted.adapters is not None
    save_file(adapter_tensors(modules(spec, wanted.adapters), factors, torch.float32), tmp_path / WEIGHTS)
    (tmp_path / CONFIG).write_text(adapter_config(spec, wanted.adapters, "base"), encoding="utf-8")
    with torch.no_grad():
        before = theirs(TOKENS).logits
        loaded = peft.PeftModel.from_pretrained(theirs, tmp_path)
        found, expected = loaded(TOKENS).logits, logits_of(ours, TOKENS)
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())
    assert float((found - before).abs().max()) > 0.01 * float(before.abs().max())


@pytest.mark.parametrize("family", WITH_SHARED_EXPERTS)
def test_peft_takes_dense_blocks_for_experts(family: str) -> None:
    spec = spec_of(CASES[family].data())
    every = modules(spec, Adapters.of(LORA, None))
    with pytest.raises(UnsupportedError, match="_proj for one of routed experts") as caught:
        check_readable(spec, every)
    assert "--merge" in caught.value.hint
    check_readable(spec, modules(spec, Adapters.of(Lora(rank=3, targets=("q", "o")), None)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in `hf`, and checkpoints of adapters: trained beside it (`ckpt`), and beside drawn weights (`drawn`)."""
    folder = tmp_path_factory.mktemp("adapters")
    spec = saved("llama", folder / "hf")
    pretrained = Pretrained(folder / "hf", spec)
    beside = adapted(spec, init_from=str(folder / "hf"), init_digest=pretrained.digest, learning_rate=0.1)
    split = replace(beside, layout=job("tp2-dp1-mbs2-z0-rnone").layout)
    drawn = replace(split, init_from=None, init_digest=None)

    def one(rank: int) -> None:
        for wanted, name in ((split, "ckpt"), (drawn, "drawn")):
            trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"),
                              init_param=pretrained.init_param if wanted.init_from else init_param)  # fmt: skip
            checkpoints = Checkpoints(trainer, folder / name, keep=2)
            checkpoints.prepare(resume=False)
            trainer.step(0)
            checkpoints.save(1)

    fork(2, one)
    return folder


def exported(folder: Path, name: str, to: Path, **how: Any) -> Path:
    spec = spec_of(CASES["llama"].data())
    checkpoint, _ = newest(folder / name)
    return export(checkpoint, to, spec, folder / "hf" / "config.json", dtype=None, file_bytes=FILE_BYTES, **how).folder


@pytest.mark.filterwarnings("ignore")
def test_adapters_and_merged_weights_give_the_same_logits(trained: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    adapters = exported(trained, "ckpt", tmp_path / "adapters")
    assert json.loads((adapters / CONFIG).read_text())["base_model_name_or_path"] == str(trained / "hf")
    merged = exported(trained, "ckpt", tmp_path / "merged", merge=True)
    base = transformers.AutoModelForCausalLM.from_pretrained(trained / "hf").double()
    with torch.no_grad():  # in fp64: only the merged weights are rounded
        before = base(TOKENS).logits
        beside = peft.PeftModel.from_pretrained(base, adapters).double()(TOKENS).logits
        found = transformers.AutoModelForCausalLM.from_pretrained(merged).double()(TOKENS).logits
    assert float((beside - found).abs().max()) < 1e-5
    assert float((beside - before).abs().max()) > 1e-3


@pytest.mark.filterwarnings("ignore")
def test_drawn_weights_are_merged_only(trained: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with pytest.raises(InputError, match="the run drew the frozen weights") as caught:
        exported(trained, "drawn", tmp_path / "adapters")
    assert "--merge" in caught.value.hint
    merged = transformers.AutoModelForCausalLM.from_pretrained(exported(trained, "drawn", tmp_path / "out", merge=True))
    spec = spec_of(CASES["llama"].data())

    def one(rank: int) -> Tensor:
        wanted = adapted(spec)
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        Checkpoints(trainer, trained / "drawn", keep=2).resume()
        with torch.no_grad():
            return logits_of(trainer.chunks[0], TOKENS)

    with torch.no_grad():
        assert float((merged(TOKENS).logits - fork(1, one)[0]).abs().max()) < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_other_frozen_weights_are_not_merged(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "copy"))
    manifest = next((folder / "ckpt").glob("step-*/manifest.json"))
    manifest.write_text(manifest.read_text().replace(str(trained / "hf"), str(folder / "hf")))
    exported(folder, "ckpt", tmp_path / "same", merge=True)
    weights_of(folder / "hf", lambda state: state["model.norm.weight"].neg_())
    with pytest.raises(InputError, match="not the weights that the run froze"):
        exported(folder, "ckpt", tmp_path / "other", merge=True)
