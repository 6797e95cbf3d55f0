"""NeMo 2: a recipe of nemo_run for nemo.collections.llm. Running the module trains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import only
from ..argv import Arguments
from ..base import Target, Trainer
from ..config_modules import NEMO_RECIPE, read_config_module, read_modules
from ..documents import read_config
from ..framework_parser import FrameworkParser, machine
from ..launch_config import LaunchConfig
from ..launchers.base import Job, torchrun
from ..megatron import layer_inputs
from ..megatron.cannot_build import cannot_build
from ..megatron.environment import environment
from ..megatron.layer_patterns import pattern_text
from ..megatron.target import rules
from ..megatron_bridge.fields import renamed as in_fields
from ..option_lists import OptionList
from ..options import Settings
from ..other_layers import other_layers
from ..reading import Reading
from ..setup import Setup
from .fields import CALLBACK, CLASS, LLAMA31, renamed
from .options import BLOCK_SPEC, TABLE, conflicts
from .recipes import BASES, CHANGES, HARMLESS, PRICES, modernise

_N = "nemo"
MAIN_FILE = "nemo_plan.py"
_MODULE = """\
\"\"\"{header}

Not from the plan, edit here: data (mock data), tokenizer, learning rate, steps, log, checkpoints, and initialisation of
the model.
\"\"\"

import nemo_run as run
{torch}from megatron.core.distributed import DistributedDataParallelConfig
{core}from megatron.core.optimizer import OptimizerConfig
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.common.tokenizers.tokenizer_utils import get_nmt_tokenizer
{scaled}from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback
from nemo.lightning.pytorch.optim import CosineAnnealingScheduler


def plan() -> run.Partial:
    return run.Partial(
        llm.pretrain,
{blocks}    )


if __name__ == "__main__":
    run.run(plan(), direct=True)
