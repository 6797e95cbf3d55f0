"""Options of verl: the YAML tree that Hydra composes, with the types of the dataclasses that it is made into."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MADE_FROM = "verl/trainer/config (composed for FSDP and Megatron-Core), types of the dataclasses in verl/"
_ENGINES = ("dp", "megatron")
_KINDS = {"int": "int", "float": "float", "str": "str", "bool": "bool"}


def record(source: Path | None) -> list[str]:
    """The lines for a folder that holds `verl/`: a checkout, or an unpacked wheel. Needs hydra-core."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    if source is None:
        raise SystemExit("verl: give the folder that holds verl/ by --source")
    classes = _classes(source / "verl")
    kinds: dict[str, str] = {}
    for engine in _ENGINES:
        with initialize_config_dir(str((source / "verl" / "trainer" / "config").resolve()), version_base=None):
            composed = compose("ppo_trainer", overrides=[f"model_engine={engine}"])
        for name, kind in _leaves(OmegaConf.to_container(composed, resolve=False), "", classes):
            kinds[name] = kind if kinds.get(name, kind) == kind else "any"
    return [f"{name} {kind}" for name, kind in kinds.items()]


def _leaves(block: Any, prefix: str, classes: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """(option, kind) of every value of a block; a block without values takes any keys."""
    known = classes.get(str(block.get("_target_", "")).rpartition(".")[2], {})
    for name, value in block.items():
        if isinstance(value, dict) and not known.get(name, "").startswith("dict"):
            yield from _leaves(value, f"{prefix}{name}.", classes)
        elif isinstance(value, dict):
            yield f"{prefix}{name}", "object"
            yield from _leaves(value, f"{prefix}{name}.", classes)
        elif name != "_target_":
            yield f"{prefix}{name}", _kind(known.get(name, ""), value)


def _kind(annotation: str, value: Any) -> str:
    """By the annotation, else by the value of the YAML; `any` where neither names a plain type."""
    plain = annotation.removeprefix("Optional[").removesuffix("]")
    if plain in _KINDS:
        return _KINDS[plain]
    if plain.lower().startswith("dict"):
        return "object"
    if annotation or (isinstance(value, str) and value.startswith("${")):
        return "any"
    if isinstance(value, list):
        return "list"
    return _KINDS.get(type(value).__name__, "any")


def _classes(folder: Path) -> dict[str, dict[str, str]]:
    """Class -> annotation of each field, those of its bases included."""
    bodies: dict[str, ast.ClassDef] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bodies.setdefault(node.name, node)

    def fields(name: str) -> dict[str, str]:
        node = bodies.get(name)
        if node is None:
            return {}
        own = {item.target.id: ast.unparse(item.annotation) for item in node.body
               if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)}  # fmt: skip
        inherited = [fields(base.id) for base in node.bases if isinstance(base, ast.Name) and base.id != name]
        return {field: text for each in (*inherited, own) for field, text in each.items()}

    return {name: fields(name) for name in bodies}
