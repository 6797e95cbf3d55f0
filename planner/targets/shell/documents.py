"""Here-documents that a script passes on as scripts: `sbatch <<EOF`, `ssh host bash <<EOF`, and manifests of Kubernetes
whose containers run a shell (`cat <<EOF | kubectl apply -f -`)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ....errors import InputError
from ....profiles.io.reader import read_document
from .expansion import Expander
from .nearby import SHELL_FLAGS, SHELLS, started_script
from .syntax import Node, Simple

_RUN_SCRIPTS = (*SHELLS, "sbatch", "qsub", "ssh")


def passed_scripts(parts: Sequence[Node], expander: Expander) -> list[tuple[str, int]]:
    """(text, line) of the scripts in the here-document that commands of a pipe, or one command, pass on."""
    first, last = parts[0], parts[-1]
    if not isinstance(first, Simple) or first.written is None or first.written[0].raw or not isinstance(last, Simple):
        return []
    _, text, expanded = first.written
    words = [word.raw for word in last.words]
    name = posixpath.basename(words[0]) if words else ""
    if (first is not last and first.words[:1] and first.words[0].raw != "cat") or started_script(words) is not None:
        return []
    text = expander.document(text) if expanded else text
    if name == "kubectl":
        return [(script, first.line) for script in _of_containers(text)]
    return [(text, first.line)] if name in _RUN_SCRIPTS else []


def _of_containers(text: str) -> list[str]:
    """The texts that containers of a manifest pass to a shell."""
    parts = re.split(r"(?m)^---.*$", text)
    try:
        return [script for part in parts if part.strip()
                for script in _shell_texts(read_document("manifest.yaml", part).data)]  # fmt: skip
    except InputError:  # broken, or too deep
        return []


def _shell_texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        words = [str(word) for name in ("command", "args") if isinstance(value.get(name), list) for word in value[name]]
        for shell, flag, script in zip(words, words[1:], words[2:], strict=False):
            if posixpath.basename(shell) in SHELLS and flag in SHELL_FLAGS:
                yield script
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _shell_texts(inner)
