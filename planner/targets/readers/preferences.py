"""Training by preferences and rewards: the sequences that the model learns from in a step.

The step of the model that learns is read, with the pass of a frozen reference of pairs. Generation and rewards, and the
reference beside them, are named and have no price; a plan of post-training has all of them (docs/guides/rl.md).

Sources: TRL f2cd5771, trainer/dpo_trainer.py and experimental/orpo/orpo_trainer.py (chosen and rejected answers of a
batch go through the model together; no second copy of the reference beside adapters), trainer/grpo_trainer.py
(per_device_train_batch_size counts answers). LLaMA-Factory ff6d4d12, train/dpo/workflow.py and
hparams/finetuning_args.py (use_ref_model). Axolotl 067b021c, core/builders/rl.py. Reward models: TRL, trainer/
reward_trainer.py; OpenRLHF 3c3be623, trainer/rm_trainer.py; NeMo-RL 7ea279ab, algorithms/rm.py and dpo.py. ms-swift
3602360a, arguments/rlhf_args.py, megatron/arguments/megatron_args.py and megatron/trainers/grpo_trainer.py (batches
count answers, lengths are those of prompts and of answers).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..argv import Arguments
from ..options import Entry, Facts, Settings
from .reader import noted, reads

# The setting and the fact with the way to learn that a file states.
LEARNS = "learns by"
_ALONE, COMPARED, _REWARDED = "pairs", "pairs and a reference", "rewards"
VALUED = "pairs, as a reward model"
_OF_PAIRS = (_ALONE, COMPARED, VALUED)
_WITHOUT_REFERENCE = ("orpo", "simpo")
# Losses of DPOConfig on pairs; `sigmoid` is its default.
_OF_DPO = ("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_pair",
           "discopop", "apo_zero", "apo_down")  # fmt: skip
# Tokens of an answer in ms-swift, where no option states them.
_ANSWER = 512
# Commands and scripts of TRL, and scripts that people name like them, by the trainer that they start.
_PROGRAMS = {"dpo": re.compile(r"(^|[/_-])dpo([_.-]|$)"), "grpo": re.compile(r"(^|[/_-])grpo([_.-]|$)"),
             "rm": re.compile(r"(^|/)reward(_modeling)?(\.py)?$")}


# Options of generation and rewards, as TRL and ms-swift name them.
_OF_REWARDS = (r"beta|loss_type|num_(generations|iterations)|reward_.*|temperature|top_[pk]|min_p|use_vllm|"
               r"vllm_(?!mode$).*|epsilon(_high)?|scale_rewards|log_completions")  # fmt: skip


def of_axolotl(arguments: Arguments) -> None:
    """`rl` names the way; `rl_adapter_ref_model` loads a reference beside adapters, too. `reward_model` trains one."""
    if arguments.settings.get("reward_model") is True:
        _takes(arguments, VALUED, r"reward_model|center_rewards_coefficient")
    kind = arguments.settings.get("rl")
    if arguments.settings.get("rl_adapter_ref_model") is not True:
        _takes(arguments, _kind(str(kind), ("dpo", "ipo")), r"rl|dpo_.*|orpo_alpha|simpo_gamma|rl_\w+")


def of_factory(arguments: Arguments) -> None:
    """`stage` dpo, with the loss of `pref_loss` (`dpo_loss` up to 0.7), orpo of those releases, or rm. `ref_model` is a
    model of its own."""
    given, options = arguments.settings, r"stage|(pref|dpo|orpo)_(?!bco).*|simpo_gamma"
    if given.get("stage") == "dpo" and not given.get("ref_model"):
        loss = str(given.get("pref_loss") or given.get("dpo_loss") or "sigmoid")
        _takes(arguments, _kind(loss, ("sigmoid", "hinge", "ipo")), options)
    elif given.get("stage") == "orpo":
        _takes(arguments, _ALONE, options)
    elif given.get("stage") == "rm":  # train/rm/trainer.py: a causal model with a head of values beside its own
        _takes(arguments, VALUED, r"stage|reward_model.*|pref_.*")
        arguments.notes.append("stage rm makes logits beside the values, which no loss takes: priced without them and "
                               "their head (6 bytes a token and word)")  # fmt: skip


def of_trl(arguments: Arguments) -> None:
    """The method by its program, or by an option of RewardConfig, DPOConfig (`loss_type`) or GRPOConfig
    (`num_generations`) alone."""
    given = arguments.settings
    if "center_rewards_coefficient" in {*given, *arguments.unknown} or _PROGRAMS["rm"].search(arguments.program):
        _takes(arguments, VALUED, r"center_rewards_coefficient")
        return
    if {"num_generations", "reward_funcs"} & {*given} or _PROGRAMS["grpo"].search(arguments.program):
        _takes(arguments, _REWARDED, rf"{_OF_REWARDS}|mask_truncated_completions|code_\w+|ds3_gather_for_generation|"
               r"generation_(batch_size|kwargs)|steps_per_generation|repetition_penalty|"
               r"ref_model_(sync|mixup)_\w+|sync_ref_model|top_entropy_quantile|(use_)?transformers_(paged|continuous)\w*|"
               r"(entropy|vespo|sapo)_\w+|use_adaptive_entropy|delta|multi_objective_aggregation")
        if given.get("vllm_mode") == "colocate":
            del given["vllm_mode"]
            arguments.notes.append("vllm_mode colocate: the engine is on the GPUs that learn, and its memory is not "
                                   "counted")  # fmt: skip
        return
    losses = given.get("loss_type", "sigmoid" if _PROGRAMS["dpo"].search(arguments.program) else None)
    named = losses if isinstance(losses, list) else [losses]
    if all(loss in _OF_DPO for loss in named):
        before = given.get("precompute_ref_log_probs") is True  # the reference is not there when the model learns
        _takes(arguments, _ALONE if before else COMPARED,
               r"beta|loss_(type|weights)|rpo_alpha|ld_alpha|truncation_mode|use_weighting|precompute_ref_\w+|"
               r"label_smoothing|(f|discopop)_\w+|sync_ref_model|ref_model_(sync|mixup)_\w+")


def of_swift(arguments: Arguments) -> None:
    """`rlhf_type`, dpo where `swift rlhf` is given none (rlhf_args.py). `ref_model` is the model itself, or a gap."""
    given = arguments.settings
    default = "dpo" if re.search(r"(^|/)rlhf(\.py)?$", arguments.program) else None
    if (name := given.get("rlhf_type", default)) is None:
        return
    if given.get("ref_model") == given.get("model"):
        given.pop("ref_model", None)
    losses = given.get("loss_type", "sigmoid")
    known = all(loss in _OF_DPO for loss in (losses if isinstance(losses, list) else [losses]))
    kinds = {"dpo": COMPARED if known else "", "orpo": _ALONE, "simpo": _ALONE, "cpo": _ALONE, "rm": VALUED}
    _takes(arguments, kinds.get(name, ""),
           r"rlhf_type|beta|loss_(type|weights)|(rpo|cpo|ld)_alpha|simpo_gamma|label_smoothing|reference_free|"
           r"center_rewards_coefficient|discopop_tau|f_divergence_type|mcore_ref_(model|adapter)|ref_adapters")


def of_megatron_swift(arguments: Arguments) -> None:
    """`rlhf_type` of `megatron rlhf`, and its GRPO, where an engine elsewhere generates (`vllm_mode: server`)."""
    given = arguments.settings
    if given.get("vllm_mode") == "server":
        del given["vllm_mode"]
    if given.get("rlhf_type") != "grpo" or not isinstance(given.get("max_length"), int):
        of_swift(arguments)
        return
    given["max_length"] += given.pop("max_completion_length", _ANSWER)
    plugins = "|external_plugins" if "reward_funcs" in arguments.unknown else ""  # which define these functions
    _takes(arguments, _REWARDED, rf"rlhf_type|{_OF_REWARDS}|dynamic_sample|overlong_filter|log_entropy|"
                                 rf"generation_batch_size|steps_per_generation{plugins}")  # fmt: skip


def of_nemo(arguments: Arguments) -> None:
    """The block `dpo`, or `rm`, of NeMo-RL's configs."""
    for block, kind, options in (("dpo", COMPARED, r"dpo(\..*)?"),
                                 ("rm", VALUED, r"(rm|policy\.reward_model_cfg)(\..*)?")):
        if any(name.partition(".")[0] == block for name in (*arguments.settings, *arguments.unknown)):
            _takes(arguments, kind, options)


