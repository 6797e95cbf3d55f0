"""The thirteen acceptance tests of documents of mixed lengths, by number.

ELSEWHERE names those that stand beside the code that they test; the others are here. One that does not hold is marked
`xfail` with its arithmetic, and fails once it begins to hold.

1 percentiles of Wikipedia; bins without a unit are refused. 2 FlexSP's static steps by its printed constants: at most
30 % off, 16 % on average, degrees 32 and 64. 3 per sequence <= adaptive <= static. 4 static over per-sequence steps
within 15 % of the measured ratios. 5 the program equals brute force. 6 Megatron's rule is at most 25 % beyond the
program on 200 draws. 7 equal lengths give the static plan. 8 no rank holds more than fits, and a document that none
holds is refused with the GPUs that would. 9 on a causal mask a dynamic scheme gains 0.95x to 1.2x over
TransformerEngine's a2a+p2p. 10 Megatron's files refuse pipelines, FSDP and CUDA graphs. 11 gradients of three degrees
in a step equal one process. 12 a batch of 512 documents on 64 ranks is planned twice alike
(`make document-degrees` prints its seconds). 13 Hydraulis' proposal is monotone, and equals brute force on 8 GPUs.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from meshwright.planner.accuracy.validate import validate
from meshwright.planner.batches.published_costs import flexsp_costs
from meshwright.planner.batches.unlike_degrees import best_plan

from ...snapshots import ROOT
from ...table import Row
from ..accuracy.test_mixed_lengths import DCP, RATIOS

# Number -> (file under tests/, names of its tests).
ELSEWHERE: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("planner/request/test_lengths.py", ("test_wikipedia_has_the_percentiles_of_its_sample",
                                            "test_bad_files_are_refused")),
    2: ("planner/batches/test_published_costs.py", ("test_static_steps_are_near_the_measured_ones",)),
    3: ("planner/drivers/test_mixed_lengths.py", ("test_every_policy_is_no_slower_than_the_one_before",)),
    4: ("planner/accuracy/test_mixed_lengths.py", ("test_degrees_by_sequence_gain_what_flexsp_measured",)),
    5: ("planner/batches/test_unlike_degrees.py", ("test_small_batches_equal_brute_force",
                                                   "test_eight_sequences_on_eight_ranks_equal_brute_force")),
    7: ("planner/drivers/test_mixed_lengths.py", ("test_documents_of_one_length_get_the_static_plan",)),
    8: ("planner/drivers/test_mixed_lengths.py", ("test_no_rank_holds_more_tokens_than_fit",
        "test_a_document_beyond_all_gpus_is_refused_with_the_number_that_holds_it")),
    10: ("planner/drivers/test_rule_lengths.py", ("test_layouts_that_the_rule_excludes_are_not_emitted",)),
    11: ("runtime/test_mixed_lengths.py", ("test_three_degrees_in_a_step_train_as_one_process",)),
    13: ("planner/batches/test_pipeline_schemes.py", ("test_the_proposal_is_that_of_brute_force",
                                                      "test_the_proposal_is_monotone_in_gpus_and_length")),
}  # fmt: skip
# Static over per-sequence steps by the printed constants, where they are more than 15 % above the measured ones.
TOO_HIGH = {("gpt-13b", 192): "1.86 / 1.59 = 1.17", ("gpt-6.7b", 384): "1.75 / 1.46 = 1.20",
            ("gpt-13b", 384): "1.68 / 1.43 = 1.17"}  # fmt: skip
# Rule -> its steps over those of the exact program.
BEYOND = {
    "hybrid": "balances s^2 and forms more micro-batches, which have 0.63 s each: 101 % at most, 50 of 200 above 25 %",
    "dynamic": "balances s^2 and fills the tokens of ranks first: 48 % at most, 8 of 200 above 25 %",
}


@cache
def benchmark() -> ModuleType:
    """`make document-degrees`, which prints the same figures."""
    spec = importlib.util.spec_from_file_location("document_degrees", ROOT / "benchmarks" / "document_degrees.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_number_has_a_test() -> None:
    own = {int(name.split("_")[1]) for name in globals() if name.startswith("test_") and name.split("_")[1].isdigit()}
    assert own | set(ELSEWHERE) == set(range(1, 14))
    for path, names in ELSEWHERE.values():
        tree = ast.walk(ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8")))
        assert set(names) <= {node.name for node in tree if isinstance(node, ast.FunctionDef)}, path


def _marked(key: tuple[str, int]) -> object:
    """A cell of FlexSP, marked where its ratio is not reached."""
    reason = TOO_HIGH.get(key)
    return pytest.param(*key, marks=[pytest.mark.xfail(strict=True, reason=f"{reason}, above 1.15")] if reason else [])


@pytest.mark.slow
@pytest.mark.parametrize(("model", "length_k"), [_marked(key) for key in RATIOS])
def test_04_printed_constants_give_the_measured_ratios(model: str, length_k: int, row: Row) -> None:
    ratio = benchmark().printed_ratio(model, length_k)
    row(f"{model} {length_k}K", "static over per sequence, printed constants", f"{ratio:.2f}")
    assert ratio == pytest.approx(RATIOS[model, length_k], rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [pytest.param(rule, marks=pytest.mark.xfail(strict=True, reason=f"the rule {reason}"))
                                  for rule, reason in BEYOND.items()])  # fmt: skip
def test_06_megatrons_rules_are_near_the_exact_program(rule: str, row: Row) -> None:
    more = benchmark().beyond_exact(rule)
    row(f"{rule} rule", "beyond the exact program", f"{np.mean(more):.0%} on average, {max(more):.0%} at most")
    assert max(more) <= benchmark().LIMIT


@pytest.mark.slow
def test_06_no_rule_beats_the_exact_program() -> None:
    assert min(step for rule in BEYOND for step in benchmark().beyond_exact(rule)) > -1e-9


def _causal_gain(folder: Path, tokens_k: int, nic_gbps: int) -> float:
    """Step of TransformerEngine's a2a+p2p over that of balanced blocks, causal masks."""
    text = DCP.replace("65536", str(tokens_k * 1024)).replace("node: 400", f"node: {nic_gbps}")
    path = folder / "rows.yaml"
    path.write_text(text + text.replace("megatron-lm (TE a2a+p2p)", "dcp").replace("id: te", "id: dcp"))
    te, dcp = (run.step_s or 0.0 for run in validate([path]).rows)
    return te / dcp


@pytest.mark.parametrize("tokens_k", [16, 64])
def test_09_dynamic_schemes_gain_little_on_causal_masks(tokens_k: int, tmp_path: Path) -> None:
    assert 0.95 <= _causal_gain(tmp_path, tokens_k, 400) <= 1.2


def test_09_could_fail(tmp_path: Path) -> None:
    """The gain is not bounded by construction: messages of a sixteenth of the bandwidth push it out of the range."""
    assert _causal_gain(tmp_path, 64, 25) < 0.95


def test_12_a_batch_is_planned_twice_alike() -> None:
    costs = flexsp_costs("gpt-6.7b", 192)
    for lengths in benchmark().wikipedia(192 * 1024, 512, 3, 128):
        assert best_plan(lengths, costs) == best_plan(lengths, costs)
