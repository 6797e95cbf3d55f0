"""Field types of a request: what users write (`70 GiB`, `4M tokens`, `16:q,v`) to plain values in base units.

Each parser raises InputError; `checked` turns that into an error that pydantic collects with the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from ...cost_models.specs.workload import LoraTarget
from ...cost_models.techniques import registry as techniques
from ...cost_models.techniques.base import Technique
from ...cost_models.units import Dimension, parse
from ...errors import InputError
from ...profiles.cluster.node_lists import parse_nodes
from ..document.base import OWN_STAGES
from ..space.stage_string import GRAMMAR, read_stages
from .fix import FIXABLE, items, parse_fix
from .headroom import parse_headroom
from .lengths import parse_lengths, parse_tokens

STAGES = ("even", OWN_STAGES)  # ways to divide the layers over the chunks of a pipeline, beside given ones
_IMAGES = "4@1024x768"
_ALL = "all"  # projections: `all-linear` of peft
LORA_DEFAULT: tuple[LoraTarget, ...] = ("q", "v")  # Hu et al. 2021, section 4.2


def checked(parser: Callable[[Any], Any]) -> Callable[[Any, ValidationInfo], Any]:
    """A pydantic validator out of `parser`; None stays None."""

    def validate(value: Any, info: ValidationInfo) -> Any:
        if value is None or ((info.context or {}).get("canonical") and isinstance(value, int)):
            return value
        try:
            return parser(value)
        except InputError as error:
            raise PydanticCustomError("input", "{message}", {"message": error.message, "hint": error.hint}) from None

    return validate


def positive(dimension: Dimension) -> Callable[[Any], int]:
    """A parser of positive quantities; whole numbers, since bytes and tokens are, and JSON keeps all their digits."""

    def parse_quantity(value: Any) -> int:
        number = parse(value, dimension)
        if not 0 < number < math.inf:
            raise InputError(f"must be {'finite' if number > 0 else 'more than 0'}, is {value}")
        return round(number)

    return parse_quantity


def parse_factor(value: Any) -> float:
    """A finite number above 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"`{value}` is not a number") from None
    if isinstance(value, bool) or not 0.0 < number < math.inf:
        raise InputError(f"must be more than 0, is {value}")
    return number


def non_negative(value: Any) -> float:
    """A finite number of at least 0."""
    return 0.0 if str(value).strip() in ("0", "0.0") else parse_factor(value)


def nearest_power(number: float) -> int:
    """The power of two that is nearest to `number` by their ratio, at least 1: every common dp divides it."""
    return 1 << max(0, round(math.log2(number)))


def parse_batch(value: Any) -> int | dict[str, int]:
    """`512` (sequences) or `4M tokens` -> {"tokens": 4e6}."""
    if isinstance(value, Mapping):
        if set(value) != {"tokens"}:
            raise InputError("must be a number of sequences, or of tokens", hint="write `512` or `4M tokens`")
        return {"tokens": positive("count")(value["tokens"])}
    match = re.fullmatch(r"\s*(.+?)\s*(tokens?|sequences?)\s*", str(value))
    if match and match[2].startswith("token"):
        return {"tokens": positive("count")(match[1])}
    number = whole(match[1] if match else value, "512` (sequences) or `4M tokens")
    if number < 1:
        raise InputError(f"must be 1 or more, is {number}")
    return number


def whole(value: Any, example: str, *, least: int | None = None) -> int:
    """A whole number, as a number or as text; `least`: the smallest allowed."""
    number = _whole(value, example)
    if least is not None and number < least:
        raise InputError(f"{number} is less than {least}", hint=f"write `{example}`")
    return number


def _whole(value: Any, example: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9][0-9_,]*", value.strip()):
        return int(value.replace(",", "").replace("_", ""))
    raise InputError(f"`{value}` is not a whole number", hint=f"write `{example}`")


