"""One run at a time saves into a folder, and a lock ends with its process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from meshwright.runtime.checkpoint.folder_lock import NAME
from meshwright.runtime.checkpoint.manifest import check_resumable
from meshwright.runtime.checkpoint.resuming import resumed
from meshwright.runtime.checkpoint.states import TrainerStates
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.report import Recorder
from meshwright.runtime.settings import Settings
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from meshwright.errors import InputError

from ..fork import TIMEOUT_S, fork
from ..jobs import job

_HOLDER = """
import sys, time
from pathlib import Path
from meshwright.runtime.checkpoint.folder_lock import hold
hold(Path(sys.argv[1]), refuses=True)
hold(Path(sys.argv[1]), refuses=True)
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Another process holds the folder. Its number."""
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process.pid
        finally:
            process.kill()


def begun(folder: Path, restarts: int = 0) -> list[str]:
    """Messages for two ranks that begin a run in the folder; empty where they may."""
    wanted = job("dp2-mbs1-z1-rnone")
    settings = Settings("plan.json", checkpoint=str(folder), restarts=restarts)

    def one(rank: int) -> str:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        try:
            resumed(TrainerStates(trainer), settings, Recorder(wanted, []))
        except InputError as error:
            return error.message
        return ""

    return fork(2, one)


def test_a_second_run_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    with held(tmp_path) as pid:
        assert f"process {pid} on " in begun(tmp_path)[0]
        assert begun(tmp_path, restarts=1) == ["", ""]  # the process is of this run, and about to end
    assert begun(tmp_path) == ["", ""]


def test_a_folder_with_a_lock_alone_can_be_resumed(tmp_path: Path) -> None:
    """As the first start of a job with `--resume` leaves it where no checkpoint was saved."""
    (tmp_path / NAME).touch()
    check_resumable(tmp_path)
    (tmp_path / "other.txt").touch()
    with pytest.raises(InputError, match=r"it has other\.txt"):
        check_resumable(tmp_path)
