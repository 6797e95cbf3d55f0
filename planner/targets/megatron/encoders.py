"""The models of pretrain_bert.py and pretrain_t5.py, which are read and not written.

Megatron-LM d98e8a64: examples/bert/pretrain_bert.py and core/models/bert (types of tokens, a head of a dense layer, a
norm and a bias, and by default a pooled head of two classes); examples/t5/pretrain_t5.py and core/models/T5 (both
stacks have --num-layers, one table of tokens and one of positions, and a tied head has a bias). Both norm in front of
blocks and behind each stack, as megatron/model/{bert,t5}_model.py of older releases and forks.

tasks/main.py of these releases (deepspeedai/Megatron-DeepSpeed 4efb479d, tasks/glue, tasks/race, finetune_utils.py)
trains a BERT whose only head has the classes of --task on the first token. A sample of RACE is four sequences.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from ....errors import FieldProblem
from ..argv import Arguments
from ..options import Entry, Facts, Settings
from . import retrieval
from .vocabulary import take

# The setting that holds the facts of such a program.
PROGRAM = "program"
_PROGRAMS = re.compile(r"pretrain_(bert|t5)(_m?core)?\.py")
_TASKS = "tasks/main.py"
_TASK = "--task"
# --task -> (classes, sequences of a sample).
_HEADS = {"MNLI": (3, 1), "STS-B": (1, 1), "RACE": (1, 4),
          **dict.fromkeys(("QQP", "QNLI", "SST-2", "CoLA", "MRPC", "RTE"), (2, 1))}  # fmt: skip
_SIZES = ("--micro-batch-size", "--global-batch-size")
# Rows of the vocabulary files of BERT for English, by --tokenizer-type. A file is read whatever the type is.
_CASED = "BertWordPieceCase"
_WORDS = {"BertWordPieceLowerCase": 30522, _CASED: 28996}
_CASED_FILE = re.compile(r"bert[-_](base|large)[-_]cased")
_SPECIAL = 2  # [BOS] and [EOS], which Megatron adds (megatron/tokenizer/tokenizer.py, _BertWordPieceTokenizer)
_POSITIONS = "--position-embedding-type"


def program_of(program: str) -> str:
    """`bert`, `t5`, `ict`, or `task` for a task of BERT; "" for another program."""
    name = posixpath.basename(program)
    if name == retrieval.ICT:
        return "ict"
    match = _PROGRAMS.fullmatch(name)
    return match[1] if match else "task" if program.endswith(_TASKS) else ""


def modernise(arguments: Arguments) -> None:
    """Moves the options of these programs into one setting; what has no counterpart in a plan becomes a gap."""
    name, given = program_of(arguments.program), arguments.settings
    task = str(given.pop(_TASK, ""))
    if not name:
        return
    if name == "ict" or task == retrieval.TASK:
        compares = retrieval.parts_of(arguments, fine_tunes=name == "task")
        given[PROGRAM] = {"name": "bert", "retrieval": compares}
        _vocabulary(arguments)
        return
    if name == "task" and task not in _HEADS:
        arguments.gap(_TASK, f"`{task}` of {_TASKS} trains nothing: it evaluates")
        return
    parts: dict[str, Any] = {"name": "bert", "task": task} if name == "task" else {"name": name}
    for old, new in (("--encoder-num-layers", "--num-layers"), ("--encoder-seq-length", "--seq-length")):
        _take(arguments, old, new)
    if name == "task":
        parts["classes"], sequences = _HEADS[task]
        given |= {size: given[size] * sequences for size in _SIZES if sequences > 1 and size in given}
        if sequences > 1:
            arguments.notes.append(f"a sample of {task} is {sequences} sequences: micro-batch and batch count as many")
    elif name == "bert":
        parts["classes"] = 0 if given.pop("--bert-no-binary-head", False) else 2
    else:
        parts |= _of_t5(arguments)
    for option, text in _cannot(arguments, parts["name"]).items():
        arguments.gap(option, text)
    _vocabulary(arguments)
    given[PROGRAM] = parts


def _take(arguments: Arguments, old: str, new: str) -> None:
    """Renames an option. A problem where both are given, which Megatron refuses."""
    given = arguments.settings
    if old not in given:
        return
    line, file = arguments.lines.get(old, 0), arguments.files.get(old, "")
    if new in given:
        arguments.problems.append(FieldProblem(f"cannot be given together with {new}", old, file, line, "keep one"))
    given.setdefault(new, given.pop(old))
    arguments.lines.setdefault(new, line)
    arguments.files.setdefault(new, file)


def _of_t5(arguments: Arguments) -> dict[str, Any]:
    """Facts of the two stacks. The decoder has as many layers as the encoder (pretrain_t5.py, model_provider)."""
    given, layers = arguments.settings, arguments.settings.get("--num-layers")
    decoder = given.pop("--decoder-num-layers", layers)
    if decoder != layers:
        text = f"Megatron Core gives the decoder the {layers} layers of the encoder, older releases {decoder}"
        arguments.gap("--decoder-num-layers", text)
    parts: dict[str, Any] = {"seq_len": given.pop("--decoder-seq-length", None), "relative_buckets": 0}
    if parts["seq_len"] is None:
        arguments.problems.append(FieldProblem("pretrain_t5.py needs it", field="--decoder-seq-length",
                                               hint="tokens of a target"))  # fmt: skip
    if given.get(_POSITIONS) == "relative":
        given[_POSITIONS] = "none"
        parts["relative_buckets"] = given.pop("--relative-attention-num-buckets", 32)
        given.pop("--relative-attention-max-distance", None)
    return parts


def _cannot(arguments: Arguments, name: str) -> dict[str, str]:
    """Option -> why a plan cannot hold it with this program."""
    given, program = arguments.settings, f"pretrain_{name}.py"
    groups = given.get("--num-query-groups", 1) if given.get("--group-query-attention") else None
    kind = given.get(_POSITIONS, "learned_absolute")
    reasons = {
        "--context-parallel-size": (f"{program} does not divide sequences over ranks",
                                    given.get("--context-parallel-size", 1) > 1),
        "--num-experts": ("experts in an encoder have no counterpart in a plan", given.get("--num-experts", 1) != 1),
        _POSITIONS: (f"pretrain_bert.py makes learned positions, not {kind}",
                     name == "bert" and kind not in ("learned_absolute", "absolute")),
        "--pipeline-model-parallel-size": ("pretrain_t5.py of Megatron Core has no pipeline, and older releases divide "
                                           "it at --pipeline-model-parallel-split-rank",
                                           name == "t5" and given.get("--pipeline-model-parallel-size", 1) > 1),
        "--num-query-groups": ("cross attention has keys and values of every head",
                               name == "t5" and groups not in (None, given.get("--num-attention-heads"))),
    }  # fmt: skip
    return {option: text for option, (text, applies) in reasons.items() if applies}


def _vocabulary(arguments: Arguments) -> None:
    """Adds the table of tokens of BERT for English."""
    given = arguments.settings
    kind = given.get("--tokenizer-type", "BertWordPieceLowerCase")
    words = _WORDS.get(_CASED if _CASED_FILE.search(str(given.get("--vocab-file", ""))) else str(kind))
    if words is not None:
        more = _SPECIAL + given.get("--vocab-extra-ids", 0)
        take(arguments, words + more, f"the {words:,} words of BERT for English and {more} more")


def _read(settings: Settings, facts: Facts) -> Facts:
    if (parts := settings.get(PROGRAM)) is None:
        return {}
    layers, hidden = facts.get("model.layers", 0), facts.get("model.hidden", 0)
    if "retrieval" in parts:
        return retrieval.model_of(parts["retrieval"], layers, hidden)
    if "task" in parts:
        return {
            "model.name": f"BERT for {parts['task']}, {layers} layers x {hidden}", "model.bidirectional": True,
            "model.token_head": False, "model.pooled_classes": parts["classes"], "model.token_types": 2,
            "model.tied_embeddings": False,
        }  # fmt: skip
    if parts["name"] == "bert":
        return {
            "model.name": f"BERT, {layers} layers x {hidden}", "model.bidirectional": True, "model.head_bias": True,
            "model.head_transform": True, "model.transform_norm": True, "model.pooled_classes": parts["classes"],
            "model.token_types": parts["classes"],
        }  # fmt: skip
    positions = facts.get("model.max_positions", 1)
    of_workload = {"workload.source_len": facts.get("workload.seq_len"), "workload.seq_len": parts["seq_len"]}
    return {
        "model.name": f"T5, {layers} + {layers} layers x {hidden}",
        "model.encoder": {"layers": layers, "max_positions": positions},
        "model.head_bias": facts.get("model.tied_embeddings", True),
        **({"model.relative_buckets": parts["relative_buckets"]} if parts["relative_buckets"] else {}),
        **{name: value for name, value in of_workload.items() if value is not None},
    }  # fmt: skip


def compared_fields(facts: Facts) -> dict[str, Any] | None:
    """The fields that layouts are compared with, for a model that no target writes; None for another model. No layout
    divides its sequences, and a T5 has no pipeline."""
    if "model.retrieval" in facts:  # another micro-batch compares other vectors
        fixed = {"tp": 1, "pp": 1, "cp": 1, "offload": facts["offload"]}
        return fixed | ({"micro_batch": facts["micro_batch"]} if "micro_batch" in facts else {})
    if "model.encoder" in facts:
        return {"pp": 1, "cp": 1, "offload": facts["offload"]}
    return {"schedule": "1f1b", "cp": 1, "offload": facts["offload"]} if facts.get("model.bidirectional") else None


OPTIONS = (PROGRAM, _TASK, "--encoder-num-layers", "--decoder-num-layers", "--encoder-seq-length",
           "--decoder-seq-length", "--bert-no-binary-head", "--relative-attention-num-buckets",
           *retrieval.NAMES)  # fmt: skip
ENTRY = Entry(("model.encoder", "workload.source_len"), OPTIONS, lambda setup: {}, _read)
