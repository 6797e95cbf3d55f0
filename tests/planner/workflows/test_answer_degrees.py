"""Training in which verl gives each answer a context-parallel degree of its own: its price, its files, its limits."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from meshwright.planner.api import plan_rl
from meshwright.planner.batches.degree_rules import OF_VERL
from meshwright.planner.batches.dynamic_rule import dynamic_micro_batches
from meshwright.planner.batches.ledger_costs import Family, ledger_costs
from meshwright.planner.batches.rule_trials import of_any_length, rule_candidates, trials
from meshwright.planner.document.rl_plan import RlCall, RlPlan
from meshwright.planner.request.reinforcement import RlRequest
from meshwright.planner.targets.post_training.check import check_rl
from meshwright.planner.targets.post_training.emit import emit_rl
from meshwright.planner.workflows.answer_degrees import fastest_by_rule, lengths_of
from meshwright.planner.workflows.graph import Call
from meshwright.planner.workflows.options import Option
from meshwright.planner.workflows.prices import Prices
from meshwright.planner.workflows.problem import RlProblem
from meshwright.planner.workflows.resolve import rl_problem_of

from meshwright.errors import InputError, UnsupportedError

from ...snapshots import run_here

FILE = "verl.overrides"
WORK: dict[str, Any] = {"algorithm": "grpo", "prompts": 8, "samples": 8, "input": 512, "output": 4000,
                        "output_p90": 9000, "output_max": 65000, "lengths_rule": "dynamic"}  # fmt: skip
MODEL: dict[str, Any] = {"model": "qwen3-4b", "cluster": "dgx-a100-40gb:1"}


def asked(**work: Any) -> RlProblem:
    return rl_problem_of(RlRequest.model_validate({**MODEL, "workload": {"kind": "rl", **WORK, **work}}))[0]


@cache
def found(updates: int = 1) -> tuple[RlProblem, Option]:
    rl = asked(updates=updates)
    option = fastest_by_rule(rl, 8)
    assert option is not None
    return rl, option


@cache
def planned() -> RlPlan:
    return plan_rl(**MODEL, **WORK, kl=True, target="verl")


def train() -> RlCall:
    return next(call for call in planned().best.calls if call.name == "train")


def files() -> dict[str, str]:
    return dict(emit_rl(planned(), "verl").files)


def options() -> dict[str, str]:
    return dict(line.split("=", 1) for line in files()[FILE].splitlines() if not line.startswith("#"))


def lengths_by_hand(rl: RlProblem, number: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Quantiles of the cut log-normal distribution at (i + 1/2) / number, behind prompts of 512 tokens."""
    normal = NormalDist(rl.lengths.centre, rl.lengths.spread)
    return np.array([512 + min(np.exp(normal.inv_cdf((i + 0.5) / number)), 65000) for i in range(number)])


