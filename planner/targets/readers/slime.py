"""The training part of slime's scripts: arguments of Megatron-LM, and a batch that the rollouts make.

Source: slime 624b824a (2026-08-21), slime/utils/arguments.py (names, defaults, the batch of a rollout)
and slime/backends/megatron_utils/arguments.py (set_default_megatron_args).
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

from ....errors import FieldProblem
from ..argv import Arguments
from ..import_format import Compared, Format
from ..megatron import encoders, mindspeed, multimodal
from ..megatron.not_read import CHANGES
from ..megatron.target import CONFIG as MEGATRON
from ..option_lists import Option, OptionList, option_list
from ..options import Table
from ..reading import Reading
from .reader import whole_micro_batch

_VERSION, _COMMIT = "2026.08", "624b824a"
_NUMBERS = ("--actor-num-nodes", "--actor-num-gpus-per-node", "--rollout-batch-size", "--n-samples-per-prompt",
            "--num-steps-per-rollout", "--max-tokens-per-gpu", "--rollout-max-context-len", "--rollout-max-prompt-len",
            "--rollout-max-response-len")  # fmt: skip
_OWN = {
    **{name: Option(name, "int") for name in _NUMBERS},
    "--use-dynamic-batch-size": Option("--use-dynamic-batch-size", "flag"),
    "--advantage-estimator": Option("--advantage-estimator", "str"),
    "--train-backend": Option("--train-backend", "str"),
}  # fmt: skip
_CHANGES = {
    **CHANGES,
    r"--(only-train|freeze)-params-name-list|--freeze-indexer": "parts of the model that do not learn",
    r"--custom-(model-provider|megatron-init)-path": "a model or layers that another file makes",
    r"--(megatron|custom)-config-path": "options in another file",
    r"--debug-rollout-only": "it does not train",
    r"--use-stateless-adam": "an optimizer whose states have another size",
    r"--megatron-deepgemm-.*": "other kernels",
    r"--allgather-cp": "context parallelism of another kind",
}
# Generation, rewards, reference and everything around the training.
_ELSEWHERE = (
    r"^--((no-)?offload|(eval-)?rollout|prefill-num-servers|eval|wandb|sglang|router|rm|reward|group-rm|n-samples|over-sampling|dynamic-sampling|partial-rollout|"
    r"num-rollout|num-epoch|prompt|input|label|metadata|tool|multimodal|apply-chat|data-source|colocate|"
    r"num-gpus-per-node|update-weight|release-train|keep-old-actor|use-fault|kl|use-(kl|wandb|tensorboard|tis|opd|opsm|rollout|unbiased)|"
    r"eps-clip|entropy|gamma|lambd|normalize-adv|disable-(compute|grpo|rewards|rollout|wandb)|loss-(type|mask)|tis|opd|"
    r"opsm|ref|custom|critic|num-critic|value-clip|advantage|use-routing|balance|log|hf-checkpoint|model-name|buffer|"
    r"mask-offpolicy|start-rollout|train-env|ci|check-weight|get-mismatch|reset-opt|http-proxy|use-distributed-post|"
    r"skip-eval|fetch|min-batch|tb|memory|record|qwen-gdn|enable-mtp|data-pad|dump)(-|$)"
)
_LOGITS = "--recompute-loss-function"


def _modernise(arguments: Arguments) -> None:
    """Brings ranks, length and batch into the arguments of Megatron-LM."""
    given = arguments.settings
    first = next(iter(given), "")
    if first and not any(name in _OWN or name.startswith("--rollout") for name in arguments.lines):
        text, hint = "the script has no option of slime", "a script of Megatron-LM: `import megatron-args`"
        arguments.problems.append(FieldProblem(text, file=arguments.files[first], hint=hint))
    if given.pop("--train-backend", "megatron") != "megatron":
        _gap(arguments, "--train-backend", "another engine than Megatron-LM")
    nodes, per_node = given.pop("--actor-num-nodes", 1), given.pop("--actor-num-gpus-per-node", 8)
    arguments.ranks = {"num_nodes": nodes, "gpus_per_node": per_node}
    _length(arguments)
    _batch(arguments, nodes * per_node)
    if given.pop("--advantage-estimator", "grpo") == "ppo":
        arguments.notes.append("the critic is trained beside the actor: the actor alone is priced")
    if _LOGITS in arguments.unknown:
        del arguments.unknown[_LOGITS]
        arguments.notes.append(f"{_LOGITS}: priced as without")
    aside = [name for name in arguments.unknown if re.search(_ELSEWHERE, name) and not any(
        re.fullmatch(pattern, name) for pattern in _CHANGES)]  # fmt: skip
    for name in aside:
        del arguments.unknown[name]
    if aside:
        arguments.notes.append(f"not read, of generation, rewards and reference: {', '.join(aside)}")
    for name in (*_NUMBERS, "--use-dynamic-batch-size"):
        given.pop(name, None)
    if not given.get("--fp16"):  # set_default_megatron_args
        given["--bf16"] = True
    given["--use-distributed-optimizer"] = True
    MEGATRON.reading.modernise(arguments)


def _length(arguments: Arguments) -> None:
    """The longest sequence of a rollout is the length that is priced."""
    given = arguments.settings
    prompt, response = given.get("--rollout-max-prompt-len"), given.get("--rollout-max-response-len")
    name = "--rollout-max-context-len" if "--rollout-max-context-len" in given else "--rollout-max-response-len"
    tokens = given.get("--rollout-max-context-len", (prompt or 0) + response if response else None)
    if tokens is None:
        return
    _put(arguments, "--seq-length", tokens, name)
    beside = "" if prompt or name.endswith("context-len") else ", without the prompt, whose limit is not stated"
    arguments.notes.append(f"sequences are priced at their longest: {tokens} tokens{beside}")


def _batch(arguments: Arguments, ranks: int) -> None:
    """The sequences of an optimizer step, and of a micro-batch where tokens limit it."""
    given = arguments.settings
    steps, prompts = given.get("--num-steps-per-rollout"), given.get("--rollout-batch-size")
    if steps and prompts:
        total = prompts * given.get("--n-samples-per-prompt", 1) // steps
        if given.get("--global-batch-size", total) != total:
            text = f"{given['--global-batch-size']} is not {total}, the sequences of a rollout by its {steps} steps"
            line = arguments.lines.get("--global-batch-size", 0)
            path = arguments.files.get("--global-batch-size", "")
            arguments.problems.append(FieldProblem(text, "--global-batch-size", path, line, "keep one"))
        _put(arguments, "--global-batch-size", total, "--num-steps-per-rollout")
    given.setdefault("--micro-batch-size", 1)
    length, limit = given.get("--seq-length"), given.get("--max-tokens-per-gpu")
    arguments.by_tokens = bool(given.get("--use-dynamic-batch-size"))
    if given.get("--use-dynamic-batch-size") and length and limit:
        tokens = limit * given.get("--context-parallel-size", 1)
        degrees = ("--tensor-model-parallel-size", "--context-parallel-size", "--pipeline-model-parallel-size")
        copies = ranks // max(prod(given.get(name, 1) for name in degrees), 1)
        size = whole_micro_batch(tokens // max(length, 1), given.get("--global-batch-size", 0), copies)
        _put(arguments, "--micro-batch-size", size, "--max-tokens-per-gpu")
        arguments.notes.append(f"--use-dynamic-batch-size: {tokens} tokens are priced as "
                               f"{given['--micro-batch-size']} sequences of {length}")  # fmt: skip


def _put(arguments: Arguments, name: str, value: Any, source: str) -> None:
    """Sets an argument at the place of the option that states it."""
    arguments.settings[name] = value
    arguments.lines[name] = arguments.lines.get(source, 0)
    arguments.files[name] = arguments.files.get(source, "")


def _gap(arguments: Arguments, name: str, text: str) -> None:
    place = arguments.files.get(name, ""), arguments.lines.get(name, 0)
    arguments.gaps.append(FieldProblem(text, name, *place))


_CONFIG = replace(MEGATRON, reading=Reading(
    older={**MEGATRON.reading.older, **_OWN}, modernise=_modernise, changes=_CHANGES,
    exclusive=MEGATRON.reading.exclusive, harmless=MEGATRON.reading.harmless, forked="slime"))  # fmt: skip


def _options(version: str | None) -> tuple[OptionList, str]:
    """The newest options of Megatron-LM, under slime's own release."""
    options, _ = option_list("megatron")
    other = f"slime {version}: read by the options of {_VERSION}"
    return replace(options, version=_VERSION, commit=_COMMIT), other if version not in (None, _VERSION) else ""


def _table(release: OptionList) -> Table:
    """The entries of Megatron-LM, without the encoders and towers of its other programs, and without forks."""
    table = _CONFIG.table(release)
    others = (encoders.ENTRY, multimodal.ENTRY, mindspeed.ENTRY)
    known = ((entry, tuple(name for name in entry.options if name in release.options))
             for entry in table.entries if entry not in others)  # fmt: skip
    return replace(table, entries=tuple(replace(entry, options=options) for entry, options in known))


FORMAT = Format(
    name="slime", framework="slime", option_list=_options, read=_CONFIG.import_files, table=_table,
    compared=lambda facts: Compared("megatron"), hint="is it the script that starts slime's train.py?",
)  # fmt: skip
