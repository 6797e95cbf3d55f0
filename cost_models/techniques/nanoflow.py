"""NanoFlow: products, reads of the cache and messages of small batches run beside one another on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import TP_OVERLAP, Knob, Knobs, Serves, Technique
from .multiprocessors import READS

if TYPE_CHECKING:
    from ..serving.pool import Pool

# efeslab/Nanoflow d6b381e, pipeline.cu: the six messages of a layer run in 16, 8, 8, 8, 32 and 16 blocks of 1,024
# threads, each of which takes one of the 108 multiprocessors of an A100; their mean.
_MESSAGES_SHARE = (16 + 8 + 8 + 8 + 32 + 16) / 6 / 108


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    """An iteration takes as long as the longest of the three, or as what they need of all multiprocessors. The host
    forms and launches the next one meanwhile, before it knows which answers have ended (README of efeslab/Nanoflow)."""
    return replace(pool, methods=replace(
        pool.methods, nano_batches=knobs["batches"], reads_share=knobs["reads"], messages_share=knobs["messages"],
        host_beside=knobs["batches"] > 1))  # fmt: skip


TECHNIQUE = Technique(
    name="nanoflow",
    group="serving: overlap",
    title="NanoFlow: products, reads of the cache and messages run beside one another",
    paper="Zhu et al. 2024, NanoFlow: Towards Optimal Large Language Model Serving Throughput, arXiv 2408.12757",
    bibtex="""@article{zhu2024nanoflow,
  title = {NanoFlow: Towards Optimal Large Language Model Serving Throughput},
  author = {Zhu, Kan and Gao, Yufei and Zhao, Yilong and others},
  journal = {arXiv preprint arXiv:2408.12757},
  year = {2024}
}""",
    knobs=(Knob("batches", 2, 1, 8, "parts of an iteration's tokens, each of which reads the weights"), READS,
           Knob("messages", _MESSAGES_SHARE, 0.05, 1, "share of the multiprocessors with which messages run at their "
                "full rate: the mean of NanoFlow's kernels", whole=False)),
    neutral={"batches": 1},
    trains=False,
    serves=Serves(on_pool=_on_pool),
    caveat="its search of the order of operations is for one model and GPU at a time",
    chooses=(TP_OVERLAP,),
)  # fmt: skip
