"""Makes many configs of NeMo-RL by its own loader, on a machine without a GPU. Run it by the Python with its imports:

    NEMO_RL_PATH=... python nemo_rl_config.py < cases.jsonl > verdicts.jsonl

A case is a list of overrides. Its verdict is null or why run_grpo.py stops: inheritance of its YAMLs, Hydra's overrides
(nemo_rl.utils.config), or types of MasterConfig (nemo_rl.algorithms.grpo). The YAML is that of Megatron-Core where an
override is of it, as in the script that `emit` writes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

_CORE = "policy.megatron_cfg."
_CONFIGS = Path("examples") / "configs"


def verdict(config: Any, master: Any, checkout: Path, overrides: list[str]) -> str | None:
    """None, or why it stops."""
    core = any(word.lstrip("+").startswith(_CORE) for word in overrides)
    base = checkout / _CONFIGS / f"grpo_math_1B{'_megatron' if core else ''}.yaml"
    try:
        merged = config.parse_hydra_overrides(config.load_config(base), overrides)
        master(**config.OmegaConf.to_container(merged, resolve=True))
    except Exception as error:  # any of Hydra, OmegaConf, pydantic
        return " ".join(str(error).split())[:300] or type(error).__name__
    return None


def main() -> None:
    checkout = Path(os.environ["NEMO_RL_PATH"]).absolute()
    sys.path.insert(0, str(checkout))
    with contextlib.redirect_stdout(sys.stderr):
        config = importlib.import_module("nemo_rl.utils.config")
        config.register_omegaconf_resolvers()
        master = importlib.import_module("nemo_rl.algorithms.grpo").MasterConfig
        verdicts = [verdict(config, master, checkout, json.loads(line)) for line in sys.stdin]
    for each in verdicts:
        print(json.dumps(each))


if __name__ == "__main__":
    main()
