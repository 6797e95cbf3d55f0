"""A folder that is written whole or not at all. No torch here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError


@contextmanager
def new_folder(to: Path) -> Iterator[Path]:
    """A folder beside `to` that gets its name once it is complete. Raises InputError for a folder with files."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"{to} is there already", hint="name a folder that is new or empty")
    partial = to.with_name(f".partial-{to.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        if to.exists():
            to.rmdir()
        partial.rename(to)
    except OSError as error:
        raise InputError(f"{to}: {error.strerror or error}", hint="choose a folder with room for the files") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
