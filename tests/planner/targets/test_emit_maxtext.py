"""MaxText: axes in and over nodes, policies of recomputation, and layouts that it cannot run."""

from __future__ import annotations

import re

import pytest
from meshwright.cost_models.layouts import parse
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.maxtext.options import axes_of, on_nodes

from meshwright.errors import UnsupportedError

from .emit_corruptions import edited

ASKED = {"model": "llama-3-8b", "cluster": "dgx-h100:2", "target": "maxtext",
         "workload": {"seq_len": 8192, "global_batch": 64}}  # fmt: skip


def files_of(layout: str, **more: object) -> dict[str, str]:
    return dict(emit(api.evaluate(request_from_dict({**ASKED, **more}), layout), "maxtext").files)


@pytest.mark.parametrize(("layout", "axes"), [
    ("tp2-dp8-mbs1-z3-rfull", {"tensor_sequence": (2, 1), "context": (1, 1), "fsdp": (4, 2), "data": (1, 1)}),
    ("tp8-nosp-dp2-mbs1-z0-rfull", {"tensor": (8, 1), "context": (1, 1), "fsdp": (1, 1), "data": (1, 2)}),
    ("tp4-cp2r-dp2-sh1-mbs1-z3-rfull",
     {"tensor_sequence": (4, 1), "context": (2, 1), "fsdp": (1, 1), "data": (1, 2)}),
    ("cp16r-dp1-mbs1-z3-rfull", {"tensor": (1, 1), "context": (8, 2), "fsdp": (1, 1), "data": (1, 1)}),
])  # fmt: skip
def test_axes_fill_a_node_from_the_innermost_on(layout: str, axes: dict[str, tuple[int, int]]) -> None:
    assert on_nodes(axes_of(parse(layout)), 8) == axes


@pytest.mark.parametrize(("recompute", "policy"), [
    ("rfull", "full"), ("rsel(norm+act)", "minimal_with_context"), ("rsel(attn+norm+act)", "minimal"),
    ("rsel(norm+act+mlp)", "save_dot_with_context_except_mlp"), ("rsel(attn+norm+act+mlp)", "save_dot_except_mlp"),
])  # fmt: skip
def test_policies_of_recomputation(recompute: str, policy: str) -> None:
    files = files_of(f"dp16-mbs1-z3-{recompute}")
    assert f"remat_policy: {policy}\n" in files["maxtext.yml"]
    assert check_files(files).problems == []


def test_devices_that_share_a_sequence_have_a_part_of_it() -> None:
    files = files_of("tp4-cp2r-dp2-mbs1-z3-rfull")
    assert "per_device_batch_size: 0.125\n" in files["maxtext.yml"]
    assert "gradient_accumulation_steps: 32\n" in files["maxtext.yml"]
    assert "context_parallel_strategy: ring\npacking: true\n" in files["maxtext.yml"]
    assert "packing: false\n" in files_of("tp4-cp2g-dp2-mbs1-z3-rfull")["maxtext.yml"]


@pytest.mark.parametrize(("layout", "reason"), [
    ("pp2-dp8-mbs1-z0-rfull", "splits table and head over all stages"), ("dp16-mbs1-z1-rfull", "or none of them"),
    ("cp2r-dp8-mbs1-z0-rfull", "share weights"), ("dp16-mbs1-z3-rnone", "norms and activations"),
    ("dp16-mbs1-z3-rsel", "norms and activations"), ("cp2u-dp8-mbs1-z3-rfull", "no ulysses"),
    ("tp16-dp1-mbs1-z0-rfull", "key/value heads"), ("tp2-dp8-mbs3-z3-rfull", "per_device_batch_size"),
])  # fmt: skip
def test_layouts_that_it_does_not_run_are_refused(layout: str, reason: str) -> None:
    workload = {"seq_len": 8192, "global_batch": 96}
    with pytest.raises(LayoutRefusedError, match=reason):
        files_of(layout, workload=workload)


@pytest.mark.parametrize(("model", "reason"), [
    ("mixtral-8x7b", "mixtures of experts"), ("deepseek-v2-lite", "mixtures of experts"),
    ("gemma-2-9b", "one kind"),
])  # fmt: skip
def test_models_that_are_not_written_are_refused_by_name(model: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        api.plan(request_from_dict({**ASKED, "model": model}))


@pytest.mark.parametrize(("file", "pattern", "new", "field"), [
    ("launch.sh", r"^export NNODES=2", "export NNODES=4", "NNODES"),
    ("maxtext.yml", r"^num_slices: 2", "num_slices: 4", "num_slices"),
    ("maxtext.yml", r"^packing: false", "packing: true", "packing"),
    ("maxtext.yml", r"^(scan_layers: .*\n)", r"\1use_iota_embed: true\n", "use_iota_embed"),
])  # fmt: skip
def test_edits_are_found_where_they_are(file: str, pattern: str, new: str, field: str) -> None:
    changed = edited(files_of("cp2g-dp8-mbs1-z3-rfull"), file, pattern, new)
    assert changed is not None
    problems = check_files(changed).problems
    assert field in {problem.field for problem in problems}
    assert all(problem.line for problem in problems if problem.field == field)


def test_jax_gets_the_memory_that_a_plan_needs_and_overlaps_messages() -> None:
    """JAX takes 75 % of a GPU unless it is asked for more, and XLA waits for every message by default."""
    asked = {**ASKED, "workload": {"seq_len": 8704, "global_batch": 64}}
    tight = api.evaluate(request_from_dict(asked), "dp16-mbs2-z3-rsel(norm+act)")
    usual = files_of("dp16-mbs1-z3-rfull")["launch.sh"]
    assert "export XLA_CLIENT_MEM_FRACTION=0.90\nunset XLA_PYTHON_CLIENT_MEM_FRACTION\n" in usual
    assert ': "${XLA_FLAGS:=--xla_gpu_enable_latency_hiding_scheduler=true}"\n' in usual
    assert 'exec env XLA_FLAGS="$XLA_FLAGS" ' in usual
    gpu_bytes = float(tight.resolved["cluster"]["groups"][0]["gpu"]["memory_bytes"])
    needed = max(stage.reserved_bytes for stage in tight.best.memory) / gpu_bytes
    share = re.search(r"XLA_CLIENT_MEM_FRACTION=(\S+)", emit(tight, "maxtext").files["launch.sh"])
    assert share is not None
    assert 0.9 < needed <= float(share[1]) < needed + 0.01


@pytest.mark.parametrize(("gpu", "target"), [("tpu-v5p", "maxtext"), ("gaudi2", "meshwright")])
def test_files_are_refused_for_hardware_that_is_only_planned_for(gpu: str, target: str) -> None:
    """MaxText's files are for GPUs: a TPU has other attention kernels and one mesh over all hosts."""
    plan = api.evaluate(request_from_dict({**ASKED, "cluster": f"8x{gpu}", "target": target}), "dp8-mbs1-z3-rfull")
    assert f"no target of meshwright runs on {gpu}" in {plan.best.targets[target]}
    with pytest.raises(UnsupportedError, match=f"no target of meshwright runs on {gpu}"):
        emit(plan, target)
