"""The table of tokens of a script that names a tokenizer and no size: its files are not here.

Megatron-LM d98e8a64: pretrain_gpt.py and pretrain_hybrid.py, which pretrain_mamba.py runs (GPT2BPETokenizer unless an
option names another), and core/tokenizers (rows are padded to multiples of --make-vocab-size-divisible-by x tp, unless
an option turns that off).
"""

from __future__ import annotations

import posixpath
import re

from ....cost_models.specs.model import ModelSpec
from ....errors import FieldProblem
from ..argv import Arguments
from ..model_names import known_model
from ..option_lists import Option

_DIVISOR, _DIVISOR_BY_DEFAULT = "--make-vocab-size-divisible-by", 128
_TP = "--tensor-model-parallel-size"
_UNPADDED = ("--no-pad-vocab-size", "--disable-pad-vocab-size")
_SIZES = ("--vocab-size", "--padded-vocab-size")
_TYPE = "--tokenizer-type"
# --tokenizer-type -> tokens of the file that it usually reads, and whose they are: vocab.json of GPT-2, tokenizer.model
# of Llama 2 (arXiv:2307.09288, section 2.2).
# The type of forks that load Llama 3's has its table (arXiv:2407.21783, section 3.2: 128K tokens; 128,256 with the
# reserved ones in its tokenizer_config.json).
# QwenTokenizer of Pai-Megatron-Patch loads that of Qwen (QwenLM/Qwen 2df8e8a, tech_memo.md: 151,851 tokens).
_TOKENS = {"GPT2BPETokenizer": (50257, "GPT-2"), "Llama2Tokenizer": (32000, "Llama 2"),
           "Llama3Tokenizer": (128256, "Llama 3"), "QwenTokenizer": (151851, "Qwen")}  # fmt: skip
_SENTENCES = "Llama2Tokenizer"
# Of Pai-Megatron-Patch a098ca5a, megatron_patch/tokenizer (its types add --extra-vocab-size to vocab.json, of which
# Qwen2's has 151,643 tokens: 151,936 rows with the 293 of its scripts, as in config.json of Qwen2.5-0.5B).
_PATCHED, _EXTRA = "--patch-tokenizer-type", "--extra-vocab-size"
_PATCHES = dict.fromkeys(("Qwen2Tokenizer", "Qwen2VLTokenizer", "Qwen3Tokenizer"), (151643, "Qwen2"))
# Of forks that load a file of SentencePiece: XuJ/Megatron-LM, LydiaXiaohongLi/Megatron-DeepSpeed.
_OF_FORKS = ("--tokenizer-name-or-path", "--vocab-model-file", "--tokenizer-model-file")
OPTIONS = {_PATCHED: Option(_PATCHED, "str"), _EXTRA: Option(_EXTRA, "int"),
           **{name: Option(name, "str") for name in _OF_FORKS}}  # fmt: skip
# The file of the tokenizer that older programs build without a type.
_FILE, _GPT2 = "--vocab-file", re.compile(r"gpt-?2")
_BY_DEFAULT = dict.fromkeys(("pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_mamba.py"), "GPT2BPETokenizer")
# Types that load a tokenizer of the Hub, and the options that name it.
_OF_THE_HUB = ("HuggingFaceTokenizer", "HFTokenizer", "PretrainedFromHF")
_NAMES = ("--tokenizer-model", *_OF_FORKS)
# The number of tokens in the name of a tokenizer's file or folder: nordic_tokenizer_131072, jp_256k.model.
_COUNT = re.compile(r"(?<!\d)(\d{5,6}|\d{2,3}k)(?![\da-z])", re.IGNORECASE)
_OF_TOKENIZERS = re.compile(r"tokenizer|vocab|bpe|spm|sentencepiece|\.model$", re.IGNORECASE)
_FEWEST, _MOST = 10_000, 600_000


