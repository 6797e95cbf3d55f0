"""Options of the fork Megatron-LLM, which spells names with underscores and has no bias unless it is asked for.

Source: epfLLM/Megatron-LLM 806a8330 (2024-06-19), megatron/arguments.py and finetune.py.
"""

from __future__ import annotations

from ....errors import FieldProblem
from ..argv import Arguments
from ..option_lists import Option

FLAGS = ("--use-rms-norm", "--no-tie-embed-logits", "--use-bias")
OPTIONS = {
    **{name: Option(name, "flag") for name in FLAGS}, "--model-name": Option("--model-name", "str"),
    "--rope-theta": Option("--rope-theta", "float"),
    "--num-attention-heads-kv": Option("--num-attention-heads-kv", "int"),
}  # fmt: skip
_MODELS = ("gpt", "llama", "llama2", "codellama", "falcon", "mistral")


def modernise(arguments: Arguments) -> None:
    """Rewrites the settings of a script of the fork."""
    given = arguments.settings
    of_fork = str(given.pop("--model-name", "")) in _MODELS
    if given.pop("--use-rms-norm", False):
        given["--normalization"] = "RMSNorm"
    if given.pop("--no-tie-embed-logits", False):
        given["--untie-embeddings-and-output-weights"] = True
    for old, new in (("--rope-theta", "--rotary-base"), ("--num-attention-heads-kv", "--num-key-value-heads")):
        if old in given:
            given.setdefault(new, int(given.pop(old)))
            arguments.lines.setdefault(new, arguments.lines[old])
    if of_fork and given.pop("--rope-scaling-factor", 1.0) != 1.0:
        arguments.gaps.append(_problem(arguments, "--rope-scaling-factor", "positions closer to one another"))
    if not given.pop("--use-bias", False) and of_fork:
        given["--disable-bias-linear"] = True
    if given.get("--use-checkpoint-args") and "--num-layers" not in given:
        arguments.notes.append("--use-checkpoint-args: the sizes of the model are in the checkpoint, not here")


def _problem(arguments: Arguments, name: str, text: str) -> FieldProblem:
    return FieldProblem(text, name, arguments.files.get(name, ""), arguments.lines.get(name, 0))
