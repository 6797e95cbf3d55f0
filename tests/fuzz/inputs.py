"""Command lines and files drawn from a seed: mostly right, then one thing or more made wrong.

Half of what a user gets wrong is a value beside a right one, so a drawn command line starts from one that works.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from meshwright.cli.main import COMMANDS, command_app

LAYOUTS = ("dp2-mbs1-z1-rnone", "dp2-mbs1-z3-rfull", "tp2-mbs1-z0-rnone", "pp2-mbs1-z0-rsel")
NAMES = ("gpt2", "llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b", "h100-sxm-80gb", "rtx-4090", "dgx-h100:1",
         "2xa100-sxm-80gb",
         "megatron", "torchtitan", "deepspeed", "accelerate", "verl", "any",
         "slurm", "bf16", "fp8", "adamw", "muon", "step",
         "memory", "cost", "diloco", "own", "even")  # fmt: skip
NUMBERS = ("0", "1", "2", "8", "-1", "3", "512", "1024", "1e9", "999999999999999999999", "nan", "inf", "1.5", "0x10",
           "010", "", "1_000", "4M", "15T", "70GiB", "1e-30 s", "30s", "5%", "101%", "1..4", "2,4", "4..2",
           "x0.5..x2")  # fmt: skip
TEXTS = ("", " ", "-", "--", "a=b", "=", "tp=2", "tp=", "zero=1", "gpus=4", "gpu.peak=x2", "workload.seq_len=512",
         "cluster.price=3 USD/h", "time,memory", "gpus,cost", "\u00e9\u4e2d\U0001f600", "a" * 400, "../..", "/dev/null",
         "/", ".", "'", '"', "{}", "[1,2]", "null", "true", "%s%d", "$(id)", "\\", "\t", "a\nb", "0", "sensitivity",
         "gpus", "tp3-dp1", "tp2-", "gpu=b200-sxm-180gb", "links.inter_node.bandwidth=400 Gb/s")  # fmt: skip
GARBAGE: tuple[Any, ...] = (None, True, 0, -1, 1e308, 2**70, "", "x", [], {}, [[]], {"a": {"b": 1}}, "\u0000", 0.5,
                            "1 GiB")  # fmt: skip
REQUESTED = ["--model", "gpt2", "--gpu", "h100-sxm-80gb", "--gpus", "2"]
# What makes each command work; `{}` is a file of the folder. Those that measure or train are run dry.
BASES: dict[str, tuple[list[str], ...]] = {
    "plan": ([*REQUESTED, "--time-limit", "0.2s"], ["request.yaml", "--time-limit", "0.2s"],
             [*REQUESTED, "--fix", "tp=2"],
             ["--model", "config", "--cluster", "cluster.yaml", "--time-limit", "0.2s"],
             ["--model", "qwen3-vl-8b", "--cluster", "dgx-h100:1", "--images", "2@512x512", "--target", "any",
              "--time-limit", "0.2s"],
             ["--workload", "serve", *REQUESTED, "--input", "500", "--output", "100", "--rate", "4/s", "--tpot",
              "50ms", "--top", "1"],
             ["--workload", "grpo", *REQUESTED, "--output", "100", "--prompts", "8", "--top", "1"],
             ["--workload", "grpo", *REQUESTED, "--output", "100", "--prompts", "8", "--target", "nemo-rl"],
             ["--workload", "grpo", *REQUESTED, "--output", "100", "--prompts", "8", "--lengths-rule", "dynamic"],
             ["--jobs-file", "jobs.yaml"]),
    "what-if": (["plan.json", "--set", "gpu.peak=x2"], ["plan.json", "--set", "gpus=4"],
                ["plan.json", "--study", "sensitivity"],
                ["plan.json", "--vary", "gpu.peak=x0.5..x2"]),
    "memory": (["plan.json"], [*REQUESTED, "--layout", LAYOUTS[0]], ["request.yaml", "--layout", LAYOUTS[1]],
               ["plan.json", "--choice", "2"]),
    "explain": (["plan.json"], ["plan.json", "2"], ["plan.json", "--why-not", LAYOUTS[2]], ["plan.json", "--plot"],
                ["plan.json", "--origins"], ["serving.json"], ["rl.json"]),
    "explore": (["plan.json", "--dry-run"],),
    "diff": (["plan.json", "other.json"], ["plan.json", "plan.json", "--exit-code"],
             ["serving.json", "serving.json"]),
    "cite": (["plan.json"],),
    "report": (["plan.json", "-o", "report.html"], ["plan.json", "--choice", "2", "-o", "report.html", "--force"],
               ["serving.json", "-o", "report.html", "--force"], ["rl.json", "-o", "report.html", "--force"]),
    "validate": (["rows.yaml", "--no-rows"],),
    "calibrate": (["rows.yaml", "-o", "stack.yaml"], ["--from-run", "report.json", "--plan", "plan.json"]),
    "profile": (["--quick", "--dry-run"], ["--dry-run", "--layout", LAYOUTS[0], *REQUESTED]),
    "profile links": (["--dry-run"],),
    "profile storage": (["--dry-run"],),
    "profile all": (["--dry-run", "-o", "all.yaml"],),
    "profile import": (["nccl_tests_two_nodes.log", "--gpu", "h100-sxm-80gb", "--gpus-per-node", "8",
                        "-o", "links.yaml"],),
    "launch": (["plan.json", "--dry-run"], ["plan.json", "--dry-run", "--choice", "2", "--steps", "3"]),
    "launch export": (["trained", "--to-hf", "out", "--config", "tiny"],
                      ["trained", "--to-hf", "out", "--config", "config"],
                      ["checkpoint", "--to-hf", "out"], ["plan.json", "--to-hf", "out", "--file-size", "1 GB"]),
    "launch tokens": (["text.jsonl", "--tokenizer", "hf", "-d", "tokens"],
                      ["text.jsonl", "--tokenizer", "hf", "-d", "out", "--plan", "plan.json", "--shard-tokens", "9"]),
    "emit": (["plan.json"], ["plan.json", "-d", "run2"], ["plan.json", "-d", "run", "--force"],
             ["plan.json", "--launcher", "slurm"],
             ["plan.json", "--to", "megatron"], ["serving.json", "--launcher", "dynamo", "--transfer", "nixl"],
             ["rl.json", "--to", "verl", "-d", "rl"], ["rl.json", "--to", "slime", "-d", "rl"],
             ["rl.json", "--to", "areal", "-d", "rl"], ["rl.json", "--to", "openrlhf", "-d", "rl"]),
    "check": (["plan.json"], ["request.yaml"], ["run"], [".", "--to", "megatron"],
              ["serving.json", "serve.sh"]),
    "import": (["megatron-args", "megatron.args", *REQUESTED], ["deepspeed", "ds_config.json", *REQUESTED],
               ["vllm", "serve.sh", *REQUESTED, "--input", "500", "--output", "100"]),
    "show": (["gpus"], ["models"], ["clusters", "dgx-h100"], ["techniques", "diloco"], ["targets"], ["stacks"],
             ["families"], ["formats"]),
    "schema": (["request"], ["plan"]),
    "env": ([],),
}  # fmt: skip
# Settings of all commands, which stand anywhere.
SWITCHES = ("--json", "--quiet", "--verbose", "--no-progress")
# Where a base runs dry, no other word may take that away or make the command start processes.
KEPT = ("--dry-run", "--time-limit")
LEFT_OUT = ("--jobs", "--executor", "--trace", "--check-parity", "--plot", "--layers", "--study", "--stages",
            "--replan")


@dataclass(frozen=True)
class Input:
    """One command line, and the files of the folder that it runs in."""

    words: list[str]
    files: dict[str, bytes]  # name -> content, in place of those of the corpus

    def written(self) -> set[str]:
        """Names that the command line asks to write."""
        flags = ("-o", "--output", "-d", "--directory", "--plot", "--csv", "--report", "--checkpoint", "--resume",
                 "--to-hf")  # fmt: skip
        words = [word for word in self.words if word not in SWITCHES]  # a command does not see these
        return {after for flag, after in pairwise(words) if flag in flags}


def draw(seed: int, corpus: Path, *, commands: Sequence[str] = tuple(BASES)) -> Input:
    """The input of a seed; `corpus`: the folder of files that are right."""
    rng = random.Random(seed)
    name = rng.choice(commands)
    words = list(rng.choice(BASES[name]))
    options = _options(name)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        rng.choice(_CHANGES)(rng, words, options)
    files = {}
    used = [path for path in sorted(corpus.rglob("*")) if path.is_file() and _is_named(path, corpus, words)]
    if used and rng.random() < 0.5:
        path = rng.choice(used)
        files[str(path.relative_to(corpus))] = damaged(rng, path.name, path.read_bytes())
    for switch in SWITCHES:
        if rng.random() < 0.1:
            words.insert(rng.randrange(len(words) + 1), switch)
    return Input([*name.split(), *words], files)


def _is_named(path: Path, corpus: Path, words: Sequence[str]) -> bool:
    parts = path.relative_to(corpus).parts
    return parts[0] in words or "." in words


def _options(name: str) -> list[tuple[str, bool]]:
    """(option, whether it takes a value) of a command."""
    if name not in _KNOWN:
        import typer.main

        command = typer.main.get_command(command_app([name]))
        found = [(option, not getattr(parameter, "is_flag", False)) for parameter in command.params
                 for option in (*parameter.opts, *parameter.secondary_opts) if option.startswith("-")]  # fmt: skip
        _KNOWN[name] = [option for option in found if option[0] not in LEFT_OUT]
    return _KNOWN[name]


_KNOWN: dict[str, list[tuple[str, bool]]] = {}


def value(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(NAMES)
    if kind < 0.6:
        return rng.choice(NUMBERS)
    if kind < 0.7:
        return rng.choice(LAYOUTS)
    if kind < 0.9:
        return rng.choice(TEXTS)
    return "".join(rng.choice(string.printable[:95]) for _ in range(rng.randrange(12)))


def _add_option(rng: random.Random, words: list[str], options: list[tuple[str, bool]]) -> None:
    if options:
        option, takes_value = rng.choice(options)
        words += [option, value(rng)] if takes_value else [option]


def _free(words: Sequence[str]) -> list[int]:
    """Places of the words that may be changed."""
    return [i for i, word in enumerate(words) if word not in KEPT and (not i or words[i - 1] not in KEPT)]


def _change_value(rng: random.Random, words: list[str], options: list[tuple[str, bool]]) -> None:
    if places := _free(words):
        words[rng.choice(places)] = value(rng)


def _drop(rng: random.Random, words: list[str], options: list[tuple[str, bool]]) -> None:
    if places := _free(words):
        del words[rng.choice(places)]


def _misspell(rng: random.Random, words: list[str], options: list[tuple[str, bool]]) -> None:
    if places := [i for i in _free(words) if len(words[i]) > 1]:
        i = rng.choice(places)
        at = rng.randrange(len(words[i]))
        words[i] = words[i][:at] + rng.choice(string.printable[:95]) + words[i][at + 1 :]


_CHANGES: tuple[Callable[[random.Random, list[str], list[tuple[str, bool]]], None], ...] = (
    _add_option, _add_option, _add_option, _change_value, _drop, _misspell,
)  # fmt: skip


def damaged(rng: random.Random, name: str, content: bytes) -> bytes:
    """The content of a file with something wrong in it: a field of JSON, or bytes."""
    if name.endswith(".json") and rng.random() < 0.8:
        return json.dumps(_with_damage(rng, json.loads(content))).encode()
    if name.endswith(".yaml") and rng.random() < 0.5:
        return yaml.safe_dump(_with_damage(rng, yaml.safe_load(content))).encode()
    lines = content.splitlines(keepends=True)
    kind = rng.randrange(5)
    if kind == 0 or not lines:
        return content[: rng.randrange(len(content) + 1)]
    at = rng.randrange(len(lines))
    if kind == 1:
        lines[at] = bytes(rng.randrange(256) for _ in range(8)) + b"\n"
    elif kind == 2:
        lines.insert(at, rng.choice(lines))
    elif kind == 3:
        del lines[at]
    else:
        head, colon, _ = lines[at].partition(b":")
        lines[at] = head + colon + b" " + value(rng).encode() + b"\n"
    return b"".join(lines)


def _with_damage(rng: random.Random, document: Any) -> Any:
    """The document with a field or two damaged; of a plan most often in `resolved`, which has the most fields."""
    for _ in range(rng.choice((1, 1, 2))):
        resolved = isinstance(document, dict) and rng.random() < 0.4 and document.get("resolved")
        _damage_field(rng, resolved or document)
    return document


def _damage_field(rng: random.Random, document: Any) -> None:
    """Replaces or removes a field somewhere in the document, at a depth drawn evenly."""
    node = document
    depth = rng.randrange(1, 7)
    while isinstance(node, dict | list) and node:
        key: Any = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        depth -= 1
        inner = node[key]
        if depth <= 0 or not isinstance(inner, dict | list) or not inner:
            break
        node = inner
    else:
        return
    if rng.random() < 0.2:
        del node[key]
    elif isinstance(inner, int | float) and not isinstance(inner, bool) and rng.random() < 0.5:
        node[key] = rng.choice((inner * 10, -inner, inner + 1, inner * 1.5, float("nan"), float("inf"), 0))
    else:
        node[key] = rng.choice(GARBAGE)


if set(BASES) != set(COMMANDS):
    raise RuntimeError(f"commands without a line to start from: {set(BASES) ^ set(COMMANDS)}")
