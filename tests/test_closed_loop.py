"""benchmarks/closed_loop.py: which layouts are measured, what is made of the times, and that nothing is left behind."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meshwright.planner import api
from meshwright.planner.document.reading import load_plan
from scipy.stats import kendalltau

from meshwright.errors import InputError

from .snapshots import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import closed_loop
from loop import cases, choices, emulated, quotas, sample, self_test, stored, tables, tickers, trials

RUN = tables.Run("2026-01-01", seed=0, rounds=1, steps=3, environment={"torch": "2"})
CHAIN = ROOT / "benchmarks" / "closed_loop.py"


def entries(role: str, *times: float) -> list[sample.Entry]:
    return [sample.Entry(f"{role}-{n}", Path("plan.json"), n + 1, s, [role]) for n, s in enumerate(times)]


def measured(predicted: float, *rounds: list[float], slowness: float = 1.0) -> sample.Entry:
    """All of its steps count: one fewer others were disturbed."""
    steps = [[*(sample.Step(seconds, slowness) for seconds in each), *[sample.Step(99.0, 9.0)] * (len(each) - 1)]
             for each in rounds]  # fmt: skip
    return sample.Entry("l", Path("plan.json"), 1, predicted, ["best 1"], rounds=steps)


class TestSample:
    def test_holds_the_best_the_naive_and_as_many_others_as_asked_for(self) -> None:
        best, naive, others = entries("best", 1, 2, 3), entries("naive", 9), entries("drawn", 1.5, 2, 2.5)
        found = sample.chosen(best, naive, others, seed=0, drawn=2)
        assert [each.layout_id for each in found[:4]] == ["best-0", "best-1", "best-2", "naive-0"]
        assert [each.roles for each in found[4:]] == [["drawn"]] * 2

    def test_a_naive_choice_among_the_best_is_measured_once(self) -> None:
        best = entries("best", 1, 2)
        naive = [sample.Entry("best-1", Path("other.json"), 1, 2, ["all dp"])]
        found = sample.chosen(best, naive, [], seed=0)
        assert [each.roles for each in found] == [["best"], ["best", "all dp"]]

    def test_the_same_seed_draws_the_same_whatever_their_order(self) -> None:
        others = entries("drawn", *(1.5 + n / 100 for n in range(40)))
        drawn = [[each.layout_id for each in sample.chosen(entries("best", 1), [], given, seed=3)]
                 for given in (others, others[::-1])]  # fmt: skip
        assert drawn[0] == drawn[1]
        assert drawn[0] != [each.layout_id for each in sample.chosen(entries("best", 1), [], others, seed=4)]

    def test_what_is_already_in_it_or_far_too_slow_is_not_drawn(self) -> None:
        best = entries("best", 1)
        others = [*entries("best", 1), *entries("drawn", sample.SLOWEST * 1.01, 2)]
        assert [each.layout_id for each in sample.chosen(best, [], others, seed=0)] == ["best-0", "drawn-1"]

    def test_is_never_larger_than_the_most(self) -> None:
        others = entries("drawn", *[2] * 9)
        found = sample.chosen(entries("best", *[1] * 6), entries("naive", 2), others, seed=0, most=9)
        assert len(found) == 9


class TestFigures:
    def test_measured_is_the_best_of_the_rounds_medians(self) -> None:
        one = measured(1.1, [1.0, 9.0, 1.2], [1.5, 1.0, 1.1], [2.0, 2.0, 2.0])
        assert one.medians == [1.2, 1.1, 2.0]
        assert one.measured_s == 1.1
        assert one.error == pytest.approx(0.0)
        assert one.spread == pytest.approx(2.0 / 1.1 - 1)

    @pytest.mark.parametrize(
        ("slowness", "counted"),
        [([1.0, 9.0, 1.1, 2.0], [0, 2]), ([3.0, 2.0, 4.0, 2.5, 2.1], [1, 4, 3]), ([1.0], [0])],
    )
    def test_the_steps_count_that_were_disturbed_least(self, slowness: list[float], counted: list[int]) -> None:
        steps = [sample.Step(float(number), slow) for number, slow in enumerate(slowness)]
        entry = sample.Entry("l", Path("plan.json"), 1, 1.0, [], rounds=[steps, steps[:1]])
        assert entry.counted == [[steps[number] for number in counted], steps[:1]]

    def test_at_equal_speed_layouts_that_met_slower_cores_are_not_slower(self) -> None:
        """Seconds as 2 s^1.2 and 3 s^1.2 of slowness s: where all met the same, the ratio is 1.5 whatever s."""
        met = [[1.0, 1.5, 2.0], [1.0, 1.1, 1.2]]
        found = [sample.Entry("l", Path("plan.json"), 1, 1.0, [],
                              rounds=[[sample.Step(scale * each**1.2, each) for each in own]])
                 for scale, own in zip((2.0, 3.0), met, strict=True)]  # fmt: skip
        first, second = sample.at_equal_speed(found)
        assert second / first == pytest.approx(1.5)
        assert first == pytest.approx(2.0 * (3.0 * 1.32) ** (1.2 / 6))  # at the mean of all, of logs
        steady = [measured(1.0, [2.0, 2.0]), measured(1.0, [3.0])]
        for entry in steady:
            entry.rounds = [[step for step in each if step.slowness == 1.0] for each in entry.rounds]
        assert sample.at_equal_speed(steady) == pytest.approx([2.0, 3.0])  # cores that never changed

    def test_the_error_is_relative_to_what_was_measured(self) -> None:
        assert measured(0.8, [1.0]).error == pytest.approx(-0.2)
        assert sample.median_error([0.8, 1.1, 1.0], [1.0, 1.0, 1.0]) == pytest.approx(0.1)

    @pytest.mark.parametrize(
        ("predicted", "times", "tau"),
        [((1, 2, 3, 4), (1, 2, 3, 4), 1.0), ((1, 2, 3, 4), (4, 3, 2, 1), -1.0), ((1, 2, 3), (1, 3, 2), 1 / 3)],
    )
    def test_tau_counts_pairs_in_order(self, predicted: Any, times: Any, tau: float) -> None:
        assert sample.kendall_tau(predicted, times) == pytest.approx(tau)

    def test_tau_with_ties_is_that_of_scipy(self) -> None:
        predicted, times = (1, 1, 2, 3, 3, 5), (2, 1, 2, 2, 4, 3)
        assert sample.kendall_tau(predicted, times) == pytest.approx(kendalltau(predicted, times).statistic)

    def test_regret_is_what_the_choice_takes_longer_than_the_best(self) -> None:
        assert sample.regret([1.1, 1.0, 3.0], 0) == pytest.approx(0.1)
        assert sample.regret([1.0, 1.1], 0) == 0.0

    def test_regret_is_measured_in_turns_of_the_choice_and_its_rivals(self) -> None:
        entries = [measured(1.0, [time]) for time in (1.2, 1.4, 1.0, 1.3, 1.1)]
        assert [entry.measured_s for entry in sample.rivals(entries, 2)] == [1.2, 1.0, 1.1]
        for entry, seconds in zip(sample.rivals(entries, 2), (1.05, 1.04, 1.0), strict=True):
            entry.finals = [sample.Step(seconds, 1.0)] * 4
        case = cases.read_cases(closed_loop.CASES)[0]
        result = tables.Result(case, case.models[0], entries, 1.1, RUN)
        assert "| 5.0% |" in tables.tables([result])
        without = tables.Result(case, case.models[0], [measured(1.0, [1.0])], 1.1, RUN)
        assert "| 0.0% in rounds |" in tables.tables([without])
        figures = result.figures()
        assert figures["regret"] == pytest.approx(0.05)
        assert figures["regret at equal speed"] == pytest.approx(0.05)
        assert figures["regret in rounds"] == pytest.approx(0.2)
        entries[0].failed = "out of memory"
        assert sample.rivals(entries) == []

    def test_the_interval_of_a_regret_holds_the_true_one(self) -> None:
        """The choice takes 5 % longer than its rival, in steps that differ by 5 % (standard deviation): a 90 % interval
        misses the true regret in about 10 of 100 draws. It is narrow where no step differs."""
        noise = np.random.default_rng(0)

        def interval(deviation: float) -> tuple[float, float]:
            finals = [measured(1.0, []) for _ in range(2)]
            for entry, level in zip(finals, (1.05, 1.0), strict=True):
                steps = level * (1.0 + deviation * noise.standard_normal(40))
                entry.rounds = [[sample.Step(float(seconds), 1.0) for seconds in steps]]
            return sample.regret_interval(finals, 0, seed=0)

        assert interval(0.0) == pytest.approx((0.05, 0.05))
        held = [low <= 0.05 <= high for low, high in (interval(0.05) for _ in range(20))]
        assert sum(held) >= 15

    def test_of_layouts_that_are_alike_turns_of_their_own_find_less_regret(self) -> None:
        """By 14 layouts of one speed, whose rounds vary by a tenth: the least of them is too low by chance."""
        noise = np.random.default_rng(0)
        found = []
        for _ in range(40):
            entries = [measured(1.0, [1.0 + 0.1 * noise.standard_normal()]) for _ in range(14)]
            in_rounds = sample.regret([entry.measured_s for entry in entries], 0)
            for entry in sample.rivals(entries):
                entry.finals = [sample.Step(1.0 + 0.1 * noise.standard_normal(), 1.0) for _ in range(60)]
            finals = [entry.measured_s for entry in sample.finalists(entries)]
            found.append((in_rounds, sample.regret(finals, 0)))
        in_rounds, in_finals = np.mean(found, axis=0)
        assert in_rounds > 0.15
        assert in_finals < 0.03


class TestRefusals:
    def test_quotas_that_do_not_fit_are_refused_with_the_arithmetic(self) -> None:
        found = quotas.cores_of([0.3] * 6, [0, 1])
        assert found == ("quotas of 1.8 cores in all do not fit: 85% of 2 cores are 1.7, and the fullest core would "
                         "have 0.9")  # fmt: skip

    def test_ranks_of_two_speeds_share_the_cores_evenly(self) -> None:
        found = quotas.cores_of([0.28] * 4 + [0.14] * 4, [0, 1])
        assert found == (0, 1, 0, 1, 0, 1, 0, 1)

    def test_periods_are_the_shortest_whose_quotas_the_kernel_takes_and_all_different(self) -> None:
        asked = [0.28, 0.28, 0.14, 0.14]
        found = quotas.periods_s(asked)
        assert found[0] == pytest.approx(quotas.LEAST_QUOTA_S / min(asked))
        assert min(cores * period for cores, period in zip(asked, found, strict=True)) >= quotas.LEAST_QUOTA_S
        assert min(later / earlier for earlier, later in pairwise(found)) > 1.02

    def test_ranks_that_hinder_one_another_are_refused(self) -> None:
        assert self_test.refusal(self_test.RankSpeeds((1.0, 0.9, 0.95), (0.9, 1.0, 1.1), 4e-4)) == ""
        assert self_test.refusal(self_test.RankSpeeds((1.0, 0.5, 0.9), (0.9, 1.0, 1.1), 4e-4)).startswith(
            "3 ranks at once do 2.40 times what one does alone, and behind a wait they take 1.00 of their time: "
            "less than 0.85 x 3 = 2.55 (rank 1: 0.50)")  # fmt: skip

    def test_a_machine_is_refused_only_when_it_fails_again_and_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good, bad = self_test.RankSpeeds((1.0,), (1.0,), 4e-4), self_test.RankSpeeds((0.5,), (1.0,), 4e-4)
        for answers, kept, left in (([bad, good, bad], good, 1), ([bad] * 4, bad, 1), ([good, bad], good, 1)):
            given = iter(answers)
            monkeypatch.setattr(self_test, "_once", lambda cluster, outputs, given=given: next(given))
            assert self_test.run(None, tmp_path) is kept  # type: ignore[arg-type]
            assert len(list(given)) == left

    def test_without_root_it_says_so_and_exits_2(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert closed_loop.main(["-o", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: this machine cannot emulate a cluster: it lacks root: network namespaces")
        assert not list(tmp_path.iterdir())

    @pytest.mark.skipif(bool(emulated.missing()), reason=f"needs {emulated.missing()}")
    def test_without_real_time_priority_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuses(*given: object) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "sched_setscheduler", refuses)
        assert emulated.missing().startswith("real-time priority (CAP_SYS_NICE)")

    def test_all_that_is_wrong_with_a_file_is_said_at_once(self, tmp_path: Path) -> None:
        path = tmp_path / "clusters.yaml"
        path.write_text("clusters:\n  a:\n    models: [big]\n    hosts:\n      h0: {ranks: 0, cores: 0.2}\n"
                        "      h1: {ranks: 2, cores: 2, link: 200}\nmodels:\n  m: {seq_len: 64}\n")  # fmt: skip
        with pytest.raises(InputError) as error:
            cases.read_cases(path)
        for said in ("`big` is no model", "`0` must be a whole number", "`2` must be a share", "200 has no unit",
                     "`global_batch` is missing", "must be a mapping, as in a model file"):  # fmt: skip
            assert said in str(error.value)

    def test_the_clusters_that_are_shipped_can_be_read(self) -> None:
        found = cases.read_cases(CHAIN.with_suffix(".yaml"))
        assert [case.num_ranks for case in found] == [8, 8, 8]
        for case in found:
            assert isinstance(quotas.cores_of([host.cores for host in case.hosts] * 4, [0, 1, 2, 3, 4, 5]), tuple)


def _answers(told: int, answers: int) -> None:
    """A rank that is built, and then says for every round how many steps it was asked for."""
    os.write(answers, b"built\n")
    with os.fdopen(told) as commands:
        for line in commands:
            os.write(answers, json.dumps([(0.0, float(line))] * int(line)).encode() + b"\n")


def test_a_layout_is_stopped_where_it_does_not_train(tmp_path: Path) -> None:
    """Else its threads would take time of those of the layout that does."""
    (told, end), (answers, answer) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(end)
        _answers(told, answer)
        os._exit(0)
    for each in (told, answer):
        os.close(each)

    def is_stopped() -> bool:
        return _within(5, lambda: _state(pid) == "T")

    trial = trials.Trial([pid], [end], answers, tmp_path)
    try:
        trial.wait_until_built()
        assert is_stopped()
        assert trial.train(3) == [(0.0, 3.0)] * 3
        assert is_stopped()
    finally:
        trial.end()


def test_every_layout_trains_once_a_turn_in_another_order_each_time() -> None:
    names = [f"layout-{number}" for number in range(9)]
    found = list(trials.turns(names, 3, random.Random(0)))
    turns = [found[at : at + 9] for at in range(0, 27, 9)]
    assert all(sorted(turn) == names for turn in turns)
    assert len({tuple(turn) for turn in turns}) == 3


def test_tables_say_how_fast_the_cores_were() -> None:
    case = cases.read_cases(closed_loop.CASES)[0]
    result = tables.Result(case, case.models[0], [measured(0.9, [1.0, 1.0], slowness=1.25)], 1.1, RUN)
    assert ("the probe that tells the cores' speed took 1.10 times its least while kernels were profiled, 1.25 times "
            "during steps that count") in tables.tables([result])  # fmt: skip


def result_of(case: cases.Case, measured_s: float, date: str) -> tables.Result:
    entry = measured(0.9, [measured_s])
    entry.roles = ["best 1", "all dp"]
    return tables.Result(case, case.models[0], [entry], 1.1, replace(RUN, date=date), ["a remark"])


def write(path: Path, *results: tables.Result) -> Path:
    path.write_text(json.dumps(tables.document(results)))
    return path


def test_stored_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    first, second, *_ = cases.read_cases(closed_loop.CASES)
    results = [result_of(first, 1.0, "2026-01-01"), result_of(second, 2.0, "2026-02-02")]
    results[1].sample.append(sample.Entry("m", Path("plan.json"), 2, 1.5, ["drawn"], failed="out of memory"))
    results[1].sample[0].finals = [sample.Step(2.5, 1.1)] * sample.TURN
    read = stored.read(write(tmp_path / "r.json", *results))
    assert json.dumps(tables.document(read)) == json.dumps(tables.document(results))  # NaN is not equal to itself
    assert tables.tables(read) == tables.tables(results)


def test_one_cluster_is_renewed_in_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also from files in which all clusters have the date of one run."""
    first, second, *_ = cases.read_cases(closed_loop.CASES)
    out = tmp_path / "all.json"
    write(out, result_of(first, 1.0, "2026-01-01"), result_of(second, 2.0, "2026-01-01"))
    document = tables.document([result_of(first, 3.0, "")])
    document |= document["results"][0].pop("run") | {"date": "2026-03-03"}
    (tmp_path / "one.json").write_text(json.dumps(document))
    assert closed_loop.main(["--merge", str(tmp_path / "one.json"), "-o", str(tmp_path / "all")]) == 0
    kept = stored.read(out)
    assert [(r.case.name, r.run.date, r.sample[0].measured_s) for r in kept] == [
        (first.name, "2026-03-03", 3.0), (second.name, "2026-01-01", 2.0)]  # fmt: skip
    rows = [line for line in out.with_suffix(".md").read_text().splitlines() if " | 2026-" in line]
    assert [row.split(" | ")[2] for row in rows] == ["2026-03-03", "2026-01-01"]


