"""Writes the option list of a framework into planner/emitters/upstream/: run it with the Python that has the framework.

    python tools/record_upstream.py megatron --source Megatron-LM --version 0.19.0 --commit 5be96267

Lists come from the framework's built parser or dataclasses, never from a search of its text: many options are made.
Values of free-string options come from the file that consumes them, named in the list.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "planner" / "emitters" / "upstream"

# Free strings for the parser; what reads them accepts these. Values that the file does not name are left out.
MEGATRON_CONSUMERS = {
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


def write(target: str, version: str, commit: str, made_from: str, lines: list[str]) -> Path:
    """Writes one list; a line is `option kind [value|value] [# file]`."""
    path = FOLDER / f"{target}-{version}.txt"
    head = f"# {target} {version}\n# commit {commit}\n# made by tools/record_upstream.py from {made_from}\n"
    path.write_text(head + "".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
    return path


def of_parser(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, list[str]]]:
    """(option, kind, values) of every long option."""
    for action in parser._actions:
        name = getattr(action.type, "__name__", str(action.type))
        kind = "flag" if action.nargs == 0 else _KINDS.get(name, "str")
        if action.nargs in ("*", "+") or (isinstance(action.nargs, int) and action.nargs > 1):
            kind += "+"
        values = [str(value) for value in action.choices or ()]
        for option in action.option_strings:
            if option.startswith("--") and option != "--help":
                yield option, kind, values


def megatron(source: Path, version: str, commit: str) -> Path:
    import torch
    import typing_extensions

    if sys.version_info < (3, 12):
        import typing

        typing.override = typing_extensions.override  # type: ignore[attr-defined]  # all of 3.12 that it needs
    torch.cuda.get_device_capability = lambda *args, **kwargs: (9, 0)  # asked for while options are built
    sys.path.insert(0, str(source))
    from megatron.training import arguments

    lines = []
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    for option, kind, values in of_parser(parser):
        line = f"{option} {kind}"
        if option in MEGATRON_CONSUMERS:
            file, known = MEGATRON_CONSUMERS[option]
            text = (source / file).read_text(encoding="utf-8")
            found = [value for value in known.split() if re.search(f"[\"'`]{re.escape(value)}[\"'`]", text)]
            line += f" {'|'.join(found)} # {file}"
        elif values:
            line += f" {'|'.join(values)}"
        lines.append(line)
    return write("megatron", version, commit, "the parser of megatron/training/arguments.py", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=["megatron"])
    parser.add_argument("--source", type=Path, help="checkout of the framework")
    parser.add_argument("--version", required=True)
    parser.add_argument("--commit", required=True)
    given = parser.parse_args()
    path = {"megatron": megatron}[given.target](given.source, given.version, given.commit)
    print(f"{path.name}: {len(path.read_text(encoding='utf-8').splitlines()) - 3} options")


if __name__ == "__main__":
    main()
