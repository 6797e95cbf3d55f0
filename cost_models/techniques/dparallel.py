"""dParallel: a model distilled to be certain early fills in many tokens of a pass."""

from __future__ import annotations

from .base import PROPOSER, Serves, Technique
from .passes import BLOCK, FILLS, fill_together, tokens_of_a_pass

TECHNIQUE = Technique(
    name="dparallel",
    group="serving: speculation",
    title="dParallel: distilled to be certain early, a model fills in many tokens of a pass",
    paper="Chen et al. 2025, dParallel: Learnable Parallel Decoding for dLLMs, arXiv 2509.26488",
    bibtex="""@article{chen2025dparallel,
  title = {dParallel: Learnable Parallel Decoding for dLLMs},
  author = {Chen, Zigeng and Fang, Gongfan and Ma, Xinyin and Yu, Ruonan and Wang, Xinchao},
  journal = {arXiv preprint arXiv:2509.26488},
  year = {2025}
}""",
    knobs=(tokens_of_a_pass(8.53, "256 tokens of GSM8K took 30 passes"), BLOCK),
    neutral={"tokens": 1, "block": 0},
    trains=False,
    serves=Serves(on_pool=fill_together, needs=(FILLS,)),
    caveat="the model must be distilled so; how many tokens of a pass it is certain of depends on the text",
    chooses=(PROPOSER,),
)  # fmt: skip
