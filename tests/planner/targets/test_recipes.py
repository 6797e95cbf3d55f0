"""Recipes in Python: followed in turn, over functions and files; what only a run can tell is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

HEAD = """\
SEQUENCE = 4096


def base() -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").get_model_config()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.seq_length = SEQUENCE
    cfg.model.cuda_graph_impl = "none"
    cfg.model.cuda_graph_scope = "full"
    return cfg
"""
NODES = {"cluster": "dgx-h100:1"}


def imported(folder: Path, *texts: str, arguments: tuple[str, ...] = (), kind: str = "megatron-bridge",
             version: str | None = None) -> Imported:  # fmt: skip
    paths = [folder / f"part{number}.py" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return import_config(kind, paths, NODES, version, arguments)


def test_a_recipe_of_a_model_of_the_hub(tmp_path: Path) -> None:
    found = imported(tmp_path, HEAD)
    assert (str(found.layout), found.request.model) == ("tp2-nosp-dp4-mbs2-z1-rnone", "llama-3-8b")
    assert (found.request.workload.seq_len, found.request.workload.global_batch) == (4096, 32)
    assert found.price().best.step_s > 0


OTHERS = {
    "the last value counts": ("    cfg = base()\n    cfg.train.micro_batch_size = 4\n"
                              "    cfg.train.micro_batch_size = 1\n", "tp2-nosp-dp4-mbs1-z1-rnone"),
    "a function changes it": ("    cfg = base()\n    widen(cfg, ways=4)\n", "tp4-nosp-dp2-mbs2-z1-rnone"),
    "stages of the model's layers": ("    cfg = base()\n    cfg.model.pipeline_model_parallel_size = 2\n",
                                     "tp2-nosp-pp2-dp2-mbs2-z1-rnone"),
    "a plain condition": ("    cfg = base()\n    if SEQUENCE == 4096:\n        cfg.model.context_parallel_size = 2\n",
                          "tp2-nosp-cp2r-dp2-mbs2-z1-rnone"),
    "an option of the same config": ("    cfg = base()\n    cfg.train.micro_batch_size = cfg.train.global_batch_size\n"
                                     "    cfg.train.global_batch_size = 8\n", ""),
    "an operand of a choice": ("    cfg = base()\n    cfg.train.micro_batch_size = None or 4\n",
                               "tp2-nosp-dp4-mbs4-z1-rnone"),
    "a block anew": ("    cfg = base()\n    cfg.ddp = DistributedDataParallelConfig()\n"
                     "    cfg.optimizer.use_distributed_optimizer = False\n", "tp2-nosp-dp4-mbs2-z0-rnone"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_recipe_that_starts_from_another(tmp_path: Path, name: str) -> None:
    body, layout = OTHERS[name]
    helper = "\n\ndef widen(config, *, ways: int = 8):\n    config.model.tensor_model_parallel_size = ways\n"
    found = imported(tmp_path, f"{HEAD}{helper}\n\ndef mine():\n{body}    return cfg\n", arguments=("mine",))
    if layout:
        assert str(found.layout) == layout
        assert found.price().best.step_s > 0
    else:  # the base of the framework states it, not the file
        assert [gap.field for gap in found.gaps] == ["train.micro_batch_size"]


def test_the_file_of_the_base_is_asked_for(tmp_path: Path) -> None:
    body = "    cfg = other()\n    cfg.train.micro_batch_size = 1\n    return cfg\n"
    mine = f"from recipes import base as other\n\n\ndef mine():\n{body}"
    (gap,) = imported(tmp_path, mine).gaps
    assert (gap.line, gap.message) == (5, "starts from other, which is in another file")
    assert gap.hint == "give that file too"
    assert str(imported(tmp_path, mine, HEAD).layout) == "tp2-nosp-dp4-mbs1-z1-rnone"


DOUBTS = [
    ("cfg.model.tensor_model_parallel_size = args.tp", "model.tensor_model_parallel_size", 16, "`args.tp` is computed"),
    ("if args.wide:\n        cfg.model.context_parallel_size = 2", "model.context_parallel_size", 17, "holds, which"),
    ("for n in sizes():\n        cfg.train.micro_batch_size = n", "train.micro_batch_size", 17, "a run can follow"),
    ("tune(cfg)", "", 16, "tune changes it and is in another file"),
    ("tune(cfg.model)", "model", 16, "tune changes it and is in another file"),
    ("cfg.model.num_layers = 4", "model.num_layers", 16, "another size than that of meta-llama/Meta-Llama-3-8B"),
    ("cfg.mixed_precision = own_precision()", "mixed_precision", 16, "is what own_precision returns"),
    ("cfg.model.mlp_chunks_for_training = 2", "model.mlp_chunks_for_training", 16, "blocks in chunks"),
    ("cfg.model.heterogeneous_block_specs = True", "model.heterogeneous_block_specs", 16, "layers that differ"),
    ("cfg.optimizer.main_grads_dtype = torch.bfloat16", "optimizer.main_grads_dtype", 16, "states of another size"),
    ("cfg.dist.use_tp_pp_dp_mapping = True", "dist.use_tp_pp_dp_mapping", 16, "puts pipeline stages beside"),
    ("cfg.model.expert_paralel_size = 2", "model.expert_paralel_size", 16, "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "option", "number", "text"), DOUBTS)
def test_what_only_a_run_can_tell_is_named(tmp_path: Path, line: str, option: str, number: int, text: str) -> None:
    recipe = f"{HEAD}\n\ndef mine():\n    cfg = base()\n    {line}\n    return cfg\n"
    found = imported(tmp_path, recipe, arguments=("mine",))
    assert [(gap.field, gap.line) for gap in found.gaps] == [(option, number)]
    assert text in found.gaps[0].message
    assert found.completed is None


@pytest.mark.parametrize("line", [
    "cfg.optimizer.main_grads_dtype = torch.float32", "cfg.model.heterogeneous_block_specs = False",
    "cfg.model.first_last_layers_bf16 = True", "cfg.dist.use_tp_pp_dp_mapping = False",
])  # fmt: skip
def test_what_changes_nothing_is_no_gap(tmp_path: Path, line: str) -> None:
    recipe = f"{HEAD}\n\ndef mine():\n    cfg = base()\n    {line}\n    return cfg\n"
    assert not imported(tmp_path, recipe, arguments=("mine",)).gaps


def test_a_file_with_several_recipes_asks_for_one(tmp_path: Path) -> None:
    two = HEAD + HEAD.split("\n\n\n")[1].replace("base", "second").join(["\n\n", ""])
    with pytest.raises(InputError, match="has 2 functions that return ConfigContainer: base, second"):
        imported(tmp_path, two)
    assert imported(tmp_path, two, arguments=("second",)).layout.tp == 2
    with pytest.raises(InputError, match="has no `third` that returns"):
        imported(tmp_path, two, arguments=("third",))


def test_a_config_of_torchtitan_that_changes_another(tmp_path: Path) -> None:
    text = """\
