"""Options of Megatron-Core that keep states of the optimizer or saved activations on the host, as configs give them."""

from __future__ import annotations

from ....cost_models.layouts import OFFLOADS
from ....cost_models.offload_modules import mask_of_modules
from ....errors import InputError
from .stated import StepConfig


def on_host(config: StepConfig, optimizer: str, layers: str) -> dict[str, int]:
    """The fields `offload` and `offload_modules` of a layout. optimizer, layers: dots and names before the options of
    OptimizerConfig and of TransformerConfig (core_v0.16.1)."""
    share, modules = f"{optimizer}optimizer_offload_fraction", f"{layers}offload_modules"
    on = config.within(f"{optimizer}optimizer_cpu_offload", "bool", False)
    states: float = config.within(share, "float", 0.0) if on else 0.0
    if 0.0 < states < 1.0:
        config.assumed.append(f"{share} {states}: priced with all states of the optimizer on the host")
    out = {"offload": OFFLOADS.index("opt" if states > 0.0 else "none"), "offload_modules": 0}
    if config.within(f"{layers}fine_grained_activation_offloading", "bool", False):
        try:
            out["offload_modules"] = mask_of_modules(*config.within(modules, "list", []))
        except InputError as error:
            config.fail(modules, error.message, error.hint)
    return out
