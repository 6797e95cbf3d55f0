"""Every study, by name. A new one is a file beside this one and a line here."""

from __future__ import annotations

from . import compare, generations, reliability, scaling, sensitivity, sweep
from .base import Study

STUDIES = {
    study.name: study
    for study in (
        Study("compare", "One change, before and after", compare.run),
        Study("sweep", "One or two numbers over a range", sweep.run),
        Study("sensitivity", "Which number binds, and which would help next", sensitivity.run),
        Study("strong-scaling", "The same step on more GPUs, best layout each", scaling.strong),
        Study("weak-scaling", "A batch that grows with the GPUs, best layout each", scaling.weak),
        Study("generations", "A100, H100, B200: as many of each, best layout each", generations.run),
        Study("reliability", "Failures, checkpoints and goodput", reliability.run, reliability.ASSUMED),
    )
}
