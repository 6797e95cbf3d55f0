"""The step law: learning rate and batch by powers of parameters and tokens, beside those of the plan.

Li et al. 2025, Predictable Scale: Part I, arXiv 2503.04715: rate = 1.79 N^-0.713 D^0.307, batch = 0.58 D^0.571 tokens,
where N are the parameters without the vocabulary and D the tokens of the run; fitted to 3,700 runs with a cosine
schedule, and 0.07 % from the best of an exhaustive search.
"""

from __future__ import annotations

from ...cost_models.quantities import params
from ...cost_models.specs.model import ModelSpec
from ...errors import InputError
from .assumed import Assumption, assumptions
from .base import Part, Question, Result
from .pricing import Priced, price_held

_ASSUMED = {"tokens": ("", "tokens of the run")}
_FAR = 2.0  # times larger or smaller than the law's, from where on a batch has a warning (assumed)


class Batch(Part):
    """A batch with the price of the layout held."""

    name: str
    sequences: int
    tokens: float  # per step
    held: Priced
    steps: float  # of the run


class StepLaw(Result):
    """The plan's batch and the law's."""

    parameters: float  # without the vocabulary
    tokens: float  # of the run
    learning_rate: float
    batch_tokens: float
    rows: tuple[Batch, ...]

    @property
    def table(self) -> tuple[Batch, ...]:
        return self.rows


def learning_rate(parameters: float, tokens: float) -> float:
    """The largest of the schedule."""
    return float(1.79 * parameters**-0.713 * tokens**0.307)


def batch_tokens(tokens: float) -> float:
    """Tokens per step for a run of so many."""
    return float(0.58 * tokens**0.571)


def without_vocabulary(model: ModelSpec) -> float:
    """Parameters of the layers."""
    return float(params.total_parameters(model) - params.embedding_parameters(model) - params.head_parameters(model))


def run(question: Question) -> StepLaw:
    """Raises InputError where the tokens of the run are not known."""
    base = question.base
    given: tuple[Assumption, ...] = assumptions(question, _ASSUMED, {"tokens": "count"}, optional=("tokens",))
    tokens = given[0].value if given else base.workload.total_tokens
    if tokens is None:
        raise InputError("the step law needs the tokens of the run", hint="`--assume tokens=1T`, or a plan made with "
                         "`--total-tokens`")  # fmt: skip
    parameters, wanted = without_vocabulary(base.model), batch_tokens(tokens)
    per_sequence = base.workload.tokens_per_step / base.workload.global_batch
    layout = question.layout.layout
    least = layout.dp * layout.micro_batch * (layout.pp if layout.vpp > 1 else 1)  # sequences that the layout divides
    sequences = max(round(wanted / per_sequence / least), 1) * least
    rows = []
    for name, count in (("plan", base.workload.global_batch), ("step law", sequences)):
        changed = question.with_values({"workload.global_batch": str(count)})
        rows.append(Batch(name=name, sequences=count, tokens=count * per_sequence, steps=tokens / count / per_sequence,
                          held=price_held(question.layout, [changed])[0]))  # fmt: skip
    return StepLaw(
        **question.common_fields("step-law", notes=_notes(base.model, rows[0].tokens / wanted, least, per_sequence)),
        parameters=parameters, tokens=tokens, learning_rate=learning_rate(parameters, tokens), batch_tokens=wanted,
        rows=tuple(rows),
    )  # fmt: skip


def _notes(model: ModelSpec, ratio: float, least: int, per_sequence: float) -> tuple[str, ...]:
    notes = []
    if not 1 / _FAR <= ratio <= _FAR:
        notes.append(f"The plan's batch is {ratio:.2g} times that of the law. The layout takes multiples of {least:,} "
                     f"sequences, {least * per_sequence:,.0f} tokens.")  # fmt: skip
    if model.is_moe:
        notes.append("All experts count as parameters: the law was fitted to dense models.")
    return tuple(notes)
