"""The layout: one field table, from which the columns, the id, `--fix` and the JSON schema are made.

A batch of layouts is a `Layouts`: one NumPy array per field, so that a million of them are priced without a Python
loop. A single one is a `Layout`; `str(layout)` is its id (`tp8-pp4-vpp5-dp8-mbs1-z1-rsel`), `parse` reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .cuda_graphs import CUDA_GRAPHS, GRAPH_TOKENS, code_of_token
from .masks import mask_of, names_of
from .offload_modules import OFFLOAD_MODULES, SENDERS
from .schedule_kinds import KINDS
from .units import whole_number

CP_ALGORITHMS = ("ring", "allgather", "ulysses", "ring+ulysses")
SCHEDULES = tuple(kind.name for kind in KINDS)
RECOMPUTE_MODES = ("none", "selective", "full")
OFFLOADS = ("none", "opt", "act", "opt+act")
OPTIMIZER_ON_HOST = tuple(code for code, name in enumerate(OFFLOADS) if "opt" in name)
PRECISIONS = ("bf16", "fp16", "fp8", "fp32", "fp4")
# What selective recompute drops: core attention, norm outputs, outputs of activation functions, routed experts, the
# up-projections of latent attention, dense feed-forward blocks, and shared experts.
MODULES = ("attn", "norm", "act", "moe", "mla", "mlp", "shared")
SELECTIVE_DEFAULT = ("attn",)


@dataclass(frozen=True, slots=True)
class Field:
    """One decision of a layout."""

    name: str
    default: int
    choices: tuple[str, ...] = ()  # of a categorical column: the names behind its integer codes


FIELDS = (
    Field("tp", 1),  # tensor-parallel ranks
    Field("sequence_parallel", 1),  # shard activations between tensor-parallel regions (default: tp > 1)
    Field("cp", 1),  # context-parallel ranks
    Field("cp_algorithm", 0, CP_ALGORITHMS),  # how context-parallel ranks exchange keys and values
    Field("pp", 1),  # pipeline stages
    Field("schedule", 0, SCHEDULES),  # order of the passes of a pipeline
    Field("vpp", 1),  # chunks of layers per pipeline stage
    Field("dp", 1),  # data-parallel ranks, sharded ones included
    Field("shard", 1),  # data-parallel ranks that share one copy of the sharded states (default: dp)
    Field("ep", 1),  # expert-parallel ranks
    Field("etp", 1),  # tensor-parallel ranks inside an expert
    Field("ep_overlap", 0),  # tokens of one micro-batch travel to experts while another one computes
    Field("cuda_graphs", 0, CUDA_GRAPHS),  # kernels that are replayed instead of launched
    Field("micro_batch", 1),  # sequences per micro-batch
    Field("zero", 0),  # ZeRO stage: shard optimizer (1), gradients (2), weights (3)
    Field("recompute", 0, RECOMPUTE_MODES),  # which layers are recomputed in the backward pass
    Field("recompute_modules", 0),  # modules of selective recompute, a bit mask over MODULES
    Field("recompute_layers", 0),  # layers per stage under full recompute (0: all of them)
    Field("offload", 0, OFFLOADS),  # states and activations that live in host memory
    Field("offload_layers", 0),  # layers whose saved activations live in host memory
    Field("offload_modules", 0, OFFLOAD_MODULES),  # modules whose saved tensors live there, a bit mask
    Field("precision", 0, PRECISIONS),  # compute dtype
)
FIELD_NAMES = tuple(field.name for field in FIELDS)
_FIELD = {field.name: field for field in FIELDS}
# Fields that are true or false.
FLAGS = ("sequence_parallel", "ep_overlap")
_TRUTHS = {"true": 1, "yes": 1, "on": 1, "false": 0, "no": 0, "off": 0}
# Fields that are sets of modules.
_MASKS = {"recompute_modules": MODULES, "offload_modules": SENDERS}

Column = NDArray[Any]


OPEN_STATES = "_open_states"  # a column beside those of FIELDS: see `Layouts`


class Layouts(Mapping[str, Column]):
    """A batch of layouts: field name -> int64 column, all of one length. With OPEN_STATES, `zero` and `offload` stand
    for every choice that shards and moves no more: bounds of bytes count a state only where all of these hold it."""

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, Column]) -> None:
        names = (*FIELD_NAMES, OPEN_STATES) if OPEN_STATES in columns else FIELD_NAMES
        self.columns = {name: np.asarray(columns[name], dtype=np.int64) for name in names}

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(FIELD_NAMES)

    def __len__(self) -> int:
        """Number of layouts (not of fields)."""
        return len(self.columns["tp"])

    def take(self, rows: Column) -> Layouts:
        """The layouts at `rows` (indices or mask)."""
        return Layouts({name: column[rows] for name, column in self.columns.items()})

    def layout(self, row: int) -> Layout:
        """The layout at `row`, as one object."""
        return Layout(**{name: int(column[row]) for name, column in self.items()})

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> Layouts:
        """Columns out of single layouts."""
        rows = list(layouts)
        return cls({name: np.array([getattr(row, name) for row in rows], dtype=np.int64) for name in FIELD_NAMES})

    @classmethod
    def concatenate(cls, batches: Iterable[Layouts]) -> Layouts:
        batches = list(batches)
        return cls({name: np.concatenate([batch[name] for batch in batches]) for name in FIELD_NAMES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout, fields as the integer codes of FIELDS, where each is explained. `str()` gives the id, `as_dict()` the
    JSON form."""

    tp: int = 1
    sequence_parallel: int = 0
    cp: int = 1
    cp_algorithm: int = 0
    pp: int = 1
    schedule: int = 0
    vpp: int = 1
    dp: int = 1
    shard: int = 1
    ep: int = 1
    etp: int = 1
    ep_overlap: int = 0
    cuda_graphs: int = 0
    micro_batch: int = 1
    zero: int = 0
    recompute: int = 0
    recompute_modules: int = 0
    recompute_layers: int = 0
    offload: int = 0
    offload_layers: int = 0
    offload_modules: int = 0
    precision: int = 0

    def __str__(self) -> str:
        return "-".join(token for token in self._tokens() if token)

    def _tokens(self) -> Iterator[str]:
        yield f"tp{self.tp}" if self.tp > 1 else ""
        yield "nosp" if self.tp > 1 and not self.sequence_parallel else ""
        yield f"cp{self.cp}{_CP_TOKENS[self.cp_algorithm]}" if self.cp > 1 else ""
        yield f"pp{self.pp}" if self.pp > 1 else ""
        yield "" if self.schedule == default_schedule(self.pp, self.vpp) else _SCHEDULE_TOKENS[self.schedule]
        yield f"vpp{self.vpp}" if self.vpp > 1 else ""
        yield f"dp{self.dp}"
        yield f"sh{self.shard}" if self.shard != self.dp else ""
        yield f"ep{self.ep}" if self.ep > 1 else ""
        yield f"etp{self.etp}" if self.etp > 1 else ""
        yield "epo" if self.ep_overlap else ""
        yield f"g{GRAPH_TOKENS[self.cuda_graphs]}" if self.cuda_graphs else ""
        yield f"mbs{self.micro_batch}"
        yield f"z{self.zero}"
        yield self._recompute_token()
        yield f"o{OFFLOADS[self.offload]}" if self.offload else ""
        yield f"off{self.offload_layers}" if self.offload_layers else ""
        yield f"off({OFFLOAD_MODULES[self.offload_modules]})" if self.offload_modules else ""
        yield PRECISIONS[self.precision] if self.precision else ""

    def _recompute_token(self) -> str:
        names = modules_of(self.recompute_modules)
        selective = "rsel" if names == SELECTIVE_DEFAULT else f"rsel({'+'.join(names)})"
        return ("rnone", selective, f"rfull{self.recompute_layers or ''}")[self.recompute]

    @property
    def num_gpus(self) -> int:
        return self.tp * self.cp * self.pp * self.dp

    def as_dict(self) -> dict[str, Any]:
        """The layout in the words of the JSON schema: names instead of codes."""
        return {
            "tp": self.tp, "sequence_parallel": bool(self.sequence_parallel), "cp": self.cp,
            "cp_algorithm": CP_ALGORITHMS[self.cp_algorithm], "pp": self.pp, "schedule": SCHEDULES[self.schedule],
            "vpp": self.vpp, "dp": self.dp, "shard": self.shard, "ep": self.ep, "etp": self.etp,
            "ep_overlap": bool(self.ep_overlap), "cuda_graphs": CUDA_GRAPHS[self.cuda_graphs],
            "micro_batch": self.micro_batch, "zero": self.zero,
            "recompute": {"mode": RECOMPUTE_MODES[self.recompute], "modules": list(modules_of(self.recompute_modules)),
                          "layers": self.recompute_layers or None},
            "offload": OFFLOADS[self.offload], "offload_layers": self.offload_layers,
            "offload_modules": OFFLOAD_MODULES[self.offload_modules], "precision": PRECISIONS[self.precision],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Layout:
        """The inverse of `as_dict`; absent fields take their defaults."""
        known: dict[str, Any] = {"dp": 1, **data}
        recompute = known.pop("recompute", None) or {}
        values = {name: encode(name, value) for name, value in known.items()}
        values["recompute"] = encode("recompute", recompute.get("mode", "none"))
        values["recompute_modules"] = module_mask(recompute.get("modules", ()))
        values["recompute_layers"] = int(recompute.get("layers") or 0)
        values.setdefault("sequence_parallel", int(values.get("tp", 1) > 1))
        values.setdefault("shard", values["dp"])
        values.setdefault("schedule", default_schedule(values.get("pp", 1), values.get("vpp", 1)))
        return cls(**values)


_CP_TOKENS = ("r", "g", "u", "ru")
_SCHEDULE_TOKENS = tuple(kind.token for kind in KINDS)
_ID = re.compile(  # of an id with a hyphen before its first token too
    r"(?:-tp(?P<tp>\d+)(?P<nosp>-nosp)?)?(?:-cp(?P<cp>\d+)(?P<cpa>ru|r|g|u))?(?:-pp(?P<pp>\d+))?"
    rf"(?:-(?P<schedule>{'|'.join(_SCHEDULE_TOKENS)}))?(?:-vpp(?P<vpp>\d+))?-dp(?P<dp>\d+)(?:-sh(?P<shard>\d+))?"
    r"(?:-ep(?P<ep>\d+))?(?:-etp(?P<etp>\d+))?(?P<epo>-epo)?(?:-g(?P<graphs>full|layer|\([a-z+]+\)))?-mbs(?P<micro_batch>\d+)-z(?P<zero>[0-3])"
    r"-r(?P<recompute>none|full(?P<layers>\d+)?|sel(?:\((?P<modules>[a-z+]+)\))?)"
    r"(?:-o(?P<offload>opt\+act|opt|act))?(?:-off(?P<offload_layers>\d+))?(?:-off\((?P<offload_modules>[a-z_+\d]+)\))?"
    r"(?:-(?P<precision>fp4|fp8|fp16|fp32|bf16))?"
)


def default_schedule(pp: int, vpp: int) -> int:
    """Code of the schedule that an id leaves out: interleaved when vpp > 1, else 1f1b."""
    return SCHEDULES.index("interleaved" if vpp > 1 and pp > 1 else "1f1b")


def field_codes(name: str) -> tuple[int, ...]:
    """All codes of a field that has a list of values, none of a number."""
    return (0, 1) if name in FLAGS else tuple(range(len(_FIELD[name].choices)))


def modules_of(mask: int) -> tuple[str, ...]:
    """Names of the modules in a bit mask, in the order of MODULES."""
    return names_of(mask, MODULES)


def module_mask(names: Iterable[str]) -> int:
    """Bit mask of module names. Raises InputError for an unknown one."""
    return mask_of(names, MODULES, "recompute")


def encode(name: str, value: Any) -> int:
    """The integer code of a field's value as users write it (`schedule=zb-v`, `sequence_parallel=true`, `tp=8`)."""
    if name not in _FIELD:
        raise InputError(f"unknown layout field `{name}`", hint=f"fields: {', '.join(FIELD_NAMES)}")
    if name in _MASKS and isinstance(value, str | list | tuple):
        return mask_of(value.split("+") if isinstance(value, str) else value, _MASKS[name], name.split("_")[0])
    if choices := _FIELD[name].choices:
        if str(value) in choices:
            return choices.index(str(value))
        meant = next((choice for choice in choices if str(value).startswith(choice)), choices[0])
        raise InputError(f"{name}: `{value}` is none of {', '.join(choices)}", hint=f"write `{name}={meant}`")
    if name in FLAGS and str(value).lower() in _TRUTHS:
        return _TRUTHS[str(value).lower()]
    if (number := whole_number(value)) is None:
        raise InputError(f"{name}: `{value}` is not a whole number", hint=f"write `{name}=1`")
    lowest = 0 if name in (*FLAGS, "zero", "recompute_modules", "recompute_layers", "offload_layers") else 1
    if number < lowest or number > {"zero": 3, **dict.fromkeys(FLAGS, 1)}.get(name, number):
        raise InputError(f"{name}: {number} is out of range", hint="degrees are 1 or more, zero is 0 to 3")
    return number


def parse(text: str) -> Layout:
    """The layout that an id names. Raises InputError for anything that is not an id of the grammar."""
    text = text.strip()
    if re.search(r"-x[0-9a-f]{6}$", text):
        raise InputError(
            f"`{text}` names a layout with uneven stages, per-layer strategies or a rank map",
            hint="such an id resolves only inside its plan: give the plan file and its number",
        )
    match = _ID.fullmatch(f"-{text}")
    if match is None:
        raise InputError(f"`{text}` is not a layout id", hint="an id looks like `tp8-pp4-vpp5-dp8-mbs1-z1-rsel`")
    part = match.groupdict()
    number = {name: int(part[name] or 1) for name in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "micro_batch")}
    mode = "full" if part["recompute"].startswith("full") else ("selective" if part["recompute"] != "none" else "none")
    modules = (part["modules"] or "+".join(SELECTIVE_DEFAULT)).split("+") if mode == "selective" else []
    schedule = part["schedule"]
    layout = Layout(
        **number, sequence_parallel=int(number["tp"] > 1 and not part["nosp"]),
        cp_algorithm=_CP_TOKENS.index(part["cpa"]) if part["cpa"] else 0,
        schedule=_SCHEDULE_TOKENS.index(schedule) if schedule else default_schedule(number["pp"], number["vpp"]),
        shard=int(part["shard"] or part["dp"]),
        ep_overlap=int(bool(part["epo"])), cuda_graphs=code_of_token(part["graphs"] or "none"), zero=int(part["zero"]),
        recompute=RECOMPUTE_MODES.index(mode), recompute_modules=module_mask(modules),
        recompute_layers=int(part["layers"] or 0), offload=OFFLOADS.index(part["offload"] or "none"),
        offload_layers=int(part["offload_layers"] or 0),
        offload_modules=encode("offload_modules", part["offload_modules"] or "none"),
        precision=PRECISIONS.index(part["precision"] or "bf16"),
    )  # fmt: skip
    if min(layout.shard, *number.values()) < 1:
        raise InputError(f"`{text}`: a degree of 0", hint="degrees are 1 or more")
    return layout


if tuple(field.name for field in fields(Layout)) != FIELD_NAMES:  # the table above is the one definition
    raise RuntimeError("Layout and FIELDS disagree")
