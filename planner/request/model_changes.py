"""Changes of a model by a request: its head, its prediction modules, the capacity of its experts, their balancing
loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...cost_models.specs.model import MixtureOfExperts, ModelSpec
from ...cost_models.specs.variants import valued, with_capacity
from ...errors import InputError
from .schema import WorkloadRequest

NO_FROZEN_COPY = "reference: a frozen copy scores tokens, and it gives none"  # a model without a head for tokens


def as_asked(model: ModelSpec, work: WorkloadRequest) -> ModelSpec:
    """The model as the request trains it. Raises InputError for what it has no part for."""
    model = _capped(model, work.expert_capacity_factor)
    if work.reward_model:
        model = _valued(model)
    if work.mtp_layers is not None:
        model = replace(model, mtp_layers=work.mtp_layers)
    return _balanced(model, work.moe_aux_loss_coeff)


def check_without_tokens(model: str, work: WorkloadRequest, reasons: Mapping[str, bool]) -> None:
    """Raises InputError for what has no price with a model that predicts no tokens, such as `flux, a diffusion
    transformer`. reasons: those of its kind -> whether they apply."""
    reasons = {
        **reasons,
        "optimizer muon is not priced for it": work.optimizer == "muon",
        "adapters are not priced for it": work.train.lora is not None,
        "train_layers is not priced for it": work.train.last_layers is not None,
        "mtp_layers: it has none": bool(work.mtp_layers),
        "freeze_tower: it has none": work.freeze_tower,
        "freeze_language: it has no vision tower that would train": work.freeze_language,
        NO_FROZEN_COPY: work.reference,
        "reward_model: it has no logits in whose place values would be": work.reward_model,
    }
    if asked := [reason for reason, applies in reasons.items() if applies]:
        raise InputError(f"{model}: {'; '.join(asked)}", hint="leave it out")


def _valued(model: ModelSpec) -> ModelSpec:
    """The model with one value per token in place of logits. Raises InputError where it has another head already."""
    if not model.token_head or model.bidirectional or model.encoder is not None:
        raise InputError(f"reward_model: {model.name} is no decoder with logits", hint="leave it out")
    return valued(model)


def _capped(model: ModelSpec, factor: float | None) -> ModelSpec:
    """The model under the asked capacity of its experts. Raises InputError where it can drop nothing."""
    if factor is None:
        return model
    blocks = [block for block in model.feed_forwards if isinstance(block, MixtureOfExperts)]
    if not blocks:
        raise InputError(f"expert_capacity_factor {factor:g}: {model.name} has no experts", hint="leave it out")
    most = min(block.experts / block.top_k for block in blocks)
    if factor > most:
        shares = f"{blocks[0].experts} experts, {blocks[0].top_k} per token"
        raise InputError(f"expert_capacity_factor {factor:g}: with {shares}, {most:g} has room for every token",
                         hint=f"leave it out to drop no token, or give {most:g} or less")  # fmt: skip
    return with_capacity(model, factor)


def _balanced(model: ModelSpec, coefficient: float | None) -> ModelSpec:
    """The model with the asked balancing loss. Raises InputError where it has no experts."""
    if coefficient is None:
        return model
    if not model.is_moe:
        raise InputError(f"moe_aux_loss_coeff {coefficient:g}: {model.name} has no experts", hint="leave it out")
    return replace(model, moe_aux_loss_coeff=coefficient)
