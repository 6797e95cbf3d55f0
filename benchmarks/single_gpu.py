"""`make single-gpu`: trains models of published sizes on one GPU and puts what was predicted beside what was measured.

Every model x recompute mode x micro-batch that the planner says fits, AdamW, bf16, on the runtime of this package.
Written as they come to OUT/runs.jsonl, rows that `meshwright validate` and `calibrate` read; a run that stopped goes
on. Then OUT/table.md: memory (allocated, reserved, in use) and step time, before `calibrate` and, on the runs that it
did not see, after it has seen every third one.

    python benchmarks/single_gpu.py -o benchmarks/single_gpu_h200
    python benchmarks/single_gpu.py -o /tmp/rehearsal --rehearse      # small models on a CPU: memory alone
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from meshwright.planner import api
from meshwright.planner.accuracy.calibrate import calibrate
from meshwright.planner.accuracy.validate import validate
from meshwright.profiles.profilers import environment
from meshwright.runtime.job import job_of
from meshwright.runtime.model.block import ParamShard
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.rehearsal.memory import PeakMemory, gpu_peaks
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from meshwright.errors import InputError

WARM_UP, TIMED = 2, 5
RECOMPUTE = ("none", "sel(norm+act)", "full")
MICRO_BATCHES = (1, 2, 4, 8)
# Qwen1.5-MoE-A2.7B (https://huggingface.co/Qwen/Qwen1.5-MoE-A2.7B, config.json) with 8 of its 24 layers, which fit.
EXPERTS: dict[str, Any] = {
    "name": "qwen1.5-moe-a2.7b, 8 layers", "hidden": 2048, "layers": 8, "heads": 16, "kv_heads": 16, "vocab": 151936,
    "max_positions": 8192,
    "moe": {"experts": 60, "topk": 4, "expert_ffn": 1408, "shared_ffn": 5632, "shared_gate": True,
            "router_normalised": False},
}  # fmt: skip
# Tokens of a sequence, and sequences per step.
MODELS = {"llama-3.2-1b": (4096, 8), "qwen3-1.7b": (4096, 8), "llama-3.2-3b": (4096, 8), EXPERTS["name"]: (4096, 8)}
SMALL: dict[str, Any] = {"hidden": 128, "heads": 4, "kv_heads": 2, "ffn_hidden": 352, "vocab": 1024,
                         "max_positions": 256}  # fmt: skip
REHEARSAL = {"small-2": (256, 4), "small-4": (256, 4)}
REHEARSED_BATCHES, REHEARSED_GPU = (1, 2), "h200-sxm-141gb"
LEAST_FITTED = 9  # runs: calibrate needs three


@dataclass(frozen=True)
class Wanted:
    """One run."""

    model: str
    # Tokens of a sequence.
    tokens: int
    # Sequences of a step.
    sequences: int
    # As a layout id has it: `full`, `sel(attn)`, ...
    recompute: str
    # Sequences of a micro-batch.
    micro_batch: int

    @property
    def layout(self) -> str:
        return f"dp1-mbs{self.micro_batch}-z0-r{self.recompute}"

    @property
    def id(self) -> str:
        return f"{self.model} {self.layout}"


def wanted(*, rehearse: bool) -> Iterator[Wanted]:
    """All runs; micro-batches that divide the step."""
    models, batches = (REHEARSAL, REHEARSED_BATCHES) if rehearse else (MODELS, MICRO_BATCHES)
    for (model, (tokens, sequences)), recompute, batch in itertools.product(models.items(), RECOMPUTE, batches):
        if sequences % batch == 0:
            yield Wanted(model, tokens, sequences, recompute, batch)


def plan_of(run: Wanted, gpu: str) -> Any:
    """The plan of one run: its layout alone."""
    model: Any = EXPERTS if run.model == EXPERTS["name"] else run.model
    if run.model.startswith("small"):
        model = {**SMALL, "name": run.model, "layers": int(run.model[6:])}
    return api.evaluate(None, run.layout, model=model, gpu=gpu, gpus=1, seq_len=run.tokens, global_batch=run.sequences)


def measure(run: Wanted, plan: Any, device: torch.device) -> dict[str, Any]:
    """Trains the first layout of `plan` for a few steps: seconds of each timed one, and bytes at the peak."""
    job = replace(job_of(plan, 1), steps=WARM_UP + TIMED)
    mesh = build_mesh(job.layout, 0, Status(rank=0), 60.0)
    # On the GPU, in no time; the runtime's own weights are the same on every kind of device, and slow to draw.
    trainer = Trainer(job, mesh, device, init_param=_init_param_here)
    tracked = None
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        tracked = PeakMemory(trainer.tensors())
    seconds = []
    for index in range(job.steps if tracked is None else 2):
        started = _now(device)
        if tracked is not None:
            with tracked.following():
                trainer.step(index)
        else:
            trainer.step(index)
        seconds.append(_now(device) - started)
    peaks = gpu_peaks(device) if tracked is None else (tracked.peak,)
    names = ("allocated_bytes", "reserved_bytes", "device_bytes")
    timed = seconds[WARM_UP:] if tracked is None else []
    return {"seconds": timed, **dict(zip(names, peaks, strict=False))}


def _init_param_here(parameter: torch.Tensor, name: str, split: ParamShard, seed: int, *, tied: bool) -> None:
    with torch.no_grad():
        parameter.fill_(split.start) if split.start is not None else parameter.normal_(std=0.02)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def row_of(run: Wanted, plan: Any, raw: Mapping[str, Any], about: Mapping[str, str], gpu: str) -> dict[str, Any]:
    """A run in the form of a published one, with the prediction beside it."""
    candidate = plan.candidates[0]
    stage, cluster = candidate.memory[0], {"gpu": gpu, "num_gpus": 1}
    predicted = {"step_s": candidate.step_s, "allocated_bytes": stage.allocated_bytes,
                 "reserved_bytes": stage.reserved_bytes, "device_bytes": stage.device_bytes}  # fmt: skip
    step_s = statistics.median(raw["seconds"]) if raw.get("seconds") else None
    measured = {"step_s": step_s, "peak_memory_gib": raw["allocated_bytes"] / 2**30, "peak_memory_kind": "allocated"}
    mode, _, modules = run.recompute.rstrip(")").partition("(")
    recompute = {"mode": "selective" if modules else mode, "modules": modules.split("+") if modules else []}
    return {
        "id": run.id, "source": f"benchmarks/single_gpu.py, {about['device']}, {datetime.now(UTC).date()}",
        "stack": "meshwright", "model": _model_row(plan.resolved["model"], run), "cluster": cluster,
        "layout": {"tp": 1, "pp": 1, "dp": 1, "zero_stage": 0, "micro_batch": run.micro_batch,
                   "global_batch": run.sequences, "precision": "bf16", "recompute": recompute},
        "measured": measured, "predicted": predicted, "raw": dict(raw), "environment": dict(about),
    }  # fmt: skip


def _model_row(spec: Mapping[str, Any], run: Wanted) -> dict[str, Any]:
    layer = spec["kinds"][0]
    attention, block = layer["attention"], layer["feed_forward"]
    moe = EXPERTS["moe"] if run.model == EXPERTS["name"] else None
    return {
        "name": spec["name"], "hidden": spec["hidden"], "layers": len(spec["pattern"]), "heads": attention["heads"],
        "kv_heads": attention["kv_heads"], "head_dim": attention["head_dim"], "ffn_hidden": block.get("inner"),
        "moe": moe, "gated_mlp": block["gated"], "vocab": spec["vocab"], "seq_len": run.tokens,
        "tied_embeddings": spec["tied_embeddings"], "qk_norm": attention["norm_parameters"],
    }  # fmt: skip


def collect(out: Path, device: torch.device, gpu: str, *, rehearse: bool) -> list[dict[str, Any]]:
    """All runs that fit; those that OUT/runs.jsonl has are not run again."""
    path, about = out / "runs.jsonl", environment.environment(device)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    have = {row["id"] for row in rows}
    for run in wanted(rehearse=rehearse):
        if run.id in have:
            continue
        plan = plan_of(run, gpu)
        if any("does not fit" in str(warning) for warning in plan.warnings):
            print(f"{run.id}: does not fit, by prediction", flush=True)
            continue
        raw = None
        with suppress(torch.OutOfMemoryError):
            raw = measure(run, plan, device)
        gc.collect()  # after the error, whose traceback holds the tensors of the run
        if raw is None:
            print(f"{run.id}: OUT OF MEMORY, predicted {plan.candidates[0].memory[0].device_bytes / 2**30:.1f} GiB")
            continue
        rows.append(row_of(run, plan, raw, about, gpu))
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(_line(rows[-1]), flush=True)
    return rows


def _line(row: Mapping[str, Any]) -> str:
    predicted, step_s = row["predicted"], row["measured"]["step_s"]
    memory = predicted["allocated_bytes"] / row["raw"]["allocated_bytes"] - 1
    time = f", step {step_s:.4f} s, predicted {predicted['step_s'] / step_s - 1:+.1%}" if step_s else ""
    return f"{row['id']}: {row['raw']['allocated_bytes'] / 2**30:.2f} GiB, predicted {memory:+.2%}{time}"


def after(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Step seconds of the runs that calibrate did not see, by a stack that it fitted to every third one."""
    with tempfile.TemporaryDirectory() as folder:
        seen, rest, stack = (Path(folder) / name for name in ("seen.jsonl", "rest.jsonl", "stack.yaml"))
        for path, chosen in ((seen, rows[::3]), (rest, [row for i, row in enumerate(rows) if i % 3])):
            path.write_text("".join(json.dumps(row) + "\n" for row in chosen), encoding="utf-8")
        stack.write_text(calibrate([seen]).stack, encoding="utf-8")
        runs = validate([rest], stack=str(stack)).rows
        return {run.id: run.step_s for run in runs if run.step_s is not None}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a line per run, and the errors below."""
    timed = all(row["measured"]["step_s"] for row in rows)
    fitted = after(rows) if timed and len(rows) >= LEAST_FITTED else {}
    about = rows[0]["environment"]
    head = ["run", "allocated GiB", "error %", "reserved GiB", "error %", "in use GiB", "error %", "step s", "error %",
            "after %"]  # fmt: skip
    lines = [f"# One GPU: {about['device']}, {rows[0]['source'].split(', ')[-1]}", "",
             f"meshwright {about['meshwright']}, torch {about['torch']}, CUDA {about.get('cuda', '-')}, driver "
             f"{about.get('driver', '-')}. Errors: predicted over measured, less one. after: predicted by a stack that "
             "`calibrate` fitted to every third run, for the runs that it did not see. Medians of "
             f"{TIMED} steps after {WARM_UP}.", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]  # fmt: skip
    errors: dict[str, list[float]] = {}
    for row in rows:
        cells = [row["id"]]
        predicted, raw = row["predicted"], row["raw"]
        step_s = row["measured"]["step_s"]
        for name in ("allocated_bytes", "reserved_bytes", "device_bytes"):
            cells += _pair(errors, name, predicted[name], raw.get(name), 2**30, 2)
        cells += _pair(errors, "step_s", predicted["step_s"], step_s, 1.0, 4)
        cells += _pair(errors, "step_s after calibrate", fitted.get(row["id"]), step_s, 1.0, 4)[1:]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| absolute error, % | runs | median | mean | largest |", "|---|---|---|---|---|"]
    for name, relative in errors.items():
        size = [100 * abs(error) for error in relative]
        lines.append(f"| {name.removesuffix('_bytes')} | {len(size)} | {statistics.median(size):.1f} | "
                     f"{statistics.mean(size):.1f} | {max(size):.1f} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def _pair(
    errors: dict[str, list[float]], name: str, predicted: float | None, measured: float | None, unit: float, digits: int
) -> list[str]:
    """The measured value and the error of the predicted one, which is noted under `name`."""
    if measured is None or predicted is None:
        return ["-" if measured is None else f"{measured / unit:.{digits}f}", "-"]
    errors.setdefault(name, []).append(predicted / measured - 1)
    return [f"{measured / unit:.{digits}f}", f"{100 * errors[name][-1]:+.1f}"]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--rehearse", action="store_true", help="small models on the CPU, memory alone")
    given = parser.parse_args(argv)
    device = torch.device("cpu" if given.rehearse else "cuda")
    if not given.rehearse and not torch.cuda.is_available():
        print("torch sees no CUDA GPU here; `--rehearse` shows the way on a CPU", file=sys.stderr)
        return 2
    gpu = REHEARSED_GPU if given.rehearse else environment.gpu_of(device)
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo" if given.rehearse else "nccl", rank=0, world_size=1)
    try:
        rows = collect(given.out, device, gpu, rehearse=given.rehearse)
    except InputError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        return 2
    finally:
        dist.destroy_process_group()
    (given.out / "table.md").write_text(table(rows), encoding="utf-8")
    print(f"{len(rows)} runs: {given.out / 'table.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
