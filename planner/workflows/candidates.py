"""A placement as part of the document."""

from __future__ import annotations

from collections.abc import Mapping

from ..document.rl_plan import Binds, EngineLayout, RlCall, RlCandidate
from .meshes import Mesh
from .options import Option
from .problem import RlProblem
from .schedule import Placed
from .search import PlacementResult


def candidate(found: PlacementResult, rl: RlProblem, choice: int) -> RlCandidate:
    """found: the placement; choice: its number in the list."""
    work, gpus = rl.work, rl.cluster.num_gpus
    tokens = work.answers * (work.input + rl.lengths.mean)
    received = gpus if found.lag else max(it.mesh.end for it in found.placed)
    busy = sum((it.end_s - it.start_s) * it.mesh.gpus for it in found.placed) + found.sync_s * received
    rollout = [it.mesh.gpus for it in found.placed if it.call.kind == "generate"]
    return RlCandidate(
        choice=choice, placement_id=placement_id(found, gpus), lag=found.lag, step_s=found.step_s, sync_s=found.sync_s,
        controller_s=found.controller_s,
        rollout_gpus=sum(rollout), training_gpus=next(it.mesh.gpus for it in found.placed if it.call.name == "train"),
        calls=tuple(_call(it, rl) for it in found.placed), tokens_per_s=tokens / found.step_s,
        tokens_per_s_per_gpu=tokens / found.step_s / gpus, idle=max(1.0 - busy / (found.step_s * gpus), 0.0),
        binds=_binds(found),
    )  # fmt: skip


def placement_id(found: PlacementResult, gpus: int) -> str:
    """`colocated`, `lag1-train32-generate32`, `generate:0+32-train:0+64`.

    With lag only calls on a part of the GPUs that train are named.
    """
    meshes = found.meshes
    if not found.lag:
        every = Mesh(0, gpus)
        return "colocated" if set(meshes.values()) == {every} else "-".join(_places(meshes))
    trainer = Mesh(0, gpus - meshes.pop("generate").gpus)
    parts = {name: mesh for name, mesh in meshes.items() if mesh != trainer}
    return "-".join([f"lag{found.lag}-train{trainer.gpus}-generate{gpus - trainer.gpus}", *_places(parts)])


def _places(meshes: Mapping[str, Mesh]) -> list[str]:
    return [f"{name}:{mesh.first}+{mesh.gpus}" for name, mesh in meshes.items()]


def _call(placed: Placed, rl: RlProblem) -> RlCall:
    call, option, layout = placed.call, placed.option, placed.option.layout
    trains = call.kind == "train"
    degrees = option.by_answer if trains else None
    return RlCall(
        name=call.name, kind=call.kind, role=call.role, model=rl.models[call.role].name, after=call.after,
        first_gpu=placed.mesh.first, gpus=placed.mesh.gpus, layout_id=str(layout) if layout is not None else None,
        layout=layout.as_dict() if layout is not None else None, sequences=option.sequences if trains else None,
        seq_len=option.seq_len if trains else None,
        rank_tokens=degrees.rank_tokens if degrees is not None else None,
        degrees=degrees.degrees if degrees is not None else (),
        engine=_engine(option), start_s=placed.start_s, moves_s=placed.moves_s, end_s=placed.end_s,
        peak_bytes=option.peak_bytes,
        resident_bytes={str(role): number for role, number in placed.resident.items()},
    )  # fmt: skip


def _engine(option: Option) -> EngineLayout | None:
    if option.instance is None:
        return None
    layout = option.instance.layout
    return EngineLayout(tp=layout.tp, pp=layout.pp, ep=layout.ep, attention_dp=layout.attention_dp,
                        instances=option.instances, cache_sequences=option.cache_sequences)  # fmt: skip


def _binds(found: PlacementResult) -> Binds:
    """The kind of calls that takes most of the step; with lag of its slower side."""
    side = [it for it in found.placed if not (found.lag and it.call.kind == "generate")]
    generated_s = max((it.end_s for it in found.placed if it not in side), default=0.0)
    if generated_s > max(it.end_s for it in side) + found.controller_s:
        return "generation"
    seconds: dict[Binds, float] = {
        "generation": sum(it.option.seconds for it in side if it.call.kind == "generate"),
        "scoring": sum(it.option.seconds for it in side if it.call.kind == "infer"),
        "training": sum(it.option.seconds for it in side if it.call.kind == "train"),
        "moves": found.sync_s + sum(it.moves_s for it in side), "controller": found.controller_s,
    }  # fmt: skip
    return max(seconds, key=lambda name: seconds[name])
