"""Flux in torchtitan: a FluxTrainer.Config, its images, and the layouts that its trainer runs.

Read in torchtitan 0.3.0, models/flux: parallelize.py (full shards and context parallelism alone), trainer.py (one
micro-batch a step), __init__.py (no pipelining_fn; no embedding of guidance), flux_datasets.py (square images).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import PRECISIONS
from ....cost_models.problem import Problem
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ....errors import FieldProblem
from ...space.rules import Columns, Rule, micro_batches
from ..argv import Arguments
from ..option_lists import OptionList
from ..options import Entry, Facts, Settings
from ..setup import Setup

FAMILY = "flux"
CONTAINER = "FluxTrainer.Config"
_SIDE, _TEXT = "dataloader.img_size", "tokenizer.max_t5_encoding_len"
_TOKENS_OF_TEXT = 512  # `text_tokens` of Flux (profiles/model/families_diffusion.py)
# Options of the TOML of older releases -> those of today.
OLDER = {"training.img_size": _SIDE}
_OTHERS: Settings = {
    "dataloader.dataset": "cc12m-wds", "dataloader.prompt_dropout_prob": 0.447,
    "tokenizer.t5_tokenizer_path": "google/t5-v1_1-xxl",
    "tokenizer.clip_tokenizer_path": "openai/clip-vit-large-patch14",
}  # fmt: skip
# Block -> class of its options.
BLOCKS = {"dataloader": "FluxDataLoader.Config", "tokenizer": "FluxTokenizerContainer.Config"}
EXAMPLE = "--encoder.autoencoder_path ... --training.steps 1000"
NOTE = ("the encoders of text (T5, CLIP) and the autoencoder run in every step of torchtitan: their seconds and bytes "
        "are not in the plan")  # fmt: skip
_MODULE = """\
\"\"\"{header}

Not from the plan, edit or give after `--config plan`: data, encoders and autoencoder, learning rate, steps.
\"\"\"

{imports}

def plan() -> FluxTrainer.Config:
    return FluxTrainer.Config(
        model_spec=model_registry("{flavor}"),
        loss=MSELoss.Config(),
        optimizer=default_adamw(lr=1e-4),
        encoder=FluxEncoderConfig(autoencoder_path="assets/hf/FLUX.1-dev/ae.safetensors"),
{blocks}        activation_checkpoint={recompute},
    )
