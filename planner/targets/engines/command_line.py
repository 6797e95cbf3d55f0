"""Reads the command line of vLLM or SGLang: the layout of its instances, from a script or a list of options.

Options are recorded from the engines' own parsers (planner/targets/engines/*.txt). A script is followed, not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ....errors import FieldProblem, InputError, did_you_mean, nearest
from ....profiles.model.load import published_in
from ....profiles.stack.engines import shipped_engines
from ..scripts import is_list, plain_words
from ..shell.followed import Followed
from ..shell.script import follow
from ..shell.values import shown

_OPTION = re.compile(r"--?[A-Za-z]")
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PROGRAMS = {
    "vllm": (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server")),
    "sglang": (("sglang", "serve"), ("-m", "sglang.launch_server")),
}
Words = Sequence[tuple[str, int]]  # words with their lines
READ_ENGINES = tuple(_PROGRAMS)
# Those of trtllm-serve: NVIDIA/TensorRT-LLM 00209af1, tensorrt_llm/commands/serve.py, with dashes.
_LISTS = {"vllm": "vllm-0.32", "sglang": "sglang-0.5.23", "tensorrt-llm": "tensorrt-llm-1.2"}
# Option -> fact.
_FACTS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "--model": "model", "--tensor-parallel-size": "tp", "-tp": "tp", "--pipeline-parallel-size": "pp", "-pp": "pp",
        "--data-parallel-size": "dp", "-dp": "dp", "--enable-expert-parallel": "experts", "-ep": "experts",
        "--max-num-batched-tokens": "chunk_tokens", "--max-num-seqs": "sequences",
        "--quantization": "weights", "-q": "weights", "--kv-cache-dtype": "cache",
    },
    "sglang": {
        "--model-path": "model", "--model": "model", "--tp-size": "ranks", "--tensor-parallel-size": "ranks",
        "--tp": "ranks", "--pp-size": "pp", "--pipeline-parallel-size": "pp", "--dp-size": "dp", "--dp": "dp",
        "--data-parallel-size": "dp", "--attn-dp-size": "groups", "--attention-data-parallel-size": "groups",
        "--enable-dp-attention": "dp_attention", "--ep-size": "ep", "--ep": "ep", "--expert-parallel-size": "ep",
        "--chunked-prefill-size": "chunk_tokens", "--max-running-requests": "sequences", "--quantization": "weights",
        "--kv-cache-dtype": "cache",
    },
}  # fmt: skip
_NUMBERS = frozenset({"tp", "pp", "dp", "ranks", "groups", "ep", "chunk_tokens", "sequences"})
_FLAGS = frozenset({"experts", "dp_attention"})
# Options that change the speed and that no plan holds -> what they do.
_NOT_PLANNED: Mapping[str, str] = {
    "--speculative-config": "speculation", "--speculative-algorithm": "speculation",
    "--kv-transfer-config": "disaggregated prefill, or a cache outside the GPUs",
    "--disaggregation-mode": "disaggregated prefill",
    "--decode-context-parallel-size": "context parallelism", "--prefill-context-parallel-size": "context parallelism",
    "--context-parallel-size": "context parallelism", "--attn-cp-size": "context parallelism",
    "--moe-dp-size": "data parallelism of experts",
    "--enable-two-batch-overlap": "overlap of two batches", "--enable-dbo": "overlap of two batches",
    "--cpu-offload-gb": "weights on the host", "--dllm-algorithm": "a diffusion model",
    **dict.fromkeys(("--enforce-eager", "--disable-cuda-graph", "--disable-decode-cuda-graph"),
                    "no CUDA graphs: the host launches every kernel of an iteration"),
}  # fmt: skip
EITHER = "either"  # role of an instance that may prefill or decode
# Connectors that move caches from pool to pool (vllm/distributed/kv_transfer/kv_connector/factory.py).
_CONNECTORS = frozenset({"NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector",
                         "MoRIIOConnector"})  # fmt: skip
_FORMATS = {"fp8": "fp8", "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4", "mxfp4": "mxfp4",
            "modelopt": "fp8", "modelopt_fp8": "fp8", "modelopt_fp4": "nvfp4", "w8a8_int8": "int8",
            "w8a8_fp8": "fp8"}  # fmt: skip
# Names of checkpoints in a format: `DeepSeek-R1-FP4`, `Llama-3.1-70B-Instruct-AWQ`.
_NAMED_FORMATS = (("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("fp4", "nvfp4"), ("fp8", "fp8"),
                  ("awq", "int4"), ("gptq", "int4"))
_CACHES = {"auto": "auto", "bf16": "bf16", "bfloat16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}


@dataclass(kw_only=True)
class CommandLine:
    """A command that starts an engine."""

    engine: str
    file: str
    line: int
    role: str = "both"  # both, prefill, decode, or EITHER
    disaggregated: FieldProblem | None = None  # the option that says so, as a gap where the other pool is missing
    port: str = "8000"
    facts: dict[str, int | str] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)  # options that the layout depends on
    unread: list[str] = field(default_factory=list)  # options of the engine that change no layout
    unknown: dict[str, int] = field(default_factory=dict)  # options that the engine does not have -> line
    gaps: list[FieldProblem] = field(default_factory=list)  # what no plan holds
    problems: list[FieldProblem] = field(default_factory=list)  # values that cannot be read


@dataclass(frozen=True, kw_only=True)
class ReadInstance:
    """The layout of an instance, as `fix` of a request has it, and what the request takes from the command."""

    fix: dict[str, int]
    weights: str | None
    cache: str | None
    replicas: int  # that the command starts
    max_sequences: int | None  # at once, of a group of attention data parallelism; None: the engine's default

    @property
    def gpus(self) -> int:
        return self.fix["tp"] * self.fix["pp"] * self.fix["attention_dp"]


class WrittenOption(NamedTuple):
    """An option of a command."""

    written: str  # as it is spelled
    name: str  # with dashes
    value: str  # empty: none
    line: int


def commands_of(engine: str, path: str, text: str, given: Sequence[str] = ()) -> list[CommandLine]:
    """The commands in a file that start the engine. given: positional parameters, or NAME=value."""
    every = [plain_words(text)] if is_list(text) else commands_after(_PROGRAMS[engine], text, given)
    return [_read(CommandLine(engine=engine, file=path, line=words[0][1] if words else 0), words) for words in every]


def example(engine: str) -> str:
    """An example of a command, for hints."""
    return f"a line with `{' '.join(_PROGRAMS[engine][0])}`, or its options"


def instance_of(command: CommandLine, *, is_moe: bool) -> ReadInstance:
    """The layout of an instance. vLLM's data parallelism is that of attention where a model has experts, else replicas;
    SGLang's tp counts that of attention, and its `--dp-size` means replicas but for `--enable-dp-attention`. A limit on
    sequences is of a scheduler, one per group, in vLLM, and of all groups in SGLang (ServerArgs.max_running_requests,
    divided by the groups in Scheduler). The tokens of a chunk are the engine's default where no option states them."""
    facts = {name: value for name, value in command.facts.items() if isinstance(value, int)}
    pp, dp = facts.get("pp", 1), facts.get("dp", 1)
    if command.engine == "vllm":
        tp, groups = facts.get("tp", 1), dp if is_moe else 1
        replicas = 1 if is_moe else dp
        ep = tp * groups if "experts" in facts else 1
    else:
        groups = dp if "dp_attention" in facts else facts.get("groups", 1)
        replicas = 1 if "dp_attention" in facts else dp
        ranks, ep = facts.get("ranks", 1), facts.get("ep", 1)
        if ranks % groups:
            raise InputError(f"tp {ranks} is not a multiple of {groups} groups of attention data parallelism",
                             hint="SGLang's --tp-size counts both")  # fmt: skip
        tp = ranks // groups
    fix = {"tp": tp, "pp": pp, "attention_dp": groups, "ep": ep}
    fix["chunk_tokens"] = shipped_engines().of(command.engine).group_chunk(groups, facts.get("chunk_tokens"))
    named = str(command.facts.get("model", "")).lower()
    by_name = next((value for word, value in _NAMED_FORMATS if word in named), None) or published_in(named)
    texts = {name: str(command.facts[name]) for name in ("weights", "cache") if name in command.facts}
    sequences = facts.get("sequences")
    if sequences is not None and command.engine == "sglang":
        sequences = max(sequences // groups, 1)
    return ReadInstance(fix=fix, weights=texts.get("weights", by_name), cache=texts.get("cache"), replicas=replicas,
                        max_sequences=sequences)  # fmt: skip


@cache
def known_options(engine: str) -> frozenset[str]:
    """Options that the engine's own parser has."""
    text = Path(__file__).with_name(f"{_LISTS[engine]}.txt").read_text(encoding="utf-8")
    return frozenset(text.split()) | frozenset(_FACTS.get(engine, ()))


def commands_after(programs: Iterable[Sequence[str]], text: str, given: Sequence[str] = ()) -> list[Words]:
    """(word, line) after the words of one of the programs, of each command of a script. given: as in `commands_of`."""
    named = {found[1]: found[2] for word in given if (found := _NAMED.fullmatch(word))}
    positional = [word for word in given if not _NAMED.fullmatch(word)]
    return started(programs, follow(text, named, positional or None))


def started(programs: Iterable[Sequence[str]], followed: Followed) -> list[Words]:
    """(word, line) after the words of one of the programs, of each command that was followed."""
    out = list[Words]()
    for command in followed.commands:
        words = list(zip(command.words, command.lines or (command.line,) * len(command.words), strict=True))
        if (start := _start(programs, command.words)) is not None:
            out.append(words[start:])
    return out


def _start(programs: Iterable[Sequence[str]], words: Sequence[str]) -> int | None:
    """The place after the words of a program."""
    for first, *rest in programs:
        for place in range(len(words) - len(rest)):
            end = place + 1 + len(rest)
            if words[place].rpartition("/")[2] == first and list(words[place + 1 : end]) == rest:
                return end
    return None


def written_options(words: Words, flags: Container[str] = ()) -> Iterator[WrittenOption]:
    """The options of a command. flags: names of those that take no value."""
    position = 0
    while position < len(words):
        word, line = words[position]
        position += 1
        if not _OPTION.match(word):
            continue
        written, equals, value = word.partition("=")
        name = written.replace("_", "-") if written.startswith("--") else written
        if not equals and name not in flags and position < len(words) and not _OPTION.match(words[position][0]):
            value = words[position][0]
            position += 1
        yield WrittenOption(written, name, value, line)


def counted_options(engine: str, words: Words, flags: Container[str] = ()) -> list[WrittenOption]:
    """As `written_options`, but of a switch that is on and off (`--X`, `--no-X`) only what counts: the last."""
    options = [(_switch(engine, option.name), option) for option in written_options(words, flags)]
    last = dict(switch for switch, _ in options)
    return [option for (identity, on), option in options if last[identity] == on]


def _switch(engine: str, name: str) -> tuple[str, bool]:
    """What an option sets, equal for all its spellings, and whether it is on."""
    positive = name.replace("--no-", "--", 1)
    off = positive != name and positive in known_options(engine)
    return fact_of(engine, positive if off else name) or (positive if off else name), not off


def fact_of(engine: str, name: str) -> str | None:
    """The fact of a layout that an option states: equal for all spellings of an option."""
    return _FACTS.get(engine, {}).get(name)


def not_planned(name: str) -> str | None:
    """The effect of an option that changes the speed and that no plan holds."""
    return _NOT_PLANNED.get(name)


def _read(out: CommandLine, words: Words) -> CommandLine:
    known, facts = known_options(out.engine), _FACTS[out.engine]
    if words and not _OPTION.match(words[0][0]):
        out.facts["model"] = words[0][0]
    for option in counted_options(out.engine, words, {name for name, fact in facts.items() if fact in _FLAGS}):
        name, fact = option.name, facts.get(option.name)
        if fact in _FLAGS:
            out.facts[fact] = 1
        if name == "--port":
            out.port = option.value
        if name not in known:
            out.unknown[option.written] = option.line
        elif name in _NOT_PLANNED:
            gap = FieldProblem(_NOT_PLANNED[name], file=out.file, line=option.line, field=name)
            if (role := _role(name, option.value)) is None:
                out.gaps.append(gap)
            else:
                out.role, out.disaggregated = role, gap
                out.read.append(name)
        elif fact is None:
            out.unread.append(name)
        else:
            out.read.append(name)
            if fact not in _FLAGS:
                _store(out, fact, option.value, FieldProblem("", file=out.file, line=option.line, field=name))
    return out


def _role(name: str, value: str) -> str | None:
    """The pool of an instance; None: the option says something else."""
    if name == "--disaggregation-mode":
        return value if value in ("prefill", "decode") else None
    if name != "--kv-transfer-config":
        return None
    try:
        config = json.loads(value)
    except ValueError:
        return None
    if not isinstance(config, dict) or config.get("kv_connector") not in _CONNECTORS:
        return None
    return {"kv_producer": "prefill", "kv_consumer": "decode"}.get(str(config.get("kv_role")), EITHER)


def _store(out: CommandLine, fact: str, value: str, where: FieldProblem) -> None:
    """Keeps the value of a fact, or the problem with it."""
    if fact in _NUMBERS:
        if fact == "chunk_tokens" and value == "-1":
            out.gaps.append(where._replace(message="prompts in one piece"))
        elif not value.isdecimal() or int(value) < 1:
            message = f"`{shown(value)}` is not a number from 1"
            names = re.findall(r"\$\{?(\w+)", shown(value))  # the last decides on those before it
            hint = f"give the variable: --arg {names[-1]}=NUMBER" if names else "a whole number"
            out.problems.append(where._replace(message=message, hint=hint))
        else:
            out.facts[fact] = int(value)
        return
    formats = {"weights": _FORMATS, "cache": _CACHES}.get(fact)
    if formats is None:
        out.facts[fact] = value
    elif value in formats:
        out.facts[fact] = formats[value]
    else:
        hint = did_you_mean(nearest(value, formats))
        out.gaps.append(where._replace(message=f"`{value}`: a number format that no plan holds", hint=hint))