def parse_lora(value: Any) -> Any:
    """`16`, `16:q,v`, `16:all`, `16:q,v:nf4` or `16::nf4` -> {"rank": 16, "targets": [...], "base_dtype": ...}; a
    mapping stays one."""
    if isinstance(value, Mapping | BaseModel):
        return value
    rank, *parts = (part.strip() for part in str(value).split(":", 2))
    result: dict[str, Any] = {"rank": whole(rank, "16:q,v")}
    if parts and not parts[-1]:
        raise InputError(f"`{value}` ends in a colon", hint="write `16`, `16:q,v`, `16:all` or `16:q,v:nf4`")
    if parts and parts[0]:
        names = [target.strip() for target in parts[0].split(",")]
        if not all(names):
            raise InputError(f"`{parts[0]}` has a comma without a name", hint="write `16:q,v`")
        result["targets"] = list(get_args(LoraTarget)) if names == [_ALL] else names
    return result | ({"base_dtype": parts[1]} if parts[1:] else {})


def parse_images(value: Any) -> Any:
    """`4`, `4@1024x768` (height x width) or `1@480x832x81` (x frames) -> {"per_sequence": 4, "height": ...}; a mapping
    stays one."""
    if isinstance(value, Mapping | BaseModel):
        return value
    number, at, size = str(value).partition("@")
    result = {"per_sequence": whole(number, _IMAGES)}
    if at:
        sides = size.lower().split("x")
        if len(sides) not in (2, 3):
            raise InputError(f"`{size}` is no height x width", hint=f"write `{_IMAGES}`")
        sizes = zip(("height", "width", "num_frames"), sides, strict=False)
        result |= {name: whole(side, _IMAGES) for name, side in sizes}
    return result


def parse_stages(value: Any) -> str | tuple[int, ...]:
    """`even`, `own`, the parts of each chunk (`Et*4|t*5L`), or its number of layers (`4,5` or a list)."""
    if isinstance(value, str) and value in STAGES:
        return value
    if isinstance(value, str) and not re.fullmatch(r"[\d\s,]+", value):
        read_stages(value)
        return value
    numbers = value.split(",") if isinstance(value, str) else value
    if not isinstance(numbers, list | tuple):
        raise InputError(f"`{value}` is no stages", hint=f"{' or '.join(STAGES)}, `4,5`, or `Et*4|t*5L`: {GRAMMAR}")
    sizes = tuple(whole(number, "4,5", least=0) for number in numbers)
    if not sizes:
        raise InputError("stages: an empty list", hint="the layers of each chunk: `4,5`")
    return sizes


def quantity_text(dimension: Dimension, unit: str, factor: float) -> Callable[[Any], str]:
    """A parser of positive quantities into one spelling: the number of `unit`, which is `factor` in base units."""

    def parse_quantity(value: Any) -> str:
        number = parse(value, dimension)
        if not 0 < number < math.inf:
            raise InputError(f"must be {'finite' if number > 0 else 'more than 0'}, is {value}")
        return f"{number / factor:.12g} {unit}"

    return parse_quantity


def parse_spot(value: Any) -> Any:
    """`50h` or `50h:15USD/h` -> {"interrupted_every": "50h", "price": "15USD/h"}; a mapping stays one."""
    if isinstance(value, Mapping | BaseModel):
        return value
    every, _, price = str(value).partition(":")
    return {"interrupted_every": every, **({"price": price} if price else {})}


ALL_TECHNIQUES = "all"  # that may be used, as a user writes it


def parse_techniques(value: Any, known: Mapping[str, Technique] = techniques.TECHNIQUES) -> dict[str, dict[str, float]]:
    """`diloco`, `diloco:period=50,bits=4`, a list of such, or a mapping -> {technique: {knob: value}}, all knobs.
    known: techniques of the workload."""
    chosen: dict[str, dict[str, float]] = {}
    for item in items(value, "diloco:period=50"):
        named = item if isinstance(item, Mapping) else dict([_named_knobs(str(item))])
        for name, knobs in named.items():
            if name in chosen:
                raise InputError(f"technique {name} is given twice", hint="keep one of them")
            if not isinstance(knobs, Mapping | None):
                raise InputError(f"technique {name}: `{knobs}` is no mapping of its knobs",
                                 hint=f"its knobs: `meshwright show techniques {name}`")  # fmt: skip
            chosen[str(name)] = {knob: _number(knob, number) for knob, number in (knobs or {}).items()}
    if ALL_TECHNIQUES in chosen:
        raise InputError(f"`{ALL_TECHNIQUES}` names no technique",
                         hint="`--allow-technique all` leaves the choice to the search")  # fmt: skip
    return {name: dict(knobs) for name, knobs in techniques.applied(chosen, known)}


