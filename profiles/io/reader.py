"""Reads YAML, JSON and TOML files into plain Python that still knows its lines.

Every file of the user comes through here, so that each complaint about it names file, line and field.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from ...errors import reason
from .document import Document, file_error
from .json_syntax import parse_json
from .toml_syntax import parse_toml
from .yaml_syntax import parse_yaml

_PARSERS = {".json": parse_json, ".toml": parse_toml}


def read_document(path: Path | str, text: str | None = None, *, last_counts: bool = False) -> Document:
    """Read a file: YAML, or JSON or TOML by suffix; `-` is YAML from stdin. `text`: its content, if already at hand.
    last_counts: of a key that YAML gives twice, as PyYAML reads it.

    Raises InputError for a file that cannot be read, is empty, has broken syntax or gives one key twice.
    """
    name = "stdin" if str(path) == "-" else str(path)
    if text is None:
        text = _decode(name, sys.stdin.buffer.read() if name == "stdin" else read_bytes(Path(path)))
    if not text.strip():
        raise file_error(name, 0, "the file is empty", "write it, or name another")
    parse = _PARSERS.get(Path(name).suffix.lower(), partial(parse_yaml, last_counts=last_counts))
    return parse(name, text)


def read_text(path: Path) -> str:
    """The text of a file that is none of the above, a table of numbers. Raises InputError as `read_document`."""
    return _decode(str(path), read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises InputError as `read_document`."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise file_error(str(path), 0, "no such file", "check the path; it is taken from the current folder") from None
    except IsADirectoryError:
        raise file_error(str(path), 0, "is a folder, not a file", "name a file in it") from None
    except ValueError:  # of the system: a name with a null byte
        name = str(path).replace("\0", "\\0")
        raise file_error(name, 0, "no file can have this name", "leave the null byte out") from None
    except OSError as error:
        raise file_error(str(path), 0, f"cannot be read ({reason(error)})", "check its permissions") from None


def _decode(name: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message = f"not UTF-8 text (byte 0x{raw[error.start]:02x})"
        raise file_error(name, line, message, "save the file as UTF-8") from None
