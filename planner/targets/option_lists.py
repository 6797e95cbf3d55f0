"""The recorded options of the frameworks, one list per release (upstream/, made by tools/record_upstream.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import isnan
from pathlib import Path
from typing import Any

from ...errors import InputError, did_you_mean, nearest

_FOLDER = Path(__file__).with_name("upstream")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a release."""

    name: str
    # flag, int, float, str, bool, list, class (of a block of options), object (a block), code or any.
    kind: str
    # Whether it takes a list.
    many: bool = False
    # All accepted values, () for any.
    values: tuple[str, ...] = ()
    # The file of the framework that restricts the values if its parser does not.
    consumer: str = ""
    # The value where nothing sets it; None: not recorded.
    default: Any = None

    def wrong(self, value: Any) -> str | None:
        """Why this option does not accept `value`, or None: its default is accepted, whatever it is."""
        if (text := self.wrong_type(value)) is not None:
            return text
        for item in self._items(value):
            if self.values and str(item) not in self.values:
                guess = did_you_mean(nearest(str(item), self.values))
                return f"`{item}` is none of {', '.join(self.values)}{f'; {guess}' if guess else ''}"
        return None

    def wrong_type(self, value: Any) -> str | None:
        """Why `value` has the wrong type for this option, or None; the default of MaxText's whole numbers is `None`."""
        if self.default is not None and value == self.default:
            return None
        return next((text for item in self._items(value) if (text := self._wrong_type(item)) is not None), None)

    def _items(self, value: Any) -> list[Any]:
        return value if self.many and isinstance(value, list) else [value]

    def _wrong_type(self, value: Any) -> str | None:
        right = {
            "flag": isinstance(value, bool), "bool": isinstance(value, bool),
            "int": isinstance(value, int) and not isinstance(value, bool),
            "float": isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value),
            "str": isinstance(value, str), "class": isinstance(value, str),
            "object": isinstance(value, Mapping), "list": isinstance(value, list),
        }  # fmt: skip
        words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word",
                 "class": "the name of a class", "flag": "a flag without value", "list": "a list",
                 "object": "a block of options"}  # fmt: skip
        if not right.get(self.kind, True):
            return f"`{value}` is not {words[self.kind]}"
        return None


@dataclass(frozen=True, slots=True)
class Registered:
    """A model that the framework builds by name."""

    name: str
    layers: int
    # Width of the model.
    hidden: int
    # All parameters, embeddings included.
    parameters: int


@dataclass(frozen=True)
class OptionList:
    """The options that one release of a framework accepts."""

    target: str
    # `0.19.0`
    version: str
    # The commit of the recorded checkout, or `pypi`.
    commit: str
    options: Mapping[str, Option]
    # The models that the framework builds by name, for frameworks that build no others.
    models: tuple[Registered, ...] = ()

    def __str__(self) -> str:
        return f"{self.version} ({self.commit})"

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """Option -> its value where nothing sets it, of those that are recorded with one."""
        return {name: option.default for name, option in self.options.items() if option.default is not None}

    @cached_property
    def blocks(self) -> frozenset[str]:
        """The names of blocks, which hold other options."""
        parts = (name.split(".") for name in self.options)
        return frozenset(".".join(names[:length]) for names in parts for length in range(1, len(names)))

    def near(self, name: str) -> str:
        """`did you mean ...?` for an unknown option. A framework has many options, so only a close one is suggested."""
        return did_you_mean(nearest(name, self.options, cutoff=0.75))


def is_before(options: OptionList | None, target: str, release: str) -> bool:
    """Whether these options belong to a release of `target` older than `release`; False for None."""
    return options is not None and options.target == target and _order(options.version) < _order(release)


@cache
def versions(target: str) -> tuple[str, ...]:
    """Releases with a stored list, oldest first."""
    names = (path.stem.removeprefix(f"{target}-") for path in _FOLDER.glob(f"{target}-[0-9]*.txt"))
    return tuple(sorted(names, key=lambda name: (_order(name), name)))


def option_list(target: str, version: str | None = None) -> tuple[OptionList, str]:
    """The list of `version` (None: the newest release), and a warning where a neighbouring release stands in.

    Raises InputError for an invalid release, RuntimeError for a target without a list."""
    known = versions(target)
    if not known:
        raise RuntimeError(f"planner/targets/upstream/ has no list of {target}: tools/record_upstream.py makes it")
    if version is None:
        return _read(target, [release for release in known if "dev" not in release][-1]), ""
    requested = version.removeprefix("core_").removeprefix("v")
    if not re.fullmatch(r"\d[\w.+-]*", requested):
        raise InputError(f"`{version}` is not a release of {target}", hint=f"option lists: {', '.join(known)}")
    if requested in known:
        return _read(target, requested), ""
    # A list of a branch (0.19.0+dev) stands for that branch alone.
    releases = [release for release in known if "+" not in release]
    older = [release for release in releases if _order(release) <= _order(requested)]
    chosen = older[-1] if older else releases[0]
    return _read(target, chosen), f"no option list of {target} {version}: written and checked as {chosen}"


def _order(version: str) -> tuple[int, ...]:
    """Sort key of a release: 0.20.0.dev comes after 0.19.0; a text without a number comes first."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3]) or (0,)


@cache
def _read(target: str, version: str) -> OptionList:
    lines = (_FOLDER / f"{target}-{version}.txt").read_text(encoding="utf-8").splitlines()
    commit = next(line.split()[2] for line in lines if line.startswith("# commit"))
    options, models = {}, []
    for line in lines:
        if line.startswith("#"):
            continue
        if line.startswith("model ") and not line.startswith("model class "):
            _, name, *sizes = line.split()
            models.append(Registered(name, *map(int, sizes)))
            continue
        entry, _, consumer = line.partition(" # ")
        entry, _, default = entry.partition(" = ")
        name, kind, *values = entry.split(" ", 2)
        known = tuple(values[0].split("|")) if values else ()
        stated = json.loads(default) if default else None
        options[name] = Option(name, kind.rstrip("+"), kind.endswith("+"), known, consumer, stated)
    return OptionList(target, version, commit, options, tuple(models))
