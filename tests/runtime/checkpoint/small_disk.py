"""A small file system that fills, or is lost, while a run saves there; in a mount namespace, which needs no root."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

_MOUNT = 'mount -t tmpfs -o size="$2" tmpfs "$1" && echo mounted && exec sleep infinity'


class SmallDisk:
    """A tmpfs at `folder`, for the processes that are started `inside` until the block ends."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        """Skips the test where the system allows no such namespace."""
        folder.mkdir()
        self.folder = folder
        words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT, "sh", str(folder)]
        self._holder = subprocess.Popen([*words, str(num_bytes)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)  # fmt: skip
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "mounted\n":
            pytest.skip(f"no small disk can be mounted here: {self._holder.communicate()[1].strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._holder.kill()
        self._holder.communicate()

    @property
    def inside(self) -> list[str]:
        """The command that starts a process which sees the disk."""
        return ["nsenter", f"--target={self._holder.pid}", "--user", "--mount", "--preserve-credentials"]

    @property
    def seen_from_outside(self) -> Path:
        return Path(f"/proc/{self._holder.pid}/root{self.folder}")

    def remount(self, how: str) -> None:
        """With other options of mount(8): `size=1m`, `ro`."""
        subprocess.run([*self.inside, "mount", "-o", f"remount,{how}", str(self.folder)], check=True)
