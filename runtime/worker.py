"""One rank of a run, started by torchrun: `torchrun ... -m meshwright.runtime.worker plan.json --choice 1`.

Rank 0 prints a line per step, or events for the launcher. A failing rank writes the reason to its status file and ends
at once, because torch's clean-up would wait for ranks that have ended.

A scheduler sends SIGTERM before it reclaims the machine. The ranks finish the step, save, and end cleanly.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ..errors import InputError, MeshwrightError
from .checkpoint.memory_copies import MemoryCopies
from .checkpoint.pretrained import Pretrained
from .checkpoint.resuming import resumed, torchrun_restarts
from .checkpoint.states import TrainerStates
from .compiling import check_compiler
from .failures import TERMINATED
from .job import Job
from .mixed_lengths.trainer import trainer_of
from .parallel.comm import CommunicationError, backend_reason
from .parallel.mesh import build_mesh
from .parent import die_with_parent
from .preparation import prepare
from .rehearsal.exchanged import planned_bytes
from .rehearsal.memory import resident_bytes
from .reinforcement import run as reinforcement
from .reinforcement.job import RlJob
from .report import Event, Recorder
from .settings import Settings
from .status import Status
from .techniques.registry import check_device
from .trainer import Trainer
from .training import Training, open_metrics, tell


def main(argv: Sequence[str]) -> int:
    """Runs this rank. Returns 0; a failed rank exits at once."""
    settings = Settings.parse(argv)
    rank = int(os.environ.get("RANK", "0"))
    die_with_parent()
    terminated = threading.Event()
    # Set before the status file names this process, because the launcher may then forward a signal.
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # held back since the start (agent.py)
    status = Status(Path(settings.run_dir) if settings.run_dir else None, rank)
    try:
        stopped = _run(settings, status, terminated)
        status.end(TERMINATED if stopped else "")
        return 0
    except CommunicationError as error:
        _give_up(status, str(error), "communication")
    except MeshwrightError as error:
        _give_up(status, f"{error.message}\n{error.hint}", error.code)
    except Exception as error:
        traceback.print_exc()
        _give_up(status, f"{type(error).__name__}: {error}", "exception")
    return 1


def _give_up(status: Status, what: str, code: str) -> None:
    status.fail(what, code)
    sys.stderr.write(f"rank {status.rank}: {what}\n")
    sys.stderr.flush()
    os._exit(1)


def _run(settings: Settings, status: Status, terminated: threading.Event) -> bool:
    """Whether a signal ended it before its last step."""
    job, notes, device = meet(settings, status)
    recorder, before = Recorder(job, notes, is_scaled=settings.scale_down), resident_bytes()
    if isinstance(job, RlJob):
        tell(_environment(device, job, settings), settings, recorder)
        return reinforcement.run(job, device, settings, recorder, status, terminated)
    mesh = build_mesh(job.layout, dist.get_rank(), status, settings.collective_timeout_s)
    if job.init_from is None:
        trainer = trainer_of(job, mesh, device)
    else:
        status.set(f"reading the weights in {job.init_from}")
        pretrained = Pretrained(Path(job.init_from), job.model)
        trainer = trainer_of(replace(job, init_digest=pretrained.digest), mesh, device, pretrained.init_param)
    tell(_environment(device, job, settings), settings, recorder)
    if job.init_from is not None:
        tell({"event": "initialised", "folder": job.init_from, **pretrained.summary(job.dtype)}, settings, recorder)
    saver, done = resumed(TrainerStates(trainer), settings, recorder)
    copies = _copies(trainer, settings, recorder, done)
    training = Training(trainer, settings, recorder, saver, copies, terminated,
                        open_metrics(settings, job, recorder, done))  # fmt: skip
    peaks = training.run(done, before)
    if training.metrics is not None:
        training.metrics.close()
    status.set("ending")
    trainer.settle()
    tell({"event": "end", **peaks, **_sent(trainer, done)}, settings, recorder)
    if dist.get_rank() == 0 and settings.report:
        Path(settings.report).write_text(json.dumps(recorder.document(), indent=2) + "\n", encoding="utf-8")
    mesh["world"].all_reduce(torch.zeros(1, device=device))  # no rank leaves before the last message has arrived
    dist.destroy_process_group()
    if saver is not None:
        saver.check_saved()
    return training.stopped


def _sent(trainer: Trainer, done: int) -> Event:
    """Bytes that each rank has sent its copies in the steps after the first `done`; nothing without a technique."""
    if trainer.job.technique is None:
        return {}
    world = trainer.mesh["world"]
    sent = torch.zeros(world.size, 3, dtype=torch.float64, device=trainer.device)
    planned = planned_bytes(trainer.job, done)[trainer.mesh.coords.stage] * trainer.exchange.share_in_time()
    sent[world.rank] = torch.tensor([*trainer.exchange.sent_bytes(), planned], dtype=torch.float64)
    columns = world.all_reduce(sent).T.tolist()
    return {"exchanged": dict(zip(("sent_bytes", "scale_bytes", "ledger_bytes"), columns, strict=True))}


def _copies(trainer: Trainer, settings: Settings, recorder: Recorder, done: int) -> MemoryCopies | None:
    """Copies in memory, if any. Raises InputError where a node is too small for them."""
    if not settings.copy_every or settings.copies is None:
        return None
    copies = MemoryCopies(trainer, Path(settings.copies), timeout_s=settings.collective_timeout_s,
                          done=done)  # fmt: skip
    room = copies.check_room()
    tell({"event": "copies", "every": settings.copy_every, "node": room.node, "needed_bytes": room.needed,
          "free_bytes": room.free}, settings, recorder)  # fmt: skip
    return copies


def meet(settings: Settings, status: Status) -> tuple[Job, list[str], torch.device]:
    """Connects to the other ranks. Returns the job, notes on shrunk parts, and the device.

    Raises InputError where the number of ranks differs from that of the layout, and CommunicationError.
    """
    job, notes = prepare(settings)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != job.world_size:
        raise InputError(f"{world_size} ranks were started, layout {job.layout} runs on {job.world_size}",
                         hint=f"start {job.world_size} ranks, or `meshwright launch --scale-down`")  # fmt: skip
    device = _device(settings, job)
    if isinstance(job, Job):
        check_device(job, device.type)
    if settings.compile and device.type == "cpu":
        check_compiler()
    _connect(job, device, settings.collective_timeout_s, status)
    return job, notes, device


def _device(settings: Settings, job: Job) -> torch.device:
    """The GPU of this rank, or the CPU without a GPU. A check in float64 runs on the CPU."""
    if settings.device == "cpu" or settings.check_parity or not torch.cuda.is_available():
        if settings.device == "cuda":
            raise InputError("torch sees no CUDA GPU here", hint="`--device cpu`, or run it on the cluster")
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        return torch.device("cpu")
    local, here = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= here:
        raise InputError(f"rank {os.environ.get('RANK')} needs GPU {local}, this node has {here}",
                         hint="`--nproc-per-node` is the number of GPUs of a node; or `--device cpu`")  # fmt: skip
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device


def _connect(job: Job, device: torch.device, timeout_s: float, status: Status) -> None:
    """Creates the process group of all ranks. The plan's rank map renumbers ranks, so that every mesh is ascending."""
    status.set("connecting to the other ranks")
    rank = int(os.environ.get("RANK", "0"))
    logical = job.logical_of_rank[rank] if job.logical_of_rank else rank
    if "MASTER_ADDR" not in os.environ:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    try:
        wait = timedelta(seconds=timeout_s)
        store, _, _ = next(rendezvous("env://", logical, job.world_size, timeout=wait))
        # torchrun keeps its store over restarts. Without a prefix ranks would wait for ranks that have died.
        fresh = PrefixStore(f"attempt-{torchrun_restarts()}", store)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=fresh, rank=logical,
                                world_size=job.world_size, timeout=wait)  # fmt: skip
    except RuntimeError as error:
        raise CommunicationError(f"connecting to the other ranks: {backend_reason(error)}") from error


def _environment(device: torch.device, job: Job, settings: Settings) -> Event:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"event": "start", "torch": torch.__version__, "backend": dist.get_backend(), "device": name,
            "world_size": job.world_size, "compiled": settings.compile}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
