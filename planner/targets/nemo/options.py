"""Plan <-> options of a NeMo 2 recipe, both ways: the table of Megatron-Bridge (megatron_bridge/options.py) in NeMo's
names. NeMo trains the same core. fields.py translates names and values.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....cost_models.specs.model import ModelSpec
from ....errors import InputError
from ..megatron_bridge import hybrid, peft
from ..megatron_bridge import options as bridge
from ..options import Entry, Facts, NoCounterpartError, Settings, Table
from ..setup import Setup
from .fields import (
    CALLBACK,
    CLASS,
    GPT,
    LLAMA31,
    LLAMA31_DEFAULTS,
    NO_MIXING,
    PRECISION,
    SHARDED,
    D,
    M,
    S,
    name_of,
    renamed,
    to_fields,
    to_options,
)
from .recipes import MODELS

_SPEC, _GROUPS = f"{M}transformer_layer_spec", f"{M}num_query_groups"
# The layer spec of models whose layers differ, as `partial` in the table of Bridge.
BLOCK_SPEC = "get_gpt_decoder_block_spec(use_transformer_engine=True)"
_OVERLAPS = tuple(f"{CALLBACK}.{name}" for name in ("overlap_grad_reduce", "overlap_param_gather"))
_IN_DDP = f"{S}ddp.overlap_grad_reduce"
_DEVICES, _NODES = "trainer.devices", "trainer.num_nodes"
# Entries of Bridge for classes that are not written here.
_LEFT_OUT = (*hybrid.ENTRIES, peft.ENTRY)


def scaled(model: ModelSpec) -> bool:
    """Whether positions are scaled as in Llama 3.1, which a class of its own does."""
    return model.trained_scaling is not None and model.trained_scaling.kind == "llama3"


def _translated(entry: Entry) -> Entry:
    """An entry of Bridge's table in the names of a recipe."""
    names = tuple(dict.fromkeys(name for field in entry.options if (name := name_of(field))))
    own = (_IN_DDP,) if _OVERLAPS[0] in names else ()

    def write(setup: Setup) -> Settings:
        out = to_options(entry.write(setup))
        if PRECISION in names:
            out.setdefault(PRECISION, NO_MIXING)
        if out.get(_SPEC) == bridge.BLOCK_SPEC:
            out[_SPEC] = BLOCK_SPEC
        return _by_class(_by_sharding(out, names, setup), names, setup)

    def read(settings: Settings, facts: Facts) -> Facts:
        try:
            return entry.read(to_fields(settings), facts)
        except InputError as error:
            kind = NoCounterpartError if isinstance(error, NoCounterpartError) else InputError
            raise kind(renamed(error.message), hint=renamed(error.hint or "")) from None

    companions = frozenset(filter(None, map(name_of, entry.companions)))
    return Entry(entry.fields, (*names, *own), write, read, companions)


def _by_sharding(written: Settings, names: tuple[str, ...], setup: Setup) -> Settings:
    """Overlaps of data parallelism where they are read: in the callback with a distributed optimizer, else in ddp.

    The callback turns each one on that it is not given.
    """
    for name in set(_OVERLAPS) & set(names):
        on = written.pop(name, False)
        if setup.layout.zero:
            written[name] = on
        elif on:
            written[_IN_DDP] = True
    return written


def _by_class(written: Settings, names: tuple[str, ...], setup: Setup) -> Settings:
    """The options that Llama31Config would set otherwise."""
    if not scaled(setup.model):
        return written
    plain = {_GROUPS: setup.model.attentions[0].heads}
    others = {name: plain.get(name, value) for name, (_, value) in LLAMA31_DEFAULTS.items()
              if name in names and name not in written}  # fmt: skip
    return written | {name: value for name, value in others.items() if value is not None}


def _class_read(settings: Settings, facts: Facts) -> Facts:
    if (named := MODELS.get(str(settings.get(CLASS)))) is not None:
        return {"model_name": named}
    if (kind := settings.get(CLASS)) not in (None, GPT, LLAMA31):
        raise NoCounterpartError(f"{CLASS} {kind}: only a run knows its sizes", hint=f"known: {GPT}, {LLAMA31}")
    return {}


def _ranks_read(settings: Settings, facts: Facts) -> Facts:
    known = isinstance(settings.get(_DEVICES), int) and _NODES in settings
    return {"num_gpus": settings[_DEVICES] * settings[_NODES]} if known else {}


TABLE = Table((
    Entry(("model_class",), (CLASS,), lambda setup: {CLASS: LLAMA31 if scaled(setup.model) else GPT}, _class_read),
    Entry(("num_gpus",), (_DEVICES, _NODES),
          lambda setup: {_DEVICES: setup.gpus_per_node, _NODES: setup.num_nodes}, _ranks_read),
    *(_translated(entry) for entry in bridge.TABLE.entries if entry not in _LEFT_OUT),
))  # fmt: skip


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules on combinations of options: those of the core, and those of the strategy."""
    out = [(name_of(field) or field, renamed(text))
           for field, text in bridge.conflicts(to_fields(settings), environment)]  # fmt: skip
    if settings.get(CLASS) == GPT and f"{M}scale_factor" in settings:
        out.append((f"{M}scale_factor", f"is a field of {LLAMA31}"))
    for name in (_DEVICES, _NODES, f"{D}seq_length", f"{D}micro_batch_size", f"{D}global_batch_size"):
        if isinstance(value := settings.get(name, 1), int) and value < 1:
            out.append((name, f"`{value}` is not 1 or more"))
    fsdp, saved = settings.get(f"{S}fsdp"), settings.get(f"{S}save_ckpt_format")
    if fsdp is not None and (fsdp, saved) != ("megatron", "fsdp_dtensor"):
        out.append((f"{S}fsdp", f"`{fsdp}` goes with megatron and {S}save_ckpt_format fsdp_dtensor"))
    if _IN_DDP in settings and settings.get(SHARDED):
        out.append((_IN_DDP, f"is overwritten by {_OVERLAPS[0]}"))
    return out

