"""`--scale-down` of a run of post-training: a small model on at most 4 ranks, or 2 that train beside 2 that generate.

Kept: the calls and their order, which of them share ranks, lag, updates, ZeRO, recomputation, and of each layout the
axes above 1 for which its ranks suffice. Shrunk: the rest; prompts are random. Left out: parts of
models and layouts that this runtime does not train.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ...cost_models.layouts import Layout
from ...cost_models.specs.model import ModelSpec
from ...errors import InputError, UnsupportedError
from ..rehearsal.scale import scale_down
from .job import Place, RlJob, Role, chunks_of
from .places import check_place, whole

RANKS = 4
SEQ_LEN, ANSWER_LEN, SAMPLES, ANSWERS = 24, 16, 8, 32  # tokens, tokens, answers to a prompt, answers of an update
# Axes of a call, those kept first.
_AXES_OF_TRAINING, _AXES_OF_SCORES = ("pp", "tp", "cp", "dp"), ("pp", "tp", "dp")
_AXES_OF_GENERATION = ("tp", "dp", "pp")
_HINT = "`--trainer meshwright` plans layouts that run here, or take another `--choice`"
_TITLES = {"critic": "critic", "reward": "reward model"}


def rehearsed(job: RlJob, keep: Mapping[str, int], steps: int) -> tuple[RlJob, list[str]]:
    """The rehearsal of a job, and one line per shrunk part. Raises UnsupportedError for what this runtime cannot run,
    and for axes that are to be kept, InputError for steps of which none generates."""
    if keep:
        raise UnsupportedError(f"a plan of post-training is shrunk to {RANKS} ranks only", hint="leave out `--keep`")
    places = {place.name: _small(place, job) for place in job.places}
    small, notes = _scaled(job, job.model, job.train, places["train"])
    critic = None if job.train_critic is None else places[job.train_critic.name]
    small = replace(small, layout=places["train"].layout, train=places["train"], engine=places.get("generate"),
                    scores=tuple(places[place.name] for place in job.scores), seq_len=min(SEQ_LEN, job.seq_len),
                    chunks=chunks_of(places["train"].layout, small.model), train_critic=critic,
                    models=_models(job, places))  # fmt: skip
    small = _answers(small)
    if steps <= small.lag:
        raise InputError(f"--steps {steps}: none generates, since all answers are older, by a lag of {small.lag}",
                         hint=f"`--steps {small.lag + 1}` or more")  # fmt: skip
    for place in small.places:
        check_place(small, place, "rehearsed", _HINT)
    small_models = [f"{_TITLES[role]} {job.models[role].name} -> {model.num_layers} layers of {model.hidden}, random "
                    "weights" for role, model in small.models.items()]  # fmt: skip
    dropped = ["predictions of more than one token"] * bool(job.model.mtp_layers)
    dropped += ["the balancing loss of experts"] * bool(job.model.moe_aux_loss_coeff)
    return small, [*_notes(job, small), *(note for note in notes if note.startswith(("layers", "hidden", "vocab"))),
                   *small_models,
                   *(f"left out: {what}" for what in dropped)]  # fmt: skip


def _scaled(job: RlJob, model: ModelSpec, large: Place, place: Place) -> tuple[RlJob, list[str]]:
    """The job with a small copy of a model whose layout is that of `large` in the plan and of `place` here, and one
    line per shrunk part."""
    planned = replace(_normal(large.layout), vpp=min(large.layout.vpp, 2))
    model = replace(model, mtp_layers=0, mtp_pattern=(), moe_aux_loss_coeff=0.0)
    before = replace(job, layout=planned, model=model, chunks=chunks_of(planned, model))
    axes = _AXES_OF_TRAINING if large in job.trains else _AXES_OF_SCORES
    small, notes = scale_down(before, _kept(planned, place.layout.num_gpus, axes))
    if not isinstance(small, RlJob):
        raise TypeError("a rehearsal trains another kind of job")
    return small, notes


def _models(job: RlJob, places: Mapping[str, Place]) -> dict[Role, ModelSpec]:
    """Small critic and reward model."""
    of_role = {place.role: place for place in (*job.scores, *job.trains)}
    small = {role: _scaled(job, model, of_role[role], places[of_role[role].name])[0].model
             for role, model in job.models.items()}  # fmt: skip
    # A reward model reads the last token, too, and the tokens that pad answers to equal parts.
    return {role: replace(model, learned_positions=model.learned_positions and model.learned_positions + RANKS)
            for role, model in small.items()}  # fmt: skip


def _small(place: Place, job: RlJob) -> Place:
    """The place in the rehearsal. Two ranks generate beside the others where the plan has a side for each."""
    engine = job.engine if job.lag else None
    number = 1 << int(math.log2(min(RANKS, job.world_size)))
    if engine is not None and place.name == "generate":
        first, ranks = number // 2, number // 2
    else:
        width, most = (engine.first, number // 2) if engine is not None else (job.world_size, number)
        ranks = 1 << max(int(math.log2(most * len(place.ranks) / width)), 0)
        first = most * place.first // width // ranks * ranks
    if place in job.trains:
        small = _shrunk(place.layout, ranks, _AXES_OF_TRAINING)
        # The answers of a pair are in one micro-batch.
        small = replace(small, micro_batch=2) if job.algorithm == "dpo" else small
    else:
        small = whole(_shrunk(place.layout, ranks, _AXES_OF_GENERATION if place == job.engine else _AXES_OF_SCORES))
    return replace(place, first=first, layout=small)


def _normal(layout: Layout) -> Layout:
    """Sharded over all of dp, so that any number of ranks can share the states, with sequence parallelism beside tensor
    parallelism, which this runtime always has, and without Megatron's offload of modules and layers, graphs and overlap
    of experts, which it lacks."""
    return replace(layout, shard=layout.dp, sequence_parallel=int(layout.tp > 1), offload_modules=0, offload_layers=0,
                   cuda_graphs=0, ep_overlap=0)  # fmt: skip


def _kept(layout: Layout, ranks: int, axes: tuple[str, ...]) -> dict[str, int]:
    """Ranks of each axis above 1: 2 while there are ranks for it, else 1."""
    kept = dict[str, int]()
    for axis in axes:
        if getattr(layout, axis) > 1:
            kept[axis] = 2 if ranks > 1 else 1
            ranks //= kept[axis]
    shared = math.prod(kept.get(axis, 1) for axis in ("tp", "cp", "dp"))
    for axis in ("ep", "etp"):
        if getattr(layout, axis) > 1:
            kept[axis] = 2 if shared > 1 else 1
            shared //= kept[axis]
    return kept


def _shrunk(layout: Layout, ranks: int, axes: tuple[str, ...]) -> Layout:
    """The layout on so many ranks; those that no axis takes are data parallel."""
    kept = {axis: 1 for axis in ("pp", "tp", "cp", "dp", "ep", "etp")} | _kept(layout, ranks, axes)
    dp = ranks // (kept["pp"] * kept["tp"] * kept["cp"])
    small = replace(_normal(layout), **kept | {"dp": dp, "shard": dp}, micro_batch=min(layout.micro_batch, 2),
                    recompute_layers=min(layout.recompute_layers, 1), vpp=min(layout.vpp, 2))  # fmt: skip
    single = {"tp": {"sequence_parallel": 0}, "cp": {"cp_algorithm": 0}, "pp": {"vpp": 1, "schedule": 0}}
    for axis, fields in single.items():
        small = replace(small, **fields) if kept[axis] == 1 else small
    return small


def _answers(job: RlJob) -> RlJob:
    """The same with a number of answers that all calls divide."""
    layouts, samples = [place.layout for place in job.trains], min(job.samples, SAMPLES)
    # Interleaved stages take micro-batches in rounds.
    rounds = [it.dp * it.micro_batch * (it.pp if it.vpp > 1 else 1) for it in layouts]
    unit = math.lcm(*rounds, samples, *(place.layout.dp for place in job.places))
    least = max(min(ANSWERS, job.global_batch), *(it.dp * it.micro_batch * (it.pp + 2) for it in layouts))
    batch, updates = -(-least // unit) * unit, min(job.updates, 2)
    return replace(job, global_batch=batch, updates=updates, samples=samples, prompts=batch * updates // samples,
                   answer_len=min(ANSWER_LEN, job.answer_len), lag=min(job.lag, 2))  # fmt: skip


def _notes(before: RlJob, after: RlJob) -> list[str]:
    pairs = {"GPUs": (before.world_size, after.world_size), "prompts": (before.prompts, after.prompts),
             "answers to a prompt": (before.samples, after.samples), "updates": (before.updates, after.updates),
             "lag": (before.lag, after.lag), "tokens of a prompt": (before.prompt_len, after.prompt_len),
             "tokens of the longest answer": (before.answer_len, after.answer_len)}  # fmt: skip
    places = [f"{old.name} on GPUs {_range(old)}, {old.layout} -> ranks {_range(new)}, {new.layout}"
              for old, new in zip(before.places, after.places, strict=True)]  # fmt: skip
    return places + [f"{name} {a:,} -> {b:,}" for name, (a, b) in pairs.items() if a != b]


def _range(place: Place) -> str:
    return f"{place.ranks.start}-{place.ranks[-1]}" if len(place.ranks) > 1 else str(place.first)
