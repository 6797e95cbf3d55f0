"""States on drives and in the network: ZeRO-Infinity, Fuyou and LuWu by figures out of `evaluate`."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner import api
from meshwright.planner.document.candidate import Candidate
from meshwright.planner.document.plan import Plan

from meshwright.errors import InputError


def gpt(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {"name": "gpt", "hidden": hidden, "layers": layers, "heads": heads, "ffn_hidden": 4 * hidden, "vocab": 51200,
            "max_positions": 4096, "gated_mlp": False, "tied_embeddings": True}  # fmt: skip


def nodes(count: int, gpus: int, gpu: str, **more: Any) -> dict[str, Any]:
    return {"groups": [{"name": "node", "gpu": gpu, "gpus_per_node": gpus, "count": count, **more}]}


def shown(candidate: Candidate, name: str) -> float:
    return sum(term.seconds for term in candidate.terms if term.name == name)


def workers(layout_id: str, technique: Any, gbit_per_s: float, batch: int) -> float:
    """Step of GPT-175B on 8 workers of one A100, with this much between them."""
    cluster = nodes(8, 1, "a100-sxm-80gb") | {"links": {"inter_node": {"bandwidth": f"{gbit_per_s} Gb/s"}}}
    asked: dict[str, Any] = {"model": gpt(96, 12288, 96), "cluster": cluster, "seq_len": 2048, "global_batch": batch,
             "stack": "deepspeed"}  # fmt: skip
    return api.evaluate(None, layout_id, technique=technique, **asked).best.step_s


def gain_of_luwu(gbit_per_s: float, micro_batch: int) -> float:
    """Over ZeRO-3 whose states are on drives of 4 GB/s per worker, as the paper's baseline."""
    drives, node = {"gb_per_s": 4, "tb": 4}, {"network_gb_per_s": gbit_per_s / 8}
    asked = (gbit_per_s, 8 * micro_batch)
    layout_id = f"dp8-mbs{micro_batch}-z3-rfull"
    return workers(layout_id, {"zero-infinity": drives}, *asked) / workers(layout_id, {"luwu": node}, *asked)


def test_luwu_gains_while_the_network_binds() -> None:
    """The paper's 3.98 times (175B, 8 workers, 100 Gb/s), and less the more a step computes."""
    few, more, many = (gain_of_luwu(100, micro_batch) for micro_batch in (1, 2, 16))

    assert 3.4 < few < 4.2
    assert 3.4 < more < 4.2
    assert 1.5 < many < 2.0


def test_a_slow_node_of_luwu_shows() -> None:
    """Its Adam hides behind the backward pass until its memory is too slow; drives and few ports bind likewise."""
    fast, slow, drives = (workers("dp8-mbs1-z3-rfull", {"luwu": knobs}, 100, 8)
                          for knobs in ({}, {"memory_gb_per_s": 20}, {"drives_gb_per_s": 10}))  # fmt: skip
    assert slow > fast + 28 * 174e9 / 20e9 / 2
    assert drives > fast + 24 * 174e9 / 10e9 / 2
    with pytest.raises(InputError, match="luwu needs a port of the switch"):
        workers("dp8-mbs1-z3-rfull", {"luwu": {"ports": 8}}, 100, 8)


DGX_2 = {"nics": 8, "nic_bandwidth": "100 Gb/s", "network": "ib", "host_memory": "1.5 TB"}


def trillion(num_nodes: int, layout_id: str, technique: Any, batch: int) -> Plan:
    asked: dict[str, Any] = {"model": gpt(128, 25600, 256), "dtype": "fp16", "stack": "deepspeed", "seq_len": 1024,
             "global_batch": batch, "cluster": nodes(num_nodes, 16, "v100-sxm2-32gb", **DGX_2)}  # fmt: skip
    return api.evaluate(None, layout_id, technique=technique, **asked)


def test_a_trillion_parameters_on_one_dgx_2() -> None:
    """20 TB of states: on the GPUs and on the host they do not fit, on 28 TB of drives they do."""
    on_host = trillion(1, "tp8-dp2-mbs32-z3-rfull-oopt+act-fp16", None, 64)
    on_drives = trillion(1, "tp8-dp2-mbs32-z3-rfull-oact-fp16", "zero-infinity", 64)

    assert "does not fit in host memory" in " ".join(on_host.warnings)
    assert "does not fit" not in " ".join(on_drives.warnings)
    stage = on_drives.best.memory[0]
    assert (stage.weights_bytes, stage.gradients_bytes, stage.optimizer_bytes) == (0, 0, 0)
    with pytest.raises(InputError, match="drives \\(`tb` per GPU\\) that hold the states"):
        trillion(1, "tp8-dp2-mbs32-z3-rfull-oact-fp16", {"zero-infinity": {"tb": 1}}, 64)


