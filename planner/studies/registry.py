"""Every study, by name. A new one is a file beside this one and a line here."""

from __future__ import annotations

from . import compare, sensitivity, sweep
from .base import Study

STUDIES = {
    study.name: study
    for study in (
        Study("compare", "One change, before and after", compare.run),
        Study("sweep", "One or two numbers over a range", sweep.run),
        Study("sensitivity", "Which number binds, and which would help next", sensitivity.run),
    )
}
