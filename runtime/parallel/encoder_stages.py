"""The stages of a model with an encoder and a decoder: weights with a copy on several, and tokens that stages send."""

from __future__ import annotations

from ...planner.document.candidate import Chunk
from ..job import Job
from ..model.two_stacks import DECODER_BIAS, ENCODER_BIAS, bias_of
from .strategies import EMBEDDING, HEAD


def stages_with_copies(job: Job) -> dict[str, tuple[int, ...]]:
    """Part -> the stages that have a copy each of its tied weights, where there are several. Empty for one stack.

    The token table is where a stack starts, and where a tied head is; a table of biases where its stack has layers.
    """
    encoder, model = job.model.encoder, job.model
    if encoder is None:
        return {}
    copies: dict[str, set[int]] = {name: set() for name in (EMBEDDING, HEAD, ENCODER_BIAS, DECODER_BIAS)}
    for chunk in job.chunks:
        layers = _layers_of(chunk)
        if chunk.embedding or encoder.layers in layers or (chunk.head and model.tied_embeddings):
            copies[EMBEDDING].add(chunk.stage)
        for name in {bias_of(model, index) for index in layers} - {None}:
            copies[str(name)].add(chunk.stage)
    copies[HEAD] = copies[EMBEDDING]
    return {name: tuple(sorted(stages)) for name, stages in copies.items() if len(stages) > 1}


def tokens_sent(job: Job) -> list[int]:
    """Tokens of a sequence whose hidden states each chunk sends on (runtime/model/two_stacks.py): of the source, from
    the decoder on also of the target, before a head alone of that."""
    encoder, out, done = job.model.encoder, [], 0
    for chunk in job.chunks:
        done += len(_layers_of(chunk))
        source = 0 if encoder is None or done == job.model.num_layers else job.source_len or 0
        out.append(source + (0 if encoder is not None and done <= encoder.layers else job.seq_len))
    return out


def _layers_of(chunk: Chunk) -> range:
    return range(chunk.layers[0], chunk.layers[-1] + 1) if chunk.layers else range(0)
