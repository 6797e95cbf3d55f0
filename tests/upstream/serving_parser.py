"""Reads many command lines with the parser of an engine, on a machine without a GPU. Run it by the Python that has it:

    python serving_parser.py vllm < cases.jsonl > verdicts.jsonl

A case is a list of words without those that start the server and, for vLLM, the model. Its verdict is null or what the
parser says. vLLM 0.32: vllm.entrypoints.launchers.cli_args.make_arg_parser. SGLang 0.5.23: ServerArgs.add_cli_args.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import sys
from pathlib import Path

# `vllm` beside this script is not the engine.
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]


def parser_of(engine: str) -> argparse.ArgumentParser:
    """The engine's own parser."""
    if engine == "vllm":
        flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
        made: argparse.ArgumentParser = importlib.import_module(
            "vllm.entrypoints.launchers.cli_args").make_arg_parser(flexible)  # fmt: skip
        return made
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return parser


def verdict(parser: argparse.ArgumentParser, words: list[str]) -> str | None:
    """None, or why the parser stops."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1] if said.getvalue().strip() else "it stops"
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        parser = parser_of(sys.argv[1])
        verdicts = [verdict(parser, json.loads(line)) for line in sys.stdin]
    for each in verdicts:
        print(json.dumps(each))


if __name__ == "__main__":
    main()
