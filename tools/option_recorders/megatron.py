"""Options of Megatron-LM: its built argument parser."""

from __future__ import annotations

import argparse
import enum
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

from .lines import values_in

MADE_FROM = "the parser of megatron/training/arguments.py"
# Options that the parser takes as free strings -> the file that reads them, and the values that it may accept. Values
# that the file of the release does not have are left out.
CONSUMERS = {
    "--cp-comm-type": ("megatron/core/transformer/transformer_config.py", "p2p all_gather a2a a2a+p2p"),
    "--recompute-modules": (
        "megatron/core/transformer/transformer_config.py",
        "core_attn moe_act layernorm mla_up_proj mlp moe shared_experts gdn_norm_out gdp_in_proj gdp_qkv mhc",
    ),
    "--offload-modules": (
        "megatron/core/transformer/transformer_config.py",
        "attn_norm qkv_linear core_attn attn_proj mlp_norm expert_fc1 moe_act fused_group_mlp gdp_qkv",
    ),
    "--moe-router-load-balancing-type": (
        "megatron/core/transformer/transformer_config.py",
        "aux_loss seq_aux_loss global_aux_loss sinkhorn none",
    ),
}
_KINDS = {"int": "int", "float": "float", "str": "str", "bool": "bool", "None": "str"}


def _long_options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, list[str]]]:
    """(option, kind, values) of every long option."""
    for action in parser._actions:
        name = getattr(action.type, "__name__", str(action.type))
        kind = "flag" if action.nargs == 0 else _KINDS.get(name, "str")
        if action.nargs in ("*", "+") or (isinstance(action.nargs, int) and action.nargs > 1):
            kind += "+"
        values = [value.name if isinstance(value, enum.Enum) else str(value) for value in action.choices or ()]
        for option in action.option_strings:
            if option.startswith("--") and option != "--help":
                yield option, kind, values


def parser_of() -> argparse.ArgumentParser:
    """The parser of the Megatron-LM on the path."""
    import torch
    import typing_extensions

    if sys.version_info < (3, 12):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]  # all of 3.12 that it needs
    # Megatron asks for the capability while it builds its options, also without a GPU.
    torch.cuda.get_device_capability = lambda *args, **kwargs: (9, 0)
    from megatron.training import arguments

    parser: argparse.ArgumentParser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    return parser


def lines_of(parser: argparse.ArgumentParser, source: Path) -> Iterator[str]:
    """The lines of a parser; source: the checkout of Megatron-LM that it is built by."""
    for option, kind, values in _long_options(parser):
        line = f"{option} {kind}"
        if option in CONSUMERS:
            file, candidates = CONSUMERS[option]
            line += f" {values_in(source / file, candidates)} # {file}"
        elif values:
            line += f" {'|'.join(values)}"
        yield line


def record(source: Path | None) -> list[str]:
    """The lines for a checkout of Megatron-LM."""
    if source is None:
        raise SystemExit("megatron: give a checkout by --source, because no wheel has its argument parser")
    sys.path.insert(0, str(source))
    return list(lines_of(parser_of(), source))
