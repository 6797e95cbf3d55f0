"""Shards of tokens from text, by the tokenizer of a Hugging Face folder. No torch here.

The shards are .npy, since `shards.open_shard` reads the width of .bin from the model's vocabulary. `documents.npz`
beside them has the length of each document.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FieldProblem, InputError, MissingExtraError
from ..planner.document.sampler_plan import DOCUMENTS
from .new_folder import new_folder
from .shards import Row

_CONFIG = "tokenizer_config.json"
_AT_ONCE = 256  # documents, which threads of the library share
_BY_TRANSFORMERS = "load it by AutoTokenizer of transformers and `save_pretrained` it, which writes tokenizer.json"


class Tokenizer:
    """The tokenizer of a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError for a folder without a readable tokenizer.json, and MissingExtraError."""
        try:
            from tokenizers import Tokenizer as Fast
        except ImportError:
            raise MissingExtraError("tokens", "`launch tokens`") from None
        self.path = folder / "tokenizer.json" if folder.is_dir() else folder
        if not self.path.is_file():
            raise InputError(f"{self.path}: no such file", hint=_BY_TRANSFORMERS)
        try:
            self._fast: Any = Fast.from_file(str(self.path))
        except Exception as error:  # the library raises no other class
            raise InputError(f"{self.path}: no tokenizer: {error}", hint=_BY_TRANSFORMERS) from None
        self._fast.no_truncation()
        self._fast.no_padding()
        self.num_tokens = 1 + max(self._fast.get_vocab(with_added_tokens=True).values(), default=-1)  # rows they need

    def end_token(self) -> int:
        """The `eos_token` of tokenizer_config.json. Raises InputError if there is none."""
        path = self.path.with_name(_CONFIG)
        try:
            token = json.loads(path.read_text(encoding="utf-8"))["eos_token"]
            number = self._fast.token_to_id(token["content"] if isinstance(token, dict) else token)
        except (OSError, ValueError, KeyError, TypeError):
            number = None
        if number is None:
            raise InputError(f"{path}: no `eos_token` of this tokenizer", hint="`--end-token ID`")
        return int(number)

    def check_fits(self, vocab: int, model: str) -> None:
        """Raises InputError for more tokens than the model has rows."""
        if self.num_tokens > vocab:
            more = self.num_tokens - vocab
            raise InputError(
                f"{self.path}: {self.num_tokens:,} tokens, {model} has {vocab:,} rows: {more:,} too many",
                hint="take the tokenizer of this model, or plan for the model of this tokenizer",
            )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, without special ones around it."""
        return [encoding.ids for encoding in self._fast.encode_batch_fast(list(texts), add_special_tokens=False)]


@dataclass(frozen=True)
class Written:
    """The result of `write_shards`."""

    num_documents: int
    num_tokens: int  # with one at the end of each document
    dtype: str  # of the shards
    files: tuple[str, ...]


def write_shards(
    tokenizer: Tokenizer, texts: Sequence[Path], to: Path, *, end_token: int, field: str, shard_tokens: int,
    on_file: Callable[[str], None] = lambda name: None,
) -> Written:  # fmt: skip
    """Writes the tokens of all documents into the new folder `to`, each followed by the end token.

    field: of a line of .jsonl; any other file is one document. shard_tokens: at most, per file. Holds one shard in
    memory. Documents without a token are left out. Raises InputError for unreadable documents, all of a file at once,
    and for files without a document.
    """
    if not 0 <= end_token < tokenizer.num_tokens:
        raise InputError(f"--end-token {end_token}: the tokenizer has the tokens 0 to {tokenizer.num_tokens - 1}",
                         hint="leave it out for the `eos_token` of the tokenizer")  # fmt: skip
    dtype = np.uint16 if tokenizer.num_tokens <= 1 << 16 else np.uint32
    lengths, files = array("q"), list[str]()
    with new_folder(to) as partial:
        for row in _rows(_token_lists(tokenizer, texts, end_token, field, lengths), shard_tokens, dtype):
            files.append(f"tokens-{len(files):05d}.npy")
            np.save(partial / files[-1], row)
            on_file(files[-1])
        if not files:
            raise InputError(f"{', '.join(map(str, texts))}: no text", hint="give files with text")
        np.savez(partial / DOCUMENTS, lengths=np.array(lengths, dtype=np.int64))
    return Written(len(lengths), sum(lengths) + len(lengths), np.dtype(dtype).name, tuple(files))


def _token_lists(
    tokenizer: Tokenizer, texts: Sequence[Path], end_token: int, field: str, lengths: array[int]
) -> Iterator[list[int]]:
    """The tokens of each document, with the end token. Adds their numbers without it to `lengths`."""
    for path in texts:
        documents = _documents(path, field)
        while several := list(islice(documents, _AT_ONCE)):
            for tokens in filter(None, tokenizer.encode(several)):
                lengths.append(len(tokens))
                tokens.append(end_token)
                yield tokens


def _rows(lists: Iterator[list[int]], most: int, dtype: type[np.unsignedinteger[Any]]) -> Iterator[Row]:
    """The same tokens in rows of `most`; the last one may be shorter."""
    row, used = np.empty(most, dtype), 0
    for tokens in lists:
        start = 0
        while start < len(tokens):
            part = tokens[start : start + most - used]
            row[used : used + len(part)] = part
            start, used = start + len(part), used + len(part)
            if used == most:
                yield row
                used = 0
    if used:
        yield row[:used]


def _documents(path: Path, field: str) -> Iterator[str]:
    """The documents of a file that are not empty."""
    try:
        if path.suffix == ".jsonl":
            yield from _lines(path, field)
        elif text := path.read_text(encoding="utf-8"):
            yield text
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint="give files of text, or .jsonl") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8", hint="convert it to UTF-8") from None


def _lines(path: Path, field: str) -> Iterator[str]:
    """The texts of a file of JSON objects. Raises InputError with all problems of the file."""
    problems: list[FieldProblem] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            try:
                text = json.loads(line)[field]
            except (ValueError, KeyError, TypeError) as error:
                text = error
            if not isinstance(text, str):
                what = "no JSON" if isinstance(text, ValueError) else f"no text `{field}`"
                problems.append(FieldProblem(what, file=str(path), line=number, hint="`--field NAME` names the text"))
            elif text and not problems:
                yield text
    if problems:
        raise InputError.of_some(problems)
