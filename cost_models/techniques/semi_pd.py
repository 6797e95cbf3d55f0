"""semi-PD: prompts and answers have multiprocessors of their own; weights and caches lie in memory once."""

from __future__ import annotations

from .base import PHASES, Serves, Technique
from .multiprocessors import PROMPTS, READS, split_phases
from .passes import DECODES

TECHNIQUE = Technique(
    name="semi-pd",
    group="serving: prompts and answers",
    title="semi-PD: prompts and answers on parts of a GPU, with one copy of weights and caches",
    paper="Hong et al. 2025, semi-PD: Towards Efficient LLM Serving via Phase-Wise Disaggregated "
          "Computation and Unified Storage, arXiv 2504.19867",
    bibtex="""@article{hong2025semipd,
  title = {semi-PD: Towards Efficient LLM Serving via Phase-Wise Disaggregated Computation and Unified Storage},
  author = {Hong, Ke and Chen, Lufang and Wang, Zhong and others},
  journal = {arXiv preprint arXiv:2504.19867},
  year = {2025}
}""",
    knobs=(PROMPTS, READS),
    neutral={"prompts": 0, "reads": 1},
    trains=False,
    serves=Serves(on_pool=split_phases, needs=(DECODES,)),
    caveat="the share is fixed here; semi-PD moves it until the promises hold",
    chooses=(PHASES,),
)  # fmt: skip
