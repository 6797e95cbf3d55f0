"""Writes the option list of a framework into planner/targets/upstream/: run it with the Python that has the framework.

    python tools/record_upstream.py megatron --source Megatron-LM --version 0.19.0 --commit 5be96267

Lists come from the framework's built parser or dataclasses, never from a search of its text: many options are made.
Values of free-string options come from the file that consumes them, named in the list. Each framework has a recorder
in tools/option_recorders/.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

_HERE = Path(__file__).resolve().parent
FOLDER = _HERE.parent / "planner" / "targets" / "upstream"
# `lines` is what the recorders share.
TARGETS = sorted(path.stem.replace("_", "-") for path in (_HERE / "option_recorders").glob("[a-z]*.py")
                 if path.stem != "lines")  # fmt: skip


def write(target: str, version: str, commit: str, made_from: str, lines: list[str]) -> Path:
    """Writes one list; a line is `option kind [value|value] [= default] [# file]`."""
    path = FOLDER / f"{target}-{version}.txt"
    head = f"# {target} {version}\n# commit {commit}\n# made by tools/record_upstream.py from {made_from}\n"
    path.write_text(head + "".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--source", type=Path, help="checkout of the framework")
    parser.add_argument("--version", required=True)
    parser.add_argument("--commit", required=True)
    given = parser.parse_args()
    recorder = import_module(f"option_recorders.{given.target.replace('-', '_')}")
    path = write(given.target, given.version, given.commit, recorder.MADE_FROM, recorder.record(given.source))
    print(f"{path.name}: {len(path.read_text(encoding='utf-8').splitlines()) - 3} options")


if __name__ == "__main__":
    main()
