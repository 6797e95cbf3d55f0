"""What papers report of whole plans, by the public functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.planner import api
from meshwright.planner.document.candidate import Candidate
from meshwright.profiles.io.reader import read_document
from meshwright.profiles.model.load import load_model

from ..snapshots import ROOT

EXAMPLES = ROOT / "examples"
MODELS = ROOT / "profiles" / "catalogue" / "models"

SC21: dict[str, Any] = {"cluster": "dgx-a100:384", "seq_len": 2048, "stack": "megatron-lm-2021"}


def step_s(layout: str, **asked: Any) -> float:
    return api.evaluate(None, layout, **asked).best.step_s


def test_one_trillion_parameters_of_megatron() -> None:
    """SC21 (arXiv 2104.04473) 5.1: 502 PFLOP/s on 3,072 A100, 102.6 s a step."""
    found = step_s("tp8-nosp-pp64-dp6-mbs1-z0-rfull", model="gpt-1t", global_batch=3072, **SC21)
    assert found == pytest.approx(102.6, rel=0.1)


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "tokens", "flops_per_s", "days", "fixed"),
    [
        ("gpt-175b", 1024, 1536, 300e9, 140e12, 34, {"tp": 8, "vpp": 1, "micro_batch": 1}),
        ("gpt-1t", 3072, 3072, 450e9, 163e12, 84, {"tp": 8, "pp": 64, "micro_batch": 1}),
    ],
)  # fmt: skip
def test_training_days(
    model: str, gpus: int, batch: int, tokens: float, flops_per_s: float, days: int, fixed: dict[str, Any]
) -> None:
    """SC21 5.10: 8 T P / (n X), which is 34 and 84 days to the day; a plan's own days follow from its own step."""
    parameters = total_parameters(load_model(model)[0])
    assert round(8 * tokens * parameters / (gpus * flops_per_s) / 86400) == days
    full = {"recompute": "full", "recompute_layers": 0, "sequence_parallel": False, "zero": 0, "cp": 1,
            "offload": "none"}  # fmt: skip
    asked: dict[str, Any] = {**SC21, "cluster": f"dgx-a100:{gpus // 8}", "model": model, "global_batch": batch}
    best = api.plan(**asked, total_tokens=tokens, target="any", top=1, fix={**full, **fixed}).best
    assert best.days == pytest.approx(tokens / (batch * 2048) * best.step_s / 86400)
    assert best.days == pytest.approx(days, rel=0.1)


def test_interleaving() -> None:
    """SC21 2.2.2: the bubble of 12 stages and 36 micro-batches halves with two chunks per device, 13 % of the step."""
    asked: dict[str, Any] = {**SC21, "model": "gpt-175b", "cluster": "dgx-a100:12", "global_batch": 36}
    whole, chunks = (step_s(f"tp8-nosp-pp12-{v}dp1-mbs1-z0-rfull", **asked) for v in ("", "vpp2-"))
    assert whole / chunks == pytest.approx(1.13, abs=0.01)


