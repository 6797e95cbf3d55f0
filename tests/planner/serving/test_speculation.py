"""Speculation: verified tokens, accepted ones, the batch up to which it pays, what is refused and emitted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from meshwright.cost_models.serving.arrivals import Requests
from meshwright.cost_models.serving.iteration import Batch, iteration_seconds
from meshwright.cost_models.serving.lengths import RequestLengths
from meshwright.cost_models.serving.simulation import simulate
from meshwright.planner.drivers.serving import demand_of
from meshwright.planner.explain.serving import explain_serving
from meshwright.planner.request.speculation import parse_speculation, step_tokens
from meshwright.planner.serving.instance import Instance, InstanceLayout, Speculation, pool
from meshwright.planner.serving.listed import deployment_of, engines_of, workload_of
from meshwright.planner.serving.promises import Promises, priced
from meshwright.planner.targets.engines.emit import emit_serving
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model

from meshwright.errors import InputError

from ...snapshots import run_here
from .test_plan_serving import ASKED, ENGINES, planned

CLUSTER = load_cluster("8xh100-sxm-80gb", gpu=None, num_gpus=None, exclude=())
DRAFT = load_model("llama-3.1-8b")[0]
LENGTHS = RequestLengths.equal(1000, 300)


def instance(speculation: Speculation | None) -> Instance:
    layout = InstanceLayout(tp=4, pp=1, ep=1, attention_dp=1, instances=1)
    return Instance(model=load_model("llama-3.1-70b")[0], gpu=CLUSTER.gpu, levels=CLUSTER.levels, weights="bf16",
                    cache="bf16", engine=ENGINES.of("vllm"), host_s=0.03, layout=layout, chunk_tokens=8192,
                    max_sequences=1024, speculation=speculation)  # fmt: skip


def drafted(tokens: int, accepted: float) -> Speculation:
    return Speculation(tokens=tokens, step_tokens=step_tokens(tokens, accepted), draft=DRAFT)


def decode_s(of: Instance, sequences: float) -> float:
    one = np.ones(1)
    batch = Batch(sequences=one * sequences, context=one * 1000, prompt_tokens=one * 0, prompt_context=one,
                  prompt_groups=one)  # fmt: skip
    return float(iteration_seconds(pool([of]), ENGINES.constants, batch)[0])


def test_accepted_tokens_are_a_geometric_sum() -> None:
    assert step_tokens(3, 0.5) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert step_tokens(3, 2.4) == 2.4
    assert step_tokens(1, 0.8) == pytest.approx(1.8)


def test_an_iteration_runs_the_draft_for_each_token_and_verifies_all() -> None:
    """Few sequences read the weights once, so that k more drafts cost k reads of the draft; many are bound by products,
    and k + 1 tokens of each take k + 1 times as long."""
    few = decode_s(instance(drafted(4, 0.7)), 1) - decode_s(instance(None), 1)
    draft_bytes = 2 * 8e9 / 4
    assert few > 4 * draft_bytes / 3.35e12
    assert few < 4 * decode_s(instance(None), 1)
    plain, spec = decode_s(instance(None), 2000), decode_s(instance(drafted(4, 0.7)), 2000)
    assert spec > 2.5 * plain


def test_weights_and_cache_of_the_draft_take_room() -> None:
    without, with_draft = pool([instance(None)]), pool([instance(drafted(3, 0.7))])
    more = float((with_draft.weights_bytes - without.weights_bytes)[0])
    assert more == pytest.approx(2 * 8.03e9 / 4, rel=0.05)
    token = (with_draft.kv_elements(np.ones(1)) - without.kv_elements(np.ones(1))) * 4
    assert float(token[0]) == 2 * 32 * 8 * 128


def test_the_closed_form_follows_the_simulated_instance() -> None:
    columns, rate = pool([instance(drafted(3, 0.7))]), 2.0
    asked = Promises(requests=LENGTHS, ttft_s=np.inf, tpot_s=np.inf, share=0.9, closed=False)
    closed = priced(columns, columns, np.array([False]), np.array([rate]), asked, ENGINES.constants)
    run = simulate(columns, ENGINES.constants, Requests(lengths=LENGTHS, rate=rate, concurrency=0, number=600,
                   front_s=0.03), 200.0)  # fmt: skip
    assert closed.service.tpot_s[0] == pytest.approx(run.tpot_s.mean(), rel=0.15)
    assert closed.latencies.tpot_s[0] == pytest.approx(np.quantile(run.tpot_s, 0.9), rel=0.2)
    alone = pool([instance(None)])
    plain = priced(alone, alone, np.array([False]), np.array([rate]), asked, ENGINES.constants)
    assert closed.service.tpot_s[0] < 0.75 * plain.service.tpot_s[0]


def test_the_plan_says_up_to_which_batch_it_pays_and_starts_the_draft() -> None:
    plan = planned({"speculate": "3:0.5:llama-3.1-8b", "fix": ["tp=4", "replicas=2", "chunk_tokens=8192"]})
    pays = plan.best.pools[0].speculation_pays_up_to
    assert pays is not None
    assert 1 < pays < plan.best.pools[0].cache_sequences
    both = [decode_s(instance(drafted(3, 0.5)), n) / step_tokens(3, 0.5) < decode_s(instance(None), n)
            for n in (pays * 0.5, pays * 2)]  # fmt: skip
    assert both == [True, False]
    (again,) = deployment_of(plan, plan.best, demand_of(workload_of(plan), engines_of(plan)).promises).fleets
    assert float(pool([again.instance]).step_tokens[0]) == pytest.approx(step_tokens(3, 0.5))
    parts = explain_serving(plan).parts
    assert min(part.tpot_s for part in parts) >= 0
    assert sum(part.tpot_s for part in parts) == pytest.approx(plan.best.tpot_promised_s)
    script = emit_serving(plan, "vllm").files["serve.sh"]
    config = json.loads(script.partition("--speculative-config '")[2].partition("'")[0])
    assert config == {"method": "draft_model", "model": "meta-llama/Llama-3.1-8B", "num_speculative_tokens": 3}


@pytest.mark.parametrize(("target", "says"), [
    ("vllm", '"method":"mtp"'), ("sglang", "--speculative-algorithm EAGLE"), ("tensorrt-llm", "decoding_type: MTP"),
])  # fmt: skip
def test_modules_for_further_tokens(target: str, says: str) -> None:
    fix = ["tp=8", "attention_dp=1", "ep=1", "replicas=1"]
    plan = planned({"model": "deepseek-v3", "cluster": "dgx-h200:1", "speculate": "1:0.8:mtp", "target": target,
                    "precision": "fp8", "rate": "1/s", "fix": fix})  # fmt: skip
    assert says in "\n".join(emit_serving(plan, target).files.values())


@pytest.mark.parametrize(("value", "says"), [
    ("3:0.7", "without a draft"), ("3", "without a draft"), ("0:0.7:x", "less than 1"), ("3:5:x", "gives 4 at most"),
    ("3:-1:x", "more than 0"), ({"tokens": 3, "draft": "x"}, "lacks accepted"), ({"k": 3}, "no `k`"),
])  # fmt: skip
def test_wrong_speculation_is_named(value: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_speculation(value)


@pytest.mark.parametrize(("value", "says"), [
    ("3:0.7", "3:0.7:llama-3.2-1b"), ("1:0.8:mtp", "no module for further tokens"), ("3:0.7:opt-125m", "vocabulary"),
])  # fmt: skip
def test_drafts_that_cannot_propose_are_refused(value: str, says: str) -> None:
    result = run_here("plan", "--workload", "serve", *ASKED, "--speculate", value)
    assert result.code == 2
    assert says in result.err
