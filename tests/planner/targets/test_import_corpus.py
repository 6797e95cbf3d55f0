"""`import` on public files: read, read in part with the gaps named, or refused with the reason.

`python tools/import_corpus.py fill DIR` fetches the files, `CORPUS=DIR` names them; without it these tests are skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.request.load import Request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.model_names import no_model

from meshwright.errors import InputError, MeshwrightError

from ...snapshots import ROOT
from ...table import Row

LIST = ROOT / "tests" / "data" / "imports" / "corpus.yaml"
FOLDER = os.environ.get("CORPUS", "")
# The clusters that are tried in turn for a file that does not state its GPUs, and the model of a file that names none.
GPU: dict[str, object] = {"gpu": "h100-sxm-80gb"}
CLUSTERS: tuple[dict[str, object], ...] = (
    {"cluster": "dgx-h100:16"}, {"cluster": "dgx-h100:1"}, {**GPU, "gpus": 2}, {"cluster": "dgx-b300:1"},
)  # fmt: skip
NO_GPUS, NO_MODEL = "gpus: is missing", no_model(None).message
MODEL = {"model": "llama-3.1-8b"}
STAND_IN = {"model": "gpt-oss-20b"}
needs_corpus = pytest.mark.skipif(not FOLDER, reason="CORPUS names no folder of public files (tools/import_corpus.py)")


Item = dict[str, Any]


def reading(item: Item, where: dict[str, object]) -> Imported:
    """The import of a file, with those that it names, on a cluster."""
    kind, folder = item["kind"], Path(FOLDER) / item["repository"]
    paths = [folder / path for path in (item["path"], *item.get("beside", ()))]
    return import_config(kind, paths, where, item.get("release"), arguments_of(item).split())


def listed() -> list[Item]:
    return list(yaml.safe_load(LIST.read_text(encoding="utf-8")))


def readings(item: Item) -> Iterator[Imported | MeshwrightError]:
    """The imports of a file: with what it states, then with the model and on the clusters that it leaves open.

    An error of the file's own model, layout or batch is its only answer."""
    given, clusters = GPU, [*CLUSTERS]
    while True:
        try:
            yield priced(reading(item, given))
            return
        except MeshwrightError as error:
            yield error
            if str(error).startswith(NO_MODEL) and "model" not in given:
                given = {**given, **MODEL}
                continue
            left_open = given.keys() & {"cluster", "gpus"} or str(error).startswith(NO_GPUS)
            if not left_open or not clusters:
                return
        given = {**clusters.pop(0), **{name: given[name] for name in MODEL.keys() & given.keys()}}


def priced(imported: Imported) -> Imported:
    """The import itself. Raises MeshwrightError where it is whole and has no price, on these GPUs or at all."""
    if imported.unpriced:
        raise InputError.of(imported.gaps)
    if not imported.gaps:
        imported.price()
    return imported


def outcome(item: Item) -> tuple[str, str]:
    """(read, partly or refused; the gaps or the reason)."""
    answers = [*readings(item)]
    if not isinstance(last := answers[-1], Imported):
        return "refused", " | ".join(f"{type(error).__name__}: {' '.join(str(error).split())}" for error in answers)
    return ("partly", "; ".join(map(str, last.gaps))) if last.gaps else ("read", str(last.layout))


def arguments_of(item: Item) -> str:
    """What a file is given by --arg: the function that makes the config, or the parameters of a script."""
    return str(item.get("function") or item.get("arguments", ""))


def stored_name(item: Item) -> str:
    return f"{item['repository']}/{item['path']}"


def test_the_list_is_as_long_as_it_claims() -> None:
    assert len(listed()) >= 120
    assert {item["expect"] for item in listed()} == {"read", "partly", "refused"}


def test_share_that_is_read(row: Row) -> None:
    if not FOLDER:
        row("import", "public files", "not run: CORPUS names no folder")
        pytest.skip("CORPUS names no folder of public files (tools/import_corpus.py)")
    table: dict[str, Counter[str]] = {}
    wrong = []
    for item in listed():
        result, why = outcome(item)
        table.setdefault(item["kind"], Counter())[result] += 1
        if result != item["expect"]:
            wrong.append(f"{item['kind']} {item['repository']} {item['path']}: {result}, not {item['expect']}: {why}")
    for kind, counts in table.items():
        row(kind, "public files", ", ".join(f"{word} {counts[word]}" for word in ("read", "partly", "refused")))
    assert not wrong, "\n".join(wrong)


def truths() -> dict[str, dict[str, object]]:
    return dict(yaml.safe_load((LIST.parent / "corpus_layouts.yaml").read_text(encoding="utf-8")))


def test_sixty_layouts_have_their_truth() -> None:
    paths = {f"{item['repository']}/{item['path']}" for item in listed()}
    assert set(truths()) <= paths
    assert len(truths()) >= 60


@needs_corpus
def test_no_field_is_read_wrongly(row: Row) -> None:
    """Field by field; what a gap leaves open is not in the truth."""
    wrong, fields = [], 0
    items = {stored_name(item): item for item in listed()}
    for path, truth in truths().items():
        imported = first_reading(items[path])
        read = {**imported.stated} if imported.gaps else described(imported)
        for name, value in truth.items():
            fields += 1
            if read.get(name) != value:
                wrong.append(f"{path}: {name} is read as {read.get(name)}, and is {value}")
    row("import", "fields read wrongly", f"{len(wrong)} of {fields}, in {len(truths())} public files")
    assert not wrong


def first_reading(item: Item) -> Imported:
    """The import of a file; where only its model is unknown, with another: its layout and batch are its own."""
    *_, last = readings(item)
    if str(last).startswith("the model ") and "is not in the catalogue" in str(last):
        last = reading(item, {"cluster": "dgx-h100:1", **STAND_IN})
    assert isinstance(last, Imported), f"{stored_name(item)} is not read: {last}"
    return last


def described(imported: Imported) -> dict[str, object]:
    layout, request = imported.layout.as_dict(), imported.request
    model = request.model if isinstance(request.model, dict) else {}
    return {
        **layout, "recompute": layout["recompute"]["mode"], "workload.seq_len": request.workload.seq_len,
        "workload.global_batch": request.workload.global_batch, "workload.source_len": request.workload.source_len,
        "techniques": "+".join(request.workload.techniques), "workload.freeze_tower": request.workload.freeze_tower,
        "workload.freeze_language": request.workload.freeze_language,
        "workload.reference": request.workload.reference,
        "workload.rounding": request.workload.rounding and vars(request.workload.rounding),
        **{f"model.{name}": value for name, value in model.items()}, **of_images(request),
    }  # fmt: skip


def of_images(request: Request) -> dict[str, object]:
    """Images of a sequence, and the fields of the tower that sees them."""
    images, tower = request.workload.images, resolve(request).model.tower
    if images is None or tower is None:
        return {}
    return {"workload.images": f"{images.per_sequence}@{images.height}x{images.width}",
            **{f"tower.{name}": value for name, value in asdict(tower).items()}}  # fmt: skip
