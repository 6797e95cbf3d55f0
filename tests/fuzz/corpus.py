"""The files that are right, from which the fuzzer draws and damages its own."""

from __future__ import annotations

import shutil
from contextlib import chdir
from pathlib import Path

from meshwright.cli.main import main

from ..snapshots import ROOT

REQUEST = """\
model: gpt2
cluster: cluster.yaml
workload:
  seq_len: 1024
  global_batch: 64
  lengths: {512: 1, 1024: 3}
  total_tokens: 10B
fix: {tp: 1}
"""
JOBS = """\
cluster: cluster.yaml
seq_len: 1024
fix: {tp: 1, pp: 1, cp: 1, micro_batch: 1}
jobs:
  - {name: member, count: 2, model: gpt2, global_batch: 64, total_tokens: 1B}
"""
CLUSTER = """\
groups:
  - {gpu: h100-sxm-80gb, gpus_per_node: 2, count: 1, price: 3 USD/h}
links:
  intra_node: {bandwidth: 400 GB/s}
"""
ROWS = """\
- id: one
  source: example/repository@abc123; docs/runs.md
  stack: megatron-core-2025
  model:
    hidden: 4096
    layers: 32
    heads: 32
    kv_heads: 8
    head_dim: 128
    ffn_hidden: 14336
    gated_mlp: true
    vocab: 128256
    seq_len: 8192
    tied_embeddings: false
  cluster: {gpu: h100_sxm_80g, num_gpus: 16, gpus_per_node: 8, nic_gbps_per_node: 3200}
  layout:
    tp: 2
    sp: true
    pp: 2
    cp: 1
    ep: 1
    dp: 4
    zero_stage: 1
    schedule: 1f1b
    micro_batch: 1
    global_batch: 64
    precision: bf16
    recompute: {mode: none, modules: []}
  features: {attention: cudnn, loss: fused, grad_reduce: fp32}
  measured: {step_s: 2.0, peak_memory_gib: 40.0, peak_memory_kind: allocated, peak_memory_scope: max over ranks}
"""
TOKENIZER = """\
{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
 "added_tokens": [{"id": 3, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true}],
 "post_processor": null, "decoder": null,
 "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "one": 1, "two": 2}, "unk_token": "<unk>"}}
"""
TINY = """\
{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
 "vocab_size": 16, "max_position_embeddings": 8, "hidden_act": "silu", "tie_word_embeddings": false}
"""


def build(folder: Path) -> None:
    """Writes the files into an empty folder. Raises RuntimeError where a command that makes one fails."""
    texts = {"request.yaml": REQUEST, "cluster.yaml": CLUSTER, "jobs.yaml": JOBS, "rows.yaml": ROWS,
             "report.json": '{"kind": "run"}'}  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "text.jsonl").write_text('{"text": "one two"}\n{"text": "two"}\n')
    (folder / "serve.sh").write_text("vllm serve gpt2 --tensor-parallel-size 2 --max-num-seqs 8\n")
    (folder / "hf").mkdir()
    (folder / "hf" / "tokenizer.json").write_text(TOKENIZER)
    (folder / "hf" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(TINY)
    (folder / "config").mkdir()
    data = ROOT / "tests/data"
    shutil.copy(data / "configs/llama-3.1-8b.json", folder / "config/config.json")
    shutil.copy(data / "profile_imports/nccl_tests_two_nodes.log", folder)
    shutil.copy(ROOT / "examples/launch/dense/deepspeed/ds_config.json", folder)
    shutil.copy(ROOT / "examples/launch/dense/megatron/megatron.args", folder)
    requested = ["--model", "gpt2", "--gpu", "h100-sxm-80gb", "--gpus", "2", "--quiet"]
    with chdir(folder):
        for words in (
            ["plan", *requested, "-o", "plan.json"],
            ["plan", *requested, "--fix", "tp=2", "-o", "other.json"],
            ["emit", "plan.json", "-d", "run", "--quiet"],
            ["plan", "--workload", "serve", *requested, "--input", "500", "--output", "100", "-o", "serving.json"],
            ["plan", "--workload", "grpo", *requested, "--output", "100", "--prompts", "8", "-o", "rl.json"],
            ["plan", "--model", "tiny", "--gpu", "h100-sxm-80gb", "--gpus", "1", "--seq-len", "8", "--global-batch",
             "1", "--target", "meshwright", "--quiet", "-o", "tiny.json"],
            ["launch", "tiny.json", "--device", "cpu", "--steps", "1", "--checkpoint", "trained", "--quiet"],
        ):
            if main(words):
                raise RuntimeError(f"the fuzzer's own files cannot be made: meshwright {' '.join(words)}")
