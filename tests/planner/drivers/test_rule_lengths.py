"""Plans for Megatron's rules of context parallelism by document: they are priced, their files are written and checked.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from meshwright.planner import api
from meshwright.planner.batches.dynamic_rule import dynamic_micro_batches
from meshwright.planner.batches.hybrid_rule import hybrid_micro_batches
from meshwright.planner.document.sampler_plan import SamplerBatch, read_sampler, sampler_path
from meshwright.planner.drivers.document_degrees import training_plan
from meshwright.planner.drivers.mixed_lengths import MixedLengthsPlan
from meshwright.planner.explain.mixed_lengths import explain_lengths
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit

from meshwright.errors import InputError, NoFeasibleLayoutError, UnsupportedError

from ...snapshots import ROOT, run_here

LENGTHS = "512:60,2048:30,4096:8,16384:2"
ASKED = {"model": "llama-2-7b", "cluster": "dgx-a100-40gb:2", "global_batch": 48, "num_batches": 2,
         "lengths": LENGTHS, "max_len": "16K", "target": "megatron"}  # fmt: skip


@cache
def planned() -> MixedLengthsPlan:
    return api.plan_documents(**ASKED)  # type: ignore[arg-type]


@cache
def by_dynamic_rule() -> MixedLengthsPlan:
    return api.plan_documents(**ASKED, lengths_rule="dynamic")  # type: ignore[arg-type]


def rule_tokens(plan: MixedLengthsPlan) -> int:
    assert plan.rule is not None
    return plan.rule[1]


@cache
def dynamic_files() -> dict[str, str]:
    return emit(training_plan(by_dynamic_rule().document()), "megatron").files


@cache
def files() -> dict[str, str]:
    return emit(training_plan(planned().document()), "megatron").files


def test_the_plan_is_that_of_the_rule_and_priced_as_such() -> None:
    result, tokens = planned(), rule_tokens(planned())
    costs = result.costs.one_by_one(tokens)
    seconds = []
    for lengths, plan in zip(result.batches, result.per_sequence.plans, strict=True):
        assert not (lengths % (costs.num_ranks * max(2, result.per_sequence.family.tp))).any()
        by_rule = hybrid_micro_batches(lengths, tokens, costs.num_ranks)
        assert sorted(map(len, by_rule)) == sorted(map(len, plan.micro_batches))
        column = {degree: at for at, degree in enumerate(costs.degrees.tolist())}
        table = costs.seconds(lengths)
        makespans = [max(sum(table[k, column[group.degree]] for k in group.sequences) for group in groups)
                     for groups in by_rule]  # fmt: skip
        seconds.append(sum(makespans) + costs.once_s)
    assert np.mean(seconds) == pytest.approx(result.per_sequence.mean_s)
    assert result.per_sequence.family.zero == 1


def test_documents_train_alone_so_each_costs_what_a_micro_batch_costs() -> None:
    costs = planned().costs
    alone = costs.one_by_one(costs.rank_tokens)
    lengths = np.array([512.0, 4096.0])
    assert alone.seconds(lengths) - costs.seconds(lengths) == pytest.approx(costs.micro_batch_s)
    assert alone.micro_batch_s == 0.0


def test_the_files_start_the_rule(tmp_path: Path) -> None:
    options = files()["megatron.args"].splitlines()
    plan = planned()
    for line in ("--hybrid-context-parallel", f"--max-seqlen-per-dp-cp-rank {rule_tokens(plan)}", "--sft",
                 "--calculate-per-token-loss", f"--context-parallel-size {plan.costs.num_ranks}",
                 "--use-distributed-optimizer"):  # fmt: skip
        assert line in options
    assert f"{plan.per_sequence.mean_s:.3g} s per step predicted" in files()["launch.sh"]
    assert "--tp-comm-overlap" not in options
    checked = check_files(files(), None, None)
    assert checked.problems == []


@pytest.mark.parametrize(("line", "other", "message"), [
    ("--hybrid-context-parallel", "", "--hybrid-context-parallel: is gone"),
    ("--calculate-per-token-loss", "", "needs --calculate-per-token-loss"),
    ("--sft", "", "needs --sft"),
    ("--bf16", "--bf16\n--cuda-graph-impl local", "cannot be given together with CUDA graphs"),
    ("--bf16", "--bf16\n--dataloader-type cyclic", "cannot be given together with --dataloader-type cyclic"),
    ("--bf16", "--bf16\n--pipeline-model-parallel-size 2", "cannot be given together with a pipeline"),
    ("--bf16", "--bf16\n--tp-comm-overlap", "cannot be given together with --tp-comm-overlap"),
    ("--bf16", "--bf16\n--use-megatron-fsdp", "cannot be given together with Megatron-FSDP"),
])  # fmt: skip
def test_edited_files_are_found(line: str, other: str, message: str) -> None:
    text = files()["megatron.args"]
    assert f"\n{line}\n" in text
    edited = {**files(), "megatron.args": text.replace(f"\n{line}\n", f"\n{other}\n" if other else "\n")}
    problems = check_files(edited, None, None).problems
    assert message in " ".join(map(str, problems))


@pytest.mark.parametrize(("layout_id", "ranks", "field", "reason"), [
    ("tp2-cp4r-pp2-dp1-mbs1-z1-rnone", 4, "pp", "pp 2 is a pipeline"),
    ("tp4-cp2r-dp2-mbs2-z3-rnone", 4, "zero", "z3 is Megatron-FSDP"),
    ("tp4-cp2r-dp2-gfull-mbs2-z1-rnone", 4, "cuda_graphs", "steps are CUDA graphs"),
])  # fmt: skip
def test_layouts_that_the_rule_excludes_are_not_emitted(layout_id: str, ranks: int, field: str, reason: str) -> None:
    edited = planned().document().model_copy(update={"widest_layout_id": layout_id, "ranks": ranks})
    with pytest.raises(LayoutRefusedError, match=f"{field}: {reason}, which --hybrid-context-parallel excludes"):
        emit(training_plan(edited), "megatron")


def test_another_number_of_tokens_is_found() -> None:
    edited = {**files(), "megatron.args": files()["megatron.args"].replace(str(rule_tokens(planned())), "333")}
    assert "is 333, `emit` wrote" in " ".join(map(str, check_files(edited, None, None).problems))


def test_other_frameworks_do_not_start_the_rule() -> None:
    with pytest.raises(LayoutRefusedError, match="a degree by the hybrid rule of Megatron"):
        emit(training_plan(planned().document()), "meshwright")


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed", "megatron-bridge", "nemo"])
def test_frameworks_of_one_degree_refuse_it_with_the_plan_that_they_have(target: str) -> None:
    with pytest.raises(UnsupportedError, match="one context-parallel degree for all documents") as error:
        api.plan_documents(**{**ASKED, "target": target})  # type: ignore[arg-type]
    assert "`emit plan.json --to` writes that degree" in error.value.hint


def test_what_the_rule_cannot_train_is_refused() -> None:
    with pytest.raises(InputError, match="24 GPUs are none"):
        api.plan_documents(**{**ASKED, "cluster": "dgx-a100-40gb:3"})  # type: ignore[arg-type]
    with pytest.raises(NoFeasibleLayoutError, match="a document of 1,000,000 tokens does not fit"):
        api.plan_documents(**{**ASKED, "lengths": "512:9,1000000:1", "max_len": "1024K"})  # type: ignore[arg-type]


def test_the_sampler_plan_may_hold_more_tokens_than_ranks_do_at_once(tmp_path: Path) -> None:
    path = tmp_path / "plan.batches.jsonl"
    path.write_text("\n".join(planned().sampler_lines()), encoding="utf-8")
    document = planned().document()
    batches = read_sampler(path, document.header)
    step = np.mean([explain_lengths(document, batches, number).step.seconds for number in (1, 2)])
    assert step == pytest.approx(planned().per_sequence.mean_s)
    _, line, *_ = planned().sampler_lines()
    batch = SamplerBatch.model_validate_json(line)
    tokens = [sum(batch.lengths[seq] for seq in group.seqs) for group in batch.groups]
    over = [group.cp * document.rule_tokens for group in batch.groups]
    assert any(map(operator.gt, tokens, over))
    tight = document.model_copy(update={"rule_tokens": document.rule_tokens // 2})
    lines = [tight.header.model_dump_json(), line]
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match="ranks hold"):
        read_sampler(path, tight.header)


def test_the_commands_write_the_files_and_launch_refuses_the_plan(tmp_path: Path) -> None:
    plan = planned()
    path = tmp_path / "plan.json"
    path.write_text(plan.document().model_dump_json(), encoding="utf-8")
    sampler_path(path).write_text("\n".join(plan.sampler_lines()), encoding="utf-8")
    written = run_here("emit", "plan.json", "-d", "run", cwd=tmp_path)
    assert written.code == 0, written.err
    assert "--sft reads packs" in written.err
    checked = run_here("check", "run", "--json", cwd=tmp_path)
    assert checked.code == 0, checked.out
    assert json.loads(checked.out)["items"][0]["problems"] == []
    other = run_here("emit", "plan.json", "--to", "torchtitan", cwd=tmp_path)
    assert other.code == 2
    assert "plan with `--target torchtitan`" in other.err
    assert "nearest" not in other.err
    shown = run_here("explain", "plan.json", cwd=tmp_path)
    assert "trains it alone" in " ".join(shown.out.split())
    launched = run_here("launch", "plan.json", "--scale-down", cwd=tmp_path)
    assert launched.code == 2
    assert "a framework with a rule of its own" in launched.err


def test_the_dynamic_rule_packs_the_documents_of_a_group() -> None:
    """Priced by hand: seconds of documents in the groups of the rule, and once per micro-batch what it costs."""
    result, tokens = by_dynamic_rule(), rule_tokens(by_dynamic_rule())
    costs = result.costs
    column = {degree: at for at, degree in enumerate(costs.degrees.tolist())}
    seconds = []
    for lengths in result.batches:
        assert not (lengths % (2 * costs.num_ranks * result.per_sequence.family.tp)).any()
        table = costs.seconds(lengths)
        makespans = [max(sum(table[k, column[group.degree]] for k in group.sequences) for group in groups)
                     for groups in dynamic_micro_batches(lengths, tokens, costs.num_ranks)]  # fmt: skip
        seconds.append(sum(makespans) + len(makespans) * costs.micro_batch_s + costs.once_s)
    assert np.mean(seconds) == pytest.approx(result.per_sequence.mean_s)
    assert result.per_sequence.mean_s < planned().per_sequence.mean_s
    documents = dict[tuple[int, int], int]()
    for number, plan in enumerate(result.per_sequence.plans):
        for at, groups in enumerate(plan.micro_batches):
            for group in groups:
                assert result.batches[number][list(group.sequences)].sum() <= tokens * group.degree
                documents[number, at] = documents.get((number, at), 0) + len(group.sequences)
    assert max(documents.values()) > costs.num_ranks


def test_the_files_of_the_dynamic_rule_are_those_of_the_dev_branch() -> None:
    options, plan = dynamic_files()["megatron.args"].splitlines(), by_dynamic_rule()
    for line in ("--dynamic-context-parallel", f"--max-seqlen-per-dp-cp-rank {rule_tokens(plan)}",
                 "--sequence-packing-scheduler default_dynamic_cp", "--use-varlen-dataset",
                 "--calculate-per-token-loss", f"--context-parallel-size {plan.costs.num_ranks}",
                 "--global-batch-size 48", "--micro-batch-size 1"):  # fmt: skip
        assert line in options
    assert not {"--sft", "--hybrid-context-parallel", "--tp-comm-overlap"} & set(options)
    assert "options checked against Megatron-LM 0.19.0+dev (d48bd6be)" in dynamic_files()["launch.sh"]
    # validate_args: the ranks together hold a sequence of --seq-length.
    (length,) = (int(line.split()[1]) for line in options if line.startswith("--seq-length "))
    assert plan.costs.num_ranks * rule_tokens(plan) >= length
    assert check_files(dynamic_files(), None, None).problems == []


@pytest.mark.parametrize(("line", "other", "message"), [
    ("--dynamic-context-parallel", "", "--dynamic-context-parallel: is gone"),
    ("--calculate-per-token-loss", "", "needs --calculate-per-token-loss"),
    ("--use-varlen-dataset", "", "needs --use-varlen-dataset or --sft"),
    ("--bf16", "--bf16\n--sft", "cannot be given together with --sft and --use-varlen-dataset"),
    ("--bf16", "--bf16\n--cuda-graph-impl local", "cannot be given together with CUDA graphs"),
    ("--bf16", "--bf16\n--use-megatron-fsdp", "cannot be given together with Megatron-FSDP"),
    ("--sequence-packing-scheduler default_dynamic_cp", "--sequence-packing-scheduler dp_balanced",
     "cannot be given together with --sequence-packing-scheduler dp_balanced"),
])  # fmt: skip
def test_edited_files_of_the_dynamic_rule_are_found(line: str, other: str, message: str) -> None:
    text = dynamic_files()["megatron.args"]
    assert f"\n{line}\n" in text
    edited = {**dynamic_files(), "megatron.args": text.replace(f"\n{line}\n", f"\n{other}\n" if other else "\n")}
    assert message in " ".join(map(str, check_files(edited, None, None).problems))


@pytest.mark.parametrize(("plan", "release", "message"), [
    (by_dynamic_rule, "0.19.0", "has no --dynamic-context-parallel, which is of the branch dev"),
    (planned, "0.19.0+dev", "has its dynamic rule in place of --hybrid-context-parallel"),
])  # fmt: skip
def test_a_rule_of_another_branch_is_not_emitted(
    plan: Callable[[], MixedLengthsPlan], release: str, message: str
) -> None:
    with pytest.raises(LayoutRefusedError, match=message):
        emit(training_plan(plan().document()), "megatron", version=release)


def test_rules_that_a_target_lacks_are_refused() -> None:
    with pytest.raises(InputError, match="--lengths-rule dynamic: meshwright has no such rule"):
        api.plan_documents(**{**ASKED, "target": "meshwright"}, lengths_rule="dynamic")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="documents that share sequences have no degrees"):
        api.plan(model="llama-2-7b", cluster="dgx-a100-40gb:1", lengths=LENGTHS, lengths_rule="dynamic")


def test_only_the_dynamic_rule_reaches_latent_attention(tmp_path: Path) -> None:
    """multi_latent_attention.py of the main branch asserts that no document has a group of its own. The model is
    DeepSeek-V2-Lite without experts."""
    config = yaml.safe_load((ROOT / "profiles/catalogue/models/deepseek-v2-lite.yaml").read_text())["config"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "first_k_dense_replace": config["num_hidden_layers"]}))
    asked = {**ASKED, "model": tmp_path, "lengths": "512:6,2048:3", "max_len": "2K"}
    with pytest.raises(UnsupportedError, match="latent attention, which Megatron's hybrid context parallelism lacks"):
        api.plan_documents(**asked)  # type: ignore[arg-type]
    assert api.plan_documents(**asked, lengths_rule="dynamic").per_sequence.mean_s > 0  # type: ignore[arg-type]
