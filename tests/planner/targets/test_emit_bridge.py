"""`--to megatron-bridge`: what differs from Megatron-LM in names, defaults and rules (the rest: test_emit_targets)."""

from __future__ import annotations

import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.facts import layout_of
from meshwright.planner.targets.megatron import deepspeed_experts, encoders, layer_inputs, mindspeed
from meshwright.planner.targets.megatron import options as megatron_options
from meshwright.planner.targets.megatron.multimodal import SEES
from meshwright.planner.targets.megatron_bridge import peft
from meshwright.planner.targets.megatron_bridge.fields import BY_ARGUMENT, IMPLIED
from meshwright.planner.targets.megatron_bridge.options import TABLE
from meshwright.planner.targets.option_lists import option_list
from meshwright.planner.targets.registry import TARGETS

DENSE = {"model": "llama-3-70b", "cluster": "dgx-h100:8", "workload": {"seq_len": 8192, "global_batch": 512}}
MODULE = "bridge_plan.py"


def plan_of(layout: str, **more: object) -> Plan:
    return api.evaluate(request_from_dict({**DENSE, "target": "megatron-bridge", **more}), layout)


def problems(files: dict[str, str]) -> list[str]:
    return [str(each) for each in check_files(files).problems]


def edited(plan: Plan, old: str, new: str) -> dict[str, str]:
    files = dict(emit(plan, "megatron-bridge").files)
    assert old in files[MODULE]
    return {**files, MODULE: files[MODULE].replace(old, new)}


def test_every_argument_that_is_written_has_a_field() -> None:
    """The rest is only read from scripts of Megatron-LM: older spellings, and what `emit` counts otherwise."""
    arguments = megatron_options.TABLE.options
    assert arguments - set(BY_ARGUMENT) - set(IMPLIED) - set(encoders.OPTIONS) - set(mindspeed.ENTRY.options) == {
        "--num-layers-per-virtual-pipeline-stage", "--outer-dp-sharding-strategy", "--padded-vocab-size",
        "--recompute-activations", "--torch-fsdp2-no-reshard-after-forward",
        "--use-rotary-position-embeddings", "--img-h", "--img-w", "--patch-dim", SEES,
        "--deepspeed", deepspeed_experts.DROPS, *deepspeed_experts.OPTIONS, layer_inputs.ON_HOST,
    }  # fmt: skip
    assert set(BY_ARGUMENT) <= arguments
    adapters = set(peft.OPTIONS)  # their class is one option of the release
    assert TABLE.options - adapters <= set(option_list("megatron-bridge")[0].options)


@pytest.mark.parametrize(("model", "layout", "missing"), [
    ("llama-3-70b", "tp8-pp4-dp2-mbs1-z1-rnone", set()),
    ("gpt-22b", "tp8-dp8-mbs1-z1-rnone", {"apply_rope_fusion", "deallocate_pipeline_outputs"}),
    ("deepseek-v3", "pp8-dp8-ep8-mbs1-z1-rfull", set()),
    ("llama-3-70b", "dp64-mbs1-z3-rnone", {"gradient_accumulation_fusion", "deallocate_pipeline_outputs"}),
])  # fmt: skip
def test_kernels_that_plans_price_as_fused_are_fused(model: str, layout: str, missing: set[str]) -> None:
    """Classes of Bridge leave them apart: an unfused activation saves a tensor more (core/transformer/mlp.py)."""
    workload = {"seq_len": 2048, "global_batch": 512}
    plan = plan_of(layout, model=model, workload=workload)
    fusions = {"bias_activation_fusion", "bias_dropout_fusion", "apply_rope_fusion", "gradient_accumulation_fusion",
               "deallocate_pipeline_outputs"}  # fmt: skip
    text = emit(plan, "megatron-bridge").files[MODULE]
    assert {name for name in fusions if f" {name}=True,\n" not in text} == missing
    assert any("is gone" in each for each in problems(edited(plan, "            bias_activation_fusion=True,\n", "")))


def test_a_loss_that_is_not_fused_is_written_and_read() -> None:
    plan = plan_of("tp8-pp4-dp2-mbs1-z1-rnone", fix={"cross_entropy": "parallel"})
    assert "cross_entropy_loss_fusion=False," in emit(plan, "megatron-bridge").files[MODULE]
    for name, default in (("GPTModelProvider", "fused"), ("MLAModelProvider", "parallel")):
        assert TABLE.read({"model": name})["switches.cross_entropy"] == default


def test_virtual_stages_are_counted_and_divide_the_layers() -> None:
    """Bridge asserts it when every rank builds its chunks, hours into the queue."""
    plan = plan_of("tp8-pp4-vpp5-dp2-mbs1-z1-rnone")
    written = "virtual_pipeline_model_parallel_size=5,"
    assert written in emit(plan, "megatron-bridge").files[MODULE]
    (wrong,) = problems(edited(plan, written, written.replace("5", "7")))
    assert "model.virtual_pipeline_model_parallel_size: 80 layers over pp 4 are 20 a stage, no multiple of 7" in wrong
    (wrong,) = problems(edited(plan, written, written.replace("5", "4")))
    assert "vpp is 4, plan.json has 5" in wrong


