"""The words behind the tokens of layout ids (docs/concepts/layouts.md has all of them)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...cost_models.schedule_kinds import KINDS
from .. import text

# Token of an id, as a pattern, how the legend names it (empty: as it is) and what it means, in the order of ids.
TOKENS = (
    (r"tp\d+", "tp", "tensor-parallel GPUs"),
    (r"nosp", "nosp", "no sequence parallelism"),
    (r"cp\d+\w*", "cp", "context-parallel GPUs (r: ring, g: all-gather, u: Ulysses)"),
    (r"pp\d+", "pp", "pipeline stages"),
    ("|".join(kind.token for kind in KINDS), "", "order of the passes of a pipeline"),
    (r"vpp\d+", "vpp", "chunks of layers per stage"),
    (r"dp\d+", "dp", "data-parallel GPUs"),
    (r"sh\d+", "sh", "GPUs that share sharded states"),
    (r"ep\d+", "ep", "expert-parallel GPUs"),
    (r"etp\d+", "etp", "tensor-parallel GPUs of an expert"),
    (r"epo", "epo", "expert traffic behind computation"),
    (r"g(full|layer|\(.*\))", "", "CUDA graphs"),
    (r"mbs\d+", "mbs", "sequences per micro-batch"),
    (r"z\d", "z", "ZeRO stage"),
    (r"rnone", "rnone", "no recomputation"),
    (r"rsel(\(.*\))?", "rsel", "parts are recomputed"),
    (r"rfull\d*", "rfull", "whole layers are recomputed"),
    (r"o(opt|act|opt\+act)", "", "optimizer or activations in host memory"),
    (r"off.*", "off", "saved activations in host memory"),
    (r"fp\d+", "", "compute precision"),
    (r"x[0-9a-f]{6}", "", "stages or layers of its own"),
)


def legend(layout_ids: Iterable[str]) -> str:
    """`tp tensor-parallel GPUs, pp pipeline stages, ...`: the tokens that the ids have."""
    tokens = dict.fromkeys(token for layout_id in layout_ids for token in layout_id.split("-"))
    shown = []
    for pattern, name, meaning in TOKENS:
        if matching := [token for token in tokens if re.fullmatch(pattern, token)]:
            shown.append(f"{name or text.listed(matching, 'and')} {meaning}")
    return text.wrapped(f"Legend: {'; '.join(shown)}.", "  ")


def explained(token: str) -> bool:
    """Whether the legend has a word for a token."""
    return any(re.fullmatch(pattern, token) for pattern, _, _ in TOKENS)
