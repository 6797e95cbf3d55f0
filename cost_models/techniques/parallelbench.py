"""ParallelBench: so many tokens of each pass, whatever the text, and a warning of the quality that they cost."""

from __future__ import annotations

from .base import PROPOSER, Serves, Technique
from .passes import BLOCK, FILLS, UNEQUAL, fill_together, tokens_of_a_pass

TECHNIQUE = Technique(
    name="parallelbench",
    group="serving: speculation",
    title="ParallelBench: a fixed number of tokens of each pass, whose loss of quality it measures",
    paper="Kang et al. 2025, ParallelBench: Understanding the Trade-offs of Parallel Decoding in Diffusion LLMs, arXiv "
          "2510.04767",
    bibtex="""@article{kang2025parallelbench,
  title = {ParallelBench: Understanding the Trade-offs of Parallel Decoding in Diffusion LLMs},
  author = {Kang, Wonjun and Galim, Kevin and Oh, Seunghyuk and others},
  journal = {arXiv preprint arXiv:2510.04767},
  year = {2025}
}""",
    knobs=(tokens_of_a_pass(2, "the same of every pass, as many as your task bears"), BLOCK),
    neutral={"tokens": 1, "block": 0},
    trains=False,
    serves=Serves(on_pool=fill_together, needs=(FILLS,)),
    caveat=f"it measures and changes no model: {UNEQUAL}",
    chooses=(PROPOSER,),
)  # fmt: skip
