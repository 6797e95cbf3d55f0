"""Results in a file, so that the table is renewed cluster by cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from meshwright.errors import InputError

from .cases import Case, Model
from .emulated import Host
from .sample import Entry, Step
from .tables import Result, Run

_RUN = ("date", "seed", "rounds", "steps", "environment")


def read(path: Path) -> list[Result]:
    """The results of a file that this benchmark wrote. Raises InputError for any other file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return [_result(result, document) for result in document["results"]]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", hint="name a JSON file of `--out`") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is no file of results ({type(error).__name__}: {error})",
                         hint="name a JSON file of `--out`") from None  # fmt: skip


def renewed(old: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """The old results, in their order, with the new ones of the same cluster and model in their places."""
    return list({(result.case.name, result.model.name): result for result in (*old, *new)}.values())


def _result(fields: Mapping[str, Any], document: Mapping[str, Any]) -> Result:
    # Files of one run, before clusters were renewed one by one, have its fields once.
    run = fields.get("run") or {name: document[name] for name in _RUN}
    shape = dict(fields["model"])
    model = Model(shape.pop("name"), fields["seq_len"], fields["global_batch"], shape)
    case = Case(fields["cluster"], tuple(Host(**host) for host in fields["hosts"]), (model,))
    entries = [_entry(layout) for layout in fields["layouts"]]
    return Result(case, model, entries, fields["profiled_at_slowness"], Run(**run), fields["told"])


def _entry(fields: Mapping[str, Any]) -> Entry:
    """A measured layout. Its plan is not stored."""
    rounds = [[Step(*step) for step in steps] for steps in fields["rounds"]]
    finals = [Step(*step) for step in fields.get("finals", ())]
    return Entry(fields["layout"], Path(), 1, fields["predicted_s"], fields["roles"], rounds=rounds, finals=finals,
                 failed=fields["failed"] or "")  # fmt: skip
