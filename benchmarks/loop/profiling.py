"""An emulated cluster, profiled under its quotas by `meshwright profile`, as a cluster file that `plan` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml
from meshwright.cli.main import main as meshwright

from .cases import Case, Model
from .emulated import Emulated, StepFailed

LARGEST = "2 MiB"  # message of the links: a bucket of gradients
DTYPE = "fp32"


def links(cluster: Emulated, folder: Path, port: int) -> Path:
    """`profile links` on all ranks; the cluster file that the first one writes."""
    file = folder / "links.yaml"
    words = ["profile", "links", "--device", "cpu", "--quick", "--largest", LARGEST, "-o", str(file)]
    _all_ranks(cluster, words, folder / "links", port)
    return file


def kernels(cluster: Emulated, model: Model, folder: Path, port: int) -> list[Path]:
    """`profile kernels` on all ranks at once; the file of every speed of ranks."""
    file = folder / f"kernels-{model.name}.yaml"
    words = ["profile", "kernels", "--device", "cpu", "--quick", "--gpus", str(cluster.num_ranks),
             *workload_options(model, folder), "-o", str(file)]  # fmt: skip
    _all_ranks(cluster, words, folder / f"kernels-{model.name}", port)
    return sorted(folder.glob(f"kernels-{model.name}*.yaml"))


def workload_options(model: Model, folder: Path) -> list[str]:
    """The options of `plan` and `profile kernels` for the model and its batch."""
    file = folder / f"{model.name}.yaml"
    file.write_text(yaml.safe_dump({"name": model.name, **model.fields}), encoding="utf-8")
    return ["--model", str(file), "--seq-len", str(model.seq_len), "--global-batch", str(model.global_batch),
            "--dtype", DTYPE]  # fmt: skip


def cluster_file(case: Case, model: Model, measured: Path, devices: list[Path]) -> Path:
    """The file of the links, with the devices that were profiled."""
    document = yaml.safe_load(measured.read_text(encoding="utf-8"))
    document |= {"name": case.name, "profiles": [file.name for file in devices]}
    out = measured.with_name(f"cluster-{model.name}.yaml")
    out.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return out


def _all_ranks(cluster: Emulated, words: Sequence[str], outputs: Path, port: int) -> None:
    """A command line of meshwright on every rank, all at once."""
    outputs.mkdir()
    try:
        cluster.run(lambda rank: meshwright([*words, "--force", "--no-progress"]), outputs, port)
    except StepFailed as error:
        raise StepFailed(f"`meshwright {' '.join(words[:2])}`: {error}") from None
