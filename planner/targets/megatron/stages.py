"""Stages of a plan <-> arguments of pretrain_gpt.py: even, with custom ends, or layer by layer.

Source: Megatron-LM core_v0.16.1 to d98e8a64, core/transformer/pipeline_parallel_layer_layout.py, transformer_config.py.
"""

from __future__ import annotations

from ....errors import InputError
from ...space.stage_string import GRAMMAR, misplaced, read_stages, write_stages
from ..options import Facts, Settings, positive
from ..setup import Setup
from .hybrid import PATTERN, is_hybrid, stages_read

GROUP_SIZE = "--microbatch-group-size-per-virtual-pipeline-stage"


def pipeline_write(setup: Setup) -> Settings:
    layout, sizes = setup.layout, setup.chunk_sizes
    if layout.pp == 1 or is_hybrid(setup.model):
        return {}
    if len(set(sizes)) > 1:
        return {"--pipeline-model-parallel-layout": write_stages(sizes, setup.model.mtp_layers)}
    return {"--num-layers-per-virtual-pipeline-stage": sizes[0]} if layout.vpp > 1 else {}


def pipeline_read(settings: Settings, facts: Facts) -> Facts:
    pp, layers = facts["pp"], facts.get("model.layers", 0)
    uneven = any(f"--decoder-{end}-pipeline-num-layers" in settings for end in ("first", "last"))
    if PATTERN in settings and not uneven:
        return stages_read(str(settings[PATTERN]), pp)
    if pp == 1:
        return {"vpp": 1}
    positive(settings, "--pipeline-model-parallel-size", "--num-layers-per-virtual-pipeline-stage",
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
        vpp = max(layers // (pp * per_chunk), 1)  # a file without --num-layers has none to divide
    else:
        vpp = int(settings.get("--num-virtual-stages-per-pipeline-rank", 1))
    sizes = _even_stages(settings, pp, vpp, layers)
    return {"vpp": vpp, "stages": sizes} if any(sizes) else {"vpp": vpp}


def group_write(setup: Setup) -> Settings:
    """Groups of micro-batches. Megatron's default is pp, which it rejects if pp does not divide the micro-batches."""
    group = setup.interleaving_group
    return {} if group in (None, setup.layout.pp) else {GROUP_SIZE: group}


def group_read(settings: Settings, facts: Facts) -> Facts:
    positive(settings, GROUP_SIZE)
    return {"interleaving_group": settings.get(GROUP_SIZE, facts["pp"])} if facts["vpp"] > 1 else {}


def refused_groups(group: int, pp: int, number: int) -> str:
    """Why Megatron-LM refuses groups of `group` out of `number` micro-batches; "" where it runs them.

    Source: core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving.
    """
    if number < pp:
        return f"an interleaved pipeline needs at least pp {pp} micro-batches, and there are {number}"
    if group < pp:
        return f"groups of {group} micro-batches are smaller than pp {pp}"
    if group > number:
        return f"groups of {group} micro-batches are larger than the {number} of a step"
    if 0 < (rest := number % group) < pp:
        return f"groups of {group} leave {number} mod {group} = {rest} micro-batches, fewer than pp {pp}"
    return ""


def _custom_stages(text: str, pp: int, layers: int, mtp_layers: int) -> Facts:
    option = "--pipeline-model-parallel-layout"
    try:
        chunks = read_stages(text)
    except InputError as error:
        raise InputError(f"{option}: {error.message}", hint=error.hint) from None
    wrong = misplaced(chunks, layers, mtp_layers)
    if len(chunks) % pp:
        wrong.append(f"{len(chunks)} chunks are no multiple of pp {pp}")
    if wrong:
        raise InputError(f"{option} {text}: {'; '.join(wrong)}", hint=f"every part once, in order: {GRAMMAR}")
    return {"vpp": len(chunks) // pp, "stages": [chunk.count("layer") for chunk in chunks]}


def _even_stages(settings: Settings, pp: int, vpp: int, layers: int) -> list[int]:
    """Layers of each chunk of even stages, except for the layers assigned to the first and last."""
    slots_first = int(bool(settings.get("--account-for-embedding-in-pipeline-split")))
    slots_last = int(bool(settings.get("--account-for-loss-in-pipeline-split")))
    first, last = (settings.get(f"--decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    ends = [end for end in (first, last) if end is not None]
    middle, rest = pp - len(ends), layers + slots_first + slots_last - sum(ends)
    if rest < 0 or (middle and rest % (middle * vpp)) or (not middle and rest) or any(end % vpp for end in ends):
        raise InputError(
            f"--num-layers: {layers} layers do not split over pp {pp} x vpp {vpp}"
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
