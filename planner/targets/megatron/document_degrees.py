"""Hybrid context parallelism: Megatron gives each document a degree by its length.

Megatron-LM d98e8a64, training/arguments.py:1404 (what it excludes), pretrain_gpt.py and core/utils.py:2613 (only the
documents of --sft go to groups of their own), training/datasets/sft_dataset.py (packs, and how documents are padded).
"""

from __future__ import annotations

from ....cost_models.cuda_graphs import GRAPH_CODE
from ..options import Settings
from ..setup import Setup

OPTION = "--hybrid-context-parallel"
TOKENS = "--max-seqlen-per-dp-cp-rank"
_NEEDS = ("--calculate-per-token-loss", "--sft", TOKENS)


def settings(setup: Setup) -> Settings:
    """The options of a plan whose documents have degrees of their own; none for others."""
    if setup.documents is None:
        return {}
    return {OPTION: True, TOKENS: setup.documents.rank_tokens, "--calculate-per-token-loss": True, "--sft": True}


def cannot_run(setup: Setup) -> list[tuple[tuple[str, ...], str]]:
    """(fields, sentence) per part of a layout that validate_args refuses beside hybrid context parallelism."""
    layout = setup.layout
    reasons = {
        (("pp",), f"pp {layout.pp} is a pipeline"): layout.pp > 1,
        (("zero",), f"z{layout.zero} is Megatron-FSDP"): layout.zero > 1,
        (("cuda_graphs",), "steps are CUDA graphs"): layout.cuda_graphs != GRAPH_CODE["none"],
    }
    return [(fields, f"{text}, which {OPTION} excludes")
            for (fields, text), applies in reasons.items() if applies and setup.documents is not None]  # fmt: skip


def notes(setup: Setup) -> tuple[str, ...]:
    """What the data must be like."""
    if setup.documents is None:
        return ()
    packs, tokens = setup.workload.global_batch, setup.workload.seq_len
    of_packs = (f"--sft reads packs: a line of the data holds documents of {tokens:,} tokens together, and {packs:,} "
                f"line{'s' if packs > 1 else ''} about {setup.documents.per_step:,} documents")  # fmt: skip
    multiple, padded = setup.documents.multiple, 2 * setup.layout.cp
    if multiple == padded:
        return (of_packs,)
    return (of_packs, f"pad each document to a multiple of {multiple:,} tokens: --sft pads to {padded:,}")


def conflicts(given: Settings) -> list[tuple[str, str]]:
    """Options that validate_args or training/initialize.py refuse beside hybrid context parallelism, and those that it
    needs."""
    if OPTION not in given:
        return []
    out = [(OPTION, f"needs {name}") for name in _NEEDS if name not in given]
    refused = {
        "a pipeline": given.get("--pipeline-model-parallel-size", 1) > 1,
        "Megatron-FSDP": "--use-megatron-fsdp" in given,
        "CUDA graphs": "--enable-cuda-graph" in given or given.get("--cuda-graph-impl", "none") != "none",
        "--tp-comm-overlap, whose buffers have the tokens of --seq-length": "--tp-comm-overlap" in given,
        f"--dataloader-type {given.get('--dataloader-type')}": given.get("--dataloader-type", "single") != "single",
    }  # fmt: skip
    return out + [(OPTION, f"cannot be given together with {name}") for name, is_given in refused.items() if is_given]