def test_frontier() -> None:
    """arXiv 2312.12705: 38.4, 36.1 and 32.0 % of peak with what is recomputed, of 22B, 175B (640 micro-batches) and 1T
    (1,600); less tensor parallelism runs better, and 16 times the GPUs as well. Of 22B the layout is not known: all of
    a node hold."""
    asked: dict[str, Any] = {"seq_len": 2048, "stack": "deepspeed"}

    def best(model: str, tp: int, pp: int, micro_batches: int, dp: int = 1) -> Candidate:
        layout = f"tp{tp}-pp{pp}-dp{dp}-mbs1-z{int(dp > 1)}-rfull"
        where: dict[str, Any] = {"cluster": f"frontier:{tp * pp * dp // 8}", "global_batch": micro_batches * dp}
        return api.evaluate(None, layout, model=model, **where, **asked).best

    one_node = [best("gpt-22b", tp, 8 // tp, 256).hfu for tp in (1, 2, 4, 8)]
    assert one_node == sorted(one_node, reverse=True)
    few, many = best("gpt-175b", 4, 16, 640), best("gpt-175b", 8, 16, 640)
    for share in (*one_node, few.hfu, many.hfu, best("gpt-1t", 8, 64, 1600).hfu):
        assert 0.3 < share < 0.42
    assert few.mfu > many.mfu * 1.05
    assert best("gpt-175b", 4, 16, 640, dp=16).mfu == pytest.approx(few.mfu, rel=0.03)


def test_folded_experts() -> None:
    """arXiv 2504.14960: Mixtral-8x22B on 128 H100, 1.05 to 1.2 times faster folded. The best plan keeps an expert's
    ranks inside a node. Without folding, etp is tp and ep a factor of dp, its ranks tp x cp apart: found by the same
    search without cp, and with cp where those ranks are in a node whatever their order."""
    asked: dict[str, Any] = {"model": "mixtral-8x22b", "cluster": "dgx-h100:16", "seq_len": 4096,
                             "global_batch": 1024, "target": "megatron", "stack": "megatron-core-0.8",
                             "top": 1}  # fmt: skip
    # The paper's Megatron sends tokens by plain all-to-alls, which block.
    same = {"zero": 1, "pp": 8, "moe_dispatcher": "alltoall", "ep_overlap": False, "cuda_graphs": "none"}
    folded = api.plan(**asked, fix=same, fastest=True).best
    layout = folded.to_layout()
    assert (layout.etp, layout.cp) != (layout.tp, 1)
    assert layout.ep * layout.etp <= 8
    plain = [{"tp": tp, "etp": tp, "cp": 1} for tp in (1, 2, 4, 8)] + [{"tp": 1, "etp": 1, "cp": 2, "ep": 4}]
    unfolded = min(api.plan(**asked, fix={**same, **fix}, fastest=True).best.step_s for fix in plain)
    assert 1.05 < unfolded / folded.step_s < 1.2


def test_all_to_all_of_folded_experts() -> None:
    """Why folding helps: 0.04 of the compute where they stay in a node, 0.24 where etp = tp takes them out of it."""
    asked: dict[str, Any] = {"model": "mixtral-8x22b", "cluster": "dgx-h100:16", "seq_len": 4096, "global_batch": 1024}

    def share(layout: str) -> float:
        best = api.evaluate(None, layout, stack="megatron-core", **asked).best
        terms = {term.name: term.seconds for term in best.terms}
        return terms["ep comm, exposed"] / (terms["matmul"] + terms["attention"] + terms["norms, elementwise"])

    assert share("tp2-pp8-vpp7-dp8-ep8-mbs1-z1-rnone") == pytest.approx(0.04, abs=0.005)
    assert share("tp2-pp8-vpp7-dp8-ep8-etp2-mbs1-z1-rnone") == pytest.approx(0.24, abs=0.03)


def test_memory_gates_a_plan() -> None:
    """Pipette (arXiv 2405.18093): what is planned under 70 GB stays under it, where the fastest on an A100 does not.
    Its other two checks are in test_golden.py (p = 8, m = 64) and test_placement.py (16 nodes)."""
    asked: dict[str, Any] = {"model": "gpt-18.4b", "cluster": "dgx-a100-80gb:16", "seq_len": 2048, "global_batch": 512,
                             "stack": "megatron-lm-2022", "fix": {"cp": 1, "offload": "none"}}  # fmt: skip
    gated, free = api.plan(**asked, max_memory="70 GB"), api.plan(**asked)
    assert max(each.device_bytes for each in gated.candidates) <= 70e9 < free.best.device_bytes
    assert gated.best.step_s >= free.best.step_s


def test_layers_of_their_own_in_little_memory() -> None:
    """Galvatron: LLaMA-2-7B on two nodes of A100, 8 GB: some layers recomputed in full and others not, faster than
    all alike."""
    plan = api.plan(model="llama-2-7b", cluster="dgx-a100-80gb:2", seq_len=2048, global_batch=64, target="any", top=3,
                    optimizer="adamw-8bit", max_memory="8 GB", layers="own",
                    fix={"cp": 1, "offload": "none", "schedule": "1f1b"})  # fmt: skip
    best = plan.best
    assert best.layerwise is not None
    assert best.layerwise.best_alike is not None
    modes = {run.strategy.rpartition("-")[2] for run in best.layerwise.runs}
    assert "rfull" in modes
    assert len(modes) > 1
    assert best.step_s < min(best.layerwise.best_alike.step_s, plan.candidates[1].step_s)
    assert best.device_bytes <= 8e9


def test_pipelines_over_two_fabrics(tmp_path: Path) -> None:
    """Holmes (arXiv 2312.03549): 4 nodes on InfiniBand and 4 on RoCE, 25 GbE between them. The pipeline is cut where
    they meet, and reaches 85 % of all-InfiniBand or more. The head has its own weights: the sum of a tied embedding's
    gradients over 25 GbE takes 3 s a step (docs/concepts/placement.md)."""
    fields = read_document(MODELS / "gpt-7.5b.yaml").data["model"]
    model = tmp_path / "gpt.json"
    model.write_text(json.dumps({**fields, "tied_embeddings": False}))
    asked: dict[str, Any] = {"model": str(model), "seq_len": 2048, "global_batch": 3072, "top": 1,
                             "fix": {"cp": 1, "tp": 1, "zero": 1, "offload": "none"}}  # fmt: skip
    plan = api.plan(**asked, cluster=str(EXAMPLES / "two_fabrics.yaml"))
    assert plan.ways is not None
    assert plan.ways[0].manner == "across"
    assert set(plan.ways[0].islands) == {"ib-node", "roce-node"}
    assert api.plan(**asked, cluster="dgx-a100-80gb:8").best.step_s / plan.best.step_s >= 0.85


# DeepSeek-V3 (arXiv 2412.19437): 3.2, the layout; 4.2, 4096 tokens x 15,360 sequences, after smaller ones;
# table 1, 2.664e6 H800 hours for 14.8e12 tokens.
V3: dict[str, Any] = {"model": "deepseek-v3", "cluster": "hgx-h800:256", "seq_len": 4096, "global_batch": 15360,
                      "precision": "fp8", "optimizer": "adamw-bf16", "stack": "hai-llm-2024"}  # fmt: skip
V3_STEP_S = 2.664e6 * 3600 / 2048 / (14.8e12 / (4096 * 15360))
V3_LAYOUT = {"pp": 16, "ep": 64, "zero": 1, "tp": 1, "cp": 1, "etp": 1, "micro_batch": 1, "schedule": "dualpipe-v",
             "offload": "none", "recompute": "selective", "recompute_modules": ["norm", "act", "mla"]}  # fmt: skip


def test_the_layout_of_deepseek_v3() -> None:
    """It is in the space, fits, and took what the interval says, in stages of its own (which are not published)."""
    best = api.plan(**V3, target="any", stages="own", top=1, fix=V3_LAYOUT).best
    assert best.layout_id.startswith("pp16-dpv-vpp2-dp128-ep64-mbs1-z1-rsel(norm+act+mla)-fp8")
    assert best.step_s_low is not None
    assert best.step_s_high is not None
    assert best.step_s_low < V3_STEP_S < best.step_s_high
    assert best.device_bytes < 81559 * 2**20  # what nvidia-smi shows of an H800
    # deepseek-ai/profile-data, train.json: a forward beside a backward chunk of four layers with experts, 129.0 ms from
    # the first kernel to the last. Four layers are what most stages hold.
    outside = ("pipeline bubble", "pp comm, exposed", "dp comm, exposed", "optimizer", "waiting for slow GPUs")
    inside = sum(term.seconds for term in best.terms if term.name not in outside)
    assert inside / 120 == pytest.approx(0.129, rel=0.1)