def _named_knobs(text: str) -> tuple[str, dict[str, str]]:
    """`name:knob=value,knob=value`."""
    name, _, rest = text.partition(":")
    if "," in name:
        raise InputError(f"`{name}` names several techniques",
                         hint="give each a flag, or an item of the list, of its own")  # fmt: skip
    pairs = [part.partition("=") for part in rest.split(",") if part.strip()]
    if bad := [knob for knob, equals, given in pairs if not equals or not given.strip()]:
        hint = f"its knobs: `meshwright show techniques {name}`"
        raise InputError(f"technique {name}: `{bad[0]}` is not `knob=value`", hint=hint)
    return name.strip(), {knob.strip(): given for knob, _, given in pairs}


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name}: `{value}` is not a number") from None


Positive = Annotated[int, Field(strict=True, gt=0)]
Number = Annotated[int, Field(strict=True, ge=0)]
Factor = Annotated[
    float, BeforeValidator(checked(parse_factor)), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Coefficient = Annotated[float, BeforeValidator(checked(non_negative)), WithJsonSchema({"type": "number", "minimum": 0})]
Bytes = Annotated[
    int, BeforeValidator(checked(positive("B"))), WithJsonSchema({"type": "string", "examples": ["70 GiB"]})
]
Time = Annotated[
    str, BeforeValidator(checked(quantity_text("s", "h", 3600.0))),
    WithJsonSchema({"type": "string", "examples": ["50 h"]}),
]  # fmt: skip
Price = Annotated[
    str, BeforeValidator(checked(quantity_text("USD/h", "USD/h", 1.0))),
    WithJsonSchema({"type": "string", "examples": ["15 USD/h"]}),
]  # fmt: skip
Nodes = Annotated[
    tuple[str, ...],
    BeforeValidator(checked(parse_nodes)),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer"]}}],
         "examples": ["gpu-[03-05],gpu-12", "sinfo.txt", [0, 7]]}
    ),
]  # fmt: skip
Headroom = Annotated[
    str,
    BeforeValidator(checked(parse_headroom)),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"const": 0}], "examples": ["5%", "4 GiB", 0]}),
]
Tokens = Annotated[
    int,
    BeforeValidator(checked(positive("count"))),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}], "examples": ["15T"]}),
]
Batch = Annotated[
    int | dict[str, int],
    BeforeValidator(checked(parse_batch)),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}], "examples": [512, "4M tokens"]}),
]
Length = Annotated[
    int,
    BeforeValidator(checked(parse_tokens)),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}], "examples": ["192K"]}),
]
Lengths = Annotated[
    dict[int, float],
    BeforeValidator(checked(parse_lengths)),
    WithJsonSchema(
        {"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "string"}],
         "examples": [{"2048": 0.7, "8192": 0.3}, "lengths.csv", "wikipedia"]}
    ),
]  # fmt: skip
Fix = Annotated[
    dict[str, Any],
    BeforeValidator(checked(parse_fix)),
    WithJsonSchema({"type": "object", "propertyNames": {"enum": ["recompute", *FIXABLE]}}),
]
Stages = Annotated[
    str | tuple[int, ...],
    BeforeValidator(checked(parse_stages)),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}],
         "examples": [OWN_STAGES, "Et*4|(t*4|)*14tmL", [3, 4, 4, 3]]}
    ),
]  # fmt: skip
Techniques = Annotated[
    dict[str, dict[str, float]],
    BeforeValidator(checked(parse_techniques)),
    WithJsonSchema({"type": "object", "propertyNames": {"enum": list(techniques.TECHNIQUES)}}),
]
