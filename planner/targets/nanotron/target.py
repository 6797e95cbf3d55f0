"""nanotron: a YAML for its run_train.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import SCHEDULES
from ....cost_models.problem import Problem
from ....cost_models.specs.model import Attention, FeedForward, Layer, ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule, micro_batches, only
from ..base import Target, Trainer
from ..documents import nested, read_config
from ..framework_parser import FrameworkParser, sources_in
from ..launch_config import LaunchConfig
from ..launchers.base import Job, comment, torchrun
from ..option_lists import OptionList
from ..options import Settings
from ..other_layers import other_layers, whole_heads
from ..readers import nanotron as reader
from ..setup import Setup
from ..switch_options import rules_of
from ..unlike import of_one_layer, unlike
from .options import DEGREES, OPTIMIZER, TABLE, P, T
from .stages import cut

_N = "nanotron"
MAIN_FILE = "nanotron.yaml"
# The variable that names a checkout of nanotron: its run_train.py is in no wheel.
CHECKOUT = "NANOTRON_PATH"
# What a plan does not hold and the trainer needs.
_YOURS: Settings = {
    "general.project": "meshwright", f"{T}train_steps": 1000, "model.init_method.std": 0.02,
    f"{OPTIMIZER}weight_decay": 0.1, f"{OPTIMIZER}clip_grad": 1.0,
    f"{OPTIMIZER}learning_rate_scheduler": {"learning_rate": 3e-4, "lr_warmup_steps": 100, "lr_warmup_style": "linear",
                                    "lr_decay_style": "cosine", "min_decay_lr": 3e-5},
    f"{OPTIMIZER}optimizer_factory.adam_eps": 1e-8, f"{OPTIMIZER}optimizer_factory.adam_beta1": 0.9,
    f"{OPTIMIZER}optimizer_factory.adam_beta2": 0.95, f"{OPTIMIZER}optimizer_factory.torch_adam_is_fused": True,
    "logging.log_level": "info", "checkpoints.checkpoints_path": "checkpoints",
    "checkpoints.checkpoint_interval": 1000,
    "data_stages": [{"name": "all", "start_training_step": 1, "data": {"dataset": None, "seed": 42}}],
}  # fmt: skip


def _fills(columns: Columns, problem: Problem) -> Mask:
    # parallel/pipeline_parallel/engine.py, OneForwardOneBackwardPipelineEngine.train_batch_iter.
    enough = micro_batches(columns, problem) >= columns["pp"] - 1
    return np.asarray((columns["schedule"] != SCHEDULES.index("1f1b")) | enough)


def _own_stages(columns: Columns, problem: Problem) -> Mask:
    own = {pp: pp == 1 or problem.chunk_sizes(pp) == cut(problem.model, pp) for pp in set(columns["pp"].tolist())
           if pp <= problem.most_chunks}  # fmt: skip
    return np.array([own.get(pp, False) for pp in columns["pp"].tolist()], dtype=bool)


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes nanotron.yaml, and the command that gives it to run_train.py."""
    yours = ("Yours, edit here: general, train_steps, init_method, the learning rate, checkpoints, data_stages.",
             "A stage of data without dataset trains on random tokens.")  # fmt: skip
    from ....profiles.io.yaml_syntax import text_of  # slow to load, and needed here only

    text = text_of(nested({**TABLE.write(setup), **_YOURS}))
    return Job(
        name=f"{setup.model.name}-{_N}", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node, files={MAIN_FILE: comment((*header, *yours)) + text},
        command=f"{torchrun(setup.num_nodes, setup.gpus_per_node)}"
                f'  "${CHECKOUT}/run_train.py" --config-file "$here/{MAIN_FILE}"',
        needs={CHECKOUT: "a checkout of nanotron, which has run_train.py"},
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, notes=setup.model.assumptions,
    )  # fmt: skip