def _kind(name: str, compared: Sequence[str]) -> str:
    """The way to learn of a loss; "" for one that is not read."""
    return _ALONE if name in _WITHOUT_REFERENCE else COMPARED if name in compared else ""


def _takes(arguments: Arguments, kind: str, options: str) -> None:
    """Stores the way, and drops the options that state it."""
    if not kind:
        return
    for name in [*arguments.settings, *arguments.unknown]:
        if re.fullmatch(options, name):
            arguments.lines.setdefault(LEARNS, arguments.lines.get(name, 0))
            arguments.files.setdefault(LEARNS, arguments.files.get(name, ""))
            arguments.settings.pop(name, None)
            arguments.unknown.pop(name, None)
    arguments.unclear = [doubt for doubt in arguments.unclear if not re.fullmatch(options, doubt.field)]
    arguments.settings[LEARNS] = kind


def entry() -> Entry:
    """The batch as sequences: two of each pair. Behind the entries of batch and adapters."""

    def read(settings: Settings, facts: Facts) -> Facts:
        kind = settings.get(LEARNS)
        if kind is None:
            return {}
        if kind == _REWARDED:
            return {LEARNS: kind} | noted(facts, "not read, of rewards: generation, rewards and reference. The step of "
                                                 "the model that learns is priced, on answers at their longest")
        told = "chosen and rejected answers are two sequences: micro-batch and batch count twice those of the file"
        if kind == COMPARED:
            copy = "the pass" if "workload.lora" in facts else "the pass and the weights"
            told += f"; {copy} of the frozen reference {'is' if copy == 'the pass' else 'are'} in the price"
        if kind == VALUED:
            told += "; a reward model gives one value per token in place of logits"
        sizes = ("micro_batch", "batch_per_rank", "workload.global_batch")
        pairs = {name: 2 * facts[name] for name in sizes if name in facts}
        out = {LEARNS: kind, "workload.reference": kind == COMPARED} | pairs
        return out | ({"workload.reward_model": True} if kind == VALUED else {}) | noted(facts, told)

    return reads((LEARNS, "micro_batch", "workload.global_batch", "workload.reference", "workload.reward_model"),
                 (LEARNS,), read)  # fmt: skip


def fixed(facts: Facts) -> Facts:
    """The micro-batch where it is of pairs: a search would part them."""
    return {"micro_batch": facts["micro_batch"]} if facts.get(LEARNS) in _OF_PAIRS else {}


def length_of_answers(settings: Settings) -> int | None:
    """The longest prompt with its answer, of a training by rewards; None where they are not both stated."""
    prompt, answer = (settings.get(f"max_{part}_length") for part in ("prompt", "completion"))
    if settings.get(LEARNS) != _REWARDED or not isinstance(prompt, int) or not isinstance(answer, int):
        return None
    return prompt + answer
