"""ExFlow: tokens stay where their experts are, and experts of following layers that go together lie together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import HOME, Knob, Knobs, Serves, Technique
from .overlap import SERVES_EXPERTS

if TYPE_CHECKING:
    from ..serving.pool import Pool


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    """A token whose next expert lies elsewhere goes there and stays: one way for each layer, in place of two. The share
    of tokens that the placement keeps is the affinity that it catches; caches of all sequences lie everywhere."""
    if not knobs["affinity"]:
        return pool
    return replace(pool, methods=replace(pool.methods, tokens_at_home=knobs["affinity"], context_everywhere=True))


TECHNIQUE = Technique(
    name="exflow",
    group="serving: overlap",
    title="ExFlow: tokens stay where their experts are, which lie near those of the layer before",
    paper="Yao et al. 2024, Exploiting Inter-Layer Expert Affinity for Accelerating Mixture-of-Experts Model "
          "Inference, arXiv 2401.08383",
    bibtex="""@inproceedings{yao2024exflow,
  title = {Exploiting Inter-Layer Expert Affinity for Accelerating Mixture-of-Experts Model Inference},
  author = {Yao, Jinghan and Anthony, Quentin and Shafi, Aamir and Subramoni, Hari and Panda, Dhabaleswar K.},
  booktitle = {IEEE International Parallel and Distributed Processing Symposium},
  year = {2024}
}""",
    knobs=(Knob("affinity", 0.6, 0, 1, "share of the tokens whose next expert lies with the last one, beyond chance; a "
                "routing trace gives it", whole=False),),
    neutral={"affinity": 0},
    trains=False,
    serves=Serves(on_pool=_on_pool, needs=(SERVES_EXPERTS,)),
    caveat="shown for one expert per token; the share depends on model and data",
    chooses=(HOME,),
)  # fmt: skip