"""
IMPORTS = """\
from torchtitan.components.loss import MSELoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.flux import model_registry
from torchtitan.models.flux.configs import FluxEncoderConfig
from torchtitan.models.flux.flux_datasets import FluxDataLoader
from torchtitan.models.flux.tokenizer import FluxTokenizerContainer
from torchtitan.models.flux.trainer import FluxTrainer
"""


def builds(settings: Settings) -> bool:
    """Whether these settings name a Flux."""
    return str(settings.get("model_spec", "")).startswith(f"{FAMILY}/")


def _write(setup: Setup) -> Settings:
    diffusion, images = setup.model.diffusion, setup.workload.images
    if diffusion is None or images is None:
        return {}
    return {_SIDE: images.height, _TEXT: diffusion.text_tokens, **_OTHERS}


def _read(settings: Settings, facts: Facts) -> Facts:
    """Images and text. Tokens follow from them: torchtitan counts with `training.seq_len`, and does not cut by it."""
    if not builds(settings):
        return {}
    side = settings.get(_SIDE, 256)
    return {"workload.images": f"1@{side}x{side}", "text_tokens": settings.get(_TEXT, 256), "workload.seq_len": None,
            "notes": [*facts.get("notes", []), NOTE]}  # fmt: skip


def modernise(arguments: Arguments) -> None:
    """Takes the length of the text from the block of encoders of older releases. Another than that of plans is a gap.
    """
    given = arguments.settings
    if not builds(given):
        return
    block = given.get("encoder")
    if isinstance(block, Mapping) and _TEXT not in given:
        given[_TEXT] = block.get("max_t5_encoding_len", 256)
        arguments.lines[_TEXT] = arguments.lines["encoder"]
    if (text := given.get(_TEXT, 256)) != _TOKENS_OF_TEXT:
        arguments.gaps.append(FieldProblem(
            f"{text} tokens of text: plans of Flux have {_TOKENS_OF_TEXT}", _TEXT, arguments.files.get(_TEXT, ""),
            arguments.lines.get(_TEXT, 0)))  # fmt: skip


ENTRY = Entry(("workload.images",), (_SIDE, _TEXT, *_OTHERS), _write, _read)


def cannot(model: ModelSpec, workload: Workload, options: OptionList, registered: bool) -> list[str]:
    """One sentence per part of a diffusion transformer and its training that FluxTrainer lacks."""
    if model.family != FAMILY:
        return ["model.diffusion: the only diffusion transformer of torchtitan is Flux"]
    if _SIDE not in options.options:
        return [f"model.diffusion: Flux is written for torchtitan 0.3.0, not for {options.version}"]
    images = workload.images
    reasons = {
        "model.diffusion: its Flux has no embedding of guidance and the sizes of flux.1-schnell": not registered,
        "workload.images: its data are cut to squares": images is not None and images.height != images.width,
        f"workload.optimizer: it has no {workload.optimizer}": workload.optimizer != "adamw",
    }
    return [text for text, applies in reasons.items() if applies]


def _denoises(problem: Problem) -> bool:
    return problem.model.diffusion is not None


def _only_data(columns: Columns, problem: Problem) -> Mask:
    split = (columns["tp"] > 1) | (columns["pp"] > 1)
    return np.asarray(~split | (not _denoises(problem)))


def _whole_shards(columns: Columns, problem: Problem) -> Mask:
    # `fully_shard` of each block gets no reshard_after_forward, which is then True.
    return np.asarray((columns["zero"] == 3) | (not _denoises(problem)))


def _one_micro_batch(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((micro_batches(columns, problem) == 1) | (not _denoises(problem)))


def _texts(columns: Columns, problem: Problem) -> Mask:
    # Tokens of the text and of the image are each parted over cp (trainer.py, cp_shard).
    diffusion = problem.model.diffusion
    text = diffusion.text_tokens if diffusion is not None else 0
    image = problem.workload.seq_len - text
    return np.asarray((text % columns["cp"] == 0) & (image % columns["cp"] == 0) | (diffusion is None))


def _precision(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["precision"] != PRECISIONS.index("fp8")) | (not _denoises(problem)))


def rules(target: str) -> tuple[Rule, ...]:
    """The layouts of FluxTrainer."""
    return (
        Rule(f"{target}: parts of Flux", ("tp", "pp"), _only_data,
             "Flux has data and context parallelism alone: no tp {tp}, no pp {pp}"),
        Rule(f"{target}: shards of Flux", ("zero",), _whole_shards,
             "parallelize_flux shards weights and gathers them again for the backward pass: z3, not z{zero}"),
        Rule(f"{target}: micro-batches of Flux", ("pp", "dp", "micro_batch"), _one_micro_batch,
             "FluxTrainer accumulates no gradients: the step has {m:g} micro-batches of {micro_batch}, not 1"),
        Rule(f"{target}: tokens of Flux", ("cp",), _texts,
             "tokens of text and image are each parted over cp {cp}"),
        Rule(f"{target}: precision of Flux", ("precision",), _precision, "Flux is written in bf16 or fp32"),
    )  # fmt: skip


def module_of(header: tuple[str, ...], flavor: str, imports: str, blocks: str, recompute: str) -> str:
    """torchtitan_plan.py of a plan of Flux."""
    return _MODULE.format(header="\n".join(header), flavor=flavor, imports=imports, blocks=blocks, recompute=recompute)
