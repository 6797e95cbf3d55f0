"""torchtitan's optimizer, in Python and TOML, and subclasses of its config that complete what they are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

MODULE = '''\
def _muon(lr: float) -> OptimizersContainer.Config:
    return OptimizersContainer.Config(
        param_groups=[
            ParamGroupConfig(pattern=r"w1", optimizer_name="DistMuon", optimizer_kwargs={"lr": lr}),
            ParamGroupConfig(pattern=r".*", optimizer_name="AdamW", optimizer_kwargs={"lr": lr}),
        ],
    )


def config() -> Trainer.Config:
    return MAKER(
        model_spec=model_registry("8B"),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=4096, max_context_length=4096),
        activation_checkpoint=FullAC.Config(),
    )


@dataclass(kw_only=True, slots=True)
class Own(Trainer.Config):
    """Completes the optimizer."""

    def __post_init__(self) -> None:
        Trainer.Config.__post_init__(self)
        if self.parallelism.tensor_parallel_degree > 1:
            raise ValueError("no tensor parallelism")
        pass
'''
TOML = """\
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
[training]
local_batch_size = 1
seq_len = 4096
[activation_checkpoint]
mode = "full"
"""


def imported(folder: Path, name: str, text: str) -> Imported:
    path = folder / "llama3" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    release = "0.4.0.dev" if name.endswith(".py") else None
    return import_config("torchtitan", [path], {"cluster": "dgx-h100:1"}, release)


@pytest.mark.parametrize(("old", "new", "option"), [
    ('name = "AdamW"', 'name = "AdamW"\nstate_dtype = "bfloat16"', "optimizer.state_dtype"),
    ('flavor = "8B"', 'flavor = "8B"\nconverters = ["quantized_linear"]', "model.converters"),
])  # fmt: skip
def test_options_of_forks(tmp_path: Path, old: str, new: str, option: str) -> None:
    """States of another type and layers of another kind are gaps; those of torchtitan itself are read."""
    assert [gap.field for gap in imported(tmp_path, "own.toml", TOML.replace(old, new)).gaps] == [option]
    assert not imported(tmp_path, "own.toml", TOML.replace('"8B"', '"8B"\nconverters = ["float8"]')).gaps


def test_the_exchange_of_tokens_by_another_library(tmp_path: Path) -> None:
    text = TOML + '[parallelism]\nexpert_parallel_comm_backend = "deepep"\n'
    found = imported(tmp_path, "own.toml", text)
    assert not found.gaps
    assert "parallelism.expert_parallel_comm_backend deepep: priced as the standard exchange of tokens" in found.assumed


@pytest.mark.parametrize("maker", ["Trainer.Config", "Own"])
def test_a_simple_subclass_is_read_as_the_config(tmp_path: Path, maker: str) -> None:
    found = imported(tmp_path, "config_registry.py", MODULE.replace("MAKER", maker))
    assert not found.gaps
    assert str(found.layout) == "dp8-mbs1-z3-rfull"


@pytest.mark.parametrize(("changes", "option", "text"), [
    ({"default_adamw(lr=3e-4)": "_muon(lr=3e-4)"}, "optimizer", "DistMuon has no counterpart in a plan of torchtitan"),
    ({"=default_adamw(lr=3e-4)": '=OptimizersContainer.Config(implementation="fused_opt_states_bf16")'}, "optimizer",
     "fused_opt_states_bf16: no plan of torchtitan has moments in bf16"),
    ({"        pass": "        self.parallelism = wider(self.parallelism)"}, "parallelism",
     "Own sets it once it is made"),
    ({"        pass": "        widen(self)"}, "", "starts from Own, a class (line 20) with code of its own"),
    ({'    """Completes the optimizer."""': "    width: int = 2"}, "",
     "starts from Own, a class (line 20) with code of its own"),
])  # fmt: skip
def test_what_may_change_the_step_is_named(tmp_path: Path, changes: dict[str, str], option: str, text: str) -> None:
    module = MODULE.replace("MAKER", "Own")
    for old, new in changes.items():
        assert old in module
        module = module.replace(old, new)
    (gap,) = imported(tmp_path, "config_registry.py", module).gaps
    assert (gap.field, gap.message) == (option, text)


@pytest.mark.parametrize(("line", "text"), [
    ('name = "Lion"', "Lion has no counterpart in a plan of torchtitan"),
    ('name = "AdamW"\nearly_step_in_backward = true', "early_step_in_backward: updates weights in the backward pass"),
])  # fmt: skip
def test_optimizers_in_toml(tmp_path: Path, line: str, text: str) -> None:
    assert not imported(tmp_path, "train.toml", TOML).gaps
    (gap,) = imported(tmp_path, "train.toml", TOML.replace('name = "AdamW"', line)).gaps
    assert (gap.field, gap.line, gap.message) == ("optimizer", 4, text)


@pytest.mark.parametrize("made", [
    "muon_of(lr=1)", "OPT", "OptimizersContainer.Config(param_groups=groups())", "some.mod.Lion.Config(lr=1)",
    "OptimizersContainer.Config(name=KIND)", "OptimizersContainer.Config(**more)",
    "OptimizersContainer.Config(param_groups=[ParamGroupConfig(r'.*', KIND, {})])",
])  # fmt: skip
def test_an_optimizer_that_no_literal_names_is_a_gap(tmp_path: Path, made: str) -> None:
    module = MODULE.replace("MAKER", "Trainer.Config").replace("default_adamw(lr=3e-4)", made)
    gaps = imported(tmp_path, "config_registry.py", module).gaps
    assert any(gap.field == "optimizer" and "follows from code" in gap.message for gap in gaps)


def test_the_optimizer_of_a_group_by_its_place(tmp_path: Path) -> None:
    made = "OptimizersContainer.Config(param_groups=[ParamGroupConfig(r'.*', 'Muon', {})])"
    module = MODULE.replace("MAKER", "Trainer.Config").replace("default_adamw(lr=3e-4)", made)
    (gap,) = imported(tmp_path, "config_registry.py", module).gaps
    assert gap.message == "Muon has no counterpart in a plan of torchtitan"
    for kept in ("OptimizersContainer.Config(lr=1e-3)", made.replace("Muon", "AdamW")):
        assert not imported(tmp_path, "config_registry.py", module.replace(made, kept)).gaps


@pytest.mark.parametrize("line", ["name = 3", 'name = "AdamW"\nearly_step_in_backward = "true"'])
def test_odd_words_in_toml_are_gaps(tmp_path: Path, line: str) -> None:
    assert imported(tmp_path, "train.toml", TOML.replace('name = "AdamW"', line)).gaps
