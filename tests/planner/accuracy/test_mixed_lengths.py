"""Published steps on documents of mixed lengths, as FlexSP and DCP measured them: read, checked and predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.planner.accuracy.runs import Problems, read_cases
from meshwright.planner.accuracy.validate import validate

from ...snapshots import run_here

# FlexSP, arXiv:2412.01523: heights of bars in figs/main-result.jpg of AFDWang/Hetu-Galvatron, branch flexsp.
FLEXSP = {
    ("gpt-6.7b", 192): {"deepspeed-ulysses": 8.07, "flexsp-batchada": 5.73, "flexsp": 4.56},
    ("gpt-13b", 192): {"deepspeed-ulysses": 13.48, "flexsp-batchada": 10.22, "flexsp": 8.74},
    ("gpt-6.7b", 384): {"deepspeed-ulysses": 8.19, "flexsp-batchada": 6.08, "flexsp": 5.38},
    ("gpt-13b", 384): {"deepspeed-ulysses": 14.55, "flexsp-batchada": 11.94, "flexsp": 10.07},
}
SHAPES = {"gpt-6.7b": (4096, 32), "gpt-13b": (5120, 40)}
# Static step over FlexSP's, as published.
RATIOS = {("gpt-6.7b", 192): 1.72, ("gpt-13b", 192): 1.59, ("gpt-6.7b", 384): 1.46, ("gpt-13b", 384): 1.43}
DCP = """\
- {id: te, source: a, regime: mixed-length,
   model: {name: gpt2-8b, hidden: 4096, layers: 32, heads: 32, kv_heads: 8, head_dim: 128, ffn_hidden: 14336},
   cluster: {gpu: a100_sxm_40g, num_gpus: 64, gpus_per_node: 8, nic_gbps_per_node: 400},
   workload: {dataset: longalign, max_seq_len: 65536, tokens_per_global_batch: 65536, mask: causal},
   layout: {system: megatron-lm (TE a2a+p2p), tp: 4, dp_x_cp: 16}, measured: {step_s: 1.86}}
"""


def row(model: str, length_k: int, system: str, dataset: str = "wikipedia") -> str:
    hidden, layers = SHAPES[model]
    return f"""\
- {{id: {model}-{length_k}k-{system}, source: a, quality: B, regime: mixed-length,
   model: {{name: {model}, hidden: {hidden}, layers: {layers}, heads: {layers}, head_dim: 128,
            ffn_hidden: {4 * hidden}, gated_mlp: false, vocab: 50257}},
   cluster: {{gpu: a100_sxm_40g, num_gpus: 64, gpus_per_node: 8, intra_node: NVLink, nic_gbps_per_node: 400}},
   workload: {{dataset: {dataset}, max_seq_len: {length_k * 1024}, global_batch: 512}},
   layout: {{system: {system}, zero_stage: 3}}, measured: {{step_s: {FLEXSP[model, length_k][system]}}}}}
"""


def predicted(tmp_path: Path, text: str) -> dict[str, float | None]:
    path = tmp_path / "rows.yaml"
    path.write_text(text, encoding="utf-8")
    return {run.id: run.step_s for run in validate([path]).rows}


def test_static_steps_of_flexsp_are_near(tmp_path: Path) -> None:
    text = "".join(row(*cell, "deepspeed-ulysses") for cell in FLEXSP)
    steps = predicted(tmp_path, text).values()
    errors = [abs((step_s or 0.0) / cell["deepspeed-ulysses"] - 1)
              for step_s, cell in zip(steps, FLEXSP.values(), strict=True)]  # fmt: skip
    assert sum(errors) / len(errors) <= 0.15


@pytest.mark.slow
@pytest.mark.parametrize(("model", "length_k"), RATIOS)
def test_degrees_by_sequence_gain_what_flexsp_measured(tmp_path: Path, model: str, length_k: int) -> None:
    systems = ("deepspeed-ulysses", "flexsp-batchada", "flexsp")
    steps = predicted(tmp_path, "".join(row(model, length_k, system) for system in systems))
    static, adaptive, own = (step_s or 0.0 for step_s in steps.values())
    assert own <= adaptive <= static
    assert static / own == pytest.approx(RATIOS[model, length_k], rel=0.15)


def test_a_causal_step_of_transformer_engine_is_near(tmp_path: Path) -> None:
    assert predicted(tmp_path, DCP)["te"] == pytest.approx(1.86, rel=0.2)


@pytest.mark.parametrize("length_k", [16, 64])
def test_balanced_blocks_gain_little_on_causal_masks_and_much_on_sparse_ones(tmp_path: Path, length_k: int) -> None:
    """DCP over its baseline as published: 0.95 to 1.13 causal; 1.03 to 1.32 elsewhere, the more the longer."""
    text = DCP.replace("65536", str(length_k * 1024))
    own = text.replace("megatron-lm (TE a2a+p2p)", "dcp")
    masks = {mask: own.replace("id: te", f"id: {mask}").replace("causal}", f"{mask}}}")
             for mask in ("causal", "lambda", "shared_question", "causal_blockwise")}  # fmt: skip
    steps = {name: step_s or 0.0 for name, step_s in predicted(tmp_path, text + "".join(masks.values())).items()}
    gains = {mask: steps["te"] / steps[mask] for mask in masks}
    assert 0.95 <= gains["causal"] <= 1.2
    assert gains["causal"] != pytest.approx(1.0, abs=1e-4)
    assert min(gains.values()) == gains["causal"]
    assert gains["lambda"] > gains["shared_question"] > 1.03


def test_rows_have_predictions_and_unknown_lengths_and_systems_are_refused(tmp_path: Path) -> None:
    rows = (
        DCP,
        row("gpt-6.7b", 192, "flexsp", "github"),
        DCP.replace("id: te", "id: x").replace("megatron-lm (TE", "(X"),
    )
    (tmp_path / "rows.yaml").write_text("".join(rows), encoding="utf-8")
    result = run_here("validate", "rows.yaml", "--rows", "--json", cwd=tmp_path)
    assert result.code == 0
    te, github, unknown = json.loads(result.out)["rows"]
    assert te["step_s"] > 0
    assert "lengths of github are not known" in github["refused"]
    assert "no planner for the system (X a2a+p2p)" in unknown["refused"]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("step_s: 1.86", "step_s: 0", "measured.step_s: must be more than 0, is 0"),
        ("step_s: 1.86", "step_ms: 1860", "measured.step_ms: 1860 is 1.86 as `step_s`"),
        ("a100_sxm_40g", "a101", "cluster.gpu: unknown GPU `a101`"),
        ("hidden: 4096, ", "", "model.hidden: `model.hidden` is missing"),
        ("max_seq_len: 65536, ", "", "workload.max_seq_len: `workload.max_seq_len` is missing"),
    ],
)
def test_a_wrong_row_is_named_by_line_and_field(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in DCP
    path = tmp_path / "rows.yaml"
    path.write_text("# rows\n" + DCP.replace(old, new), encoding="utf-8")
    problems = Problems([])
    assert not list(read_cases([path], problems))
    assert not problems.mixed
    found = [str(problem).partition("rows.yaml, ")[2] for problem in problems.first]
    assert all(text.startswith("line ") for text in found)
    assert any(complaint in text for text in found)