def test_layers_that_differ_need_a_spec_that_asks_for_each() -> None:
    """GPTModelProvider's own makes them all alike, with plain attention: three dense layers would be lost unsaid."""
    work = {"seq_len": 4096, "global_batch": 960}
    plan = plan_of("cp4u-dp32-ep8-mbs15-z3-rfull", model="deepseek-v3", cluster="dgx-h100:16", workload=work)
    spec = "transformer_layer_spec=partial(get_gpt_decoder_block_spec, use_transformer_engine=True),"
    text = emit(plan, "megatron-bridge").files[MODULE]
    assert "model=MLAModelProvider(" in text
    assert "moe_layer_freq=[0] * 3 + [1] * 58," in text
    assert "multi_latent_attention=True," in text  # the class leaves it False
    found = problems(edited(plan, spec, ""))
    assert any("model.moe_layer_freq: needs model.transformer_layer_spec=partial(" in each for each in found)
    assert "transformer_layer_spec" not in emit(plan_of("tp8-pp4-dp2-mbs1-z1-rnone"), "megatron-bridge").files[MODULE]


def test_a_class_that_is_none_and_fields_of_another() -> None:
    plan = plan_of("tp8-pp4-dp2-mbs1-z1-rnone")
    found = problems(edited(plan, "model=GPTModelProvider(", "model=GPTModelProvder("))
    assert any("`GPTModelProvder` is none of" in each and "did you mean `GPTModelProvider`" in each for each in found)
    found = problems(edited(plan, "num_layers=80,", "num_layers=80, kv_lora_rank=512,"))
    assert any("model.kv_lora_rank: is a field of MLAModelProvider" in each for each in found)
    data = "GPTDatasetConfig(\n            seq_length="
    found = problems(edited(plan, f"{data}8192", f"{data}4096"))
    assert any("dataset.seq_length: is 4096, model.seq_length 8192" in each for each in found)


def test_defaults_are_those_of_bridge() -> None:
    """Experts are not split over tp, the loss is fused, a comm_overlap switches on what it does not name."""
    said = {
        "model.num_layers": 4, "model.hidden_size": 64, "model.num_attention_heads": 8, "model.num_moe_experts": 8,
        "model.tensor_model_parallel_size": 2, "model.expert_model_parallel_size": 4,
        "model.gated_linear_unit": True, "train.micro_batch_size": 1, "optimizer.use_distributed_optimizer": True,
    }  # fmt: skip
    facts = TABLE.read(said)
    layout = layout_of(facts, 8)
    assert (layout.tp, layout.ep, layout.etp, layout.zero) == (2, 4, 1, 1)
    assert facts["model.ffn_hidden"] == 256
    overlaps = ("switches.overlap_grad_reduce", "switches.overlap_param_gather")
    assert [facts[name] for name in overlaps] == ["off", "off"]
    overlapped = TABLE.read({**said, "comm_overlap.tp_comm_overlap": False})
    assert [overlapped[name] for name in overlaps] == ["on", "on"]
    assert TABLE.read({**said, "mixed_precision": "bf16-with-mxfp8-mixed"})["precision"] == "fp8"
    assert TABLE.read({**said, "mixed_precision": "bf16-with-nvfp4-mixed"})["precision"] == "fp4"


def test_positions_and_moments_that_bridge_cannot_have() -> None:
    short = {"seq_len": 1024, "global_batch": 64}
    with pytest.raises(LayoutRefusedError, match=r"learns as many as seq_length \(2048, not seq_len 1024\)"):
        emit(plan_of("dp64-mbs1-z1-rfull", model="gpt-22b", workload=short), "megatron-bridge")
    small = {**DENSE["workload"], "optimizer": "adamw-bf16"}  # type: ignore[dict-item]
    for target in ("megatron", "megatron-bridge"):
        with pytest.raises(LayoutRefusedError, match="for moments in bf16, needs the distributed optimizer"):
            emit(plan_of("tp8-pp8-dp1-mbs1-z0-rnone", workload=small), target)


@pytest.mark.parametrize(("target", "cluster", "fix", "legal"), [
    ("megatron-bridge", "gb200-nvl72:36", {}, [True, False]),
    ("megatron-bridge", "gb200-nvl72:36", {"moe_dispatcher": "alltoall"}, [True, True]),
    ("megatron-bridge", "dgx-b200:18", {}, [True, True]),
    ("megatron", "gb200-nvl72:36", {}, [True, True]),
])  # fmt: skip
def test_hybridep_ends_with_a_rack(target: str, cluster: str, fix: dict[str, str], legal: list[bool]) -> None:
    """apply_target_topology_environment of Bridge (scripts/performance/utils/utils.py): "HybridEP expert parallel size
    must not exceed the 72-rank NVLink domain." """
    asked = {"model": "deepseek-v3", "cluster": cluster, "target": target, "fix": fix,
             "workload": {"seq_len": 4096, "global_batch": 1152}}  # fmt: skip
    problem = resolve(request_from_dict(asked)).problem
    layouts = Layouts.of([parse(f"dp144-ep{ep}-mbs1-z1-rsel(mla)") for ep in (72, 144)])
    rules = [rule for rule in TARGETS[target].rules if rule.name == f"{target}: ranks of HybridEP"]
    assert [all(bool(rule.allows(layouts, problem)[row]) for rule in rules) for row in (0, 1)] == legal


def test_packed_documents_come_one_sequence_at_a_time() -> None:
    """ConfigContainer.validate of Bridge: "Micro batch size should be 1 when training with packed sequence"."""
    def plan(layout: str, **work: object) -> Plan:
        work = {"seq_len": 8192, "global_batch": 512, **work}
        return plan_of(layout, workload=work)

    documents = {"4096": 0.5, "8192": 0.5}
    plan("tp8-dp8-mbs1-z1-rfull", lengths=documents)
    plan("tp8-dp8-mbs2-z1-rfull", lengths=documents, packed=False)
    plan("tp8-dp8-mbs2-z1-rfull")
    packed = plan("tp8-dp8-mbs2-z1-rfull", lengths=documents)
    with pytest.raises(LayoutRefusedError, match="packed documents are taken one at a time, not in micro-batches of 2"):
        emit(packed, "megatron-bridge")