def test_a_trillion_parameters_on_512_v100() -> None:
    """The paper: 49 TFLOP/s per GPU."""
    step_s = trillion(32, "tp16-dp32-mbs28-z3-rfull-oact-fp16", "zero-infinity", 896).best.step_s

    assert 40e12 < 6 * 1.008e12 * 1024 * 896 / step_s / 512 < 55e12


def on_4090(technique: Any) -> Candidate:
    """13B on one GPU, 32 sequences of 1024; a single GPU's states need no ZeRO."""
    cluster = nodes(1, 1, "rtx-4090", host_memory="768 GB", host_memory_bandwidth="375 GB/s")
    asked: dict[str, Any] = {"model": gpt(40, 5120, 40), "cluster": cluster, "seq_len": 1024, "global_batch": 32,
                             "dtype": "fp16", "stack": "deepspeed"}  # fmt: skip
    return api.evaluate(None, "dp1-mbs32-z0-rfull-oact-fp16", technique=technique, **asked).best


def test_fuyou_hides_the_optimizer() -> None:
    """13B moves 390 GB per step over the drives: 12 of them hide it, and slow ones show it."""
    hidden, late, slow = (on_4090({"fuyou": {"gb_per_s": speed}}) for speed in (36, 6, 0.1))

    assert shown(hidden, "optimizer") == 0
    assert hidden.memory[0].weights_bytes == hidden.memory[0].optimizer_bytes == 0
    assert late.step_s > 1.5 * hidden.step_s
    assert slow.step_s == pytest.approx(390e9 / 0.1e9, rel=0.02)


def with_7b(technique: Any, **more: Any) -> Candidate:
    """Llama 2 7B on two GPUs, four sequences each, on RTX 3090 unless given."""
    cluster = nodes(1, 2, "rtx-3090", host_memory="256 GB", host_memory_bandwidth="100 GB/s")
    asked: dict[str, Any] = {"model": "llama-2-7b", "cluster": cluster, "seq_len": 2048, "global_batch": 8,
                             "stack": "torch-fsdp"}  # fmt: skip
    return api.evaluate(None, "dp2-mbs4-z3-rfull", technique=technique, **{**asked, **more}).best


def test_states_in_host_memory() -> None:
    """A GPU holds none of the states. Its host holds its half of the weights, and fp32 gradients, weights and moments
    with half as much again in pinned buffers. The optimizer moves 28 bytes per parameter in memory that two share."""
    parameters = 6_738_415_616 / 2
    away, here = with_7b("cpu-offload"), with_7b(None)
    stage, full = away.memory[0], here.memory[0]

    assert (stage.weights_bytes, stage.gradients_bytes, stage.optimizer_bytes) == (0, 0, 0)
    assert full.weights_bytes + full.gradients_bytes + full.optimizer_bytes == pytest.approx(parameters * (2 + 4 + 12))
    assert stage.host_bytes == pytest.approx(parameters * (2 + 1.5 * (12 + 4)))
    assert shown(away, "optimizer") == pytest.approx(28 * parameters / (100e9 / 2), rel=0.01)


def test_weights_alone_in_host_memory() -> None:
    """The GPU keeps fp32 gradients, weights and moments; its host has its half of the weights in bf16, which the step
    of the optimizer writes there over PCIe 4."""
    parameters = 6_738_415_616 / 2
    node = {"cluster": nodes(1, 2, "a100-sxm-80gb", host_memory="256 GB")}
    away, here = with_7b({"cpu-offload": {"optimizer": 0}}, **node), with_7b(None, **node)
    stage = away.memory[0]

    assert stage.weights_bytes == 0
    assert stage.gradients_bytes + stage.optimizer_bytes == pytest.approx(parameters * (4 + 12))
    assert stage.host_bytes == pytest.approx(parameters * 2)
    written = shown(away, "optimizer") - shown(here, "optimizer")
    assert 2 * parameters / 32e9 < written < 2 * parameters / 24e9


def test_frozen_weights_in_host_memory() -> None:
    """All weights are fetched in both passes, over PCIe, also where only adapters are trained; then no more than these
    come back and are updated. PCIe 4 carries 24 to 32 GB/s each way."""
    node = {"cluster": nodes(1, 2, "a100-sxm-80gb", host_memory="256 GB"), "seq_len": 16}
    frozen, trained = with_7b("cpu-offload", lora={"rank": 64}, **node), with_7b("cpu-offload", **node)
    fetched = 2 * 6_738_415_616 * 2 / 2
    waits = shown(frozen, "offload, exposed") + shown(frozen, "gather and scatter, exposed")

    assert frozen.memory[0].weights_bytes < 0.02 * 6_738_415_616
    assert shown(frozen, "optimizer") < 0.02 * shown(trained, "optimizer")
    assert fetched / 32e9 < frozen.step_s
    assert waits < fetched / 24e9
    assert shown(trained, "offload, exposed") > 1.3 * shown(frozen, "offload, exposed")
