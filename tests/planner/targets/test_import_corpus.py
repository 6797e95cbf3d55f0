"""`import` on public files: read, read in part with the gaps named, or refused with the reason.

`python tools/import_corpus.py fill DIR` fetches the files, `CORPUS=DIR` names them; without it these tests are skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml
from meshwright.planner.importing import FORMATS, import_config

from meshwright.errors import MeshwrightError

from ...snapshots import ROOT

LIST = ROOT / "tests" / "data" / "imports" / "corpus.yaml"
FOLDER = os.environ.get("CORPUS", "")
# What these files leave open, by kind.
GIVEN: dict[str, dict[str, object]] = {
    "megatron-args": {}, "torchtitan": {}, "accelerate": {"model": "llama-3.1-8b"},
    "deepspeed": {"model": "llama-3.1-8b"},
}  # fmt: skip
needs_corpus = pytest.mark.skipif(not FOLDER, reason="CORPUS names no folder of public files (tools/import_corpus.py)")


def listed() -> list[dict[str, str]]:
    return list(yaml.safe_load(LIST.read_text(encoding="utf-8")))


@cache
def outcome(kind: str, name: str) -> tuple[str, str]:
    """(read, partly or refused; the gaps or the reason)."""
    if kind not in FORMATS:
        return "refused", f"no reader of {kind}"
    path = Path(FOLDER) / name
    reason = ""
    for where in ({"gpu": "h100-sxm-80gb"}, {"cluster": "dgx-h100:16"}):  # a file may leave the number of ranks open
        try:
            imported = import_config(kind, [path], {**GIVEN[kind], **where})
            imported.price()
        except MeshwrightError as error:
            reason = reason or f"{type(error).__name__}: {' '.join(str(error).split())}"
        else:
            gaps = getattr(imported, "gaps", ())
            return ("partly", "; ".join(gaps)) if gaps else ("read", str(imported.layout))
    return "refused", reason


def stored_name(item: dict[str, str]) -> str:
    return f"{item['repository']}/{item['path']}".replace("/", "+")


def test_the_list_is_as_long_as_it_claims() -> None:
    assert len(listed()) >= 120
    assert {item["expect"] for item in listed()} == {"read", "partly", "refused"}


@needs_corpus
def test_share_that_is_read() -> None:
    table: dict[str, Counter[str]] = {}
    wrong = []
    for item in listed():
        result, why = outcome(item["kind"], stored_name(item))
        table.setdefault(item["kind"], Counter())[result] += 1
        if result != item["expect"]:
            wrong.append(f"{item['kind']} {item['repository']} {item['path']}: {result}, not {item['expect']}: {why}")
    print()
    for kind, counts in table.items():
        print(f"{kind:14} read {counts['read']:3}  partly {counts['partly']:3}  refused {counts['refused']:3}")
    print("\n".join(wrong))
    assert not wrong
