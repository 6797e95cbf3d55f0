"""Runs Megatron's argument parser on many command lines, without a GPU. Run it by the Python that has Megatron:

    python parser.py CHECKOUT < cases.jsonl > verdicts.jsonl

A case is {argv, world, environment, capability}. Its verdict is null or Megatron's error message. The script supplies
the facts of a GPU machine that some options check: the compute capability, and the version 2.12 of TransformerEngine.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import typing
import warnings

import torch
import typing_extensions

answers, sys.stdout = sys.stdout, sys.stderr  # frameworks print while they are imported
del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
if not hasattr(typing, "override"):
    typing.override = typing_extensions.override  # type: ignore[attr-defined]
capability = [9, 0]
torch.cuda.get_device_capability = lambda *args, **kwargs: tuple(capability)


class _Properties:
    @property
    def major(self) -> int:
        return capability[0]

    minor = 0
    multi_processor_count = 132
    name = "GPU"
    total_memory = 80 << 30


torch.cuda.get_device_properties = lambda *args, **kwargs: _Properties()  # type: ignore[assignment]
sys.path.insert(0, sys.argv[1])

import megatron.core.utils as core_utils  # noqa: E402
from packaging.version import Version  # noqa: E402

core_utils._te_version = Version("2.12.0")
core_utils.get_te_version = lambda: Version("2.12.0")
from megatron.core.models.common.embeddings import rope_utils  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.training import arguments  # noqa: E402

rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb or object()
rope_utils.fused_apply_rotary_pos_emb_thd = rope_utils.fused_apply_rotary_pos_emb_thd or object()
# Kernels that TransformerEngine 2.12 has; __post_init__ of TransformerConfig asks for them under --moe-permute-fusion.
for _kernel in ("fused_permute", "fused_permute_with_probs", "fused_sort_chunks_by_index",
                "fused_sort_chunks_by_index_with_probs", "fused_unpermute"):  # fmt: skip
    setattr(moe_utils, _kernel, getattr(moe_utils, _kernel, None) or object())


def parse(case: dict[str, typing.Any]) -> tuple[typing.Any, typing.Any]:
    """(arguments as pretrain_gpt.py has them after validation, the TransformerConfig made from them)."""
    os.environ.update(WORLD_SIZE=str(case["world"]), RANK="0", LOCAL_RANK="0")
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1"):
        os.environ.pop(name, None)
    os.environ.update(case["environment"])
    capability[:] = [int(case["capability"]), 0]
    sys.argv = ["pretrain_gpt.py", *case["argv"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = arguments.parse_args()
        arguments.validate_args(args)
        return args, arguments.core_transformer_config_from_args(args)


def verdict(case: dict[str, typing.Any]) -> str | None:
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
            parse(case)
    except SystemExit:
        return stderr.getvalue().strip().splitlines()[-1] if stderr.getvalue().strip() else "exit"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line))), file=answers, flush=True)
