"""Context parallelism by document: Megatron gives each document a degree by its length.

Two rules. Hybrid context parallelism, Megatron-LM d98e8a64: training/arguments.py:1404 (what it excludes),
pretrain_gpt.py and core/utils.py:2613 (only the documents of --sft go to groups of their own),
training/datasets/sft_dataset.py (packs, and how documents are padded). Dynamic context parallelism, branch dev at
d48bd6be: training/arguments.py:1541 (what it excludes), core/datasets/data_schedule.py (the scheduler),
training/datasets/varlen_dataset.py (a line of the data is a document). There the option of the former is deprecated and
reaches the configuration of the model alone.
"""

from __future__ import annotations

from ....cost_models.cuda_graphs import GRAPH_CODE
from ..option_lists import OptionList
from ..options import Settings
from ..setup import Documents, Setup

HYBRID, DYNAMIC = "--hybrid-context-parallel", "--dynamic-context-parallel"
TOKENS = "--max-seqlen-per-dp-cp-rank"
_LOSS, _PACKS, _DOCUMENTS = "--calculate-per-token-loss", "--sft", "--use-varlen-dataset"
_ALIGNMENT = "--pad-packed-seq-alignment"  # with it the dev branch has graphs of packs
_SCHEDULER, _PACKER = "--sequence-packing-scheduler", "default_dynamic_cp"
_OPTION = {"hybrid": HYBRID, "dynamic": DYNAMIC}
BRANCH = "0.19.0+dev"  # the list of the branch dev


def release(setup: Setup) -> str | None:
    """The dev branch for its rule; else the newest release."""
    return BRANCH if setup.documents is not None and setup.documents.rule == "dynamic" else None


def settings(setup: Setup) -> Settings:
    """The options of a plan whose documents have degrees of their own; none for others."""
    documents = setup.documents
    if documents is None:
        return {}
    given: Settings = {_OPTION[documents.rule]: True, TOKENS: documents.rank_tokens, _LOSS: True}
    return given | ({_PACKS: True} if documents.rule == "hybrid" else {_SCHEDULER: _PACKER, _DOCUMENTS: True})


def cannot_run(setup: Setup, options: OptionList | None) -> list[tuple[tuple[str, ...], str]]:
    """(fields, sentence) per part of a layout, and per release, with which the rule of a plan cannot run."""
    if setup.documents is None:
        return []
    layout, option = setup.layout, _OPTION[setup.documents.rule]
    reasons = {
        (("pp",), f"pp {layout.pp} is a pipeline"): layout.pp > 1 and option == HYBRID,
        (("zero",), f"z{layout.zero} is Megatron-FSDP"): layout.zero > 1,
        (("cuda_graphs",), "steps are CUDA graphs"): layout.cuda_graphs != GRAPH_CODE["none"],
    }
    out = [(fields, f"{text}, which {option} excludes") for (fields, text), applies in reasons.items() if applies]
    return out + [((), text) for text in _other_branch(setup.documents, options)]


def _other_branch(documents: Documents, options: OptionList | None) -> list[str]:
    if options is None or (DYNAMIC in options.options) == (documents.rule == "dynamic"):
        return []
    if documents.rule == "dynamic":
        return [f"release {options} has no {DYNAMIC}, which is of the branch dev: --target-version {BRANCH}"]
    return [f"release {options} has its dynamic rule in place of {HYBRID}: plan with --lengths-rule dynamic"]


def notes(setup: Setup) -> tuple[str, ...]:
    """The form that the data must have, and how documents are padded."""
    documents = setup.documents
    if documents is None:
        return ()
    if documents.rule == "dynamic":
        return (f"{_DOCUMENTS} reads a document from each line of the data (text, messages, or question and answer) "
                f"and pads it to a multiple of {documents.multiple:,} tokens; TransformerEngine is 2.9 or newer",)
    packs, tokens = setup.workload.global_batch, setup.workload.seq_len
    lines = f"{packs:,} line{'s' if packs > 1 else ''}"
    of_packs = (f"{_PACKS} reads packs: a line of the data holds documents of {tokens:,} tokens together, and {lines} "
                f"about {documents.per_step:,} documents")  # fmt: skip
    multiple, padded = documents.multiple, 2 * setup.layout.cp
    if multiple == padded:
        return (of_packs,)
    return (of_packs, f"pad each document to a multiple of {multiple:,} tokens: {_PACKS} pads to {padded:,}")


def conflicts(given: Settings) -> list[tuple[str, str]]:
    """Options that validate_args, training/initialize.py or the configuration of the model refuse beside a rule, and
    those that it needs."""
    return [problem for option in (HYBRID, DYNAMIC) if option in given for problem in _conflicts(option, given)]


def _conflicts(option: str, given: Settings) -> list[tuple[str, str]]:
    needs = [TOKENS, _LOSS] if option == DYNAMIC else [_LOSS, _PACKS, TOKENS]
    out = [(option, f"needs {name}") for name in needs if name not in given]
    if option == DYNAMIC and not {_PACKS, _DOCUMENTS} & set(given):
        out.append((option, f"needs {_DOCUMENTS} or {_PACKS}"))
    loader, packer = given.get("--dataloader-type", "single"), given.get(_SCHEDULER, _PACKER)
    refused = {
        "a pipeline": option == HYBRID and given.get("--pipeline-model-parallel-size", 1) > 1,
        "Megatron-FSDP": "--use-megatron-fsdp" in given,
        "CUDA graphs": "--enable-cuda-graph" in given or (
            given.get("--cuda-graph-impl", "none") != "none" and not (option == DYNAMIC and _ALIGNMENT in given)),
        "--tp-comm-overlap, whose buffers have the tokens of --seq-length": "--tp-comm-overlap" in given,
        f"--dataloader-type {loader}": loader != "single",
        f"{_SCHEDULER} {packer}": option == DYNAMIC and packer != _PACKER,
        f"{_PACKS} and {_DOCUMENTS}": {_PACKS, _DOCUMENTS} <= set(given),
    }  # fmt: skip
    return out + [(option, f"cannot be given together with {name}") for name, is_given in refused.items() if is_given]
