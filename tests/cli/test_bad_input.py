"""Inputs that are wrong, odd or cut short: each gives its message and exit code, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.drivers.watch import Watch
from meshwright.planner.space.tree import Count

from ..snapshots import ROOT, check, run_here, run_terminal_here

LLAMA: dict[str, Any] = json.loads((ROOT / "tests/data/configs/llama-3.1-8b.json").read_text())
CLUSTER = ["--cluster", "dgx-h100:2"]
FILES = {
    "broken/config.json": '{"model_type": "llama",',
    "empty/readme.txt": "",
    "unknown/config.json": '{"model_type": "hyena", "auto_map": {"AutoModel": "modeling.Hyena"}}',
    "lacking/config.json": '{"model_type": "llama", "hidden_size": 4096}',
    "negative/config.json": json.dumps({**LLAMA, "num_hidden_layers": -1, "num_attention_heads": 0}),
    "bytes.yaml": "groups: [{node: dgx-h100, count: 2}]\nlinks: {inter_node: {bandwidth: 400 GB/s}}\n",
    "bare.yaml": "groups: [{node: dgx-h100, count: 2}]\nlinks: {inter_node: {bandwidth: 400}}\n",
    "zero.yaml": "groups: [{node: dgx-h100, count: 0}]\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "args", "code"),
    [
        ("config-broken", ["--model", "broken", *CLUSTER], 2),
        ("config-missing", ["--model", "empty/", *CLUSTER], 2),
        ("config-unknown", ["--model", "unknown", *CLUSTER], 2),
        ("config-lacking", ["--model", "lacking", *CLUSTER], 2),
        ("config-negative", ["--model", "negative", *CLUSTER], 2),
        ("link-bare", ["--model", "llama-3.1-8b", "--cluster", "bare.yaml"], 2),
        ("cluster-zero", ["--model", "llama-3.1-8b", "--cluster", "zero.yaml"], 2),
        ("fixes-conflict", ["--model", "llama-3.1-8b", *CLUSTER, "--fix", "tp=8", "--fix", "pp=4"], 1),
        ("fix-of-target", ["--model", "gpt2", *CLUSTER, "--fix", "sequence_parallel=false", "--fix", "tp=2",
                           "--target", "meshwright"], 1),
        ("length-negative", ["--model", "llama-3.1-8b", *CLUSTER, "--seq-len", "-8"], 2),
        ("lora-on-experts", ["--model", "mixtral-8x7b", *CLUSTER, "--lora", "16:gate,up"], 2),
        ("no-fp8", ["--model", "llama-3.1-8b", "--cluster", "dgx-a100:2", "--dtype", "fp8"], 2),
    ],
)
def test_message_and_exit_code(name: str, args: list[str], code: int, folder: Path) -> None:
    piped, terminal = run_here("plan", *args, cwd=folder), run_terminal_here("plan", *args, cwd=folder)

    assert (code, "") == (piped.code, piped.out)
    assert code == terminal.code
    assert "Traceback" not in piped.err + terminal.out
    check(f"bad-{name}", piped)


def test_bits_taken_for_bytes_are_a_warning(folder: Path) -> None:
    result = run_here("plan", "--model", "llama-3.1-8b", "--cluster", "bytes.yaml", cwd=folder)

    assert result.code == 0
    check("odd-bytes", type(result)(result.code, "", result.err))


@pytest.mark.parametrize("cluster", ["dgx-h100:3", "7xh100-sxm-80gb", "gb200-nvl72:5"])
def test_any_number_of_gpus_works(cluster: str) -> None:
    assert run_here("plan", "--model", "llama-3.1-8b", "--cluster", cluster, "--global-batch", "420").code == 0


@pytest.mark.parametrize("cluster", [CLUSTER, ["--cluster", "dgx-h100:1 + dgx-a100-80gb:1"]])
def test_ctrl_c_keeps_the_best_layout(monkeypatch: pytest.MonkeyPatch, folder: Path, cluster: list[str]) -> None:
    def interrupt(self: object, count: Count, best: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "report", interrupt)
    result = run_here("plan", "--model", "llama-3.1-8b", *cluster, "-o", "kept.json", cwd=folder)
    kept = json.loads((folder / "kept.json").read_text())

    assert result.code == 130
    assert kept["certificate"]["stopped"] == "interrupted"
    assert not kept["certificate"]["proven"]
    assert kept["candidates"][0]["layout_id"] in result.out
    assert "The search was stopped (interrupted): a faster layout may exist" in result.out
    space = kept["certificate"]["space"]
    assert ("not reached" in result.out) == (space["unvisited"] > 0)
    parts = ("dominated", "out_of_memory", "bounded", "priced", "unvisited")
    assert space["total"] == sum(space[part] for part in parts) + sum(space["ruled_out"].values())


@pytest.mark.parametrize("command", ["memory", "import"])
def test_ctrl_c_in_a_search_beside_the_answer_is_no_success(
    monkeypatch: pytest.MonkeyPatch, folder: Path, command: str
) -> None:
    def interrupt(self: object, count: Count, best: float) -> None:
        raise KeyboardInterrupt

    (folder / "train.sh").write_text(
        "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --seq-length 2048 "
        "--num-attention-heads 16 --vocab-size 50304 --max-position-embeddings 2048 --micro-batch-size 1 "
        "--global-batch-size 64 --bf16 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2\n"
    )
    monkeypatch.setattr(Watch, "report", interrupt)
    asked = ["megatron-args", "train.sh"] if command == "import" else ["--model", "llama-3.1-8b"]
    result = run_here(command, *asked, *CLUSTER, cwd=folder)
    assert result.code == 130
    assert "interrupted: this is the best layout so far" in result.err


@pytest.mark.parametrize("name", ["random.bin", "random.json", "deep.json"])
@pytest.mark.parametrize(
    "command", ["explain", "report", "emit", "cite", "what-if", "diff", "memory", "check", "explore"]
)
def test_what_is_no_plan_at_all_is_refused(tmp_path: Path, name: str, command: str) -> None:
    (tmp_path / name).write_bytes(b"[" * 100_000 if name == "deep.json" else b"\xff\xfe\x00 no text")
    more = {"what-if": ["--set", "gpus=8"], "diff": [name]}.get(command, [])
    result = run_here(command, name, *more, cwd=tmp_path)

    assert (result.code, result.out) == (2, "")
    assert f"{name}{', line 1' if name != 'deep.json' else ''}: " in result.err
    assert ("nested too deeply" if name == "deep.json" else "not UTF-8") in result.err


@pytest.mark.parametrize(("text", "meant"), [("70Gib", "70GiB"), ("70Gb", "70GB"), ("70 Gbit", "70GB")])
def test_memory_is_not_counted_in_bits(text: str, meant: str) -> None:
    result = run_here("plan", "--model", "llama-3.1-8b", *CLUSTER, "--max-memory", text)

    assert result.code == 2
    assert f"`{text}` is in bits" in result.err
    assert f"hint: write `{meant}`" in result.err
