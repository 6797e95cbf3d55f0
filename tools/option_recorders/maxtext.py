"""Options of MaxText: the fields of its config, with the values of base.yml, which every config starts from."""

from __future__ import annotations

import runpy
from pathlib import Path

import yaml

from .lines import kind_of, with_default

MADE_FROM = "MaxTextConfig in src/maxtext/configs/types.py, with the values of its base.yml"
# The script that imports MaxText without accelerators.
_PARSER = Path(__file__).resolve().parents[2] / "planner" / "targets" / "maxtext" / "parser.py"
# Policies are compared in get_remat_policy of layers/nnx_decoders.py.
_PLAIN = {"remat_policy": "str full|minimal|save_dot_with_context_except_mlp|save_dot_except_mlpwi|save_dot_except_mlp|"
                          "save_qkv_proj|qkv_proj_offloaded|custom|minimal_offloaded|save_out_proj|none|minimal_flash|"
                          "minimal_with_context|minimal_with_quantization|minimal_with_context_and_quantization "
                          "# layers/nnx_decoders.py",
          "context_parallel_strategy": "str all_gather|ring|ulysses|usp # configs/types.py",
          "attention": "str autoselected|dot_product|flash|cudnn_flash_te|cudnn_flash_jax|paged|vllm_rpa|"
                       "vllm_batched_rpa # layers/attention_op.py"}  # fmt: skip


def record(source: Path | None) -> list[str]:
    """The lines for a checkout of MaxText."""
    if source is None:
        raise SystemExit("maxtext: give a checkout by --source")
    runpy.run_path(str(_PARSER))["load"](str(source / "src"))
    from maxtext.configs.types import DerivedValues, MaxTextConfig

    # Fields that MaxText computes are no options.
    options = {name: field.annotation for name, field in MaxTextConfig.model_fields.items()
               if name not in DerivedValues.model_fields}  # fmt: skip
    base = yaml.safe_load((source / "src" / "maxtext" / "configs" / "base.yml").read_text(encoding="utf-8"))
    return [with_default(f"{name} {_PLAIN.get(name) or kind_of(hint)}", base.get(name))
            for name, hint in options.items()]  # fmt: skip
