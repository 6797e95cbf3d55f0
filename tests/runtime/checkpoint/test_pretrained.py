"""Weights from a Hugging Face folder and back into one, bit by bit, of every family and under any layout; a folder that
does not fit is refused with all that is wrong."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.workload import Lora
from meshwright.runtime import reference
from meshwright.runtime.checkpoint.checkpoint import Checkpoints
from meshwright.runtime.checkpoint.export import export, tensors
from meshwright.runtime.checkpoint.huggingface import copies, sources
from meshwright.runtime.checkpoint.manifest import check_run, newest
from meshwright.runtime.checkpoint.pretrained import Pretrained
from meshwright.runtime.checkpoint.safetensors_folder import INDEX, SINGLE, TensorFolder
from meshwright.runtime.checkpoint.sources import put
from meshwright.runtime.model.block import ParamShard, named_splits
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer
from torch import Tensor

from meshwright.errors import InputError, MeshwrightError, UnsupportedError

from ..fork import TIMEOUT_S, fork
from ..jobs import job
from ..model.families import choice_biases_of, spec_of, theirs_of
from ..model.test_families import CASES

FILE_BYTES = 40_000  # several files of a tiny model
# The families whose layouts are tried, by where their weights are unlike Llama's.
DENSE = ("tp2-pp2-dp1-mbs1-z0-rnone", "dp4-sh2-mbs1-z3-rnone", "tp2-cp2u-dp1-mbs1-z1-rnone")
EXPERTS = ("tp2-dp2-ep4-mbs1-z1-rnone", "pp2-dp2-ep2-mbs1-z3-rnone", "dp4-ep2-etp2-mbs1-z3-rnone")
VIRTUAL = ("pp2-vpp2-dp2-mbs1-z1-rnone", "dp4-mbs1-z3-rnone", "tp2-pp2-dp1-mbs1-z0-rnone")
TRIED = {
    "llama": (*DENSE, VIRTUAL[0]), "gpt2": VIRTUAL, "phi3": DENSE, "gpt_neox": DENSE, "gemma3": VIRTUAL,
    "mixtral": EXPERTS, "deepseek_v3": EXPERTS, "qwen2_moe": EXPERTS, "qwen3_next": EXPERTS,
    "gpt_oss": ("tp2-dp2-ep2-mbs1-z0-rnone", "pp2-dp2-ep2-mbs1-z3-rnone", "dp4-ep2-mbs1-z3-rnone"),
}  # fmt: skip
_FAMILIES = sorted({name for name in CASES if "," not in name})


def saved(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> ModelSpec:
    """The family's model with random weights, in several files."""
    data = CASES[name].data()
    model = theirs_of(data)
    wide = {name: bias.clone() for name, bias in choice_biases_of(model).items()}
    model.to(dtype)
    for name, bias in model.named_buffers():
        bias.data = wide.get(name, bias)  # transformers keeps them in fp32
    model.save_pretrained(folder, max_shard_size=FILE_BYTES)
    return spec_of(data)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def unlike(folder: Path, other: Path) -> list[str]:
    """Names of tensors that are not in both folders with the same bits."""
    one, two = TensorFolder(folder), TensorFolder(other)
    assert not [*one.problems, *two.problems]
    names, both = {**one.entries, **two.entries}, set(one.entries) & set(two.entries)
    return sorted(name for name in names if name not in both or not same_bits(one.tensor(name), two.tensor(name)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _FAMILIES)
def test_every_tensor_of_a_family_goes_there_and_back(name: str, tmp_path: Path) -> None:
    spec = saved(name, tmp_path)
    pretrained = Pretrained(tmp_path, spec)
    model = reference.whole_model(job("dp1-mbs1-z0-rnone", spec, dtype="fp32"))
    for full_name, parameter, split in named_splits(model):
        pretrained.init_param(parameter, full_name, split, 0, tied=spec.tied_embeddings)
    for full_name, buffer in model.named_buffers():
        pretrained.init_param(buffer, full_name, ParamShard(tuple(buffer.shape), start=0.0), 0, tied=False)
    ours = {full_name: tensor.detach() for full_name, tensor in (*model.named_parameters(), *model.named_buffers())}
    written = {}
    for each in tensors(spec):
        written[each.name] = torch.zeros(each.shape)
        for part in each.parts:
            ends = map(sum, zip(part.offsets, part.sizes, strict=True))
            box = ours[part.weight][tuple(map(slice, part.offsets, ends))]
            put(part.source, box[0] if part.source.per_expert else box, written[each.name])
    assert set(pretrained.tensors.entries) == set(written)
    assert not [each for each, whole in written.items() if not same_bits(whole, pretrained.tensors.tensor(each))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(TRIED))
def test_layouts_read_and_write_the_same_bits(name: str, tmp_path: Path) -> None:
    spec = saved(name, tmp_path / "in")
    in_and_out(spec, TRIED[name], tmp_path, "fp32")


@pytest.mark.filterwarnings("ignore")
def test_bf16_stays_as_it_is(tmp_path: Path) -> None:
    spec = saved("llama", tmp_path / "in", torch.bfloat16)
    in_and_out(spec, DENSE[:1], tmp_path, "bf16")


@pytest.mark.filterwarnings("ignore")
def test_biases_of_the_choice_stay_in_fp32(tmp_path: Path) -> None:
    """As transformers keeps them. The checkpoint between has them, too."""
    spec = saved("deepseek_v3", tmp_path / "in", torch.bfloat16)
    in_and_out(spec, EXPERTS[1:2], tmp_path, "bf16")
    folder = TensorFolder(tmp_path / "out0")
    biases = [name for name in folder.entries if name.endswith("e_score_correction_bias")]
    assert {folder.entries[name].dtype for name in biases} == {"F32"}
    assert all(folder.tensor(name).any() for name in biases)


def in_and_out(spec: ModelSpec, layouts: tuple[str, ...], folder: Path, dtype: str) -> None:
    wanted = [job(text, spec, dtype=dtype, init_from=str(folder / "in")) for text in layouts]

    def one(rank: int) -> None:
        for index, each in enumerate(wanted):
            pretrained = Pretrained(folder / "in", spec)
            trainer = Trainer(each, build_mesh(each.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"),
                              init_param=pretrained.init_param)  # fmt: skip
            checkpoints = Checkpoints(trainer, folder / str(index), keep=2)
            checkpoints.prepare(resume=False)
            checkpoints.save(1)

    fork(4, one)
    for index in range(len(wanted)):
        done = export(newest(folder / str(index))[0], folder / f"out{index}", spec, folder / "in" / "config.json",
                      dtype=None, file_bytes=FILE_BYTES)  # fmt: skip
        assert done.dtype == dtype
        assert len(done.files) > 1
        assert not unlike(folder / "in", folder / f"out{index}"), layouts[index]


# ------------------------------------------------------------------------------------------ prediction modules
# Names behind `model.layers.61.` in a listing of DeepSeek-V3.2's files and in vLLM's loader of DeepSeek-V3, without the
# index of attention, the experts and the scales of fp8.
OF_PREDICTIONS = {
    "eh_proj.weight", "embed_tokens.weight", "enorm.weight", "hnorm.weight", "shared_head.head.weight",
    "shared_head.norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight",
    "self_attn.kv_a_layernorm.weight", "self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_b_proj.weight",
    "self_attn.o_proj.weight", "self_attn.q_a_layernorm.weight", "self_attn.q_a_proj.weight",
    "self_attn.q_b_proj.weight", "mlp.gate.e_score_correction_bias", "mlp.gate.weight",
    "mlp.shared_experts.down_proj.weight", "mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight",
}  # fmt: skip


def saved_with_predictions(folder: Path) -> ModelSpec:
    """DeepSeek-V3's model with one prediction module, whose weights stand in the files as those of the model do."""
    spec = replace(saved("deepseek_v3", folder), mtp_layers=1)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}), encoding="utf-8")
    generator = torch.Generator().manual_seed(7)
    prefix = f"model.layers.{spec.num_layers}."
    weights = {each.name: torch.randn(each.shape, generator=generator)
               for each in tensors(spec) if each.name.startswith(prefix)}  # fmt: skip

    def add(state: dict[str, Tensor]) -> None:
        state.update(weights)
        for copy, first in copies(spec).items():
            state[copy] = state[sources(spec)[first].name].clone()

    weights_of(folder, add)
    return spec


