"""The training part of AReaL's YAML: the actor of GRPO and PPO, or the model of SFT, on FSDP2 or Megatron-Core.

Source: AReaL 59c1043a (2026-07-21), areal/api/cli_args.py (names, defaults), areal/api/alloc_mode.py (degrees as text),
areal/engine/fsdp_utils/parallel.py and megatron_engine.py (layouts), areal/utils/data.py (micro-batches by tokens).
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

from ....errors import InputError
from ....profiles.io.document import Document
from .. import adapter_choices, cpu_offload
from ..adapters import LORA, facts_of_core, facts_of_model
from ..argv import Arguments
from ..import_format import Compared, on_stack
from ..megatron.options import TABLE
from ..model_names import known_model
from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading
from . import transformers_family as family
from .hydra import CONFIG, from_config_script
from .interpolation import resolved
from .reader import Reader, noted, precision_by, reads, value, whole_micro_batch

_ACTOR, _CORE = "actor.", "actor.megatron."
_PLACES = ("actor.backend", "allocation_mode")
_PATH, _RECOMPUTES, _HOST = f"{_ACTOR}path", f"{_ACTOR}gradient_checkpointing", f"{_ACTOR}fsdp.offload_params"
_VIRTUAL = f"{_CORE}virtual_pipeline_parallel_size"
_RECOMPUTE = {f"{_CORE}recompute_{name}": f"--recompute-{name.replace('_', '-')}"
              for name in ("granularity", "method", "num_layers", "modules")}  # fmt: skip
_RECOMPUTED = {f"{_CORE}recompute_granularity": "full", f"{_CORE}recompute_method": "uniform",
               f"{_CORE}recompute_num_layers": 1}  # fmt: skip
_SHARDED = f"{_CORE}ddp.use_distributed_optimizer"
_TOKENS, _COUNT = f"{_ACTOR}mb_spec.max_tokens_per_mb", f"{_ACTOR}mb_spec.n_mbs"
_PROMPT, _BATCH = "train_dataset.max_length", "train_dataset.batch_size"
_ANSWER, _SAMPLES, _UPDATES = "gconfig.max_new_tokens", "gconfig.n_samples", f"{_ACTOR}ppo_n_minibatches"
_LORA = (f"{_ACTOR}use_lora", f"{_ACTOR}lora_rank", f"{_ACTOR}target_modules")
_REDUCES = "grad_reduce_dtype"
_DTYPE, _OPTIMIZER = f"{_ACTOR}dtype", f"{_ACTOR}optimizer.type"
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd"}
_LAYOUT = ("tp", "sequence_parallel", "cp", "cp_algorithm", "pp", "schedule", "vpp", "stages", "ep", "etp", "zero",
           "shard", "recompute", "offload", "interleaving_group")  # fmt: skip
# An engine that answers, in a text of degrees; `.` and `m` are of older releases.
_ANSWERS = re.compile(r"(sglang|vllm)(\[\w+\])?[:.]([dptm]\d+)+")
_APART = re.compile(r"(?:(\w+)(?:\[(\w+)\])?:)?\(?attn:((?:[dptc][1-9]\d*)+)\|ffn:((?:[dpte][1-9]\d*)+)\)?")
_DENSE = re.compile(r"(?:(\w+)(?:\[(\w+)\])?:)?((?:[dptce][1-9]\d*)+)")
# Blocks of the first releases (0.1, 0.2), whose trainer was another.
_FIRST = ("exp_ctrl", "actor_train")


def degrees(text: str) -> dict[str, Any] | None:
    """The degrees of training in a text such as `sglang:d4+megatron:d2p2t4`: backend, and tp, pp, cp, ep, etp, dp.

    None where it trains nothing, or several models under names without `actor`. Raises InputError for other words.
    """
    rest = _ANSWERS.sub("", text.replace(" ", ""))
    found = [(one, _sizes(one[4], "ffn")) for one in _APART.finditer(rest)]
    found += [(one, {}) for one in _DENSE.finditer(_APART.sub("", rest))]
    if _DENSE.sub("", _APART.sub("", rest)).strip("+|()"):
        raise InputError(f"`{text}` is no text of degrees", hint="such as fsdp:d8 or megatron:d2p2t4")
    if len(found) > 1:
        found = [each for each in found if each[0][2] == "actor"]
    if len(found) != 1:
        return None
    match, experts = found[0]
    out = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 1} | _sizes(match[3], "attn") | experts
    named = match[1] or ("megatron" if out["pp"] * out["ep"] > 1 or experts else "fsdp")  # by older releases
    if named == "fsdp" and out["pp"] * out["ep"] > 1:
        raise InputError(f"`{text}`: FSDP2 has neither stages nor experts over ranks", hint="such as megatron:d2p2t4")
    return {"backend": named, **out}


def _sizes(text: str, part: str) -> dict[str, int]:
    names = {"d": "dp", "p": "pp", "t": "tp", "c": "cp", "e": "ep"}
    if part == "ffn":
        names = {"t": "etp", "e": "ep"}
    return {names[letter]: int(size) for letter, size in re.findall(r"([a-z])(\d+)", text) if letter in names}


def _stated(settings: Settings) -> dict[str, Any]:
    """The degrees of the actor."""
    name = next((name for name in _PLACES if settings.get(name)), "")
    if not name:
        raise NoCounterpartError("no option states the degrees of the actor",
                                 hint=f"such as {_PLACES[0]}: fsdp:d8")  # fmt: skip
    found = degrees(str(settings[name]))
    if found is None or found["backend"] not in ("fsdp", "megatron"):
        raise NoCounterpartError(f"{name} `{settings[name]}`: no actor on FSDP2 or Megatron-Core is in it")
    return found


def _layout(settings: Settings, facts: Facts) -> Facts:
    found = _stated(settings)
    if found["backend"] == "megatron":
        return _on_core(settings, found)
    full = {"mode": "full" if settings.get(_RECOMPUTES) else "none"}
    ring = {"cp_algorithm": "ulysses"} if found["cp"] > 1 else {}
    host = cpu_offload.of_stage(3, "fsdp") if settings.get(_HOST) else {"offload": "none"}
    return {"pp": 1, "vpp": 1, "schedule": "1f1b", "ep": 1, "etp": 1, "zero": 3, "tp": found["tp"], "cp": found["cp"],
            "sequence_parallel": found["tp"] > 1, "recompute": full, **ring, **host}  # fmt: skip


def _on_core(settings: Settings, found: dict[str, Any]) -> Facts:
    """The layout by the table of Megatron-LM."""
    arguments: Settings = {
        "--tensor-model-parallel-size": found["tp"], "--pipeline-model-parallel-size": found["pp"],
        "--context-parallel-size": found["cp"], "--sequence-parallel": found["tp"] > 1,
        "--use-distributed-optimizer": settings.get(_SHARDED, True),
    }  # fmt: skip
    if found["pp"] > 1 and settings.get(_VIRTUAL, 1) > 1:
        arguments["--num-virtual-stages-per-pipeline-rank"] = settings[_VIRTUAL]
    if settings.get(_RECOMPUTES):
        given = _RECOMPUTED | {name: settings[name] for name in _RECOMPUTE if name in settings}
        arguments |= {_RECOMPUTE[name]: each for name, each in given.items() if each is not None}
    if (spec := known_model(str(settings.get(_PATH, "")))) is not None:
        arguments["--num-layers"] = spec.num_layers
    routed = next((kind.feed_forward for kind in spec.kinds if kind.is_moe), None) if spec is not None else None
    if routed is not None or found["ep"] > 1:
        arguments |= {"--num-experts": getattr(routed, "experts", found["ep"]),
                      "--expert-model-parallel-size": found["ep"],
                      "--expert-tensor-parallel-size": found["etp"]}  # fmt: skip
    known = TABLE.read(arguments)
    return {name: known[name] for name in _LAYOUT if name in known}


def _length(settings: Settings, facts: Facts) -> Facts:
    """The longest sequence: of a prompt and its answer where the actor answers."""
    prompt, answer = settings.get(_PROMPT), settings.get(_ANSWER)
    if answer is None:
        return {"workload.seq_len": prompt} if prompt else {}
    beside = "" if prompt else ", without the prompt, whose limit is not stated"
    tokens = answer + (prompt or 0)
    told = f"sequences are priced at their longest: {tokens} tokens{beside}"
    return {"workload.seq_len": tokens} | noted(facts, told)


def _batch(settings: Settings, facts: Facts) -> Facts:
    """The sequences of an optimizer step, and those of a micro-batch, which tokens limit."""
    if wrong := next((name for name in (_UPDATES, _COUNT) if settings.get(name, 1) < 1), ""):
        raise InputError(f"{wrong}: `{settings[wrong]}` is not 1 or more")
    batch = settings.get(_BATCH, 1) * settings.get(_SAMPLES, 1) // settings.get(_UPDATES, 1)
    out: Facts = {"workload.global_batch": batch}
    copies, length = _stated(settings)["dp"], facts.get("workload.seq_len")
    tokens = settings.get(_TOKENS)
    if tokens is None or length is None:
        share = -(-batch // copies // settings.get(_COUNT, 1))
        return out | {"micro_batch": whole_micro_batch(share, batch, copies)}
    out["micro_batch"] = whole_micro_batch(tokens // max(length, 1), batch, copies)
    return out | noted(facts, f"{_TOKENS}: {tokens} tokens are priced as {out['micro_batch']} sequences of {length}")


def _optimizer(settings: Settings, facts: Facts) -> Facts:
    if (name := str(settings.get(_OPTIMIZER, "adam"))) not in _OPTIMIZERS:
        raise NoCounterpartError(f"{_OPTIMIZER} `{name}` has no counterpart in a plan")
    return {"workload.optimizer": _OPTIMIZERS[name]}


def _lora(settings: Settings, facts: Facts) -> Facts:
    """The adapters of peft on FSDP2, those of Megatron-Bridge on Megatron-Core."""
    on, rank, modules = _LORA
    if not settings.get(on):
        return {}
    given = settings.get(modules) or ["all-linear"]
    if _stated(settings)["backend"] == "megatron":
        spec = known_model(str(settings.get(_PATH, "")))
        return facts_of_core(settings.get(rank, 32), modules, given,
                             {**facts, **(facts_of_model(spec) if spec is not None else {})})  # fmt: skip
    words = {"all-linear": adapter_choices.BY_PEFT}
    return family.adapters(settings.get(rank, 32), modules, "all-linear" if given == ["all-linear"] else given, "bf16",
                           words)  # fmt: skip


def _prepared(document: Document, arguments: Arguments) -> Document:
    """The document without references; the ranks of the actor."""
    for option in (CONFIG, "defaults"):
        if name := document.at((option,)):
            names = name if isinstance(name, str) else ", ".join(map(str, name))
            arguments.gaps.append(document.problem((option,), f"options are in {names}: give it as a further FILE"))
            document = replace(document, data={key: each for key, each in document.data.items() if key != option})
    actor = document.at(("actor",))
    if isinstance(actor, dict) and str(actor.get(_REDUCES)) in ("float32", "None"):  # the default, as plans have it
        document = replace(document, data={**document.data, "actor": {**actor, _REDUCES: None}})
    found, open_texts = resolved(document)
    if any(found.at((name,)) for name in _FIRST):
        raise InputError.of([document.problem((), "is of AReaL 0.1 or 0.2, whose trainer was another",
                                              "give a config of AReaL 0.3 or newer")])  # fmt: skip
    for path, text in open_texts.items():
        arguments.doubt(".".join(path), f"`{text}` is set when it runs", document.line(path), document.file(path),
                        "give its value: --arg OPTION=VALUE")  # fmt: skip
    if found.at(("gconfig",)):
        arguments.notes.append("not read: generation, reference, critic and rewards")
    text = next((str(each) for name in _PLACES if (each := found.at(tuple(name.split("."))))), "")
    try:
        stated = degrees(text) if text else None
    except InputError as error:
        raise InputError.of([document.problem(tuple(_PLACES[0].split(".")), error.message, error.hint or "")]) from None
    if stated is not None:
        ranks = prod(stated[name] for name in ("dp", "tp", "pp", "cp"))
        per_node = found.at(("cluster", "n_gpus_per_node")) or 8
        size = per_node if isinstance(per_node, int) and ranks % per_node == 0 else ranks
        arguments.ranks |= {"num_nodes": ranks // size, "gpus_per_node": size}
    return found


def _compared(facts: Facts) -> Compared:
    """Layouts of Megatron-LM; those of FSDP2 with the same ranks of a sequence, whose weights it always shards."""
    if facts["zero"] < 2:
        return on_stack("megatron-core") if LORA in facts else Compared("megatron")
    return Compared("any", {"fix": {"pp": 1, "ep": 1, "cp": facts["cp"], "zero": 3}, "stack": "torchtitan"})


READER = Reader(
    name="areal",
    framework="AReaL",
    version="1.0.4",
    commit="59c1043a",
    kinds={**dict.fromkeys((*_PLACES, _PATH, _DTYPE, _OPTIMIZER, f"{_CORE}recompute_granularity",
                            f"{_CORE}recompute_method"), "str"),
           **dict.fromkeys((_VIRTUAL, f"{_CORE}recompute_num_layers", _TOKENS, _COUNT, _PROMPT, _BATCH, _ANSWER,
                            _SAMPLES, _UPDATES, _LORA[1]), "int"),
           **dict.fromkeys((_RECOMPUTES, _HOST, _SHARDED, _LORA[0]), "bool"),
           f"{_CORE}recompute_modules": "any", _LORA[2]: "any"},
    entries=(
        value("model_name", _PATH),
        reads(_LAYOUT, (*_PLACES, _RECOMPUTES, _HOST, _VIRTUAL, *_RECOMPUTE, _SHARDED), _layout),
        reads(("workload.seq_len",), (_PROMPT, _ANSWER), _length),
        reads(("micro_batch", "workload.global_batch"), (_TOKENS, _COUNT, _BATCH, _SAMPLES, _UPDATES), _batch),
        precision_by(_DTYPE),
        reads(("workload.optimizer",), (_OPTIMIZER,), _optimizer),
        reads((LORA,), _LORA, _lora),
    ),
    reading=Reading(
        changes={
            rf"{_ACTOR}enable_tree_training": "prefixes that sequences share",
            rf"{_CORE}(use_torch_fsdp2|use_custom_fsdp)": "another layout",
            rf"{_CORE}(use_precision_aware_optimizer|(main_(grads|params)|exp_avg(_sq)?)_dtype)":
                "states of another size",
            rf"{_CORE}(fp8_config(\..*)?|enable_mtp|distribute_saved_activations)": "layers or activations that differ",
            rf"{_ACTOR}(optimizer_dtype|grad_reduce_dtype)": "states or messages of another size",
            rf"{_ACTOR}fsdp\.per_layer_optim_step": "updates layer by layer",
            r"teacher(\..*)?": "a teacher beside the model that learns",
        },
        harmless=(
            r"^(experiment_name|trial_name|seed|enable_offload|total_train_\w+|tokenizer_path|cluster|scheduler|launcher|"
            r"rollout|async_training|(eval_)?gconfig|ref|critic|sglang|vllm|train_dataset|valid_dataset|saver|"
            r"checkpointer|recover|evaluator|stats_logger|perf_tracer|server_only|dynamic_bs|weight_update_mode|"
            r"workflow|reward|agent|env)|^actor\.(?!enable_tree|optimizer_dtype|grad_reduce|megatron\.|fsdp\.)|"
            r"^actor\.fsdp\.(?!per_layer)|"
            r"^actor\.megatron\.(?!use_(torch|custom)_fsdp|use_precision|main_|exp_avg|fp8|enable_mtp|distribute)"
        ),
    ),
    document=from_config_script,
    base=(CONFIG, "defaults"),
    commands=True,
    prepared=_prepared,
    compared=_compared,
)  # fmt: skip
