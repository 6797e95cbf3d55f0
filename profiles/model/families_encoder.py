"""Encoders that learn to fill masked tokens: config.json -> ModelSpec; defaults as in `families.py`."""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.specs.model import FeedForward, ModelSpec
from .blocks import attention_of, dense_model
from .fields import Fields

_POST_NORM = "norms after the residual sums"


def bert(f: Fields) -> ModelSpec:
    """BERT as BertForMaskedLM, as BertForPreTraining with the head that classifies pairs of sentences, or as
    BertForSequenceClassification with the head of classes alone."""
    classifier = "BertForSequenceClassification"
    spec = _encoder(f, "bert", ("BertForMaskedLM", "BertForPreTraining", classifier))
    if f.get("architectures") == [classifier]:
        return _classifier(f, spec)
    return replace(spec, pooled_classes=2 if f.get("architectures") == ["BertForPreTraining"] else 0)


def roberta(f: Fields) -> ModelSpec:
    """RoBERTa and XLM-R as RobertaForMaskedLM, or as RobertaForSequenceClassification with a head of classes; positions
    count from the row after that of padding."""
    prefix = "XLMRoberta" if f.get("model_type") == "xlm-roberta" else "Roberta"
    classifier = f"{prefix}ForSequenceClassification"
    spec = _encoder(f, "roberta", (f"{prefix}ForMaskedLM", classifier))
    if f.get("architectures") == [classifier]:
        spec = _classifier(f, spec)
    before = f.count("pad_token_id", default=1, minimum=0) + 1
    if f.sound and before >= spec.learned_positions:
        f.problem("max_position_embeddings", f"{spec.learned_positions} rows leave none behind the {before} of padding")
    return replace(spec, max_positions=max(1, spec.learned_positions - before))


def _classifier(f: Fields, spec: ModelSpec) -> ModelSpec:
    """The same encoder with a dense layer and the classes of `id2label` [2] on the first token, and no other head."""
    labels = f.get("id2label")
    classes = len(labels) if isinstance(labels, dict) and labels else 2
    return replace(spec, token_head=False, pooled_classes=classes, tied_embeddings=False, head_bias=False,
                   head_transform=False, final_norm=False)  # fmt: skip


def _encoder(f: Fields, family: str, heads: tuple[str, ...]) -> ModelSpec:
    """Biases in all products and norms, a norm after the embedding, a dense layer before the norm of the head.

    heads: the classes of transformers that are described, the first one where the config names none.
    """
    hidden = f.count("hidden_size")
    attention = attention_of(f, hidden, bias=(True, True))
    block = FeedForward(inner=f.count("intermediate_size"), gated=False, bias=True)
    positions = f.count("max_position_embeddings")
    dropout = f.number("hidden_dropout_prob", 0.1) > 0
    spec = dense_model(f, family, replace(attention, causal=False, rotary=False), hidden, ffn=block, norm_bias=True,
                       tied=True, dropout=dropout, max_positions=positions)  # fmt: skip
    _check(f, heads)
    return replace(
        spec, learned_positions=positions, token_types=f.count("type_vocab_size", default=2), embedding_norm=True,
        head_bias=True, head_transform=True, unmodelled=(_POST_NORM,),
    )  # fmt: skip


def _check(f: Fields, heads: tuple[str, ...]) -> None:
    """Refuses forms of these families that are no encoders of masked tokens."""
    named = f.get("architectures")
    if named is not None and named not in [[head] for head in heads]:
        described = f"{' and '.join(heads)} {'is' if len(heads) == 1 else 'are'}"
        f.problem("architectures", f"{named!r} is not described, {described}",
                  hint=f"without `architectures` {heads[0]} is planned")  # fmt: skip
    for name in ("is_decoder", "add_cross_attention"):
        if f.flag(name, False):
            f.problem(name, "only encoders are described", hint=f"without `{name}` the encoder is planned")
    if (kind := f.get("position_embedding_type")) not in (None, "absolute"):
        f.problem("position_embedding_type", f"`{kind}` is not described, `absolute` is")