@pytest.mark.filterwarnings("ignore")
def test_prediction_modules_go_there_and_back(tmp_path: Path) -> None:
    spec = saved_with_predictions(tmp_path / "in")
    prefix = f"model.layers.{spec.num_layers}."
    stored = {name.removeprefix(prefix) for name in TensorFolder(tmp_path / "in").entries if name.startswith(prefix)}
    assert {name for name in stored if ".experts." not in name} == OF_PREDICTIONS
    in_and_out(spec, EXPERTS, tmp_path, "fp32")


@pytest.mark.filterwarnings("ignore")
def test_a_prediction_takes_the_embedding_first_in_files(tmp_path: Path) -> None:
    """vLLM's DeepSeekMTP multiplies eh_proj by the embedding and then the hidden state."""
    spec = saved_with_predictions(tmp_path)
    theirs = TensorFolder(tmp_path).tensor(f"model.layers.{spec.num_layers}.eh_proj.weight")
    model = reference.whole_model(job("dp1-mbs1-z0-rnone", spec, dtype="fp32"))
    ours = model.predictions[0].get_parameter("projection")
    whole = ParamShard(tuple(ours.shape))
    Pretrained(tmp_path, spec).init_param(ours, "predictions.0.projection", whole, 0, tied=False)
    hidden, embedding = torch.randn(2, spec.hidden)
    torch.testing.assert_close(ours @ torch.cat([hidden, embedding]), theirs @ torch.cat([embedding, hidden]))