def _built(model: ModelSpec) -> ModelSpec:
    """The model that the options describe: one kind of layer of Qwen2, with or without biases of queries."""
    attention, block = model.kinds[0].transformer_blocks
    head_dim = model.hidden // attention.heads
    layer = Layer(
        attention=Attention(heads=attention.heads, kv_heads=attention.kv_heads, head_dim=head_dim,
                            value_head_dim=head_dim, qkv_bias=attention.qkv_bias),
        feed_forward=FeedForward(inner=getattr(block, "inner", 0)),
    )  # fmt: skip
    return of_one_layer(model, layer)


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that nanotron cannot express."""
    if other := other_layers(model, _N):
        return other
    reasons = {
        "model.rope_theta: it has rotary positions only": model.rope_theta is None,
        "model.kinds: it has layers of one kind only": len(model.kinds) > 1,
        "model.kinds: mixtures of experts are not planned for it": model.is_moe,
        f"workload.optimizer: it has no {workload.optimizer}": workload.optimizer != "adamw",
        "workload.lora: no adapters": workload.lora is not None,
        "workload.trains_layers: it trains all layers": workload.trains_layers is not None,
    }
    return [text for text, applies in reasons.items() if applies] or unlike(
        model, _built(model), workload, "Qwen2Config has no option for it"
    )


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Numbers that are none, and stages of data with sequences of their own."""
    counts = (*(f"{P}{name}" for name in DEGREES), f"{T}micro_batch_size", f"{T}batch_accumulation_per_replica",
              f"{T}sequence_length")  # fmt: skip
    out = [(name, f"`{settings[name]}` is not 1 or more") for name in counts if settings.get(name, 1) < 1]
    stages = settings.get("data_stages")
    lengths = {stage.get("sequence_length") for stage in stages if isinstance(stage, Mapping)} if isinstance(
        stages, list) else set()  # fmt: skip
    if lengths - {None, settings.get(f"{T}sequence_length")}:
        out.append(("data_stages", "a stage has another sequence_length than tokens"))
    return out


def _parser_case(files: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    return {"config": files[MAIN_FILE], "world": setup.layout.num_gpus, "stages": setup.chunk_sizes}


CONFIG = LaunchConfig(
    main_file=MAIN_FILE,
    read=read_config,
    table=lambda options: TABLE,
    conflicts=conflicts,
    prices={
        **reader.READER.reading.changes,
        r"parallelism\.tp_(linear_async_communication|recompute_allgather)": 
            "messages and memory of tensor parallelism",
        r"optimizer\.optimizer_factory\.torch_adam_is_fused": "passes of the optimizer over its states",
        r"model\.model_config\.(moe_config(\..*)?|no_rope_layer|rope_scaling)": "another model",
        r"model\.ddp_bucket_cap_mb": "messages of gradients",
        r"model\.model_config\._?(z_loss_enabled|log_attn_probs|rope_interleaved|ring_attn_heads_k_stride|hidden_act|"
        r"flex_attention_mask|use_doc_masking|use_qkv_packed|attn_implementation|fused_\w+)":
            "what layers compute, and with which kernels",
    },
    parser=FrameworkParser(script=Path(__file__).with_name("parser.py"), case=_parser_case,
                           modules=("torch", "dacite"), source=sources_in(CHECKOUT, "nanotron")),
)  # fmt: skip
TARGET = Target(
    _N,
    "nanotron (YAML of run_train.py)",
    _N,
    "nanotron 2411b022 (2026-04-07), src/nanotron/config/, trainer.py, helpers.py and parallel/",
    rules=(
        whole_heads(_N, _N),
        only(_N, "cp", (1,), "training from random weights raises NotImplementedError with cp {cp} (trainer.py)"),
        only(_N, "ep", (1,), "mixtures of experts are not planned for nanotron (ep {ep})"),
        only(_N, "etp", (1,), "mixtures of experts are not planned for nanotron (etp {etp})"),
        only(_N, "schedule", ("1f1b", "gpipe"), "nanotron has 1f1b and afab (gpipe), no {schedule_name}"),
        Rule(f"{_N}: micro-batches", ("pp", "dp", "micro_batch", "schedule"), _fills,
             "its 1f1b needs at least pp - 1 micro-batches: {m:g} with pp {pp}"),
        Rule(f"{_N}: stages", ("pp",), _own_stages,
             "it cuts pp {pp} stages by their products, not into equal parts: plan them by `--stages`"),
        only(_N, "zero", (0,),
             "its sum of gradients in fp32 raises NotImplementedError with zero_stage 1 (gradient_accumulator.py)"),
        only(_N, "recompute", ("none", "full"), "recompute_layer recomputes whole layers"),
        only(_N, "recompute_layers", (0,), "recompute_layer recomputes all layers or none"),
        only(_N, "offload", ("none",), "it keeps all tensors on the GPU"),
        only(_N, "precision", ("bf16",), "its attention kernels take no fp32, and it scales no loss for fp16"),
        *rules_of(_N),
    ),
    cut=cut,
    trainer=Trainer(framework="nanotron", config=CONFIG, job=job, cannot_build=cannot),
)  # fmt: skip
