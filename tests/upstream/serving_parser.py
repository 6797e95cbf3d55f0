"""Reads many command lines with the parser of an engine, on a machine without a GPU. Run it by the Python that has it:

    python serving_parser.py vllm < cases.jsonl > verdicts.jsonl

A case is a list of words without those that start the server and, for vLLM, the model. Its verdict is null or what the
parser says. vLLM 0.32 and 0.33: make_arg_parser of the module that has it. SGLang 0.5.23: ServerArgs.add_cli_args.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import sys
from pathlib import Path

# `vllm` beside this script is not the engine.
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]

_OF_VLLM = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.common.cli_args")  # 0.32, 0.33


def parser_of(engine: str) -> argparse.ArgumentParser:
    """The engine's own parser."""
    if engine == "vllm":
        flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
        module = next(name for name in _OF_VLLM if importlib.util.find_spec(name))
        made: argparse.ArgumentParser = importlib.import_module(module).make_arg_parser(flexible)
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