@pytest.mark.filterwarnings("ignore")
def test_faults_of_prediction_modules(tmp_path: Path) -> None:
    spec = saved_with_predictions(tmp_path / "in")
    prefix = f"model.layers.{spec.num_layers}."

    def broken(state: dict[str, Tensor]) -> None:
        del state[f"{prefix}hnorm.weight"]
        state[f"{prefix}shared_head.head.weight"][0, 0] += 1
        state[f"{prefix}further.weight"] = torch.zeros(1)

    weights_of(tmp_path / "in", broken)
    with pytest.raises(InputError) as caught:
        Pretrained(tmp_path / "in", spec)
    for line in ("hnorm.weight: is missing", "shared_head.head.weight: differs from lm_head.weight",
                 "further.weight: 1: the plan's model has no such weight"):  # fmt: skip
        assert line in caught.value.message
    # A plan without predictions leaves them out, and a folder without them has them drawn.
    Pretrained(tmp_path / "in", replace(spec, mtp_layers=0))
    weights_of(tmp_path / "in", lambda state: [state.pop(name) for name in list(state) if name.startswith(prefix)])
    assert "predictions.0.projection" not in Pretrained(tmp_path / "in", spec)._sources


# ------------------------------------------------------------------------------------------------- what does not fit
@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    saved("llama", folder)
    return folder


def weights_of(folder: Path, changes: Callable[[dict[str, Tensor]], object]) -> None:
    """The same in one file, changed."""
    from safetensors.torch import save_file

    read = TensorFolder(folder)
    state = {name: read.tensor(name).clone() for name in read.entries}
    changes(state)
    for path in folder.glob("model*"):
        path.unlink()
    save_file(state, folder / SINGLE)


def without_a_shard(folder: Path) -> None:
    next(iter(sorted(folder.glob("*.safetensors")))).unlink()


def cut_off(folder: Path) -> None:
    path = next(iter(sorted(folder.glob("*.safetensors"))))
    path.write_bytes(path.read_bytes()[:-100])


def index_of(change: Callable[[str], str]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / INDEX).write_text(change((folder / INDEX).read_text()))

    return damage


def tensor_in_two_shards(folder: Path) -> None:
    first, last = sorted(folder.glob("*.safetensors"))[::2]
    shutil.copy(first, last)


