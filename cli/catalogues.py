"""The catalogues as plain rows in base units, for `show`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from ..cost_models.techniques.base import Technique

Kind = Literal["gpus", "models", "families", "clusters", "targets", "stacks", "techniques", "formats"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Row = dict[str, Any]
Fact = Mapping[str, Any]  # value, source and perhaps `confirmed` and `note`, as a catalogue file states them

# (header, key, scale); scale 0 means text. Techniques have a screen of their own.
COLUMNS: dict[Kind, tuple[tuple[str, str, float], ...]] = {
    "gpus": (
        ("gpu", "name", 0),
        ("GiB", "memory_bytes", 2**30),
        ("TB/s", "memory_bw_bytes_per_s", 1e12),
        ("TFLOP/s", "bf16_flops_per_s", 1e12),
        ("link GB/s", "link_bw_bytes_per_s", 1e9),
        ("efficiency", "efficiency", 0),
    ),
    "models": (
        ("model", "name", 0),
        ("params B", "parameters", 1e9),
        ("active B", "active_parameters", 1e9),
        ("layers", "layers", 1),
        ("positions", "max_positions", 1),
    ),
    "families": (("model_type of config.json", "name", 0),),
    "clusters": (
        ("node", "name", 0),
        ("gpu", "gpu", 0),
        ("GPUs", "gpus_per_node", 1),
        ("NIC GB/s", "nic_bw_bytes_per_s", 1e9),
        ("fabric", "fabric_kind", 0),
        ("USD/h", "price_usd_per_node_hour", 1),
    ),
    "targets": (("target", "name", 0), ("stack", "stack", 0), ("runs it", "runs", 0)),
    "stacks": (
        ("stack", "name", 0),
        ("attention", "attention", 0),
        ("dp overlap", "dp_overlap", 1),
        ("gradient B", "gradient_bytes", 1),
        ("logit B", "logit_bytes", 1),
        ("states", "sharded_states", 0),
    ),
    "formats": (
        ("of", "tensors", 0),
        ("name", "name", 0),
        ("held as", "held", 0),
        ("asked for by", "option", 0),
        ("bytes", "bytes_per_element", 1),
        ("saves %", "saved", 0.01),
    ),
}


def known(kind: str) -> list[str]:
    """The names of a catalogue."""
    from ..profiles.io import registry

    if kind == "models":
        from ..profiles.model import load as models  # reads the shapes of layers: seven times the rest

        return models.model_names()
    if kind in _LISTS:
        return [str(row["name"]) for row in _LISTS[kind]()]
    return list(registry.gpu_names() if kind == "gpus" else registry.node_names())


def rows(kind: Kind) -> list[Row]:
    """All entries of a catalogue."""
    if kind in _LISTS:
        return _LISTS[kind]()
    make = {"gpus": _gpu, "models": _model, "clusters": _node}[kind]
    return [make(name) for name in known(kind)]


def details(kind: Kind, name: str) -> Row:
    """One entry in full, with the source of each value where the catalogue holds one. Raises UnknownNameError."""
    from ..errors import UnknownNameError
    from ..profiles.io import registry

    if kind == "gpus":
        return {"name": registry.gpu_name(name), "facts": {**registry.gpu_facts(name), "efficiency": _efficiency(name)}}
    if kind == "clusters":
        return {"name": registry.node_name(name), "facts": registry.node_facts(name)}
    if kind == "models":
        return _model_in_full(name)
    if kind == "stacks":
        return {"name": name, "facts": _stack_facts(name)}
    if kind == "techniques":
        return _technique_in_full(name)
    if kind == "families":
        return _family(name)
    for row in _LISTS[kind]():
        if row["name"] == name:
            return row
    raise UnknownNameError(kind.removesuffix("s"), name, known(kind), see=f"meshwright show {kind}")


def _efficiency(name: str) -> Row:
    """The origin of the efficiencies of a GPU, measured on it or on a reference device, as a fact of its page."""
    from ..profiles.io import registry
    from ..profiles.rates.calibration import fitted_formats
    from ..profiles.rates.device_rates import surfaces_for

    gpu = registry.load_gpu(name)
    device, fitted = surfaces_for(gpu), fitted_formats(gpu)
    of, attention = device.provenance, device.attention_provenance
    text = of if of == attention else f"{of}, attention {attention}"
    if fitted:
        text = f"products in {', '.join(fitted)} fitted to runs; the rest {text}"
    return {"value": text, "source": None}


def _short_efficiency(fitted: tuple[str, ...], provenance: str) -> str:
    """`measured`, `fitted` (to runs), `fitted fp8` (of these products alone) or `assumed`."""
    return "fitted" if "bf16" in fitted else f"fitted {fitted[0]}" if fitted else provenance.partition(" ")[0]


def _gpu(name: str) -> Row:
    from ..profiles.io import registry
    from ..profiles.rates.calibration import fitted_formats
    from ..profiles.rates.reference_devices import reference_device

    gpu = registry.load_gpu(name)
    peaks = gpu.peak_flops_per_s
    return {
        "name": gpu.name,
        "vendor": gpu.vendor,
        "memory_bytes": gpu.memory_bytes,
        "memory_bw_bytes_per_s": gpu.memory_bw_bytes_per_s,
        "bf16_flops_per_s": peaks.get("bf16", peaks.get("fp16")),
        "link_bw_bytes_per_s": gpu.link_bw_bytes_per_s,
        "efficiency": _short_efficiency(fitted_formats(gpu), reference_device(gpu)[1]),
        "efficiency_from": reference_device(gpu)[0],
        "plan_only": gpu.plan_only,
        "unconfirmed": list(gpu.unconfirmed),
    }


def _node(name: str) -> Row:
    from ..profiles.io import registry

    node = registry.load_node(name)
    return {
        "name": node.name,
        "gpu": node.gpu,
        "gpus_per_node": node.gpus_per_node,
        "nics": node.nics,
        "nic_bw_bytes_per_s": node.nic_bw_bytes_per_s,
        "fabric_kind": node.fabric_kind or None,
        "price_usd_per_node_hour": node.price_usd_per_node_hour,
        "unconfirmed": list(node.unconfirmed),
    }


def _model(name: str) -> Row:
    from ..cost_models.quantities import params
    from ..profiles.model import load as models

    model, _ = models.load_model(name)
    return {
        "name": model.name,
        "family": model.family,
        "parameters": params.total_parameters(model),
        "active_parameters": params.active_parameters(model),
        "layers": model.num_layers,
        "hidden": model.hidden,
        "max_positions": model.max_positions,
    }


def _model_in_full(name: str) -> Row:
    from dataclasses import asdict

    from ..profiles.model import load as models

    model, warnings = models.load_model(name)
    data = asdict(model)
    kinds = data.pop("kinds")
    pattern = data.pop("pattern")
    if model.tower is None:
        del data["tower"]
    data["layer kinds"] = [{"layers": pattern.count(index), **kind} for index, kind in enumerate(kinds)]
    return {**_model(name), **data, "warnings": warnings}


def _targets() -> list[Row]:
    from ..planner.targets.registry import TARGETS

    return [
        {"name": target.name, "runs": target.summary, "stack": target.stack, "source": target.source}
        for target in TARGETS.values()
    ]


def _stacks() -> list[Row]:
    from dataclasses import asdict

    from ..profiles.stack import load as stacks

    rows = [asdict(stacks.load_stack(name)) for name in stacks.stack_names()]
    return [{field: value for field, value in row.items() if field != "sources"} for row in rows]


def _stack_facts(name: str) -> Row:
    """The assumptions about a stack, each with its source."""
    from dataclasses import asdict

    from ..profiles.stack import load as stacks

    stack = stacks.load_stack(name)
    values = asdict(stack)
    return {field: {"value": values[field], "source": source} for field, source in stack.sources.items()}


def _families() -> list[Row]:
    from ..profiles.model.families import FAMILIES

    return [{"name": name} for name in sorted(FAMILIES)]


def _family(name: str) -> Row:
    from ..errors import UnknownNameError
    from ..profiles.model.families import FAMILIES
    from ..profiles.model.huggingface import families_spelt_as

    if name in FAMILIES:
        return {"name": name}
    raise UnknownNameError("model_type", name, families_spelt_as(name))


def _techniques() -> list[Row]:
    from ..cost_models.techniques.registry import EVERY

    return [
        {"group": _group(entry), "name": entry.name, "title": entry.title, "paper": entry.paper,
         "knobs": ", ".join(f"{knob.name} {knob.default:g}" for knob in entry.knobs),
         "checks": _checks(entry.name), "run_by": _run_by(entry.name)}
        for entry in EVERY.values()
    ]  # fmt: skip


def _group(entry: Technique) -> str:
    """The group of a technique; of one for training and serving with its other use."""
    return f"{entry.group}, serving" if entry.trains and entry.serves else entry.group


def _checks(name: str) -> list[str]:
    """The published figures of a technique, marked where our prices give something else."""
    from ..planner.studies.systems.registry import CHECKS

    return [f"{check.of}: {check.published}{' (missed)' if check.missed else ''}"
            for check in CHECKS if check.technique == name]  # fmt: skip


def _run_by(name: str) -> list[str]:
    """The targets and engines that run a technique."""
    from ..planner.targets.engines.registry import with_technique
    from ..planner.targets.registry import with_techniques

    return [*with_techniques([name]), *with_technique(name)]


def _technique_in_full(name: str) -> Row:
    """A technique: its effect, its needs, and every knob with its range."""
    from ..cost_models.techniques.registry import EVERY, technique

    entry = technique(name)
    knobs = {f"knob {k.name}": f"{k.default:g}, of {k.bounds}: {k.text}" for k in entry.knobs}
    about = {"name": entry.name, "group": _group(entry), "what it does": entry.title, "paper": entry.paper}
    about["check"] = "; ".join(_checks(name)) or "-"
    of_serving = entry.serves.needs if entry.serves else ()
    needs = [*(need.text for need in entry.needs), *(need.text for need in of_serving)]
    about["needs"] = "; ".join(dict.fromkeys(needs))
    about["run by"] = ", ".join(_run_by(name)) or "no runtime"
    excluded = [other.name for other in EVERY.values() if other is not entry and entry.exclusion(other)]
    return {**about, **knobs, "excludes": excluded, "not priced": entry.caveat}


def _formats() -> list[Row]:
    from dataclasses import asdict

    from ..cost_models.quantities.formats import FORMATS

    return [{**asdict(entry), "saved": entry.saved} for entry in FORMATS]


# Catalogues whose entries are listed as they are.
_LISTS: Mapping[str, Callable[[], list[Row]]] = {
    "families": _families, "targets": _targets, "stacks": _stacks, "techniques": _techniques,
    "formats": _formats,
}  # fmt: skip
