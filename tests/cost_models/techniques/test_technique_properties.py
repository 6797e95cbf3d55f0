"""Properties of every registered technique, and of every set of them, for any knobs in their ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshwright.cost_models.techniques.base import Knob
from meshwright.cost_models.techniques.registry import TECHNIQUES, applied, exclusions
from meshwright.planner.document.candidate import Candidate
from meshwright.planner.drivers.given_layout import evaluate_resolved
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve

from meshwright.errors import InputError

# Of a graph network, whose stages have a GPU each.
GRAPHS = ("pp8-gpipe-dp1-mbs1-z0-rnone", "pp8-gpipe-dp1-mbs1-z0-rnone-oact", "pp8-gpipe-dp1-mbs1-z0-rnone-oopt")
# At least one that each technique, and each pair that goes together, can train; with `ep` a model with experts.
LAYOUTS = ("pp4-dp4-mbs1-z0-rnone", "pp4-dp4-mbs2-z3-rnone", "pp4-dp4-mbs2-z0-rnone-oact",
           "cp2r-pp4-dp2-mbs1-z0-rnone", "tp2-pp4-dp2-mbs1-z0-rnone", "pp4-dp4-ep4-mbs1-z0-rnone",
           "dp16-mbs1-z0-rnone", "dp16-mbs16-z3-rnone", "dp16-mbs1-z3-rnone", "dp16-sh8-mbs16-z3-rfull",
           "tp2-dp8-sh4-mbs1-z3-rnone", "tp2-dp8-mbs1-z3-rsel(norm)-oact", "cp2r-dp8-mbs1-z3-rfull",
           "pp2-dp8-mbs2-z3-rnone", "dp16-sh4-mbs1-z1-rnone", "pp2-dp8-mbs2-z0-rnone", "tp2-dp8-mbs1-z0-rnone",
           "tp2-dp8-mbs32-z3-rnone", "tp2-pp2-dp4-mbs1-z0-rnone", "dp16-ep8-mbs1-z0-rnone", "tp2-dp8-ep2-mbs1-z0-rnone",
           "tp2-dp8-ep2-mbs32-z3-rnone", "tp2-dp8-ep2-mbs1-z3-rnone", "pp2-dp8-ep8-mbs1-z0-rnone",
           "cp2r-dp8-mbs1-z0-rnone", "cp2r-dp8-sh2-mbs1-z1-rnone", "tp2-cp2r-pp2-dp2-mbs1-z0-rnone",
           "cp2r-dp8-mbs32-z3-rnone", "tp2-cp2r-dp4-mbs1-z3-rnone", "tp2-cp2r-dp4-ep2-mbs1-z3-rnone",
           "tp2-cp2r-dp4-ep2-mbs1-z0-rnone", "dp16-mbs1-z0-rnone-oact", "pp2-dp8-mbs2-z0-rnone-oact",
           "cp2r-dp8-mbs1-z0-rnone-oact", "tp2-dp8-ep2-mbs1-z0-rnone-oact", "dp16-mbs16-z3-rnone-oact",
           "dp16-sh8-mbs16-z3-rfull-oact", "dp16-sh4-mbs1-z1-rnone-oact",
           "tp2-nosp-dp8-mbs1-z0-rfull", "tp2-nosp-dp8-mbs1-z3-rfull", "tp2-nosp-dp8-mbs32-z3-rfull",
           "tp2-nosp-dp8-sh4-mbs1-z1-rfull", "tp2-nosp-pp2-dp4-mbs1-z0-rfull", "tp2-nosp-cp2r-dp4-mbs1-z0-rfull",
           "tp2-nosp-dp8-mbs1-z0-rfull-oact", "tp2-nosp-pp4-dp2-mbs1-z0-rfull",
           "tp2-nosp-dp8-ep2-mbs1-z0-rnone", "tp2-nosp-dp8-ep2-mbs32-z3-rnone", "tp2-nosp-dp8-ep2-mbs1-z3-rfull",
           "tp2-nosp-dp8-ep2-mbs1-z0-rfull-oact", "tp2-nosp-dp8-sh4-ep2-mbs1-z1-rfull",
           "tp2-nosp-pp4-dp2-ep2-mbs1-z0-rfull", "tp2-nosp-cp2r-dp4-ep2-mbs1-z0-rnone", *GRAPHS)  # fmt: skip
# Without grouped heads: TokenRing refuses them.
DENSE = {"hidden": 2048, "layers": 8, "heads": 16, "ffn_hidden": 5504, "vocab": 32000, "max_positions": 4096}
EXPERTS = {"hidden": 2048, "layers": 8, "heads": 16, "vocab": 32000, "max_positions": 4096,
           "moe": {"experts": 8, "topk": 2, "expert_ffn": 4096}}  # fmt: skip
SETS = [(one, other) if one != other else (one,) for one in TECHNIQUES for other in TECHNIQUES if one <= other]


@cache
def evaluated(layout_id: str, techniques: Any, *, backwards: bool = False) -> Candidate | str:
    """Its price, or why there is none. backwards: the last of the techniques is applied first."""
    model = EXPERTS if "-ep" in layout_id else DENSE if "cp2r" in layout_id else "llama-3.2-1b"
    asked: dict[str, Any] = {"model": model, "cluster": "dgx-h100:2", "seq_len": 1024, "global_batch": 256,
             "stack": "megatron-core" if "tp2" in layout_id and "pp" in layout_id else "deepspeed"}  # fmt: skip
    if layout_id in GRAPHS:
        asked = {"model": "gcnii-reddit", "cluster": "dgx-h100:1", "stack": "deepspeed"}
    try:
        chosen = {name: dict(knobs) for name, knobs in techniques}
        resolved = resolve(load_request(None, {**asked, "technique": chosen}))
        if backwards:
            last_first = resolved.workload.techniques[::-1]
            resolved = replace(resolved, workload=replace(resolved.workload, techniques=last_first)).switched()
        # By the closed form: with a technique, a pipeline is not simulated.
        return evaluate_resolved(resolved, layout_id, "closed form").best
    except InputError as error:
        return str(error)


def frozen(techniques: dict[str, dict[str, float]]) -> tuple[Any, ...]:
    return tuple((name, tuple(sorted(knobs.items()))) for name, knobs in sorted(techniques.items()))


def values(knob: Knob) -> st.SearchStrategy[float]:
    if knob.whole:
        return st.integers(int(knob.low), int(knob.high)).map(float) | st.sampled_from([knob.low, knob.high])
    # A rate of less than a byte a second is none: such seconds have no finite sum.
    least = max(knob.least_above_0, 1e-9)
    return st.floats(knob.low, knob.high).map(lambda value: 0.0 if 0 < value < least else value)


@st.composite
def sets(draw: st.DrawFn) -> dict[str, dict[str, float]]:
    """One or two techniques, some of their knobs drawn."""
    names = draw(st.sampled_from(SETS))
    out: dict[str, dict[str, float]] = {}
    for name in names:
        knobs = [knob for knob in TECHNIQUES[name].knobs if draw(st.booleans())]
        out[name] = {knob.name: draw(values(knob)) for knob in knobs}
    return out


def numbers(candidate: Candidate) -> Iterator[float]:
    """Every byte and second of a candidate."""
    for stage in candidate.memory:
        yield from (value for name, value in stage.model_dump().items() if name.endswith("_bytes"))
    yield from (term.seconds for term in candidate.terms)


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(sets(), st.sampled_from(LAYOUTS))
def test_nothing_is_negative_and_terms_are_the_step(techniques: dict[str, dict[str, float]], layout_id: str) -> None:
    found = evaluated(layout_id, frozen(techniques))
    if isinstance(found, str):  # refused, with the reason
        named = any(f"{name} needs " in found for name in techniques)
        assert named or "exclude one another: " in found or "or the technique duplicate-token-dropping" in found
        return
    assert all(0 <= number < float("inf") for number in numbers(found))
    assert sum(term.seconds for term in found.terms if term.exposed) == pytest.approx(found.step_s, rel=1e-8)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(sets(), st.sampled_from(LAYOUTS))
def test_a_neutral_technique_changes_nothing_beside_others(
    techniques: dict[str, dict[str, float]], layout_id: str
) -> None:
    """Of a pair the first at its neutral knobs: the price is that of the second alone."""
    (first, _), *rest = techniques.items()
    others = dict(rest)
    neutral = evaluated(layout_id, frozen({first: dict(TECHNIQUES[first].neutral), **others}))
    alone = evaluated(layout_id, frozen(others))
    if isinstance(neutral, str) or isinstance(alone, str):
        return
    assert list(numbers(neutral)) == list(numbers(alone))


@pytest.mark.slow
def test_every_pair_that_is_not_refused_trains_some_layout_and_shows_both() -> None:
    """A technique whose rewrite the other replaces would go unseen."""
    for names in SETS:
        chosen: dict[str, dict[str, float]] = {name: {} for name in names}
        chosen |= {"three-level": {"weights_over": 1, "gradients_over": 2}} if "three-level" in names else {}
        try:
            applied(chosen)
        except InputError:
            assert len(names) == 2  # that there is a reason, test_technique_choice.py says
            continue
        unseen, trains = set(names) if len(names) == 2 else set(), False
        for layout_id in LAYOUTS:
            candidate = evaluated(layout_id, frozen(chosen))
            if isinstance(candidate, str):
                continue
            trains = True
            for name in tuple(unseen):
                rest = frozen({other: knobs for other, knobs in chosen.items() if other != name})
                if differs(evaluated(layout_id, rest), candidate):
                    unseen.remove(name)
            if not unseen:
                break
        assert trains, names
        assert not unseen, f"{unseen} changes nothing beside the other of {names}: one of them must exclude the other"


@pytest.mark.slow
def test_pairs_are_priced_alike_in_either_order() -> None:
    """Where the order of two rewrites matters, `order` says which is the first, whatever the user's order."""
    for names in SETS:
        chosen: dict[str, dict[str, float]] = {name: {} for name in names}
        chosen |= {"three-level": {"weights_over": 1, "gradients_over": 2}} if "three-level" in names else {}
        if len(names) == 1 or len({TECHNIQUES[name].order for name in names}) == 2 or any(exclusions(names)):
            continue
        asked = frozen(chosen)
        layout_id = next(layout_id for layout_id in LAYOUTS if isinstance(evaluated(layout_id, asked), Candidate))
        prices = [evaluated(layout_id, asked, backwards=backwards) for backwards in (False, True)]
        first, last = (list(numbers(price)) for price in prices if isinstance(price, Candidate))
        assert first == pytest.approx(last, rel=1e-9), names


def differs(alone: Candidate | str, both: Candidate) -> bool:
    return isinstance(alone, str) or list(numbers(alone)) != list(numbers(both))
