"""`meshwright launch tokens`: writes token shards for `launch --data` from text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...errors import InputError
from ..console import FORMAT_VERSION, Terminal
from ..flag import flag

Texts = Annotated[list[Path], typer.Argument(metavar="FILE", help="Text, or JSON lines (.jsonl).", show_default=False)]
TokenizerOption = Annotated[Path, flag("--tokenizer", metavar="DIR", text="Folder with tokenizer.json.")]
Directory = Annotated[Path, flag("-d", "--directory", metavar="DIR", text="Write the shards here.")]
PlanArgument = Annotated[
    Path | None, flag("--plan", metavar="FILE", text="Check that the tokens fit the model of this plan.")
]
Field = Annotated[str, flag("--field", metavar="NAME", text="Text of a JSON line [text].")]
EndToken = Annotated[int | None, flag("--end-token", metavar="ID", text="Token after each document [eos_token].")]
ShardTokens = Annotated[str, flag("--shard-tokens", metavar="N", text="Tokens of a shard at most [100M].")]


def command(
    context: typer.Context,
    texts: Texts,
    tokenizer: TokenizerOption,
    directory: Directory,
    plan: PlanArgument = None,
    field: Field = "text",
    end_token: EndToken = None,
    shard_tokens: ShardTokens = "100M",
) -> None:
    """Write token shards for `launch --data` from text, by a Hugging Face tokenizer.

    \b
    Examples:
      meshwright launch tokens wiki.jsonl --tokenizer Llama-3.1-8B/ -d tokens/
      meshwright launch tokens a.txt b.txt --tokenizer hf/ -d ab/ --plan plan.json
    """
    from ...cost_models import units
    from ...runtime.tokenizing import Tokenizer, write_shards

    terminal: Terminal = context.obj
    number = int(units.parse(shard_tokens, "count"))
    if not 1 <= number <= 1 << 31:
        raise InputError(f"--shard-tokens {shard_tokens}: must be 1 to 2,147,483,648", hint="`--shard-tokens 100M`")
    by = Tokenizer(tokenizer)
    if plan is not None:
        from ...planner.document.reading import load_plan
        from ...planner.document.specs import model_of

        by.check_fits(model_of(load_plan(str(plan)).resolved, plan.name).vocab, "the plan's model")
    end_token = by.end_token() if end_token is None else end_token
    with terminal.progress("tokenizing", bar=False):
        done = write_shards(by, texts, directory, end_token=end_token, field=field, shard_tokens=number,
                            on_file=terminal.verbose)  # fmt: skip
    if terminal.settings.json:
        terminal.write_json({
            "format_version": FORMAT_VERSION, "kind": "tokens", "folder": str(directory), "end_token": end_token,
            "num_documents": done.num_documents, "num_tokens": done.num_tokens, "dtype": done.dtype,
            "files": list(done.files),
        })  # fmt: skip
        return
    terminal.show([f"{directory}: {done.num_tokens:,} tokens of {done.num_documents:,} documents, {len(done.files)} x "
                   f"npy ({done.dtype})"])  # fmt: skip
    terminal.talk(f"Train on them: --data {directory} --end-token {end_token}")
    terminal.talk(f"Give each document a degree of its own: plan with --lengths {directory} --max-len N")
