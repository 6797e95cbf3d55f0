"""Files that a command writes: whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..errors import InputError, reason

_ELSEWHERE = "choose another folder"


def check_writable(path: Path, *, force: bool) -> None:
    """Raises InputError if `path` may not be written: asked before a long search, not after it."""
    target = _destination(path)
    if target.is_dir():
        raise InputError(f"{path} is a folder", hint=f"name a file in it: `-o {path / 'plan.json'}`")
    if target.exists() and not force:
        raise InputError(f"{path} exists", hint="`--force` overwrites it")
    folder = target.parent
    if not folder.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {folder}", hint=f"`mkdir -p {folder}`")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {path}: folder {folder} is not writable", hint=_ELSEWHERE)


def write_file(path: Path, text: str | bytes, *, force: bool) -> None:
    """Writes `text` whole or not at all. Raises InputError if the file exists (unless `force`) or cannot be written."""
    write_files({path: text}, force=force)


def write_files(texts: Mapping[Path, str | bytes], *, force: bool) -> None:
    """Writes every text to its path, or none of them. Raises InputError as `write_file`.

    The contents go into temporary files first: a disk that is full leaves the files as they were.
    """
    for path in texts:
        check_writable(path, force=force)
    moves: list[tuple[str, Path]] = []
    try:
        for path, text in texts.items():
            content = text if isinstance(text, bytes) else text.encode("utf-8")
            _write_one(path, _destination(path), content, moves)
        for temporary, target in moves:
            os.replace(temporary, target)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:  # after Ctrl-C as well
        for temporary, _ in moves:
            Path(temporary).unlink(missing_ok=True)


def make_folder(path: Path) -> list[Path]:
    """Makes a folder and those above it. Returns those that it made, the innermost first. Raises InputError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {path}: {reason(error)}", hint=_ELSEWHERE) from error
    return missing


def _write_one(path: Path, target: Path, content: bytes, moves: list[tuple[str, Path]]) -> None:
    """Writes to a temporary file beside `target` and adds it to `moves`; a device or a pipe is written directly."""
    if _is_device(path):  # a file moved onto it would take its place
        with open(path, "wb", buffering=0) as device:
            device.write(content)
        return
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".meshwright-")
    moves.append((temporary, target))
    with open(handle, "wb") as file:
        file.write(content)
    os.chmod(temporary, 0o666 & ~_umask())


def _is_device(path: Path) -> bool:
    # /dev/stdout is a link to whatever the shell opened, which may be a file that the shell goes on writing.
    return (path.is_absolute() and path.parts[1:2] == ("dev",)) or (path.exists() and not path.is_file())


def _destination(path: Path) -> Path:
    """The file behind a symbolic link, so that the link stays. Raises InputError where the system refuses the name."""
    try:
        with suppress(FileNotFoundError):  # of a new file, or of a link to one
            os.stat(path)
    except NotADirectoryError:
        raise InputError(f"cannot write {path}: there is no folder {path.parent}", hint=_ELSEWHERE) from None
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    return path if _is_device(path) else Path(os.path.realpath(path)) if path.is_symlink() else path


def _cannot_write(path: Path, error: OSError | ValueError) -> InputError:
    why = reason(error) if isinstance(error, OSError) else str(error)
    return InputError(f"cannot write {path}: {why}", hint=_ELSEWHERE)


def _umask() -> int:
    """The mask can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
