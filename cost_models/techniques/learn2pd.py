"""Learn2PD: a learned filter finds the tokens that are final, and the end of the text ends the passes."""

from __future__ import annotations

from .base import PROPOSER, Serves, Technique
from .passes import BLOCK, FILLS, fill_together, tokens_of_a_pass

TECHNIQUE = Technique(
    name="learn2pd",
    group="serving: speculation",
    title="Learn2PD: a learned filter keeps the tokens of a pass that are final",
    paper="Bao et al. 2025, Learning to Parallel: Accelerating Diffusion Large Language Models via Learnable Parallel "
          "Decoding, arXiv 2509.25188",
    bibtex="""@article{bao2025learn2pd,
  title = {Learning to Parallel: Accelerating Diffusion Large Language Models via Learnable Parallel Decoding},
  author = {Bao, Wenrui and Chen, Zhiben and Xu, Dan and Shang, Yuzhang},
  journal = {arXiv preprint arXiv:2509.25188},
  year = {2025}
}""",
    knobs=(tokens_of_a_pass(22.8, "1,024 tokens of GSM8K, many of them behind the end of the text, took 45 passes"),
           BLOCK),
    neutral={"tokens": 1, "block": 0},
    trains=False,
    serves=Serves(on_pool=fill_together, needs=(FILLS,)),
    caveat="the filter is trained for one model and takes no time here; of answers of 256 tokens its paper has 3 to 4 "
           "tokens of a pass",
    chooses=(PROPOSER,),
)  # fmt: skip
