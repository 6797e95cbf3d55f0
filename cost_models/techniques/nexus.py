"""Nexus: prompts and answers have multiprocessors of their own on the same GPUs."""

from __future__ import annotations

from .base import PHASES, Serves, Technique
from .multiprocessors import PROMPTS, READS, split_phases
from .passes import DECODES

TECHNIQUE = Technique(
    name="nexus",
    group="serving: prompts and answers",
    title="Nexus: prompts and answers run beside one another on parts of a GPU",
    paper="Shi et al. 2025, Proactive Intra-GPU Disaggregation of Prefill and Decode in LLM Serving, "
          "arXiv 2507.06608",
    bibtex="""@article{shi2025nexus,
  title = {Proactive Intra-GPU Disaggregation of Prefill and Decode in LLM Serving},
  author = {Shi, Xiaoxiang and Cai, Colin and Du, Junjia and Jia, Zhihao},
  journal = {arXiv preprint arXiv:2507.06608},
  year = {2025}
}""",
    knobs=(PROMPTS, READS),
    neutral={"prompts": 0, "reads": 1},
    trains=False,
    serves=Serves(on_pool=split_phases, needs=(DECODES,)),
    caveat="the share is fixed here; Nexus changes it from batch to batch",
    chooses=(PHASES,),
)  # fmt: skip
