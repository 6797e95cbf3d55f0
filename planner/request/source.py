"""The source of a request, held against the encoder of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.workload import Workload
from ...errors import InputError
from .schema import WorkloadRequest


def with_source(model: ModelSpec, workload: Workload, work: WorkloadRequest) -> Workload:
    """The workload with the tokens that the encoder reads: those of the request, else as many as sound has, or as the
    target.

    Raises InputError for a source without an encoder, for one longer than its positions, and for what is not priced.
    """
    encoder = model.encoder
    if encoder is None:
        if work.source_len is not None:
            raise InputError(f"source_len: {model.name} has no encoder beside its decoder", hint="leave it out")
        if model.bidirectional:
            unpriced = {"lengths": bool(work.lengths), "mtp_layers": bool(work.mtp_layers)}
            _check_priced(f"{model.name}, an encoder", unpriced)
        return workload
    _check_priced(f"{model.name}, a model with an encoder and a decoder", {
        "optimizer muon": work.optimizer == "muon",
        "adapters": work.train.lora is not None,
        "train_layers": work.train.last_layers is not None,
        "lengths": bool(work.lengths),
        "mtp_layers": bool(work.mtp_layers),
    })  # fmt: skip
    usual = min(workload.seq_len, encoder.max_positions) if encoder.reads_text else encoder.max_positions
    source_len = work.source_len or usual
    if source_len > encoder.max_positions:
        text = f"{source_len:,} tokens are more than the {encoder.max_positions:,} that the decoder may attend to"
        raise InputError(f"source_len: {text}: those are the positions of the encoder of {model.name}",
                         hint=f"`--source-len {encoder.max_positions}` or less")  # fmt: skip
    return replace(workload, source_len=source_len)


def _check_priced(model: str, reasons: Mapping[str, bool]) -> None:
    """Raises InputError for what has no price with a model. reasons: part of a request -> whether it was asked for."""
    if asked := [name for name, applies in reasons.items() if applies]:
        hint = "leave it out" if len(asked) == 1 else "leave them out"
        raise InputError(f"{', '.join(asked)}: not priced for {model}", hint=hint)
