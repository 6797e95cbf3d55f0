"""Options of Axolotl: the fields of its config and of the block for FSDP."""

from __future__ import annotations

from pathlib import Path

from .lines import kind_of, with_default

MADE_FROM = "AxolotlInputConfig and FSDPConfig"


def record(source: Path | None) -> list[str]:
    """The lines for the installed package."""
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from axolotl.utils.schemas.fsdp import FSDPConfig

    blocks = (("", AxolotlInputConfig), ("fsdp_config.", FSDPConfig))
    return [with_default(f"{prefix}{name} {kind_of(field.annotation)}", field.default) for prefix, block in blocks
            for name, field in block.model_fields.items()]  # fmt: skip
