"""Megatron-LM / Megatron Core: pretrain_gpt.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import CP_ALGORITHMS, MODULES, OFFLOADS, SCHEDULES
from ....cost_models.problem import Problem
from ....cost_models.specs.model import MixtureOfExperts
from ...space.activations import present_modules
from ...space.rules import Columns, Rule, micro_batches, only
from ..base import Target, Trainer
from ..framework_parser import FrameworkParser, machine
from ..launch_config import LaunchConfig
from ..launchers.base import Job, comment, torchrun
from ..option_lists import OptionList
from ..options import Facts, Settings
from ..reading import Reading
from ..scripts import read_arguments, read_scripts
from ..setup import Setup
from ..switch_options import rules_of
from . import (
    deepspeed_experts,
    delta_net,
    document_degrees,
    encoders,
    engine_json,
    layer_inputs,
    multimodal,
    offload,
    switch_rules,
)
from .cannot_build import cannot_build
from .conflicts import EXCLUSIVE, conflicts
from .environment import environment
from .hybrid import hybrid_rules, is_hybrid
from .model import windows
from .muon import muon_rules
from .not_read import CHANGES, HARMLESS, PRICES, other_program
from .older_names import OLDER, modernise
from .options import table

_N = "megatron"
MAIN_FILE = "megatron.args"
# The variable that names a checkout of Megatron-LM.
CHECKOUT = "MEGATRON_PATH"


def _sharding(columns: Columns, problem: Problem) -> Mask:
    # --use-distributed-optimizer is ZeRO-1; stages 2 and 3 are Megatron-FSDP, planned without a pipeline.
    return np.asarray((columns["zero"] <= 1) | (columns["pp"] == 1))


def _modules(columns: Columns, problem: Problem) -> Mask:
    # --recompute-modules moe_act replaces act in expert layers only. All other modules exist.
    act = 1 << MODULES.index("act")
    return np.asarray((columns["recompute_modules"] & act == 0) | problem.model.is_moe)


def _expert_blocks(columns: Columns, problem: Problem) -> Mask:
    # core_v0.16.1, moe_layer.py: the checkpointed function of --recompute-modules moe also runs the shared experts.
    moe, shared = (columns["recompute_modules"] >> MODULES.index(name) & 1 for name in ("moe", "shared"))
    there = present_modules(problem.model) >> MODULES.index("shared") & 1
    return np.asarray((moe == 0) | (shared == 1) | (there == 0))


def _per_chunk(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["recompute_layers"] == 0) | (columns["schedule"] != SCHEDULES.index("interleaved")))


def _groups(columns: Columns, problem: Problem) -> Mask:
    # core/pipeline_parallel/schedules.py: chunks alternate in groups of pp micro-batches or more.
    number = micro_batches(columns, problem)
    return np.asarray((columns["schedule"] != SCHEDULES.index("interleaved")) | (number >= columns["pp"]))


def _host_optimizer(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] > 0) | (columns["offload"] != OFFLOADS.index("opt")))


_PASSES_KEYS_ON = [CP_ALGORITHMS.index(name) for name in ("ring", "ring+ulysses")]


def _windowed_context(columns: Columns, problem: Problem) -> Mask:
    # TransformerEngine d0067d0d, attn_forward_func_with_cp: a window only with a2a or all_gather.
    on = (columns["cp"] > 1) & np.isin(columns["cp_algorithm"], _PASSES_KEYS_ON)
    return np.asarray(~on | (not windows(problem.model, problem.workload)))


def _context_with_sinks(columns: Columns, problem: Problem) -> Mask:
    # The same function: a softmax other than the plain one only with a2a.
    sinks = any(attention.sink_parameters for attention in problem.model.attentions)
    ulysses = columns["cp_algorithm"] == CP_ALGORITHMS.index("ulysses")
    return np.asarray((columns["cp"] == 1) | ulysses | (not sinks))


def _biased_experts(columns: Columns, problem: Problem) -> Mask:
    # core/transformer/transformer_config.py:2612
    biased = any(block.expert_bias for block in problem.model.feed_forwards if isinstance(block, MixtureOfExperts))
    return np.asarray((columns["etp"] == 1) | (not biased))


_OWN = "--data-path ... --tokenizer-type ... --lr ... --train-iters ..."
_ADD = (
    "Not from the plan, to be added to launch.sh: data, tokenizer, learning rate, iterations, checkpoints, and",
    "initialisation of the model.",
)


def arguments(settings: Settings) -> list[str]:
    """One line per option."""
    lines = []
    for option, value in settings.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        lines.append(" ".join([option, *map(str, values)]))
    return lines


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes megatron.args, and the command that passes it to pretrain_gpt.py."""
    settings = {**table(options).write(setup), **document_degrees.settings(setup)}
    text = comment((*header, *_ADD)) + "".join(f"{line}\n" for line in arguments(settings))
    script = "pretrain_hybrid.py" if is_hybrid(setup.model) else "pretrain_gpt.py"
    return Job(
        name=f"{setup.model.name}-megatron", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node, files={MAIN_FILE: text},
        command=f"{torchrun(setup.num_nodes, setup.gpus_per_node)}"
                f'  "${CHECKOUT}/{script}" $(sed \'/^#/d\' "$here/{MAIN_FILE}")',
        environment=environment(setup, _N),
        needs={CHECKOUT: "the folder of a Megatron-LM checkout"},
        notes=(*setup.model.assumptions, *document_degrees.notes(setup)), example=_OWN,
    )  # fmt: skip


