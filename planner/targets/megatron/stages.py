"""Stages of a plan <-> arguments of pretrain_gpt.py: even, with other ends, or layer by layer.

Source: Megatron-LM core_v0.16.1 to d98e8a64, core/transformer/pipeline_parallel_layer_layout.py, transformer_config.py.
"""

from __future__ import annotations

import re

from ....errors import InputError
from ..options import Facts, Settings
from ..setup import Setup

_LAYER = {"E": "embedding", "t": "layer", "m": "mtp", "L": "loss"}


def layer_string(sizes: list[int], mtp_layers: int) -> str:
    """`Et*19|t*20|t*20|t*19L`: layers of each chunk, in the order of the model."""
    parts = [f"t*{size}" if size > 1 else "t" * size for size in sizes]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * mtp_layers + "L"
    return "|".join(parts)


def read_layer_string(text: str) -> list[list[str]]:
    """The layers (embedding, layer, mtp, loss) of each chunk. Raises InputError for a character that means none."""
    flat = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        flat = re.sub(pattern, lambda match: match[1] * int(match[2]), flat)
    if unknown := sorted(set(flat) - {*_LAYER, "|"}):
        raise InputError(
            f"--pipeline-model-parallel-layout `{text}`: `{unknown[0]}` is no layer",
            hint="E embedding, t layer, m multi-token prediction, L loss, | next stage",
        )
    return [[_LAYER[letter] for letter in chunk] for chunk in flat.split("|")]


def pipeline_write(setup: Setup) -> Settings:
    layout, sizes = setup.layout, setup.chunk_sizes
    if layout.pp == 1:
        return {}
    if len(set(sizes)) > 1:
        return {"--pipeline-model-parallel-layout": layer_string(sizes, setup.model.mtp_layers)}
    return {"--num-layers-per-virtual-pipeline-stage": sizes[0]} if layout.vpp > 1 else {}


def pipeline_read(settings: Settings, facts: Facts) -> Facts:
    pp, layers = facts["pp"], facts.get("model.layers", 0)
    if pp == 1:
        return {"vpp": 1}
    _positive(settings, "--pipeline-model-parallel-size", "--num-layers-per-virtual-pipeline-stage",
              "--num-virtual-stages-per-pipeline-rank")  # fmt: skip
    if (text := settings.get("--pipeline-model-parallel-layout")) is not None:
        return _custom_stages(str(text), pp, layers, facts.get("model.mtp_layers", 0))
    if (per_chunk := settings.get("--num-layers-per-virtual-pipeline-stage")) is not None:
        if layers % (pp * per_chunk):
            raise InputError(
                f"--num-layers-per-virtual-pipeline-stage {per_chunk}: {layers} layers are no multiple of pp {pp} x "
                f"{per_chunk}",
                hint=f"a divisor of {layers}/{pp} layers, or --pipeline-model-parallel-layout",
            )
        vpp = layers // (pp * per_chunk)
    else:
        vpp = int(settings.get("--num-virtual-stages-per-pipeline-rank", 1))
    return {"vpp": vpp, "stages": _even_stages(settings, pp, vpp, layers)}


def _positive(settings: Settings, *options: str) -> None:
    for name in options:
        if settings.get(name, 1) < 1:
            raise InputError(f"{name} `{settings[name]}` is not 1 or more", hint="leave it out, or give a number")


def _custom_stages(text: str, pp: int, layers: int, mtp_layers: int) -> Facts:
    chunks = read_layer_string(text)
    flat = [kind for chunk in chunks for kind in chunk]
    counted = {kind: flat.count(kind) for kind in _LAYER.values()}
    expected = {"embedding": 1, "loss": 1, "layer": layers, "mtp": mtp_layers}
    wrong = [f"{counted[kind]} x {kind} instead of {n}" for kind, n in expected.items() if counted[kind] != n]
    if len(chunks) % pp:
        wrong.append(f"{len(chunks)} stages are no multiple of pp {pp}")
    if flat[:1] != ["embedding"] or flat[-1:] != ["loss"]:
        wrong.append("the first layer must be E and the last L")
    if wrong:
        message = f"--pipeline-model-parallel-layout {text}: {'; '.join(wrong)}"
        raise InputError(message, hint="every layer once, in order")
    return {"vpp": len(chunks) // pp, "stages": [chunk.count("layer") for chunk in chunks]}


def _even_stages(settings: Settings, pp: int, vpp: int, layers: int) -> list[int]:
    """Layers of each chunk when stages share evenly, but for what the first and last are given or account for."""
    slots_first = int(bool(settings.get("--account-for-embedding-in-pipeline-split")))
    slots_last = int(bool(settings.get("--account-for-loss-in-pipeline-split")))
    first, last = (settings.get(f"--decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    ends = [end for end in (first, last) if end is not None]
    middle, rest = pp - len(ends), layers + slots_first + slots_last - sum(ends)
    if rest < 0 or (middle and rest % (middle * vpp)) or (not middle and rest) or any(end % vpp for end in ends):
        raise InputError(
            f"{layers} layers do not split over pp {pp} x vpp {vpp}"
            + (f" with {' and '.join(map(str, ends))} at the ends" if ends else ""),
            hint="--decoder-first-pipeline-num-layers, or --pipeline-model-parallel-layout for any split",
        )
    share = rest // (middle * vpp) if middle else 0
    rows = [share] * pp
    if first is not None:
        rows[0] = first // vpp
    if last is not None:
        rows[-1] = last // vpp
    sizes = rows * vpp
    sizes[0] -= slots_first
    sizes[-1] -= slots_last
    return sizes
