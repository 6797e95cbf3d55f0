"""The stages of a simulated pipeline, which all lanes pass: by hand, and beside a simulation of single iterations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from meshwright.cost_models.serving.arrivals import Requests
from meshwright.cost_models.serving.iteration import Batch, iteration_seconds
from meshwright.cost_models.serving.lengths import RequestLengths
from meshwright.cost_models.serving.pool import Pool
from meshwright.cost_models.serving.simulation import Simulated, simulate
from meshwright.planner.serving.instance import Instance, InstanceLayout, pool
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.engines import shipped_engines

ENGINES = shipped_engines()
CLUSTER = load_cluster("8xh100-sxm-80gb", gpu=None, num_gpus=None, exclude=())


def stages(tp: int, pp: int, model: str = "llama-3.1-70b", chunk_tokens: int = 8192) -> Pool:
    layout = InstanceLayout(tp=tp, pp=pp, ep=1, attention_dp=1, instances=1)
    return pool([Instance(model=load_model(model)[0], gpu=CLUSTER.gpu, levels=CLUSTER.levels, weights="bf16",
                          cache="bf16", engine=ENGINES.of("vllm"), host_s=0.0375, layout=layout,
                          chunk_tokens=chunk_tokens, max_sequences=1024)])  # fmt: skip


def trace(rows: list[tuple[float, float, float]]) -> RequestLengths:
    """rows: arrival in seconds, from 0 on, tokens of the prompt and of the answer."""
    arrivals, prompts, answers = np.array(sorted(rows)).T
    return RequestLengths(prompts, answers, np.full(len(rows), 1.0 / len(rows)), arrivals)


def run(of: Pool, lengths: RequestLengths) -> Simulated:
    """A trace, whose first fifth of the requests is not counted."""
    number = len(lengths.weights)
    asked = Requests(lengths=lengths, rate=lengths.trace_rate, concurrency=0, number=number, front_s=0.0)
    return simulate(of, replace(ENGINES.constants, prompt_token_s=0.0), asked, 1e6)


def seconds(of: Pool, *, sequences: float = 0.0, context: float = 0.0, tokens: float = 0.0, seen: float = 0.0) -> float:
    """Of an iteration in all stages."""
    batch = Batch(sequences=np.array([sequences]), context=np.array([context]), prompt_tokens=np.array([tokens]),
                  prompt_context=np.array([seen]), prompt_groups=np.ones(1))  # fmt: skip
    return float(iteration_seconds(of, ENGINES.constants, batch)[0])


def test_a_prompt_holds_up_the_other_lane_in_both_stages() -> None:
    """A decodes alone, a round of d seconds. Three quarters of a round after an iteration of A began B enters the free
    first stage, with a prompt of m seconds, m / 2 in each. A, done d / 4 later, enters the first stage when B leaves it
    and the last one when B leaves that, so that its iteration ends m + d / 2 after B came, not 5 / 4 d after."""
    of, answer = stages(4, 2), 31.0
    begun_s, prompt_s = (seconds(of, tokens=tokens, seen=tokens / 2) for tokens in (1000.0, 6000.0))
    round_s = seconds(of, sequences=1.0, context=1000.0 + answer / 2)
    comes_s = begun_s + 4.75 * round_s
    done = run(of, trace([(0.0, 1000.0, answer), (comes_s, 6000.0, 8.0)]))
    assert done.ttft_s == pytest.approx([begun_s, prompt_s], rel=1e-3)
    assert done.tpot_s[0] == pytest.approx(round_s + (prompt_s - 0.75 * round_s) / (answer - 1.0), rel=3e-3)
    assert done.tpot_s[1] == pytest.approx(seconds(of, sequences=1.0, context=6004.0), rel=1e-2)


@dataclass
class _Plain:
    """Iterations one after another, each with a list of its requests."""

    of: Pool
    rows: list[list[float]]  # arrival, prompt, answer, tokens of the prompt that are in no iteration
    given: dict[int, float] = field(default_factory=dict)  # tokens of the answers
    first_s: dict[int, float] = field(default_factory=dict)
    last_s: dict[int, float] = field(default_factory=dict)

    def run(self) -> tuple[list[float], list[float]]:
        stages = int(self.of.pp[0])
        lanes, ready_s, flights = [list[int]() for _ in range(stages)], [0.0] * stages, [[0.0] * stages]
        joins: list[list[int]] = [[] for _ in range(stages)]
        while len(self.last_s) < len(self.rows):
            left = [i for i, row in enumerate(self.rows) if row[3] > 0]
            prompt_s = min((self.rows[i][0] for i in left), default=np.inf)
            begins = [max(ready_s[k], flights[-1][0], 0.0 if lanes[k] or joins[k] else prompt_s) for k in range(stages)]
            lane = min(range(stages), key=lambda k: (begins[k], not (lanes[k] or joins[k]), k))
            self._land(lanes[lane], joins[lane], ready_s[lane])
            come = [i for i in left if self.rows[i][0] <= begins[lane]]
            joins[lane], took_s = self._iteration(lanes[lane], come)
            if took_s:
                passed, at = list[float](), begins[lane]
                for before in flights[-1]:
                    at = max(at, before) + took_s / stages
                    passed.append(at)
                flights.append(passed)
                ready_s[lane] = at
        return ([self.first_s[i] - row[0] for i, row in enumerate(self.rows)],
                [(self.last_s[i] - self.first_s[i]) / (row[2] - 1) for i, row in enumerate(self.rows)])  # fmt: skip

    def _land(self, lane: list[int], joining: list[int], at: float) -> None:
        for i in lane:
            self.given[i] += 1
        for i in joining:
            self.given[i], self.first_s[i] = 1, at
        lane.extend(joining)
        for i in [i for i in lane if self.given[i] >= self.rows[i][2]]:
            self.last_s[i] = at
            lane.remove(i)

    def _iteration(self, lane: list[int], come: list[int]) -> tuple[list[int], float]:
        budget, tokens, seen, ending = float(self.of.chunk_tokens[0]) - len(lane), 0.0, 0.0, list[int]()
        for i in come:
            taken = min(budget - tokens, self.rows[i][3])
            seen += taken * (self.rows[i][1] - self.rows[i][3] + taken / 2)
            tokens, self.rows[i][3] = tokens + taken, self.rows[i][3] - taken
            ending.extend([i] if taken and not self.rows[i][3] else [])
        if not lane and not tokens:
            return [], 0.0
        context = sum(self.rows[i][1] + self.given[i] for i in lane) / max(len(lane), 1)
        return ending, seconds(self.of, sequences=len(lane), context=context, tokens=tokens, seen=seen / max(tokens, 1))


@pytest.mark.parametrize(("tp", "pp", "chunk", "rate"), [(4, 1, 8192, 2.5), (4, 2, 8192, 4.0), (2, 4, 1024, 2.0)])
def test_the_simulated_pipeline_is_that_of_single_iterations(tp: int, pp: int, chunk: int, rate: float) -> None:
    """A request may join another lane where rounds in one step end a little earlier or later, so that not each but
    all together have the same latencies."""
    of, generator, number = stages(tp, pp, chunk_tokens=chunk), np.random.default_rng(1), 150
    arrivals = np.cumsum(generator.exponential(1.0 / rate, number))
    rows = [(float(at), float(generator.integers(50, 4000)), float(generator.integers(2, 120)))
            for at in arrivals - arrivals[0]]  # fmt: skip
    plain = _Plain(of, [[*row, row[1]] for row in rows])
    ttft_s, tpot_s = (np.array(it)[int(0.2 * number) :] for it in plain.run())
    simulated = run(of, trace(rows))
    for seconds_of, plainly in ((simulated.ttft_s, ttft_s), (simulated.tpot_s, tpot_s)):
        assert seconds_of.mean() == pytest.approx(plainly.mean(), rel=0.03)
        assert np.quantile(seconds_of, [0.5, 0.9]) == pytest.approx(np.quantile(plainly, [0.5, 0.9]), rel=0.03)


@pytest.mark.parametrize("comes_s", [0.4, 0.7, 1.1, 1.75])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_a_prompt_in_one_lane_makes_none_faster(pp: int, comes_s: float) -> None:
    of, rows = stages(8 // pp, pp), [(0.2 * i, 500.0 + i, 100.0) for i in range(8)]
    alone, beside = (run(of, trace(asked)) for asked in (rows, [*rows, (comes_s, 8000.0, 1.0)]))
    others = beside.prompts < 8000.0
    assert (beside.prompts[others] == alone.prompts).all()
    ended_s, before_s = (done.ttft_s + 99.0 * done.tpot_s for done in (beside, alone))
    assert (ended_s[others] >= before_s * (1 - 1e-3)).all()
    assert ended_s[others].max() > 1.2 * before_s.max()


def test_prompts_of_a_million_tokens_hold_up_answers_in_a_pipeline() -> None:
    """A third of the requests meet a prompt that takes minutes, whose every chunk is 100 times an iteration of
    answers."""
    of, lengths = stages(2, 2, "llama-3.1-8b", chunk_tokens=16384), RequestLengths.equal(1e6, 100.0)
    asked = Requests(lengths=lengths, rate=0.006, concurrency=0, number=100, front_s=0.03)
    done = simulate(of, ENGINES.constants, asked, 2.0)
    assert np.quantile(done.tpot_s, 0.1) < 0.05
    assert np.quantile(done.tpot_s, 0.9) > 0.5
