# pp2-dp8-ep8-mbs2-z1-rnone-oopt: qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 8.8 s per step predicted
# Plan c890858725b7, layout 1. Written by meshwright 0.1.0; options checked against DeepSpeed 0.19.8 (pypi).
# On the head node: python launch_ray.py

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ray import train
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

NUM_NODES = 2
GPUS_PER_NODE = 8
NEEDS = {"TRAIN_SCRIPT": "your training script, which calls deepspeed.initialize"}
MAY_HAVE = []
FILES = ["ds_config.json", "ds_plan.py", "launch.sh"]


def node(config):
    """Starts the ranks of one node: launch.sh with its files and variables."""
    folder = Path(tempfile.mkdtemp())
    for name, text in config["files"].items():
        (folder / name).write_text(text, encoding="utf-8")
    environment = dict(os.environ, **config["given"])
    environment["NODE_RANK"] = str(train.get_context().get_world_rank())
    environment["MASTER_PORT"] = "29500"  # MASTER_ADDR is set by Ray, whose own port is in use
    subprocess.run(["sh", str(folder / "launch.sh"), *config["arguments"]], env=environment, check=True)


if __name__ == "__main__":
    missing = [name for name in NEEDS if name not in os.environ]
    if missing:
        sys.exit("\n".join(f"{name} must be {NEEDS[name]}" for name in missing))
    here = Path(__file__).resolve().parent
    config = {
        "files": {name: (here / name).read_text(encoding="utf-8") for name in FILES},
        "given": {name: os.environ[name] for name in [*NEEDS, *MAY_HAVE] if name in os.environ},
        "arguments": sys.argv[1:],
    }
    TorchTrainer(
        node,
        train_loop_config=config,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=NUM_NODES,
            resources_per_worker={"GPU": GPUS_PER_NODE},
            use_gpu=True,
            placement_strategy="STRICT_SPREAD",
        ),
    ).fit()
