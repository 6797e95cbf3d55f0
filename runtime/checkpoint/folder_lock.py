"""A lock on the folder of a run's checkpoints. Two runs that save there at once would mix files. No torch here."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from ...errors import InputError

NAME = ".lock"
_held: dict[Path, IO[str]] = {}  # open files of this process, which keep its locks


def hold(folder: Path, *, refuses: bool) -> None:
    """Locks a folder for the rest of this process; the system releases the lock however the process ends.

    refuses: raise InputError where another process, on any node, has the lock. Without it, as after the failure of a
    rank, that process is of the same run and about to end. A file system without locks locks nothing.
    """
    folder = folder.resolve()
    if folder in _held:
        return
    file = (folder / NAME).open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        if refuses:
            raise InputError(f"{folder}: {holder} saves checkpoints there",
                             hint="wait for the end of that run, or save to another folder") from None  # fmt: skip
        return
    except OSError:
        file.close()
        return
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    _held[folder] = file
