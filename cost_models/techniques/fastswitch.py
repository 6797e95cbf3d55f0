"""FastSwitch: caches of requests that wait for their turn leave and enter a GPU in large pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import Knob, Knobs, Serves, Technique

if TYPE_CHECKING:
    from ..serving.pool import Pool

# Pages of 16 tokens (128 KiB of a layer) reach a fifth of 25 GB/s: 128 KiB / 25 GB/s x 4 are for the start of a copy.
COPY_S = 2.1e-5
_KIB = 1024.0


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    methods = replace(pool.methods, swaps=knobs["preemptions"], swap_copy_s=COPY_S,
                      swap_copy_bytes=knobs["group_kib"] * _KIB)  # fmt: skip
    return replace(pool, methods=methods) if knobs["preemptions"] else pool


TECHNIQUE = Technique(
    name="fastswitch",
    group="serving: memory",
    title="FastSwitch: caches of requests that give way are copied to the host in large pieces",
    paper="Shen et al. 2024, FastSwitch: Optimizing Context Switching Efficiency in Fairness-aware Large Language "
          "Model Serving, arXiv 2411.18424",
    bibtex="""@article{shen2024fastswitch,
  title = {FastSwitch: Optimizing Context Switching Efficiency in Fairness-aware Large Language Model Serving},
  author = {Shen, Ao and Li, Zhiyao and Gao, Mingyu},
  journal = {arXiv preprint arXiv:2411.18424},
  year = {2024}
}""",
    knobs=(Knob("preemptions", 1, 0, 100, "times that a request gives way to others, in the mean", whole=False),
           Knob("group_kib", 4096, 16, 1 << 20, "KiB of a piece; 128: pages of 16 tokens, as vLLM copies them")),
    neutral={"preemptions": 0},
    trains=False,
    serves=Serves(on_pool=_on_pool, only_costs=True),
    caveat="a plan without it has no preemption at all: compare with `group_kib=128`",
)  # fmt: skip
