"""`--to nemo`: what differs from Megatron-Bridge in names, defaults and rules, and recipes of other people."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import emit
from meshwright.planner.targets.nemo.fields import LLAMA31_DEFAULTS
from meshwright.planner.targets.nemo.recipes import MODELS
from meshwright.planner.targets.option_lists import option_list
from meshwright.profiles.model.load import model_names

from meshwright.errors import UnsupportedError

MODULE = "nemo_plan.py"
ASKED = {"model": "llama-2-7b", "cluster": "dgx-h100:2", "target": "nemo",
         "workload": {"seq_len": 4096, "global_batch": 64}}  # fmt: skip


def plan_of(layout: str, **more: object) -> Plan:
    return api.evaluate(request_from_dict({**ASKED, **more}), layout)


def text_of(layout: str, **more: object) -> str:
    files = dict(emit(plan_of(layout, **more), "nemo").files)
    assert check_files(files).problems == []
    return files[MODULE]


def test_the_release_has_the_classes_and_options_that_are_named() -> None:
    options = option_list("nemo")[0].options
    assert LLAMA31_DEFAULTS.keys() <= options.keys()
    assert MODELS.keys() <= set(options["model.config"].values)
    assert set(MODELS.values()) <= set(model_names())


def test_overlaps_of_data_parallelism_are_where_nemo_takes_them() -> None:
    """The callback overwrites those of ddp with a distributed optimizer, and only then."""
    sharded, whole = text_of("tp2-dp8-mbs1-z1-rnone"), text_of("tp2-dp8-mbs1-z0-rnone")
    callback, indent = "MegatronCommOverlapCallback,\n", " " * 20
    assert f"{callback}{indent}tp_comm_overlap=True,\n{indent}overlap_grad_reduce=True," in sharded
    assert "overlap_grad_reduce=True" not in whole.partition(f"{indent}{callback}")[2]
    assert f"DistributedDataParallelConfig,\n{indent}overlap_grad_reduce=True,\n" in whole


def test_fsdp_is_the_strategys() -> None:
    text = text_of("dp16-mbs1-z3-rnone")
    assert '                fsdp="megatron",\n                save_ckpt_format="fsdp_dtensor",\n' in text
    assert 'data_parallel_sharding_strategy="optim_grads_params",' in text
    assert "gradient_accumulation_fusion=False," in text


def test_scaled_positions_need_a_class_of_their_own() -> None:
    text = text_of("tp2-dp8-mbs1-z1-rnone", model="llama-3.2-1b")
    assert "                Llama31Config,\n" in text
    assert "scale_factor=32.0," in text
    assert "share_embeddings_and_output_weights=True," in text  # Llama31Config has False
    assert "llm.GPTConfig,\n" in text_of("tp2-dp8-mbs1-z1-rnone")


def test_plans_in_fp32_name_their_precision() -> None:
    workload = {"seq_len": 4096, "global_batch": 64, "precision": "fp32"}
    assert 'precision="32",' in text_of("tp4-pp2-dp2-mbs1-z1-rfull-fp32", workload=workload)


@pytest.mark.parametrize(("model", "reason"), [
    ("deepseek-v3", "latent attention needs DeepSeekConfig"), ("gpt-oss-120b", "GPTConfig passes no yarn"),
    ("nemotron-h-56b", "GPTConfig builds layers of attention"),
])  # fmt: skip
def test_models_of_other_classes_are_refused(model: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        api.plan(request_from_dict({**ASKED, "model": model}))
    assert "megatron-bridge" in (caught.value.hint or "")


RECIPE = """\
import nemo_run as run
from nemo import lightning as nl
from nemo.collections import llm


def trainer(tensor_parallelism=2, num_nodes=1, callbacks=None):
    strategy = run.Config(
        nl.MegatronStrategy, tensor_model_parallel_size=tensor_parallelism, sequence_parallel=True,
        gradient_as_bucket_view=True, ddp=run.Config(DistributedDataParallelConfig, overlap_grad_reduce=True),
    )
    return run.Config(nl.Trainer, devices=8, num_nodes=num_nodes, accumulate_grad_batches=1, callbacks=callbacks,
                      plugins=bf16_mixed(), strategy=strategy)


@run.cli.factory(target=pretrain, name="ours")
def pretrain_recipe(num_nodes=2, fn=pretrain) -> run.Partial:
    recipe = run.Partial(
        fn,
        model=run.Config(LlamaModel, config=run.Config(Llama3Config8B)),
        trainer=trainer(num_nodes=num_nodes, callbacks=[run.Config(TimingCallback)]),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=512, micro_batch_size=1),
        optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4),
    )
    recipe.trainer.strategy.context_parallel_size = 2
    return recipe
"""


def imported(folder: Path, text: str) -> Imported:
    path = folder / "recipe.py"
    path.write_text(text, encoding="utf-8")
    return import_config("nemo-recipe", [path], {"cluster": "dgx-h100:2"}, None, ("pretrain_recipe",))


def test_recipes_of_others_are_followed_through_their_functions(tmp_path: Path) -> None:
    found = imported(tmp_path, RECIPE)
    assert found.gaps == ()
    assert str(found.read_layout) == "tp2-cp2r-dp4-mbs1-z1-rnone"
    assert found.completed is not None
    assert (found.completed.model, found.completed.workload.global_batch) == ("llama-3-8b", 512)


@pytest.mark.parametrize(("old", "new", "gap"), [
    ("accumulate_grad_batches=1", "accumulate_grad_batches=4", "a batch that is summed by Lightning"),
    ("Llama3Config8B", "Llama4Config", "only a run knows its sizes"),
    ("run.Config(Llama3Config8B)", "run.Config(Llama3Config8B, num_layers=16)", "another size"),
    ("TimingCallback", "DeepEPCallback", "unknown"), ("plugins=bf16_mixed()", "plugins=ours()", "ours"),
])  # fmt: skip
def test_what_only_a_run_knows_is_a_gap(tmp_path: Path, old: str, new: str, gap: str) -> None:
    gaps = imported(tmp_path, RECIPE.replace(old, new)).gaps
    assert any(gap in problem.message for problem in gaps), gaps


PROGRAM = """\
import nemo_run as run
from nemo.collections import llm


def configure_recipe(nodes: int = 1, **more):
    recipe = llm.ours_8b.pretrain_recipe(num_nodes=nodes, **more)
    recipe.trainer.strategy.tensor_model_parallel_size = 4
    return recipe


{start}
    recipe = configure_recipe()
    recipe.data.global_batch_size = 64
    print(recipe)
    run.run(recipe)
"""


@pytest.mark.parametrize("start", ["def run_pretraining():", 'if __name__ == "__main__":'])
def test_programs_are_read_with_the_file_of_their_recipe(tmp_path: Path, start: str) -> None:
    """The degrees of the function and the batch that the program sets behind it replace those of the base."""
    program, base = tmp_path / "train.py", tmp_path / "ours_8b.py"
    program.write_text(PROGRAM.format(start=start), encoding="utf-8")
    base.write_text(RECIPE, encoding="utf-8")
    found = import_config("nemo-recipe", [program, base], {"cluster": "dgx-h100:1"})
    assert found.gaps == ()
    assert str(found.read_layout) == "tp4-cp2r-dp1-mbs1-z1-rnone"
    assert found.completed is not None
    assert (found.completed.model, found.completed.workload.global_batch) == ("llama-3-8b", 64)
    (gap,) = import_config("nemo-recipe", [program], {"cluster": "dgx-h100:1"}).gaps
    assert gap.hint == "give that file too: nemo/collections/llm/recipes/ours_8b.py of NeMo"
