"""The lines of a recipe of Megatron-Bridge that depend on its data: text, images beside text, or latents of videos."""

from __future__ import annotations

from dataclasses import dataclass

from ..options import Settings


@dataclass(frozen=True)
class DataKind:
    """One kind of data. Imports are whole lines, "" where the recipe needs none."""

    fields: Settings  # of mock data, which no plan holds
    example: str  # fields that name other data
    data: str = ""  # import of the class of the data
    config: str = ""  # the same, where the class is one of megatron.bridge.training.config
    sizes: str = ""  # import of the class of a tower's sizes
    step: str = ""  # import of the step of a model, above the configuration
    training_step: str = ""  # import of a step of training, below it
    forward: str = "forward_step"  # the step, as code
    notes: tuple[str, ...] = ()  # sentences for the user


TEXT = DataKind(
    fields={
        "dataset.random_seed": 1234, "dataset.dataloader_type": "single", "dataset.split": "9999,8,2",
        "dataset.reset_position_ids": False, "dataset.reset_attention_mask": False, "dataset.eod_mask_loss": False,
    },
    example="dataset.data_path=... tokenizer.tokenizer_type=HuggingFaceTokenizer tokenizer.tokenizer_model=...",
    config="    GPTDatasetConfig,\n",
    training_step="from megatron.bridge.training.gpt_step import forward_step\n",
)  # fmt: skip