@pytest.mark.parametrize("updates", [1, 4])
def test_an_update_takes_its_micro_batches_one_after_another(updates: int) -> None:
    """once + sum over micro-batches (fixed + the longest sum of seconds in a group), for each update."""
    rl, option = found(updates)
    layout, degrees = option.layout, option.by_answer
    assert layout is not None
    assert degrees is not None
    resolved = of_any_length(rl.on("policy", 8, 64 // updates))
    mode = ("none", "selective", "full")[layout.recompute]
    family = Family(tp=layout.tp, cp_algorithm="ring", recompute=mode, zero=1)
    costs = ledger_costs(resolved, family)
    assert costs is not None
    lengths = np.ceil(lengths_by_hand(rl, 64 // updates) / (2 * layout.tp)) * 2 * layout.tp
    column = {degree: at for at, degree in enumerate(costs.degrees.tolist())}
    table = costs.seconds(lengths)
    micro_batches = dynamic_micro_batches(lengths, degrees.rank_tokens, 8 // layout.tp)
    makespans = [max(sum(table[k, column[group.degree]] for k in group.sequences) for group in groups)
                 for groups in micro_batches]  # fmt: skip
    step_s = costs.once_s + sum(costs.micro_batch_s + each for each in makespans)
    assert option.seconds == pytest.approx(updates * step_s)
    assert degrees.micro_batches == len(micro_batches)
    assert degrees.degrees == tuple(sorted({group.degree for groups in micro_batches for group in groups}))


def test_no_other_layout_and_no_other_tokens_of_a_rank_are_faster() -> None:
    rl, option = found()
    resolved = of_any_length(rl.on("policy", 8, 64))
    steps = [trial.plans([lengths_of(rl)])[0].step_s
             for trial in trials(OF_VERL, rule_candidates(resolved), rl.longest_allowed)]  # fmt: skip
    assert len(steps) > 3
    assert option.seconds == pytest.approx(min(steps))


def test_the_widest_groups_hold_the_longest_answer_that_the_engine_allows() -> None:
    _, option = found()
    assert option.layout is not None
    assert option.by_answer is not None
    assert option.layout.cp * option.by_answer.rank_tokens >= 512 + 65000
    assert option.layout.cp >= option.by_answer.degrees[-1] > 1
    assert option.layout.tp * option.layout.cp * option.layout.dp == 8


def test_scores_take_the_share_of_the_forward_pass() -> None:
    prices = Prices(asked(kl=True, old_logprobs=True))
    trained, home = prices.train("policy", 8), prices.at_home(Call("logprobs", "infer", "policy"), 8)
    assert trained is not None
    assert home is not None
    share = home.seconds / (trained.seconds * prices.constants.training)
    # A third of the FLOP without recomputation, more where exchanges are exposed; a fourth with it.
    assert 0.2 < share < 0.4


def test_the_plan_and_its_screen_show_the_degrees(tmp_path: Path) -> None:
    call = train()
    assert call.rank_tokens
    assert call.seq_len == call.rank_tokens * (call.layout or {})["cp"]
    (tmp_path / "rl.json").write_text(planned().to_json())
    shown = " ".join(run_here("explain", "rl.json", cwd=tmp_path).out.split())
    assert f"ranks, {call.rank_tokens:,} tokens on each" in shown
    launched = run_here("launch", "rl.json", "--scale-down", cwd=tmp_path)
    assert launched.code == 2
    assert "answers with degrees of their own are planned, and not run here" in launched.err


def test_a_faster_layout_of_one_degree_is_named() -> None:
    prices = Prices(asked(lengths_rule=None))
    option = prices.of(Call("train", "train", "policy"), 8)
    assert option is not None
    slower = option.seconds < train().end_s - train().start_s - train().moves_s
    assert any("one context-parallel degree for all answers trains faster" in it for it in planned().warnings) == slower


def test_the_actor_has_the_options_of_verl() -> None:
    given, call = options(), train()
    engine = "actor_rollout_ref.actor.megatron."
    assert given[f"{engine}dynamic_context_parallel"] == "True"
    assert given[f"{engine}max_seqlen_per_dp_cp_rank"] == str(call.rank_tokens)
    # docs/advance/dynamic_context_parallel.rst: the limit of a rank is the packed budget over cp.
    assert given["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == str(call.rank_tokens)
    assert f"{engine}virtual_pipeline_model_parallel_size" not in given
    # _validate_dcp_world_size: ranks without tensor parallelism and stages are even.
    assert 8 // int(given[f"{engine}tensor_model_parallel_size"]) % 2 == 0
    assert not any(name.startswith("actor_rollout_ref.ref.") and "context" in name for name in given)
    assert check_rl(planned(), files()).problems == ()


@pytest.mark.parametrize(("line", "other", "message"), [
    ("megatron.dynamic_context_parallel=True", "megatron.dynamic_context_parallel=False",
     "is False; the plan has True"),
    ("megatron.dynamic_context_parallel=True", "megatron.dynamic_context_paralel=True", "has no such option"),
    ("megatron.max_seqlen_per_dp_cp_rank=", "megatron.max_seqlen_per_dp_cp_rank=-", "a whole number from 1"),
    ("megatron.max_seqlen_per_dp_cp_rank=", "megatron.max_seqlen_per_dp_cp_rank=0 # ", "a whole number from 1"),
    ("megatron.context_parallel_size", "megatron.virtual_pipeline_model_parallel_size=2\n"
     "actor_rollout_ref.actor.megatron.context_parallel_size", "2 does not run with dynamic_context_parallel"),
    ("megatron.context_parallel_size", "megatron.use_remove_padding=False\n"
     "actor_rollout_ref.actor.megatron.context_parallel_size", "False does not run with dynamic_context_parallel"),
    ("megatron.context_parallel_size", "megatron.pad_to_length=True\n"
     "actor_rollout_ref.actor.megatron.context_parallel_size", "True does not run with dynamic_context_parallel"),
])  # fmt: skip
def test_edited_files_are_found(line: str, other: str, message: str) -> None:
    text = files()[FILE]
    assert line in text
    problems = check_rl(planned(), {**files(), FILE: text.replace(line, other)}).problems
    assert message in " ".join(map(str, problems))


def test_other_frameworks_do_not_take_the_plan() -> None:
    with pytest.raises(UnsupportedError, match="nemo-rl has one context-parallel degree for all answers"):
        emit_rl(planned(), "nemo-rl")


@pytest.mark.parametrize(("changed", "message"), [
    ({"target": "slime"}, "slime has one context-parallel degree for all answers"),
    ({"trainer": "accelerate"}, "accelerate: only Megatron-Core gives answers degrees of their own"),
    ({"algorithm": "ppo"}, "ppo: a critic is a value model"),
    ({"algorithm": "dpo"}, "dpo: main_ppo trains on answers that it generates"),
    ({"model": "qwen3-30b-a3b"}, "qwen3-30b-a3b has experts"),
    ({"model": "qwen3-vl-8b"}, "the model takes images"),
    ({"cluster": "dgx-a100-40gb:3"}, "24 GPUs are none"),
])  # fmt: skip
def test_steps_without_degrees_by_answer_are_refused(changed: dict[str, Any], message: str) -> None:
    work = {name: value for name, value in WORK.items() if not (changed.get("algorithm") and name == "samples")}
    with pytest.raises(UnsupportedError) as caught:
        plan_rl(**{**MODEL, **work, **changed})
    assert message in caught.value.message


def test_all_reasons_are_named_at_once_and_other_rules_are_unknown() -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan_rl(**{**MODEL, **WORK, "model": "qwen3-30b-a3b", "cluster": "dgx-a100-40gb:3", "trainer": "accelerate"})
    assert len(caught.value.message.splitlines()) == 4
    with pytest.raises(InputError, match="`hybrid` is none of dynamic"):
        plan_rl(**{**MODEL, **WORK, "lengths_rule": "hybrid"})
