"""Compare every answer of this checkout with those of another commit: `python tools/same_answers.py REV`.

For changes that move code and must change nothing else. The commands below run in both trees. Layouts, counts,
certificates and texts must be equal, and numbers must agree to 1e-12 of their size. Seconds that a search took and
digests of files are left out.
Fields that are new are named and count as no difference: the minor number of `format_version` moves with them.
With `--cuts-may-move`, for changes of the order in which a search asks its bounds, only the sum of the layouts that are
out of memory, bounded away and priced must be equal. Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-12
IGNORED = {"search_s", "seconds", "elapsed_s", "sha256", "sources"}  # wall times; digests and paths of files
CUTS = ("out_of_memory", "bounded", "priced")  # of a search, what its order decides

DGX = "--cluster dgx-h100:2 --global-batch 512"
COMMANDS = (
    f"plan --model llama-3.1-8b {DGX}",
    f"plan --model llama-3.1-8b {DGX} --stages own --target any",
    f"plan --model llama-3.1-8b {DGX} --layers own --target any --fix pp=2",
    f"plan --model llama-3.1-8b {DGX} --pareto time,memory --target any",
    f"plan --model llama-3.1-8b {DGX} --allow-technique all --target any",
    f"plan --model llama-3.1-8b {DGX} --technique diloco",
    f"plan --model llama-3.1-8b {DGX} --lora 16",
    f"plan --model llama-3.1-8b {DGX} --objective memory --max-memory 40GiB",
    f"plan --model qwen3-30b-a3b {DGX} --target megatron",
    f"plan --model qwen3-30b-a3b {DGX} --target torchtitan",
    "plan --model mixtral-8x7b --cluster dgx-a100:8 --global-batch 256 --seq-len 4096 --target megatron-bridge",
    "plan --model llama-3.1-70b --cluster dgx-h100:16 --seq-len 131072 --global-batch 32 --target any",
    "plan --model llama-3.1-405b --cluster dgx-h100:64 --global-batch 1024 --dtype fp8 --target any",
    "plan --model deepseek-v3 --cluster dgx-h100:32 --seq-len 4096 --global-batch 1920 --target any --fix pp=16",
    "plan --model llama-3.1-8b --cluster examples/mixed_gpus.yaml --global-batch 64",
    "plan --model llama-3.1-8b --cluster examples/two_sites.yaml --global-batch 64",
    "plan --model llama-3.1-8b --cluster examples/bad_nic.yaml --global-batch 128",
    "plan --model llama-3.1-8b --gpu h100-sxm-80gb --gpus 8..32 --global-batch 64 --deadline 900d --total-tokens 1T",
    "plan --model llama-3.1-8b --gpu rtx-4090-24gb --gpus 8 --target deepspeed --lengths 512:3,4096:1",
    f"memory --model llama-3.1-8b {DGX} --layout tp2-pp4-dp2-mbs1-z1-rsel",
    "validate",
)
OF_A_PLAN = (
    "explain {plan}",
    "memory {plan}",
    "what-if {plan} --set gpu.memory.bandwidth=4.8TB/s --replan",
    "what-if {plan} --study sensitivity",
    "what-if {plan} --vary gpus=8,16,32 --replan",
)


def answer(tree: Path, arguments: str) -> Any:
    """The JSON that a command prints, or its exit code and error text."""
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-m", "meshwright", "--json", *shlex.split(arguments)]
    done = subprocess.run(command, env=env, cwd=tree, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"exit": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Fields that are gone, and values that are not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() - IGNORED):
            if key not in after:
                yield f"{place}.{key}: only before"
            elif key == "format_version":
                yield from differences(_major(before[key]), _major(after[key]), f"{place}.{key}")
            else:
                yield from differences(before[key], after[key], f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (a, b) in enumerate(zip(before, after, strict=True)):
            yield from differences(a, b, f"{place}[{i}]")
    elif isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=TOLERANCE) and not (math.isnan(before) and math.isnan(after)):
            yield f"{place}: {before!r} -> {after!r}"
    elif before != after:
        yield f"{place}: {before!r:.120} -> {after!r:.120}"


def with_cuts_summed(answer: Any) -> Any:
    """An answer in which the layouts that a search has cut or priced are one number."""
    if isinstance(answer, list):
        return [with_cuts_summed(part) for part in answer]
    if not isinstance(answer, dict):
        return answer
    out = {key: with_cuts_summed(value) for key, value in answer.items() if key not in CUTS}
    if set(CUTS) <= set(answer):
        out["cut or priced"] = sum(answer[key] for key in CUTS)
    if isinstance(rejected := out.get("rejected"), dict):
        out["rejected"] = {rule: number for rule, number in rejected.items() if rule != "memory"}
    return out


def _major(version: str) -> str:
    return version.partition(".")[0]


def additions(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Fields that are new."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(after.keys() - IGNORED):
            if key not in before:
                yield f"{place}.{key}"
            else:
                yield from additions(before[key], after[key], f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list):
        for i, (a, b) in enumerate(zip(before, after, strict=False)):
            yield from additions(a, b, f"{place}[{i}]")


def answers(tree: Path, folder: Path, only: str) -> dict[str, Any]:
    """Every command's answer in `tree`; plans are written into `folder` for the commands that read one."""
    out: dict[str, Any] = {}
    for command in COMMANDS:
        if only in command:
            out[command] = answer(tree, command)
    plan = folder / "plan.json"
    answer(tree, f"plan --model llama-3.1-8b {DGX} -o {plan} --force")
    for command in OF_A_PLAN:
        if only in command:
            out[command] = answer(tree, command.format(plan=plan))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revision", help="the commit to compare with")
    parser.add_argument("--only", default="", help="commands that contain this text")
    parser.add_argument("--cuts-may-move", action="store_true", help="compare only sums of what a search has cut")
    parser.add_argument("--cache", type=Path, help="file that keeps the answers of that commit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.cache and options.cache.exists():
            before = json.loads(options.cache.read_text(encoding="utf-8"))
        else:
            subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "base")], check=True)
            subprocess.run(["git", "checkout", "-q", options.revision], check=True, cwd=folder / "base")
            before = json.loads(json.dumps(answers(folder / "base", folder, options.only)))
            if options.cache:
                options.cache.write_text(json.dumps(before), encoding="utf-8")
        after = json.loads(json.dumps(answers(ROOT, folder, options.only)))
    different = 0
    for command, answer_now in after.items():
        if command not in before:
            continue
        known = before[command]
        if options.cuts_may_move:
            known, answer_now = with_cuts_summed(known), with_cuts_summed(answer_now)
        changes = list(differences(known, answer_now))
        different += bool(changes)
        print(f"{'differs' if changes else 'same':8} {command}")
        for line in changes[:10]:
            print(f"         {line}")
        if new := list(additions(known, answer_now)):
            print(f"         new: {', '.join(new[:10])}")
    print(f"{len(after) - different} of {len(after)} commands give the same answer")
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
