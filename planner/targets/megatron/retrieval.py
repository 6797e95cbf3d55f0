"""The two encoders of pretrain_ict.py and of --task RET-FINETUNE-NQ of tasks/main.py, which are read and not written.

OpenGPTX/Megatron-LM f8d245d0 and ExaSearch/Megatron-DeepSpeed 215dcf9f: megatron/model/biencoder_model.py (a BERT of
two types without a pooler for each of queries and texts, no division of the model over ranks), pretrain_ict.py (both
are padded to --seq-length), tasks/orqa/supervised (both to --retriever-seq-length, and texts that do not answer).
"""

from __future__ import annotations

from typing import Any

from ....errors import FieldProblem
from ..argv import Arguments
from ..option_lists import Option
from ..options import Settings

TASK = "RET-FINETUNE-NQ"
ICT = "pretrain_ict.py"
_TOKENS = "--retriever-seq-length"
OPTIONS = {
    _TOKENS: Option(_TOKENS, "int"),
    "--train-with-neg": Option("--train-with-neg", "flag"),
    "--train-hard-neg": Option("--train-hard-neg", "int"),
}
_SCALES = "--retriever-score-scaling"
_SHARED, _WIDTH = "--biencoder-shared-query-context-model", "--biencoder-projection-dim"
NAMES = (*OPTIONS, _SHARED, _WIDTH, _SCALES, "--faiss-use-gpu")
_LENGTH = 256  # its default
_SIZES = ("--micro-batch-size", "--global-batch-size")
_DEGREES = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size")


def parts_of(arguments: Arguments, *, fine_tunes: bool) -> dict[str, Any]:
    """Fields of the explicit form of a retrieval model. Batches become sequences."""
    given, texts = arguments.settings, 1
    stated = {name: given.pop(name, None) for name in NAMES}
    if fine_tunes:
        texts += (stated["--train-hard-neg"] or 0) if stated["--train-with-neg"] else 0
        given["--seq-length"] = stated[_TOKENS] or _LENGTH
        if _TOKENS in arguments.lines:
            arguments.lines["--seq-length"] = arguments.lines[_TOKENS]
            arguments.files["--seq-length"] = arguments.files.get(_TOKENS, "")
    given |= {size: (1 + texts) * given[size] for size in _SIZES if size in given}
    sample = "a query and its text" if texts == 1 else f"a query, its text and {texts - 1} that does not answer it"
    arguments.notes.append(f"a sample is {sample}: micro-batch and batch count its {1 + texts} sequences; a sort of "
                           "all scores for a report is not priced")  # fmt: skip
    for name in _DEGREES:
        if given.get(name, 1) != 1:
            arguments.problems.append(FieldProblem("biencoder_model.py asserts 1", name, arguments.files.get(name, ""),
                                                   arguments.lines.get(name, 0), "leave it out"))  # fmt: skip
    return {"texts": texts, "shared": bool(stated[_SHARED]), "projection": stated[_WIDTH] or 0,
            "scales_scores": bool(stated[_SCALES])}


def model_of(parts: Settings, layers: int, hidden: int) -> dict[str, Any]:
    """Facts of the model."""
    towers = "an encoder" if parts["shared"] else "two encoders"
    return {
        "model.name": f"retrieval by {towers}, {layers} layers x {hidden}", "model.bidirectional": True,
        "model.retrieval": dict(parts), "model.token_types": 2, "model.tied_embeddings": False,
    }  # fmt: skip