def _small_moments(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] > 0) | (problem.workload.optimizer != "adamw-bf16"))


def rules(target: str) -> tuple[Rule, ...]:
    """Rules of Megatron Core, which hold for every front end."""
    return (
        only(target, "schedule", ("1f1b", "interleaved"), "Megatron has no {schedule_name} schedule"),
        Rule(f"{target}: interleaving", ("pp", "dp", "micro_batch", "schedule"), _groups,
             "interleaved needs at least pp {pp} micro-batches, and there are {m:g}"),
        Rule(f"{target}: zero", ("pp", "zero"), _sharding,
             "z{zero} is Megatron-FSDP, planned without a pipeline (pp {pp})"),
        Rule(f"{target}: recompute_modules", ("recompute_modules",), _modules,
             "Megatron recomputes activation functions only in expert layers (moe_act)"),
        Rule(f"{target}: expert blocks", ("recompute_modules",), _expert_blocks,
             "Megatron recomputes the shared experts with the routed ones (moe)"),
        Rule(f"{target}: recompute_layers", ("schedule", "recompute_layers"), _per_chunk,
             "--recompute-num-layers counts per chunk, a plan {recompute_layers} layers from the first chunk on"),
        Rule(f"{target}: etp and biases", ("etp",), _biased_experts,
             "experts with biases are not split over etp {etp}"),
        Rule(f"{target}: context and windows", ("cp", "cp_algorithm"), _windowed_context,
             "cp {cp} by {algorithm}: TransformerEngine has sliding windows only with allgather and ulysses"),
        Rule(f"{target}: context and sinks", ("cp", "cp_algorithm"), _context_with_sinks,
             "cp {cp} by {algorithm}: TransformerEngine has attention sinks only with ulysses"),
        only(target, "offload", ("none", "opt"),
             "Megatron offloads named inputs or whole layers without recomputation, not all saved activations"),
        Rule(f"{target}: offload", ("zero", "offload"), _host_optimizer,
             "--optimizer-cpu-offload is planned with the distributed optimizer only (z1)"),
        *offload.rules(target),
        *switch_rules.switch_rules(target),
        Rule(f"{target}: optimizer", ("zero",), _small_moments,
             "--use-precision-aware-optimizer, for moments in bf16, needs the distributed optimizer (z1)"),
        *muon_rules(target),
        *hybrid_rules(target),
        *rules_of(target, axes=offload.FIELDS),
    )  # fmt: skip


# Arguments that a user adds to launch.sh. The parser needs them.
_USER_ARGUMENTS = ("--tokenizer-type", "NullTokenizer", "--mock-data", "--lr", "1e-4", "--train-iters", "10")


def _parser_case(files: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    lines = (line for line in files[MAIN_FILE].splitlines() if not line.startswith("#"))
    words = [word for line in lines for word in line.split()]
    return {"argv": [*words, *_USER_ARGUMENTS], **machine(files, setup)}


def checkout(environment: Mapping[str, str]) -> str | None:
    """The checkout of Megatron-LM that MEGATRON_PATH names."""
    path = environment.get(CHECKOUT, "")
    return path if path and (Path(path) / "megatron" / "training").is_dir() else None


def _read_only(facts: Facts) -> dict[str, Any] | None:
    readers = (deepspeed_experts, multimodal, encoders, engine_json)
    return next((fields for reader in readers if (fields := reader.compared_fields(facts))), None)


CONFIG = LaunchConfig(
    main_file=MAIN_FILE,
    release=document_degrees.release,
    read=read_arguments,
    table=table,
    conflicts=conflicts,
    import_format="megatron-args",
    import_hint="a file of options, or the shell script that starts pretrain_gpt.py",
    prices=PRICES,
    reading=Reading(older=OLDER, modernise=modernise, changes=CHANGES,
                    exclusive=EXCLUSIVE, harmless=HARMLESS, other_program=other_program),
    read_together=read_scripts,
    read_only=_read_only,
    stack_of=lambda facts: str(facts.get(engine_json.STACK, "")),
    parser=FrameworkParser(
        script=Path(__file__).with_name("parser.py"), case=_parser_case, modules=("torch",), source=checkout
    ),
)


def _cannot_run(setup: Setup, options: OptionList | None) -> list[tuple[tuple[str, ...], str]]:
    reasons = delta_net.cannot_run(setup, options) + switch_rules.cannot_run(setup, options)
    return reasons + document_degrees.cannot_run(setup, options)


TARGET = Target(
    _N,
    "Megatron-LM (pretrain_gpt.py)",
    "megatron-core",
    "Megatron-LM d98e8a64 (2026-08-22), training/arguments.py and core/transformer/transformer_config.py",
    stages="layers",
    rules=rules(_N),
    axes=offload.axes,
    mixed_lengths=("hybrid", "dynamic"),
    trainer=Trainer(framework="Megatron-LM", config=CONFIG, job=job, cannot_build=cannot_build, cannot_run=_cannot_run,
                    techniques=layer_inputs.CAN),
)  # fmt: skip