def modernise(arguments: Arguments) -> None:
    """Adds the padded table of a tokenizer whose tokens are known."""
    given = arguments.settings
    by_file = "GPT2BPETokenizer" if _GPT2.search(posixpath.basename(str(given.get(_FILE, "")))) else ""
    named = _named(arguments)
    by_default = "" if named else _BY_DEFAULT.get(posixpath.basename(arguments.program), by_file)
    kind = given.get(_TYPE, by_default)
    _patched(arguments)
    model = _model_of(named) if kind in (*_OF_THE_HUB, _SENTENCES) else None
    if model is not None:
        take(arguments, model.vocab, f"the table of {model.name}")
    elif tokens := _counted(str(given.get(_FILE, "")) if kind == "GPT2BPETokenizer" else named):
        take(arguments, tokens, f"the {tokens:,} tokens that its name states")
    elif kind in _TOKENS and (kind != _SENTENCES or _may_be_llamas(named)):
        tokens, whose = _TOKENS[kind]
        take(arguments, tokens, f"the {tokens:,} tokens of {whose}")
    arguments.unclear = [doubt for doubt in arguments.unclear if doubt.field not in _NAMES]  # as one that is not known


def _patched(arguments: Arguments) -> None:
    """The table of a tokenizer of Pai-Megatron-Patch, which lies in the folder of --load."""
    given = arguments.settings
    if _PATCHED not in given or given.keys() & set(_SIZES):
        return
    model, (tokens, whose) = known_model(str(given.get("--load", ""))), _PATCHES.get(given[_PATCHED], (0, ""))
    if model is not None:
        given["--padded-vocab-size"] = model.vocab
        arguments.notes.append(f"the vocabulary is that of {model.name}, the model of --load: {model.vocab:,}")
    elif tokens and _EXTRA in given:
        given["--padded-vocab-size"] = rows = tokens + given[_EXTRA]
        arguments.notes.append(f"the vocabulary is {rows:,}: the {tokens:,} tokens of {whose} and {_EXTRA}")


def _named(arguments: Arguments) -> str:
    """The name of the tokenizer, whose folder may be open (`$HOME/tokenizer.model`); "" for none."""
    given = arguments.settings
    open_names = {doubt.field: doubt.message.split("`")[1] for doubt in arguments.unclear if "`" in doubt.message}
    return next((str(names[option]) for names in (given, open_names) for option in _NAMES if option in names), "")


def _counted(named: str) -> int:
    """The tokens that the file of a tokenizer, or its folder, has in its name; 0 for none, or for several numbers."""
    for part in reversed(named.split("/")[-2:]):
        found = _COUNT.findall(part) if _OF_TOKENIZERS.search(part) else []
        counts = [int(text[:-1]) * 1000 if text[-1] in "kK" else int(text) for text in found]
        if len(counts) == 1 and _FEWEST <= counts[0] <= _MOST:
            return counts[0]
    return 0


def _model_of(named: str) -> ModelSpec | None:
    """The model whose tokenizer has this name, or whose folder holds its file."""
    folder = posixpath.dirname(named) if posixpath.splitext(named)[1] in (".model", ".json") else ""
    return next((model for name in (named, folder) if name and (model := known_model(name)) is not None), None)


def _may_be_llamas(named: str) -> bool:
    """Whether a file may be Llama 2's tokenizer: its type reads the file of any SentencePiece tokenizer."""
    file = posixpath.basename(named)
    return file in ("", "tokenizer.model") or "llama" in named.lower() or "$" in file


def take(arguments: Arguments, tokens: int, text: str) -> None:
    """Adds the padded table of so many tokens, with a note that begins with `text`, where no size is given."""
    given = arguments.settings
    if given.keys() & set(_SIZES):
        return
    divisor, tp = given.get(_DIVISOR, _DIVISOR_BY_DEFAULT), given.get(_TP, 1)
    if divisor < 1:
        text, line = f"must be 1 or more, is {divisor}", arguments.lines.get(_DIVISOR, 0)
        arguments.gaps.append(FieldProblem(text, _DIVISOR, arguments.files.get(_DIVISOR, ""), line))
    if divisor < 1 or tp < 1:  # such a degree is refused with all others
        return
    multiple = 1 if any(given.get(option) for option in _UNPADDED) else divisor * tp
    rows = -(-tokens // multiple) * multiple
    given["--padded-vocab-size"] = rows
    arguments.notes.append(f"the vocabulary is the tokenizer's: {rows:,} taken, {text}, in multiples of {multiple}")
