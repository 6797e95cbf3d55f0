"""The plan: the chosen layout, its proof, and all that its use needs. Downstream code reads only this and looks nothing
up.

JSON: base units, names as in the code, floats of 9 significant digits. From one release to the next,
`format_version` moves its minor number when fields were added and its major one when a reader would break.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from .base import OWN_STAGES, DocumentPart, without_none
from .candidate import Candidate
from .certificate import Certificate, Outside, Preference, TargetComparison, TechniqueChoice
from .island_use import Strategy

FORMAT_VERSION = "1.6"


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of a document in canonical JSON."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def sealed_json(fields: Mapping[str, Any]) -> str:
    """A document as it is written to a file, with the digest of its other fields."""
    document = json.loads(json.dumps(fields))  # keys as text, as a reader finds them
    document.pop("document_sha256", None)  # of the file that it was read from
    document["document_sha256"] = digest_of(document)
    return json.dumps(document, sort_keys=True, indent=1) + "\n"


class Profile(DocumentPart):
    """A file of facts that the plan rests on."""

    name: str
    sha256: str


class Plan(DocumentPart):
    """The result of `meshwright plan`."""

    format_version: str = FORMAT_VERSION
    kind: Literal["plan"] = "plan"
    tool: dict[str, str]  # name and version of the program that wrote it
    request_sha256: str
    request: dict[str, Any]  # in its canonical form
    # Given field of the request -> where its value came from; a field that is not here has its default.
    origins: dict[str, str] = Field(default_factory=dict)  # field of the request -> where its value came from
    profiles: tuple[Profile, ...]
    candidates: tuple[Candidate, ...] = Field(min_length=1)  # the list of the plan, the choice first
    ranking_lead: float | None = None  # layouts within this share of each other's time cannot be told apart
    certificate: Certificate
    preference: Preference | None = None  # only where the first candidate is not the fastest
    outside: Outside | None = None
    by_target: TargetComparison | None = None  # only where targets were compared
    resolved: dict[str, Any]  # model, cluster, workload, stack, target, memory limit and headroom
    rejected: dict[str, int]  # layouts by the rule that they break, or by `memory`
    warnings: tuple[str, ...] = ()  # for people
    technique_choices: tuple[TechniqueChoice, ...] = ()  # best first; only where techniques were left to the search
    ways: tuple[Strategy, ...] | None = None  # the best of each way to use the islands of the cluster, fastest first
    # Causes, as in `certificate.stopped`, that cut a comparison after the search; the best layout is still proven.
    cut_short: tuple[str, ...] = ()
    document_sha256: str | None = None  # of all other fields, in the file only: a file that was edited is refused

    @model_serializer(mode="wrap")
    def _without_choices(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plans that had nothing to choose look as they always did."""
        fields: dict[str, Any] = handler(self)
        for name in ("ways", "by_target", "preference", "document_sha256"):
            fields = without_none(fields, name)
        optional = ("technique_choices", "cut_short", "origins")
        return {name: value for name, value in fields.items() if value or name not in optional}

    def with_warnings(self, texts: Iterable[str], cut_short: Iterable[str] = ()) -> Plan:
        """This plan with more warnings, after a comparison that any cause in `cut_short` cut."""
        update = {"warnings": (*self.warnings, *texts), "cut_short": (*self.cut_short, *cut_short)}
        return self.model_copy(update=update)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C cut short the search, or a comparison after it."""
        return "interrupted" in (self.certificate.stopped, *self.cut_short)

    @property
    def places_layers(self) -> bool:
        """Whether its request leaves the layers of every stage to the planner."""
        return bool(self.request.get("stages") == OWN_STAGES)

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def to_json(self) -> str:
        """The document as it is written to a file."""
        return sealed_json(self.model_dump(mode="json"))
