"""Options and programs of forks that build Llama models.

Sources: epfLLM/Megatron-LLM 806a8330 (2024-06-19), megatron/arguments.py and finetune.py, which spells names with
underscores and has no bias unless it is asked for; okoge-kaz/Megatron-LM 79b87456, megatron/training/arguments.py
(--rope-factor and its companions); MinfanZhao/Megatron-LM_ 22af1b98, megatron/arguments.py (--use-rmsnorm,
--llama-swiglu); genggui001/Megatron-DeepSpeed-Llama, megatron/model/llama_model.py; alibaba/Megatron-LLaMA 25306de8,
megatron/arguments.py and megatron/model/llama_model.py (--RMSNorm, --causal-lm, --overlapped-distributed-optimizer).
"""

from __future__ import annotations

import posixpath

from ....errors import FieldProblem
from ..argv import Arguments
from ..option_lists import Option

FLAGS = ("--use-rms-norm", "--use-rmsnorm", "--no-tie-embed-logits", "--use-bias", "--llama-swiglu",
         "--RMSNorm", "--causal-lm", "--overlapped-distributed-optimizer")  # fmt: skip
_OVERLAPPED = {"--use-distributed-optimizer": True, "--overlap-grad-reduce": True, "--overlap-param-gather": True}
# Positions of Llama 3.1 in four numbers, and those that they have in Megatron-LM, whose factor alone is an option.
_FACTOR = "--rope-factor"
_SCALING = {"--rope-low-freq-factor": 1.0, "--rope-high-freq-factor": 4.0,
            "--rope-original-max-positional-embeddings": 8192.0}  # fmt: skip
OPTIONS = {
    **{name: Option(name, "flag") for name in FLAGS}, "--model-name": Option("--model-name", "str"),
    "--rope-theta": Option("--rope-theta", "float"), "--rmsnorm-epsilon": Option("--rmsnorm-epsilon", "float"),
    "--num-attention-heads-kv": Option("--num-attention-heads-kv", "int"),
    **{name: Option(name, "float") for name in (_FACTOR, *_SCALING, "--rotary-base")},
    "--rope-style": Option("--rope-style", "str"),
}  # fmt: skip
_THETA, _BASE = "--rope-theta", "--rotary-base"
_MODELS = ("gpt", "llama", "llama2", "codellama", "falcon", "mistral")
# The program of forks that build layers of Llama in code, and the options that state it in others.
_PROGRAM = "pretrain_llama.py"
_LAYERS = {"--swiglu": True, "--normalization": "RMSNorm", "--use-rotary-position-embeddings": True,
           "--disable-bias-linear": True, "--untie-embeddings-and-output-weights": True}  # fmt: skip


def modernise(arguments: Arguments) -> None:
    """Rewrites the settings of a script of a fork."""
    given = arguments.settings
    of_fork = str(given.pop("--model-name", "")) in _MODELS
    for name in ("--use-rms-norm", "--use-rmsnorm", "--RMSNorm"):
        if given.pop(name, False):
            given["--normalization"] = "RMSNorm"
    for name in ("--no-tie-embed-logits", "--causal-lm"):
        if given.pop(name, False):
            given["--untie-embeddings-and-output-weights"] = True
    if given.get("--overlapped-distributed-optimizer"):
        arguments.replace("--overlapped-distributed-optimizer", _OVERLAPPED)
    for old, new in ((_THETA, _BASE), ("--num-attention-heads-kv", "--num-key-value-heads")):
        if old in given:
            given.setdefault(new, given.pop(old))
            arguments.lines.setdefault(new, arguments.lines[old])
    if _BASE in given and not float(given[_BASE]).is_integer():
        arguments.problems.append(_problem(arguments, _BASE, f"`{given.pop(_BASE)}` is no whole number"))
    if "--rmsnorm-epsilon" in given:
        given.setdefault("--norm-epsilon", given.pop("--rmsnorm-epsilon"))
    if of_fork and given.pop("--rope-scaling-factor", 1.0) != 1.0:
        arguments.gaps.append(_problem(arguments, "--rope-scaling-factor", "positions closer to one another"))
    if not given.pop("--use-bias", False) and of_fork:
        given["--disable-bias-linear"] = True
    if given.get("--use-checkpoint-args") and "--num-layers" not in given:
        arguments.notes.append("--use-checkpoint-args: the sizes of the model are in the checkpoint, not here")
    given.pop("--rope-style", None)  # pairs of neighbours or of halves: the same products
    _width(arguments)
    _positions(arguments)
    _layers(arguments)


def _width(arguments: Arguments) -> None:
    """--llama-swiglu: 8/3 of the hidden size, in steps of 256, where no width is given."""
    given = arguments.settings
    if given.pop("--llama-swiglu", False) and "--hidden-size" in given:
        given.setdefault("--ffn-hidden-size", -(-int(8 * given["--hidden-size"] / 3) // 256) * 256)


def _positions(arguments: Arguments) -> None:
    """--rope-factor and its companions, where they are the numbers that Megatron-LM has."""
    given = arguments.settings
    companions = {name: given.pop(name, 0.0) for name in _SCALING}
    if (factor := given.pop(_FACTOR, None)) is None:
        return
    if companions == _SCALING:
        given |= {"--use-rope-scaling": True, "--rope-scaling-factor": factor}
    else:
        arguments.gaps.append(_problem(arguments, _FACTOR, "positions that are scaled by other numbers than Llama's"))


def _layers(arguments: Arguments) -> None:
    """The layers that a program has in code, where no option names one of them."""
    of_fork = posixpath.basename(arguments.program.strip("'\"")) == _PROGRAM
    if of_fork and not _LAYERS.keys() & arguments.settings.keys():
        arguments.settings |= _LAYERS
        arguments.notes.append(f"{_PROGRAM} is a fork's: taken to build the layers of Llama (RMS norm, SwiGLU, rotary "
                               "positions, no biases, an untied head)")  # fmt: skip


def _problem(arguments: Arguments, name: str, text: str) -> FieldProblem:
    return FieldProblem(text, name, arguments.files.get(name, ""), arguments.lines.get(name, 0))
