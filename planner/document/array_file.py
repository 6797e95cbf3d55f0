"""Arrays of numpy in files, and the ways in which such a file can be broken."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import InputError, reason

# Of `numpy.load` and of the archives it opens. An empty file gives EOFError, which is none of the others.
_BROKEN = (ValueError, EOFError, LookupError, NotImplementedError, zipfile.BadZipFile, zlib.error)


@contextmanager
def reading_array(path: Path, hint: str) -> Iterator[None]:
    """Around `numpy.load` of `path`: raises InputError with `hint` for a file that it cannot read.

    The words of numpy are left out: they recommend to load the file unsafely.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})", hint=hint) from None
    except _BROKEN:
        size = path.stat().st_size if path.is_file() else 0
        broken = "cannot be read (not a whole array of numbers)" if size else "the file is empty"
        raise InputError(f"{path}: {broken}", hint=hint) from None
