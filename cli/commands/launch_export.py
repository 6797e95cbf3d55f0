"""`meshwright launch export`: writes a checkpoint as a folder that transformers reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import FieldProblem, InputError
from ..console import FORMAT_VERSION, Terminal
from ..flag import flag
from ..pretrained import model_differences

if TYPE_CHECKING:
    from ...cost_models.specs.model import ModelSpec
    from ...runtime.checkpoint.manifest import Manifest

Checkpoint = Annotated[
    Path, typer.Argument(metavar="CKPT", help="The `--checkpoint` of a run, or one checkpoint in it.",
                         show_default=False)
]  # fmt: skip
ToHf = Annotated[Path, flag("--to-hf", metavar="DIR", text="Write safetensors and their config here.")]
Config = Annotated[
    Path | None, flag("--config", metavar="FILE|DIR", text="config.json of the model [that of --init-from].")
]
Dtype = Annotated[str | None, flag("--dtype", metavar="bf16|fp32", text="Precision of the weights [that of the run].")]
Merge = Annotated[bool, flag("--merge", text="Write weights with the adapters merged into them.")]
FileSize = Annotated[str, flag("--file-size", metavar="SIZE", text="Largest file of weights [5 GB].")]


def command(
    context: typer.Context,
    checkpoint: Checkpoint,
    to_hf: ToHf,
    config: Config = None,
    dtype: Dtype = None,
    merge: Merge = False,
    file_size: FileSize = "5 GB",
) -> None:
    """Write a checkpoint as a Hugging Face folder, or its adapters as one of PEFT.

    \b
    Examples:
      meshwright launch export ckpt/ --to-hf out/
      meshwright launch export ckpt/step-00000100 --to-hf out/ --config hf/
      meshwright launch export adapters/ --to-hf out/ --merge
    """
    from ...cost_models.specs.variants import text_of
    from ...profiles.model.load import load_model
    from ...runtime.checkpoint.manifest import EXPORTED, newest
    from ...runtime.launcher import check_torch

    terminal: Terminal = context.obj
    check_torch("`launch export`")
    if dtype not in (None, *EXPORTED):
        raise InputError(f"--dtype `{dtype}` is none of {', '.join(EXPORTED)}", hint="`--dtype bf16`")
    largest = _num_bytes(file_size)
    folder, manifest = newest(checkpoint)
    path = _config(manifest, config, folder)
    model = load_model(path)[0]
    model = model if manifest.run["model"].get("tower") else text_of(model)
    _check_model(model, manifest, path, folder)
    from ...runtime.checkpoint.export import export  # loads torch, which takes seconds

    with terminal.progress("exporting", bar=False):
        done = export(folder, to_hf, model, path, dtype=dtype, file_bytes=largest, merge=merge,
                      on_file=terminal.verbose)  # fmt: skip
    if terminal.settings.json:
        terminal.write_json({
            "format_version": FORMAT_VERSION, "kind": "export", "folder": str(done.folder), "step": done.step,
            "dtype": done.dtype, "num_tensors": done.num_tensors, "num_bytes": done.num_bytes,
            "files": list(done.files), "predictions": done.predictions,
        })  # fmt: skip
        return
    terminal.show([f"{done.folder}: step {done.step}, {done.num_tensors} tensors in {done.dtype}, "
                   f"{done.num_bytes / 2**20:,.1f} MiB, {len(done.files)} x safetensors"])  # fmt: skip
    if done.predictions:
        terminal.show([f"prediction modules: {done.predictions}, as layers after those of the model; transformers "
                       "ignores them"])  # fmt: skip
    if done.left_out:
        terminal.warn("predictions of more than one token are left out: the runtime has no names of their weights")


def _num_bytes(file_size: str) -> int:
    """The size of a file in bytes. Raises InputError."""
    from ...cost_models import units

    try:
        number = int(units.parse(file_size, "B"))
    except InputError as error:
        raise InputError(f"--file-size {error.message}", hint=error.hint) from None
    if number < 1:
        raise InputError(f"--file-size {file_size}: must be above 0", hint="`--file-size 5GB`")
    return number


def _config(manifest: Manifest, given: Path | None, checkpoint: Path) -> Path:
    """The config.json of the model."""
    if given is None and manifest.init_from is None:
        raise InputError(f"{checkpoint}: the run drew its weights, so no folder has their config.json",
                         hint="`--config FILE`, the config.json that the plan was made for")  # fmt: skip
    path = given or Path(str(manifest.init_from))
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"{path}: no such file", hint="`--config FILE`, the config.json of the model")
    return path


def _check_model(model: ModelSpec, manifest: Manifest, config: Path, checkpoint: Path) -> None:
    """Raises InputError with all differences if the config describes another model than the checkpoint's."""
    problems = [FieldProblem(f"{theirs} in the config, {ours} in {checkpoint.name}", file=str(config), field=name,
                             hint="`--config FILE`, the config.json of the model that was trained")
                for name, theirs, ours in model_differences(model, manifest.run["model"])]  # fmt: skip
    if problems:
        raise InputError.of(problems)