def state_of(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights_of(folder, change)

    return damage


def pickled(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")


_NORM, _HEAD, _UP = "model.norm.weight", "lm_head.weight", "model.layers.1.mlp.up_proj.weight"
FAULTS: Mapping[str, tuple[Callable[[Path], None], list[str]]] = {
    "a shard is missing": (without_a_shard, [r"model-00001-of-.*: is missing; model.safetensors.index.json has \d+"]),
    "a shard is cut off": (cut_off, ["model-00001-of-.*: cannot be read: .*incomplete"]),
    "a name is twice in the index": (
        index_of(lambda text: text.replace('"weight_map": {', f'"weight_map": {{"{_NORM}": "x",')),
        [f"index.json, {_NORM}: is there twice"]),
    "a shard outside the folder": (
        index_of(lambda text: text.replace('"weight_map": {', '"weight_map": {"x": "../x.safetensors",')),
        [r"index.json, \.\./x.safetensors: names a file outside the folder"]),
    "no index of tensors": (index_of(lambda text: "[]"), ["no index of tensors: TypeError"]),
    "a tensor is in two shards": (tensor_in_two_shards, ["is in model-0000.-of-.*, too|index.json has it in"]),
    "8-bit floats": (state_of(lambda state: state.update({_UP: state[_UP].to(torch.float8_e4m3fn)})),
                     [f"{SINGLE}, {_UP}: holds 8-bit floats"]),
    "quantised": (state_of(lambda state: state.update({_UP: state[_UP].to(torch.int8)})),
                  [f"{SINGLE}, {_UP}: holds quantised numbers"]),
    "two shapes and a name": (
        state_of(lambda state: state.update({
            _UP: state[_UP][1:].clone(), _NORM: torch.ones(3), "model.more": torch.ones(2)})),
        [f"{SINGLE}, {_UP}: has the shape 47 x 32, the plan's model has 48 x 32", f"{_NORM}: has the shape 3,",
         "model.more: 2: the plan's model has no such weight"]),
    "tied": (state_of(lambda state: state.pop(_HEAD)), [f"{_HEAD}: is missing: the folder's model is tied"]),
    "a weight is missing": (state_of(lambda state: state.pop(_NORM)), [f"{_NORM}: is missing, the plan's model"]),
    "an expert's bias": (
        state_of(lambda state: state.update({"model.layers.0.mlp.gate.e_score_correction_bias": torch.ones(4)})),
        ["e_score_correction_bias: is not zero: the plan's model chooses experts without it"]),
    "pickles": (pickled, ["pytorch_model.bin is a pickle"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_folder_that_does_not_fit_is_refused(fault: str, llama_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama_folder, tmp_path / "folder"))
    damage, wanted = FAULTS[fault]
    damage(folder)
    with pytest.raises(InputError) as caught:
        Pretrained(folder, spec_of(CASES["llama"].data()))
    for words in wanted:
        assert re.search(words, caught.value.message), caught.value.message
    assert caught.value.hint


def test_the_hint_on_a_folder_without_a_head_is_to_tie_the_plan(llama_folder: Path, tmp_path: Path) -> None:
    """The config of the folder has no tied head, so that a new plan for the folder would not help."""
    folder = Path(shutil.copytree(llama_folder, tmp_path / "folder"))
    FAULTS["tied"][0](folder)
    with pytest.raises(InputError) as caught:
        Pretrained(folder, spec_of(CASES["llama"].data()))
    assert caught.value.hint == "plan for a tied model: `tie_word_embeddings: true` in config.json"


def test_an_untied_folder_is_refused_for_a_tied_plan(llama_folder: Path) -> None:
    tied = replace(spec_of(CASES["llama"].data()), tied_embeddings=True)
    with pytest.raises(InputError, match=f"{_HEAD}: differs from model.embed_tokens.weight: the folder's model is unt"):
        Pretrained(llama_folder, tied)


def test_a_head_beside_tied_embeddings_may_be_the_same(llama_folder: Path, tmp_path: Path) -> None:
    """Older folders have both."""
    folder = Path(shutil.copytree(llama_folder, tmp_path / "folder"))
    weights_of(folder, lambda state: state.update({_HEAD: state["model.embed_tokens.weight"].clone()}))
    Pretrained(folder, replace(spec_of(CASES["llama"].data()), tied_embeddings=True))


@pytest.mark.filterwarnings("ignore")
def test_names_of_a_base_model_are_read(tmp_path: Path) -> None:
    """GPT-2 as it was published: without the first word, with masks that are buffers."""
    spec = saved("gpt2", tmp_path)
    whole = Pretrained(tmp_path, spec)
    wanted = torch.empty(61, 32)
    split = next(split for name, _, split in named_splits(reference.whole_model(job("dp1-mbs1-z0-rnone", spec)))
                 if name == "embedding.tokens")  # fmt: skip
    whole.init_param(wanted, "embedding.tokens", split, 0, tied=True)

    def renamed(state: dict[str, Tensor]) -> None:
        for name in list(state):
            state[name.removeprefix("transformer.")] = state.pop(name)
        state["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)

    weights_of(tmp_path, renamed)
    found = torch.zeros(61, 32)
    Pretrained(tmp_path, spec).init_param(found, "embedding.tokens", split, 0, tied=True)
    assert same_bits(found, wanted)


def test_a_folder_without_a_config_or_a_table(llama_folder: Path, tmp_path: Path) -> None:
    own = replace(spec_of(CASES["llama"].data()), family="own")
    Pretrained(llama_folder, own)  # of the explicit form: named as its config.json says
    with pytest.raises(InputError, match=r"config\.json: No such file"):
        Pretrained(tmp_path, own)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UnsupportedError, match="no names of the weights of bert"):
        Pretrained(tmp_path, own)


def refused(folder: Path, to: Path, **changes: Any) -> str:
    how = {"dtype": None, "file_bytes": FILE_BYTES, **changes}
    with pytest.raises(MeshwrightError) as caught:
        export(folder, to, spec_of(CASES["llama"].data()), to.parent / "config.json", **how)
    return caught.value.message


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_exported(llama_folder: Path, tmp_path: Path) -> None:
    spec = spec_of(CASES["llama"].data())
    wanted = job("dp1-mbs1-z0-rnone", spec)

    def one(rank: int) -> None:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        checkpoints = Checkpoints(trainer, tmp_path / "ckpt", keep=2)
        checkpoints.prepare(resume=False)
        checkpoints.save(1)

    fork(1, one)
    shutil.copy(llama_folder / "config.json", tmp_path)
    folder, _ = newest(tmp_path / "ckpt")
    assert "trained in fp64" in refused(folder, tmp_path / "out")
    assert "is there already" in refused(folder, folder, dtype="fp32")
    assert "has no adapters" in refused(folder, tmp_path / "out", dtype="fp32", merge=True)
    with pytest.raises(InputError, match="has no checkpoint"):
        newest(tmp_path / "none")
    path = next(folder.glob("__0_*"))
    path.write_bytes(path.read_bytes()[:-1])
    assert re.search("step-00000001 is damaged: __0_0.distcp has", refused(folder, tmp_path / "out", dtype="fp32"))
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".partial*"))


@pytest.mark.filterwarnings("ignore")
def test_adapters_go_on_beside_the_same_weights_only(llama_folder: Path, tmp_path: Path) -> None:
    """Frozen weights are in no checkpoint: their folder is read again, and must be the same."""
    spec = spec_of(CASES["llama"].data())
    first = Pretrained(llama_folder, spec)
    wanted = job("dp1-mbs1-z0-rnone", spec, dtype="fp32", lora=Lora(rank=2, targets=("q", "v")), steps=1,
                 init_from=str(llama_folder), init_digest=first.digest)  # fmt: skip

    def one(rank: int) -> Tensor:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"),
                          init_param=first.init_param)  # fmt: skip
        checkpoints = Checkpoints(trainer, tmp_path / "ckpt", keep=2)
        checkpoints.prepare(resume=False)
        trainer.step(0)
        checkpoints.save(1)
        return dict(trainer.chunks[0].named_parameters())["layers.1.feed_forward.up"].detach()

    assert same_bits(fork(1, one)[0], first.tensors.tensor("model.layers.1.mlp.up_proj.weight"))
    folder, manifest = newest(tmp_path / "ckpt")
    check_run(manifest, wanted, folder)
    other = Path(shutil.copytree(llama_folder, tmp_path / "other"))
    weights_of(other, lambda state: state[_UP].neg_())
    with pytest.raises(InputError, match="init_digest") as caught:
        check_run(manifest, replace(wanted, init_digest=Pretrained(other, spec).digest), folder)
    assert caught.value.hint.startswith(f"`--init-from {llama_folder}`")
