"""Groups of micro-batches of interleaved pipelines in files of Megatron: written where needed, read, checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cost_models.layouts import parse
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.importing import import_config
from meshwright.planner.request.load import load_request
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.interleaving_groups import check_groups
from meshwright.planner.targets.readers.registry import READERS

from meshwright.errors import FieldProblem, InputError

LAYOUT = "tp8-pp4-vpp2-dp2-mbs1-z1-rfull"
FILE = {"megatron": ("megatron.args", "--microbatch-group-size-per-virtual-pipeline-stage {}"),
        "megatron-bridge": ("bridge_plan.py", "microbatch_group_size_per_vp_stage={},")}  # fmt: skip
FORMAT = {"megatron": "megatron-args", "megatron-bridge": "megatron-bridge"}


def plan_of(target: str, batch: int) -> Plan:
    asked = {"model": "llama-3-70b", "cluster": "dgx-h100:8", "seq_len": 4096, "global_batch": batch, "target": target}
    return api.evaluate(load_request(None, asked), LAYOUT)


@pytest.mark.parametrize("target", FILE)
@pytest.mark.parametrize(("batch", "group"), [(8, None), (10, 5), (14, 7), (22, 6), (28, 5), (512, None)])
def test_written_where_pp_does_not_divide_the_micro_batches(target: str, batch: int, group: int | None) -> None:
    files = emit(plan_of(target, batch), target).files
    name, option = FILE[target]
    assert (option.partition("{")[0].strip() in files[name]) == (group is not None)
    assert group is None or option.format(group) in files[name]
    assert not check_files(files).problems


@pytest.mark.parametrize("target", FILE)
def test_other_groups_are_an_edit(target: str, tmp_path: Path) -> None:
    files = emit(plan_of(target, 22), target).files
    name, option = FILE[target]
    edited = files[name].replace(option.format(6), option.format(7))
    (problem,) = check_files({**files, name: edited}).problems
    assert "interleaving_group is 7, plan.json has 6" in problem.message
    (tmp_path / name).write_text(edited)
    found = import_config(FORMAT[target], [tmp_path / name], {"cluster": "dgx-h100:8"})
    assert str(found.layout) == LAYOUT
    assert "groups of 7 micro-batches per chunk: priced as groups of 6" in found.assumed
    (tmp_path / name).write_text(files[name])
    again = import_config(FORMAT[target], [tmp_path / name], {"cluster": "dgx-h100:8"})
    assert again.assumed == tuple(text for text in found.assumed if "groups" not in text)


REFUSED = [
    (22, 5, "groups of 5 leave 11 mod 5 = 1 micro-batches, fewer than pp 4", "to 6"),
    (22, None, "groups of 4 leave 11 mod 4 = 3 micro-batches, fewer than pp 4", "to 6"),
    (22, 3, "groups of 3 micro-batches are smaller than pp 4", "to 6"),
    (22, 12, "groups of 12 micro-batches are larger than the 11 of a step", "to 6"),
    (6, None, "needs at least pp 4 micro-batches, and there are 3", "at least 4 x 2 = 8"),
]  # fmt: skip


@pytest.mark.parametrize("target", FILE)
@pytest.mark.parametrize(("batch", "group", "reason", "hint"), REFUSED)
def test_groups_that_megatron_refuses_are_a_problem(
    target: str, batch: int, group: int | None, reason: str, hint: str, tmp_path: Path
) -> None:
    name, option = FILE[target]
    text = emit(plan_of(target, 22), target).files[name]
    lines = [line for line in text.splitlines() if group or option.format(6) not in line]
    (tmp_path / name).write_text("\n".join(lines).replace(option.format(6), option.format(group)))
    with pytest.raises(InputError) as error:
        import_config(FORMAT[target], [tmp_path / name], {"cluster": "dgx-h100:8", "global_batch": batch})
    (problem,) = error.value.problems or [FieldProblem(error.value.message, hint=error.value.hint)]
    assert f"{reason} (batch {batch} / (dp 2 x micro-batch 1) = {batch // 2})" in problem.message
    assert hint in problem.hint
    assert (problem.line > 0) == (group is not None)


@pytest.mark.parametrize(("name", "hint"), [
    ("megatron-swift", "set microbatch_group_size_per_vp_stage to 6"),
    ("verl", "set actor_rollout_ref.actor.megatron.override_transformer_config."
             "microbatch_group_size_per_vp_stage to 6"),
    ("areal", "groups of 6 would run, which --microbatch-group-size-per-virtual-pipeline-stage of Megatron sets"),
])  # fmt: skip
def test_hints_name_the_option_of_the_file(name: str, hint: str) -> None:
    table = next(reader for reader in READERS if reader.name == name).table(None)
    layout = parse(LAYOUT)
    with pytest.raises(InputError) as error:
        check_groups({"interleaving_group": 5}, layout, 22, table)
    assert error.value.hint == hint


@pytest.mark.parametrize("target", FILE)
def test_fewer_micro_batches_than_stages_are_refused(target: str) -> None:
    with pytest.raises(LayoutRefusedError, match="at least pp 4 micro-batches, and there are 3"):
        emit(plan_of(target, 6), target)
