"""Reads many configs with MaxText itself, on a machine without a GPU. Run it by the Python that has its packages:

    python parser.py CHECKOUT/src < cases.jsonl > verdicts.jsonl

A case is {config, world, nodes, micro_batch, batch}. Its verdict is null or an error message. MaxText reads and
validates the file for as many devices as the case has, and multiplies out the axes of its mesh.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def load(source: str) -> None:
    """Makes MaxText importable from the folder `source`, on CPUs."""
    os.environ.update(JAX_PLATFORMS="cpu", DECOUPLE_GCLOUD="TRUE")
    sys.path.insert(0, source)


def resolved(case: dict[str, Any]) -> Any:
    """The config that MaxText trains with. Raises what MaxText raises."""
    from maxtext.configs import pyconfig

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "maxtext.yml"
        path.write_text(case["config"], encoding="utf-8")
        # No devices, caches or logs: the number of devices is given instead.
        return pyconfig._initialize_pydantic(
            ["", str(path)], internal_compile=True, internal_compile_num_devices=case["world"],
            skip_jax_distributed_system=True, jax_cache_dir="", base_output_directory=folder, log_config=False,
        )  # fmt: skip


def verdict(case: dict[str, Any]) -> str | None:
    from maxtext.utils.max_utils import fill_unspecified_mesh_axes

    try:
        config = resolved(case)
        fill_unspecified_mesh_axes(list(config.ici_parallelism), case["world"] // case["nodes"], "ICI")
        fill_unspecified_mesh_axes(list(config.dcn_parallelism), case["nodes"], "DCN")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    sizes = {"num_slices": config.num_slices, "micro_batch_size_to_train_on": config.micro_batch_size_to_train_on,
             "global_batch_size_to_train_on": config.global_batch_size_to_train_on}  # fmt: skip
    planned = dict(zip(sizes, (case["nodes"], case["micro_batch"], case["batch"]), strict=True))
    wrong = [f"{name} {size}, planned {planned[name]}" for name, size in sizes.items() if size != planned[name]]
    return ", ".join(wrong) or None


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
    load(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
