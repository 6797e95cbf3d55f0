# dp16-mbs4-z3-rfull: qwen3-30b-a3b on 2 x 8 h100-sxm-80gb, 9.43 s per step predicted
# Plan db163cd3f404, layout 1. Written by meshwright 0.1.0; options checked against accelerate 1.15.0 (pypi).
"""A minimal training of a model of transformers; `sh launch.sh --help` lists the arguments."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

SEQUENCE_LENGTH = 4096
PARAMETERS = 30_532_122_624  # of the model that was planned


class Tokens(torch.utils.data.Dataset):
    """Rows of SEQUENCE_LENGTH tokens of a file: .npy, or .bin of uint16 (of uint32 for vocabularies above 65,536).

    Without a file the rows count up from different numbers: a model learns that within a few steps.
    """

    def __init__(self, path, vocabulary):
        self.vocabulary = vocabulary
        self.tokens = None
        if path is not None:
            binary = np.uint16 if vocabulary <= 65_536 else np.uint32
            self.tokens = np.load(path, mmap_mode="r") if path.endswith(".npy") else np.memmap(path, binary, "r")

    def __len__(self):
        return 1_000_000 if self.tokens is None else len(self.tokens) // SEQUENCE_LENGTH

    def __getitem__(self, row):
        if self.tokens is None:
            numbers = (row + np.arange(SEQUENCE_LENGTH)) % min(self.vocabulary, 100)
        else:
            numbers = self.tokens[row * SEQUENCE_LENGTH : (row + 1) * SEQUENCE_LENGTH]
        ids = torch.from_numpy(np.asarray(numbers, dtype=np.int64))
        return {"input_ids": ids, "labels": ids}


def load_model(path, from_scratch):
    """The model of a folder or a hub name, its weights drawn or read. Weights are fp32, which the optimizer keeps."""
    if from_scratch:
        torch.manual_seed(0)  # the same weights on every rank
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    number = sum(getattr(weight, "ds_numel", weight.numel()) for weight in model.parameters())
    if number != PARAMETERS:
        print(f"{path} has {number:,} parameters, the planned model {PARAMETERS:,}", file=sys.stderr)
    return model


@dataclass
class Script:
    """Arguments in addition to TrainingArguments."""

    model: str = field(metadata={"help": "Folder with config.json, or name on the hub."})
    tokens: str | None = field(default=None, metadata={"help": "File of tokens; without it rows that count up."})
    from_scratch: bool = field(default=False, metadata={"help": "Draw the weights instead of reading them."})


def main():
    parser = HfArgumentParser((Script, TrainingArguments))
    planned = json.loads((Path(__file__).resolve().parent / "training_arguments.json").read_text())
    parser.set_defaults(max_steps=10, logging_steps=1, save_strategy="no", report_to="none", **planned)
    script, arguments = parser.parse_args_into_dataclasses()
    model = load_model(script.model, script.from_scratch)
    rows = Tokens(script.tokens, model.config.get_text_config().vocab_size)
    Trainer(model=model, args=arguments, train_dataset=rows).train()


if __name__ == "__main__":
    main()