from torchtitan.models.llama3 import model_registry


def small() -> Trainer.Config:
    model_spec = model_registry("8B")
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(local_batch_size=1, seq_len=8192),
        activation_checkpoint=SelectiveAC.Config(),
    )


def wide() -> Trainer.Config:
    config = small()
    config.parallelism.tensor_parallel_degree = 4
    config.activation_checkpoint = FullAC.Config()
    return config
"""
    found = imported(tmp_path, text, arguments=("wide",), kind="torchtitan", version="0.3.0")
    assert (str(found.layout), found.request.model) == ("tp4-dp2-mbs1-z3-rfull", "llama-3.1-8b")


def test_a_class_of_the_file_is_no_other_file(tmp_path: Path) -> None:
    text = """\
class Mine(Trainer.Config):
    def __post_init__(self):
        self.parallelism.tensor_parallel_degree *= 2


def small() -> Trainer.Config:
    return Mine(training=TrainingConfig(local_batch_size=1, seq_len=8192))
"""
    (gap,) = imported(tmp_path, text, kind="torchtitan", version="0.3.0").gaps
    assert (gap.line, gap.message, gap.hint) == (7, "starts from Mine, a class (line 1) with code of its own", "")


def test_a_program_that_changes_a_recipe_counts(tmp_path: Path) -> None:
    """A function without a result, or the block of `__main__`; one that changes nothing leaves the recipe."""
    for start in ("\n\ndef main():\n", '\n\nif __name__ == "__main__":\n'):
        program = f"{start}    cfg = base()\n    cfg.train.micro_batch_size = 4\n    pretrain(cfg)\n"
        found = imported(tmp_path, HEAD + program)
        assert str(found.layout) == "tp2-nosp-dp4-mbs4-z1-rnone"
        plain = imported(tmp_path, HEAD + program.replace("    cfg.train.micro_batch_size = 4\n", ""))
        assert str(plain.layout) == "tp2-nosp-dp4-mbs2-z1-rnone"
