"""Multi-token prediction <-> arguments of pretrain_gpt.py and pretrain_hybrid.py."""

from __future__ import annotations

from ....cost_models.specs.model import ModelSpec
from ..option_lists import OptionList
from ..options import Entry, Facts, Settings
from ..setup import Setup

MODULES, _SHARED = "--mtp-num-layers", "--mtp-use-repeated-layer"


def cannot_predict(model: ModelSpec, options: OptionList | None, *, hybrid: bool) -> dict[str, bool]:
    """Sentence -> whether it applies to the prediction modules."""
    has_flag = options is None or options.target != "megatron" or _SHARED in options.options
    return {
        "model.mtp_pattern: a module of pretrain_gpt.py is a layer as the last of the model":
            len(model.mtp_pattern) > 0 and not hybrid,
        f"model.mtp_shared: {_SHARED}, for modules with the weights of one, is there from Megatron-LM 0.17 on":
            model.mtp_layers > 1 and model.mtp_shared and not has_flag,
    }  # fmt: skip


def _write(setup: Setup) -> Settings:
    modules = setup.model.mtp_layers
    if not modules:
        return {}
    return {MODULES: modules} | ({_SHARED: True} if setup.model.mtp_shared and modules > 1 else {})


def _read(settings: Settings, facts: Facts) -> Facts:
    """Reads the number of modules. A hybrid's pattern also holds them."""
    modules = int(settings.get(MODULES) or facts.get("model.mtp_layers") or 0)
    shared: Facts = {"model.mtp_shared": True} if settings.get(_SHARED) and modules > 1 else {}
    return {"model.mtp_layers": modules} | shared


ENTRY = Entry(("model.mtp_layers",), (MODULES, _SHARED), _write, _read)