"""
# Block -> its class, in the order of the file.
_CLASSES = {
    "model": "llm.GPTModel", CLASS: "", "trainer": "nl.Trainer", "trainer.strategy": "nl.MegatronStrategy",
    "trainer.strategy.ddp": "DistributedDataParallelConfig", "trainer.plugins": "nl.MegatronMixedPrecision",
    CALLBACK: CALLBACK.rpartition(".")[2], "data": "llm.MockDataModule", "optim": "nl.MegatronOptimizerModule",
    "optim.config": "OptimizerConfig",
}  # fmt: skip
_SCALED = f"from nemo.collections.llm.gpt.model.llama import {LLAMA31}\n"
_SPEC = "run.Partial(get_gpt_decoder_block_spec, use_transformer_engine=True)"
# Name in a recipe -> its import.
_TORCH = {"=torch.": "import torch\n", "=F.": "import torch.nn.functional as F\n"}
_CORE = {
    "=squared_relu": "from megatron.core.activations import squared_relu\n",
    "=quick_gelu": "from megatron.core.fusions.fused_bias_geglu import quick_gelu\n",
    _SPEC: "from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec\n",
}  # fmt: skip
_FUNCTIONS = ("squared_relu", "quick_gelu")


def _others(setup: Setup) -> Settings:
    """Options that every recipe needs and no plan holds: a run on mock data until the user names other data."""
    tokenizer = 'run.Config(get_nmt_tokenizer, library="null", model_name="NullTokenizer", vocab_size='
    schedule = "run.Config(CosineAnnealingScheduler, max_steps=1000, warmup_steps=100, constant_steps=0, min_lr=3e-05)"
    return {
        "trainer.accelerator": "gpu", "trainer.max_steps": 1000, "trainer.limit_val_batches": 0,
        "trainer.log_every_n_steps": 10, "trainer.use_distributed_sampler": False,
        "data.tokenizer": f"{tokenizer}{setup.model.vocab - 1})", "optim.config.lr": 3e-4,
        "optim.config.weight_decay": 0.1, "optim.lr_scheduler": schedule,
    }  # fmt: skip


def _text(value: Any) -> str:
    """A value as Python: dtypes, functions and calls by name, long patterns of 0 and 1 as runs."""
    if isinstance(value, str):
        named = value.startswith(("torch.", "F.", "run.")) or value in _FUNCTIONS
        return _SPEC if value == BLOCK_SPEC else value if named else f'"{value}"'
    if isinstance(value, list) and len(value) > 8 and set(value) <= {0, 1}:
        return pattern_text(value).strip("()").replace("*", " * ").replace("+", " + ")
    if isinstance(value, list) and value and isinstance(value[0], str):
        return "[" + ", ".join(f'"{word}"' for word in value) + "]"
    return repr(value)


def _block(name: str, settings: Settings, indent: str) -> str:
    """The options of a block, then its blocks, one per line; callbacks as a list."""
    lines = "".join(f"{indent}{option.rpartition('.')[2]}={_text(value)},\n" for option, value in settings.items()
                    if option.rpartition(".")[0] == name and option not in _CLASSES)  # fmt: skip
    for inner, kind in _CLASSES.items():
        holder, _, last = inner.rpartition(".")
        if holder == name:
            kind = kind or str(settings[CLASS])
            parts = _block(inner, settings, f"{indent}    ")
            lines += f"{indent}{last}=run.Config(\n{indent}    {kind},\n{parts}{indent}),\n"
    if name == "trainer":
        deep = f"{indent}        "
        parts = f"{deep}{_CLASSES[CALLBACK]},\n{_block(CALLBACK, settings, deep)}"
        lines += f"{indent}callbacks=[\n{indent}    run.Config(\n{parts}{indent}    ),\n{indent}],\n"
    return lines


def _module(setup: Setup, header: tuple[str, ...]) -> str:
    settings = {**TABLE.write(setup), **_others(setup)}
    kind = settings[CLASS]
    settings[CLASS] = kind if kind == LLAMA31 else f"llm.{kind}"
    blocks = _block("", settings, " " * 8)
    return _MODULE.format(
        header="\n".join(header), blocks=blocks, scaled=_SCALED if kind == LLAMA31 else "",
        torch="".join(text for mark, text in _TORCH.items() if mark in blocks),
        core="".join(text for mark, text in _CORE.items() if mark in blocks),
    )  # fmt: skip


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes nemo_plan.py with a function `plan`, and the command that trains it."""
    return Job(
        name=f"{setup.model.name}-{_N}", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node, files={MAIN_FILE: _module(setup, header)},
        command=f'{torchrun(setup.num_nodes, setup.gpus_per_node)}  "$here/{MAIN_FILE}"',
        environment=environment(setup, _N), notes=setup.model.assumptions,
    )  # fmt: skip


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that the classes written here have no option for."""
    if other := other_layers(model, "GPTConfig"):
        return other
    reasons = [renamed(in_fields(text)).replace("pretrain_gpt.py", "its pretrain")
               for text in cannot_build(model, workload, options)]  # fmt: skip
    scaling = model.trained_scaling
    rows = f"{model.learned_positions}, not seq_len {workload.seq_len}"
    others = {
        "model.kinds: latent attention needs DeepSeekConfig, which is not written": any(
            attention.is_mla for attention in model.attentions),
        "model.mtp_layers: GPTConfig passes no tokens to prediction modules in the last stage": model.mtp_layers > 0,
        f"model.rope_scaling: GPTConfig passes no {scaling.kind if scaling else ''} to the model":
            scaling is not None and scaling.kind not in ("llama3", "linear"),
        f"model.learned_positions: GPTConfig learns as many as seq_length ({rows})":
            model.learned_positions not in (0, workload.seq_len),
        "workload.optimizer: it has no muon": workload.optimizer == "muon",
    }  # fmt: skip
    return reasons + [text for text, applies in others.items() if applies]


def _read(path: str, text: str, options: OptionList) -> Arguments:
    if path.endswith(".py"):
        return read_config_module(path, text, options, NEMO_RECIPE)
    return read_config(path, text, options)


def _read_together(files: Mapping[str, str], options: OptionList, given: Sequence[str],
                   wanted: frozenset[str]) -> Arguments:  # fmt: skip
    return read_modules(files, options, given, NEMO_RECIPE, _read, BASES)


CONFIG = LaunchConfig(
    main_file=MAIN_FILE,
    read=_read,
    read_together=_read_together,
    reading=Reading(changes=CHANGES, harmless=HARMLESS, modernise=modernise),
    table=lambda options: TABLE,
    conflicts=conflicts,
    prices=PRICES,
    import_format="nemo-recipe",
    import_hint="a module with a function that returns run.Partial(llm.pretrain, ...)",
    parser=FrameworkParser(
        script=Path(__file__).with_name("parser.py"),
        case=lambda files, setup: {"module": files[MAIN_FILE], **machine(files, setup)},
        modules=("nemo", "nemo_run", "megatron.core"),
    ),
)
_RULES = (
    only(_N, "offload", ("none",), "its recipes keep optimizer states and activations on the GPU"),
    only(_N, "offload_layers", (0,), "its recipes keep activations on the GPU"),
    only(_N, "offload_modules", ("none",), "its recipes keep activations on the GPU"),
    only(_N, "precision", ("bf16", "fp16", "fp8", "fp32"), "{precision} is not planned for NeMo"),
)
TARGET = Target(
    _N,
    "NeMo 2 (recipe of nemo_run)",
    "megatron-core",
    "NeMo 2.7.3, nemo/collections/llm and nemo/lightning, the last release with them; Megatron-Core 0.16.1",
    stages="layers",
    rules=(*(replace(rule, message=renamed(in_fields(rule.message))) for rule in rules(_N)), *_RULES),
    trainer=Trainer(framework="NeMo", config=CONFIG, job=job, cannot_build=cannot, techniques=layer_inputs.CAN),
)  # fmt: skip