@pytest.mark.skipif(bool(emulated.missing()), reason=f"needs {emulated.missing()}")
@pytest.mark.parametrize(("only", "dates"), [(True, ["2026-01-01", "2026-02-02"]), (False, ["2026-02-02"])])
def test_a_run_of_one_cluster_keeps_the_others(
    only: bool, dates: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = cases.read_cases(closed_loop.CASES)
    write(tmp_path / "all.json", result_of(first, 1.0, "2026-01-01"))
    new = result_of(second, 2.0, "2026-02-02")
    monkeypatch.setattr(closed_loop, "_results", lambda *_: iter([new]))
    assert closed_loop.main([*(["--only", second.name] if only else []), "-o", str(tmp_path / "all")]) == 0
    assert [result.run.date for result in stored.read(tmp_path / "all.json")] == dates


@pytest.mark.parametrize("text", ["", "[]", '{"results": [{}]}', None])
def test_a_file_that_holds_no_results_is_refused(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    if text is not None:
        file.write_text(text)
    assert closed_loop.main(["--merge", str(file), "-o", str(tmp_path / "all")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: ")
    assert "hint: name a JSON file of `--out`" in said
    assert not (tmp_path / "all.json").exists()


def test_a_time_is_told_by_the_probes_in_it() -> None:
    times, took = np.arange(100.0), np.full(100, 2.0)
    took[50:60] = [2, 2, 3, 3, 4, 4, 2, 2, 2, 2]
    assert tickers._slowness(times, took, 0, 49) == 1.0
    assert tickers._slowness(times, took, 50, 58) == pytest.approx(12 / 9)
    assert tickers._slowness(times, took, 57.995, 57.996) == 1.0  # shorter than probes are apart
    assert tickers._median_s(times, took, 50, 57) == 2.5
    with pytest.raises(ValueError, match="no probe"):
        tickers._slowness(times, took, 50.2, 50.4)


@pytest.mark.skipif(bool(emulated.missing()), reason=f"needs {emulated.missing()}")
def test_every_core_is_probed_throughout() -> None:
    """Twice a second each ticker reports the median of its last second."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    reported: Any = np.frombuffer(mmap.mmap(-1, 2 * 8 * len(cores)), np.float64).reshape(2, -1)
    began = time.perf_counter()

    def report(core: int, probe_s: float) -> None:
        reported[:, cores.index(core)] = reported[0, cores.index(core)] + 1, probe_s

    watch = tickers.Tickers.start(cores, report)
    try:
        assert _within(20, lambda: bool((reported[0] >= 1).all()))
        reports, lasted = reported.copy(), time.perf_counter() - began
        assert (reports[0] <= 2 * lasted).all()
        for number, page in enumerate(watch.pages):
            times, took = tickers._probes(page)
            assert 10 < len(times) < lasted / (tickers.TICKS_PER_PROBE * tickers.TICK_S) + 2
            last = tickers.PROBES_TO_FOLLOW + tickers.PROBES_APART * int(reports[0, number] - 1)
            assert reports[1, number] == np.median(took[last - tickers.PROBES_TO_FOLLOW : last])
            assert began < times[0]
            assert (np.diff(times) > tickers.TICKS_PER_PROBE * tickers.TICK_S).all()
            assert ((took > 0) & (took < 0.5)).all()
        assert watch.slowness(began + 0.2, time.perf_counter()) >= 0.9
        assert watch.usual_slowness(began + 0.1, began + 0.5) >= 0.9
        assert watch.probe_s(began, time.perf_counter()) < 0.5
    finally:
        watch.stop()


def test_quotas_follow_the_core_up_to_whole_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By files in place of control groups: a rank has its quota in a longer period where the core is faster."""
    monkeypatch.setattr(quotas, "cpu_controller", lambda: (tmp_path, 1))
    made = quotas.Quotas.make("mark", [0.2, 0.4])

    def written(rank: int) -> tuple[int, int]:
        quota, period = (tmp_path / "mark" / f"rank{rank}" / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
        return int(quota.read_text()), int(period.read_text())

    whole = [(1000, 5000), (2060, 5150)]
    made.follow([0, 1], 1e-9)  # not yet
    assert [written(0), written(1)] == whole
    made.start_following(1.0)
    made.follow([0], 0.5 * quotas.WHOLE_AT)
    assert [written(0), written(1)] == [(1000, 10000), whole[1]]
    assert made.share(0) == pytest.approx(0.1)
    made.follow([0], 0.5 * quotas.WHOLE_AT * (1.0 + 0.9 * quotas.LEAST_CHANGE))
    assert written(0) == (1000, 10000)
    made.lift()
    made.follow([0, 1], 0.25 * quotas.WHOLE_AT)
    assert [written(0), written(1)] == [(-1, 10000), (-1, 5150)]
    made.limit()
    assert [written(0), written(1)] == [(1000, 10000), whole[1]]
    made.follow([0, 1], 9.0)
    assert [written(0), written(1)] == whole


def test_how_slow_the_cores_usually_were_is_told_of_the_calmer_half_of_what_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[float]()

    def slowness(self: tickers.Tickers, start: float, end: float) -> float:
        asked.append(start)
        return 1.0 + len(asked) % 2

    monkeypatch.setattr(tickers.Tickers, "slowness", slowness)
    assert tickers.Tickers((), ()).usual_slowness(0.0, 10_000.0) == 1.0
    assert asked[0] == pytest.approx(10_000.0 - tickers.NUM_PROBES * 0.02)


@pytest.mark.skipif(bool(emulated.missing()), reason=f"needs {emulated.missing()}")
def test_idlers_take_what_waiting_ranks_leave() -> None:
    """Of their quotas, and only while these hold. Other processes may make them wait for a core."""
    quotas = (0.2, 0.4)
    with emulated.emulated([emulated.Host("ab"[n], 1, quota) for n, quota in enumerate(quotas)]) as cluster:
        began, before = time.perf_counter(), [_cpu_s(pid) for pid in cluster.idlers.pids]
        time.sleep(1.0)
        lasted = time.perf_counter() - began
        for pid, (ran_before, waited_before), quota in zip(cluster.idlers.pids, before, quotas, strict=True):
            ran, waited = (now - then for now, then in zip(_cpu_s(pid), (ran_before, waited_before), strict=True))
            assert ran / lasted < 1.3 * quota
            assert (ran + waited) / lasted > 0.7 * quota
        cluster.lift()
        assert all(_within(5, lambda each=pid: _state(each) == "T") for pid in cluster.idlers.pids)  # type: ignore[misc]
        cluster.limit()
        assert all(_within(5, lambda each=pid: _state(each) == "R") for pid in cluster.idlers.pids)  # type: ignore[misc]


@pytest.mark.skipif(bool(emulated.missing()), reason=f"needs {emulated.missing()}")
def test_a_rank_that_fails_is_named_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By any step, and by the self-test, in which ranks run alone first."""
    monkeypatch.setattr(self_test, "_product", lambda: _raise(ValueError("no product")))

    def run(rank: int) -> int:
        print(f"this is rank {rank}", flush=True)
        return 3 * rank

    with capsys.disabled(), emulated.emulated([emulated.Host("a", 2, 0.2)]) as cluster:
        with pytest.raises(emulated.StepFailed, match=r"^rank-1 failed \(3\)\nthis is rank 1$"):
            cluster.run(run, tmp_path, 0)
        with pytest.raises(emulated.StepFailed, match=r"^alone-0 failed \(1\)\nValueError: no product$"):
            self_test.run(cluster, tmp_path / "self-test")


def _raise(error: Exception) -> None:
    raise error


def _cpu_s(pid: int) -> tuple[float, float]:
    """Seconds that a process of one thread ran and that it waited for a core, by nanoseconds and not by ticks."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().split()[2]


def test_every_layout_gets_a_plan_of_its_own_that_ranks_accept(tmp_path: Path) -> None:
    whole = tmp_path / "plan.json"
    made = api.plan(model="llama-3.2-1b", cluster="8xrtx-4090", target="meshwright", top=3, global_batch=32)
    whole.write_text(made.to_json())
    layouts = made.candidates
    picked = [sample.Entry(layouts[n - 1].layout_id, whole, n, 1.0, ["drawn"]) for n in (3, 1)]
    choices.separate(picked, tmp_path)
    for entry in picked:
        (alone,) = load_plan(entry.plan).candidates
        assert (entry.choice, alone.choice, alone.layout_id) == (1, 1, entry.layout_id)


def _within(seconds: float, happens: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


_MAKES_A_CLUSTER = """
import sys, time
sys.path.insert(0, "benchmarks")
from pathlib import Path
from loop.emulated import Host, emulated
with emulated([Host("a", 1, 0.2, 25e6), Host("b", 1, 0.2)]) as cluster:
    pid = cluster.start(1, lambda: time.sleep(600), Path(sys.argv[1]), 0)
    print(cluster.mark, pid, *cluster.tickers.pids, *cluster.idlers.pids, flush=True)
    if sys.argv[2] == "fails":
        raise ValueError
    time.sleep(600)
"""


@pytest.mark.skipif(bool(emulated.missing()), reason=f"needs {emulated.missing()}")
class TestNothingIsLeft:
    @pytest.mark.parametrize("end", ["fails", signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_however_it_ends(self, end: Any, tmp_path: Path) -> None:
        words = [sys.executable, "-c", _MAKES_A_CLUSTER, str(tmp_path / "log"), str(end)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
                              env=_environment()) as process:  # fmt: skip
            mark, *pids = (process.stdout.readline() if process.stdout else "").split()
            assert all(Path(f"/proc/{pid}").exists() for pid in pids) or end == "fails"
            if end != "fails":
                process.send_signal(end)
            process.wait()
        left = list(_until_nothing(mark, pids))
        assert not left


def _until_nothing(mark: str, pids: list[str]) -> Iterator[str]:
    """What is still there after a minute: who cleans up is a process of its own."""
    for _ in range(600):
        left = [str(path) for folder in ("/run/netns", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup")
                if Path(folder).is_dir() for path in Path(folder).iterdir() if path.name.startswith(mark)]  # fmt: skip
        left += [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not left:
            return
        time.sleep(0.1)
    yield from left
